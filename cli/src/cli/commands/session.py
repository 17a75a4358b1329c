"""The parts of a command line that many commands share: output format, server, names of jobs."""

import getpass
import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.client import Client, CommandError, Exit
from cli.home import find_home, read_credentials
from cli.logins import Renewal
from cli.output import Format

Output = Annotated[Format, Parameter(name=("--output", "-o"), help="table or json.")]
FILE_MAX_BYTES = 1 << 20
LENGTH = re.compile(r"([0-9]{1,9})(s|m|h|d)")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

JobName = Annotated[str, Parameter(help="A job, as user~name; one's own also by its name alone.")]


def client() -> Client:
    """The server and the login that the commands use."""
    home = find_home()
    credentials = read_credentials(home)
    return Client(credentials.url, credentials.token, Renewal(home, credentials))


def ask_password(what: str) -> str:
    """A password: asked for on a terminal, else the next line of the standard input."""
    if sys.stdin.isatty():
        try:
            return getpass.getpass(f"{what}: ")
        except EOFError:
            raise CommandError(Exit.USAGE, "No password was given.") from None
    return sys.stdin.readline().rstrip("\n")


def ask_new_password() -> str:
    """A new password; on a terminal twice."""
    password = ask_password("New password")
    if sys.stdin.isatty() and ask_password("The same again") != password:
        raise CommandError(Exit.USAGE, "The passwords differ; nothing is changed.")
    if not password:
        raise CommandError(Exit.USAGE, "No password was given on the standard input.")
    return password


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


def seconds(text: str) -> int | None:
    """A length of time like 30m, 2h or 1d; None where it is none."""
    match = LENGTH.fullmatch(text)
    return None if match is None else int(match[1]) * UNITS_S[match[2]]


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
