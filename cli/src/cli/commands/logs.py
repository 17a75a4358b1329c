"""`muster logs`: a task's output, also while it still writes."""

import http.client
import re
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.client import Answer, Client, CommandError, Exit, refusal
from cli.commands.session import JobName, client, full_name
from cli.jobs import AWAY_S, TaskLogs, detail, detail_when_back, is_over, log_target, task_logs
from cli.output import print_note

RETRY_FIRST_S, RETRY_S = 0.1, 1.0
STREAM_TIMEOUT_S = 60.0  # the server sends a comment every 15 s
PREFIX = re.compile(rb"\S+ (?:stdout|stderr) (?P<whole>[FP]) ")  # as containers' logs have it


def logs(  # noqa: PLR0913 - these are the command's options
    name: JobName,
    role: Annotated[str | None, Parameter(help="The task role; by default the first.")] = None,
    index: Annotated[int, Parameter(help="The task's index.")] = 0,
    *,
    stream: Annotated[
        Literal["all", "stdout", "stderr"], Parameter(help="Both streams, or one.")
    ] = "all",
    follow: Annotated[
        bool, Parameter(name=("--follow", "-f"), help="Go on, over retries, until the job's end.")
    ] = False,
    attempt: Annotated[
        int | None,
        Parameter(help="Which attempt of the job (the first is 0); by default the latest."),
    ] = None,
    times: Annotated[
        bool, Parameter(help="With both streams: when each line came, and on which.")
    ] = False,
) -> None:
    """What a task wrote; with -f also what it writes from now on, until its job's end."""
    plain = stream == "all" and not times
    wanted = _Wanted(full_name(name), attempt, role, index, stream, plain)
    if follow:
        _follow_to_end(client(), wanted)
    else:
        _print_log(client(), wanted)


@dataclass(frozen=True)
class _Wanted:
    """Which log. `attempt` is the job's, None for the latest; `plain`: without the time and stream
    that the agent puts before each line.
    """

    job: str
    attempt: int | None
    role: str | None
    index: int
    stream: str
    plain: bool

    def write(self, line: bytes) -> None:
        """Print one line with its end, byte for byte; a piece of a longer line has no end."""
        found = PREFIX.match(line) if self.plain else None
        if found is None:
            sys.stdout.buffer.write(line)
        else:
            text = line[found.end() :]
            sys.stdout.buffer.write(text if found["whole"] == b"F" else text.rstrip(b"\n"))


def _print_log(server: Client, wanted: _Wanted) -> None:
    """Print what there is by now, answer by answer, as the server bounds each."""
    content = detail(server, wanted.job, wanted.attempt)
    logs = task_logs(content, wanted.job, wanted.role, wanted.index)
    target, query, end, rest = log_target(server, logs, wanted.stream), "", None, b""
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
                    wanted.write(rest)
                    rest = b""
        if not begin < offset < end:
            break
        query = f"?offset={offset}"
    wanted.write(rest)


def _follow_to_end(server: Client, wanted: _Wanted) -> None:
    now, last_id, has_ended, noted, wait_s = None, "", False, "", RETRY_FIRST_S
    while True:
        content = detail_when_back(server, wanted.job, AWAY_S, wanted.attempt)
        over = is_over(content["jobStatus"]["state"])
        logs = task_logs(content, wanted.job, wanted.role, wanted.index)
        if logs != now:  # another attempt has a log of its own
            _announce(now, logs)
            now, last_id, has_ended, wait_s = logs, "", False, RETRY_FIRST_S
        if not has_ended:
            try:
                last_id, has_ended = _follow(server, logs, wanted, last_id)
            except CommandError as error:
                # A task that has not started yet has no log; REST or its agent may start again.
                if over or error.code not in (Exit.REFUSED, Exit.UNREACHABLE):
                    raise
                if error.code is Exit.REFUSED and str(error) != noted:
                    noted = str(error)
                    _note(noted)
        if has_ended and over:
            return
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, RETRY_S)


def _announce(before: TaskLogs | None, logs: TaskLogs) -> None:
    """Print a note that the following output is another attempt's."""
    if before is None:
        return
    if logs.attempt != before.attempt:
        _note(f"{logs.job}: attempt {logs.attempt} begins.")
    else:
        _note(f"{logs.job}: attempt {logs.task_attempt} of task {logs.role} {logs.index} begins.")


def _note(text: str) -> None:
    sys.stdout.flush()
    print_note(f"note: {text}")


def _follow(server: Client, logs: TaskLogs, wanted: _Wanted, last_id: str) -> tuple[str, bool]:
    """Print one connection's lines; where it ended, and whether the log is complete."""
    headers = {"Accept": "text/event-stream"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    events = f"{log_target(server, logs, wanted.stream)}/events"
    with server.request("GET", events, None, headers, STREAM_TIMEOUT_S) as response:
        if response.status != http.client.OK:
            raise refusal(Answer(response.status, "", response.read()))
        return _print_events(server, response, wanted, last_id)


def _print_events(
    server: Client, response: http.client.HTTPResponse, wanted: _Wanted, last_id: str
) -> tuple[str, bool]:
    """Print one connection's events; the last event's id, and whether the log is complete."""
    event, data = b"message", list[bytes]()
    while line := response.readline():
        server.renew()  # a task may run for longer than a login is valid
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if field == b"id":
            last_id = value.decode("ascii", "replace")
        elif field == b"event":
            event = value
        elif field == b"data":
            data.append(value)
        elif not field and not value and line.strip() == b"":
            if event == b"end":
                return last_id, True
            for text in data:
                wanted.write(text + b"\n")
            sys.stdout.flush()
            event, data = b"message", []
    return last_id, False
