"""`muster logs`: what a task wrote, also while it goes on writing."""

import http.client
import re
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.client import Answer, Client, CommandError, Exit, refusal
from cli.commands.session import JobName, client, full_name
from cli.jobs import detail_when_back, is_over, log_target, task_attempt

RETRY_S = 1.0
STREAM_TIMEOUT_S = 60.0  # the server sends a comment every 15 s
PREFIX = re.compile(r"\S+ (?:stdout|stderr) (?P<whole>[FP]) ")  # as containers' logs have it


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
    times: Annotated[
        bool, Parameter(help="With both streams: when each line came, and on which.")
    ] = False,
) -> None:
    """What a task wrote; with -f also what it writes from now on, until its end."""
    wanted = _Wanted(full_name(name), role, index, stream, plain=stream == "all" and not times)
    if follow:
        _follow_to_end(client(), wanted)
    else:
        _print_log(client(), wanted)


@dataclass(frozen=True)
class _Wanted:
    """Which log. `plain`: without the time and stream that the agent puts before each line."""

    job: str
    role: str | None
    index: int
    stream: str
    plain: bool

    def target(self, server: Client) -> str:
        return log_target(server, self.job, self.role, self.index, self.stream)

    def write(self, line: str) -> None:
        """Print one line with its end; a piece of a longer line has none."""
        found = PREFIX.match(line) if self.plain else None
        if found is None:
            sys.stdout.write(line)
        else:
            text = line[found.end() :]
            sys.stdout.write(text if found["whole"] == "F" else text.rstrip("\n"))


def _print_log(server: Client, wanted: _Wanted) -> None:
    """Print what there is by now, answer by answer, as the server bounds each."""
    target, query, end, rest = wanted.target(server), "", None, b""
    while True:
        with server.request("GET", target + query) as response:
            if response.status != http.client.OK:
                raise refusal(Answer(response.status, "", response.read()))
            begin = offset = int(response.headers.get("X-Log-Offset", 0))
            if end is None:  # what comes later is not waited for
                end = int(response.headers.get("X-Log-End", 0))
            while line := response.readline():
                offset += len(line)
                rest += line
                if rest.endswith(b"\n"):
                    wanted.write(rest.decode(errors="replace"))
                    rest = b""
        if not begin < offset < end:
            break
        query = f"?offset={offset}"
    wanted.write(rest.decode(errors="replace"))


def _follow_to_end(server: Client, wanted: _Wanted) -> None:
    target, last_id, has_ended = "", "", False
    while not has_ended:
        try:
            now = wanted.target(server)
            if now != target:  # another attempt has a log of its own
                target, last_id = now, ""
            last_id, has_ended = _follow(server, wanted, target, last_id)
        except CommandError as error:
            # A task that has not started yet has no log; REST or its agent may be starting again.
            if error.code not in (Exit.REFUSED, Exit.UNREACHABLE):
                raise
            content = detail_when_back(server, wanted.job)
            task_attempt(content, wanted.role, wanted.index)  # one that there is not is told
            if is_over(content["jobStatus"]["state"]):
                raise
        if not has_ended:
            time.sleep(RETRY_S)


def _follow(server: Client, wanted: _Wanted, target: str, last_id: str) -> tuple[str, bool]:
    """Print one connection's lines; where it ended, and whether the log is complete."""
    headers = {"Accept": "text/event-stream"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    with server.request("GET", f"{target}/events", None, headers, STREAM_TIMEOUT_S) as response:
        if response.status != http.client.OK:
            raise refusal(Answer(response.status, "", response.read()))
        return _print_events(response, wanted, last_id)


def _print_events(
    response: http.client.HTTPResponse, wanted: _Wanted, last_id: str
) -> tuple[str, bool]:
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
            for text in data:
                wanted.write(text + "\n")
            sys.stdout.flush()
            event, data = "message", []
    return last_id, False
