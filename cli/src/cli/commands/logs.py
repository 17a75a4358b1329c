"""`muster logs`: what a task wrote, also while it goes on writing."""

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.commands.session import JobName, client, full_name
from cli.jobs import log_target

RETRY_S = 1.0
STREAM_TIMEOUT_S = 60.0  # the server sends a comment every 15 s


def logs(
    name: JobName,
    role: Annotated[str | None, Parameter(help="The task role; by default the first.")] = None,
    index: Annotated[int, Parameter(help="The task's index.")] = 0,
    *,
    stream: Annotated[
        Literal["all", "stdout", "stderr"], Parameter(help="Both streams, or one.")
    ] = "all",
    follow: Annotated[
        bool, Parameter(name=("--follow", "-f"), help="Go on until the task's end.")
    ] = False,
) -> None:
    """What a task wrote; with -f also what it writes from now on, until its end."""
    server = client()
    job = full_name(name)
    if follow:
        _follow(server, job, role, index, stream)
        return
    target = log_target(server, job, role, index, stream)
    sys.stdout.write(server.call("GET", target).text())
