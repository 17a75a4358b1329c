"""`muster export`: a stretch of what the scheduler was given, as files for `muster simulate`."""

import gzip
import http.client
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from cyclopts import Parameter

from cli.client import API, Answer, CommandError, Exit, refusal
from cli.commands.session import client, seconds

TIMEOUT_S = 60.0
READ_BYTES = 256 * 1024

Moment = "seconds since 1970, a time like 2026-01-31T13:00:00Z, or an age: 30m, 2h, 1d"


def export(
    cluster: Annotated[Path, Parameter(help="Where the cluster is written.")],
    events: Annotated[
        Path, Parameter(help="Where the events are written; packed if its name ends in .gz.")
    ],
    *,
    since: Annotated[str, Parameter(help=f"From when on: {Moment}.")],
    until: Annotated[str | None, Parameter(help="Until when; by default now.")] = None,
) -> None:
    """What the scheduler was given, from the last snapshot before a time on (for admins)."""
    if cluster.resolve() == events.resolve():
        raise CommandError(Exit.USAGE, "CLUSTER and EVENTS are the same file: name two files.")
    query = {"since": _moment(since)} | ({} if until is None else {"until": _moment(until)})
    target = f"{API}/cluster/export?{urlencode(query)}"
    with client().request("GET", target, timeout_s=TIMEOUT_S) as response:
        if response.status != http.client.OK:
            raise refusal(Answer(response.status, "", response.read()))
        try:
            _write(response, cluster, events)
        except http.client.IncompleteRead as error:
            raise CommandError(
                Exit.FAILED, "The export was cut off, and its files are not whole: try again."
            ) from error


def _write(response: http.client.HTTPResponse, cluster: Path, events: Path) -> None:
    first = response.readline()
    with _local(cluster):
        cluster.write_bytes(first)
    opened = gzip.open if events.name.endswith(".gz") else io.open
    with _local(events):
        output = opened(events, "wb")
    with output:
        while some := response.read(READ_BYTES):
            with _local(events):
                output.write(some)
    if response.length:  # http.client does not raise where fewer bytes than announced came
        raise http.client.IncompleteRead(b"", response.length)


@contextmanager
def _local(path: Path) -> Iterator[None]:
    """A failure with a local file is not the connection's fault."""
    try:
        yield
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{path} can't be written: {error.strerror}.") from error


def _moment(text: str) -> str:
    """As the server takes it."""
    ago_s = seconds(text)
    return text if ago_s is None else f"{max(time.time() - ago_s, 0):.3f}"
