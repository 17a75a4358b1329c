"""The parts of a command line that many commands share: output format, server, names of jobs."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.client import Client, CommandError, Exit
from cli.home import find_home, read_credentials
from cli.output import Format

Output = Annotated[Format, Parameter(name=("--output", "-o"), help="table or json.")]
FILE_MAX_BYTES = 1 << 20

JobName = Annotated[str, Parameter(help="A job, as user~name; one's own also by its name alone.")]


def client() -> Client:
    """The server and the login that the commands use."""
    credentials = read_credentials(find_home())
    return Client(credentials.url, credentials.token)


def full_name(job: str) -> str:
    """The job's full name: a bare one is of the user whose token is sent."""
    if "~" in job:
        return job
    credentials = read_credentials(find_home())
    user = credentials.user
    if credentials.token and not user:
        user = str(client().get("/tokens/check").json()["username"])
    if not user:
        raise CommandError(Exit.USAGE, f"Name the job as user~{job}, or log in by `muster login`.")
    return f"{user}~{job}"


def read_given(file: Path, kind: str) -> str:
    """The text of a file that is to be sent; - is the standard input."""
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            content = source.read(FILE_MAX_BYTES + 1)
        if len(content) > FILE_MAX_BYTES:
            raise CommandError(Exit.USAGE, f"{file} is larger than 1 MiB: too large for {kind}.")
        return content.decode()
    except OSError as error:
        raise CommandError(Exit.USAGE, f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(Exit.USAGE, f"{file} is not UTF-8: {error.reason}") from error
