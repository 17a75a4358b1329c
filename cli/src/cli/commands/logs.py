"""`muster logs`: what a task wrote, also while it goes on writing."""

import http.client
import sys
import time
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.client import Answer, Client, CommandError, Exit, refusal
from cli.commands.session import JobName, client, full_name
from cli.jobs import detail, is_over, log_target

RETRY_S = 1.0
STREAM_TIMEOUT_S = 60.0  # the server sends a comment every 15 s
PART_BYTES = 1 << 16


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
    if not follow:
        target = log_target(server, job, role, index, stream)
        with server.request("GET", target) as response:
            while part := response.read(PART_BYTES):
                sys.stdout.write(part.decode(errors="replace"))
        return
    last_id = ""
    while True:
        try:
            target = log_target(server, job, role, index, stream)
            last_id, has_ended = _follow(server, target, last_id)
        except CommandError as error:
            # A task that has not started yet has no log; REST or its agent may be starting again.
            passes = error.code in (Exit.REFUSED, Exit.UNREACHABLE)
            if not passes or is_over(detail(server, job)["jobStatus"]["state"]):
                raise
            has_ended = False
        if has_ended:
            return
        time.sleep(RETRY_S)


def _follow(server: Client, target: str, last_id: str) -> tuple[str, bool]:
    """Print one connection's lines; where it ended, and whether the log is complete."""
    headers = {"Accept": "text/event-stream"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    with server.request("GET", f"{target}/events", None, headers, STREAM_TIMEOUT_S) as response:
        if response.status != http.client.OK:
            raise refusal(Answer(response.status, "", response.read()))
        return _print_events(response, last_id)


def _print_events(response: http.client.HTTPResponse, last_id: str) -> tuple[str, bool]:
    """Print one connection's events; the last event's id, and whether the log is complete."""
    event, data = "message", []
    while line := response.readline():
        field, _, value = line.decode(errors="replace").rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            last_id = value
        elif field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif not field and not value and line.strip() == b"":
            if event == "end":
                return last_id, True
            if data:
                sys.stdout.write("\n".join(data) + "\n")
                sys.stdout.flush()
            event, data = "message", []
    return last_id, False
