"""A program that simulates a change of virtual clusters and policy on the last days. It takes long,
and must not delay decisions.

`python -m scheduler.what_if` reads a task as JSON from stdin and writes its result as JSON to
stdout. It limits its own memory and time. At the time limit the answer covers fewer days and states
that.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from muster.db import Connection
from muster.errors import Broken

from scheduler import order_policies, store
from scheduler.api.exporting import Connect, Export, Stretch
from scheduler.domain.configured import Setting
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.ordering import OrderPolicy
from scheduler.domain.formats.cluster_change import ClusterChange
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.model import Event
from scheduler.domain.formats.writing import to_line
from scheduler.domain.moments import DAY_S, time_of
from scheduler.domain.simulation.comparison import compare
from scheduler.domain.simulation.comparison_text import (
    comparison_data,
    comparison_text,
    headlines,
    wrapped,
)
from scheduler.domain.simulation.recording import Replay
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.side_by_side import SideBySide
from scheduler.domain.simulation.workload import Workload, enforced

Policies = Mapping[str, OrderPolicy]

MB = 1024 * 1024
NICE = 10
"""Its niceness: decisions have priority."""

OOM_SCORE = "1000"
"""The highest score: the kernel ends this process first."""

REPLAY_SHARE = 0.35
"""The share of the time for one simulation; the other two get the rest."""


@dataclass(frozen=True, slots=True)
class Task:
    """``cluster``: the present one, a whole CLUSTER as text; ``change``: the proposed virtual
    clusters and policy. It covers the record from ``since`` to ``until``, in seconds since 1970,
    within ``seconds`` and ``memoryMB``.
    """

    database_url: str
    statement_timeout_s: float
    cluster: str
    change: Mapping[str, object]
    since: float
    until: float
    seconds: float
    memory_mb: int


class NoRecordError(Exception):
    """The record has nothing of that time."""


def main() -> None:
    """The program."""
    task = Task(**json.loads(sys.stdin.buffer.read()))
    _come_last()
    resource.setrlimit(resource.RLIMIT_AS, (task.memory_mb * MB, task.memory_mb * MB))
    try:
        answer: dict[str, object] = {"report": compared(task)}
    except NoRecordError as error:
        answer = {"none": str(error)}
    except MemoryError:
        answer = {"failed": f"It needs more than the {task.memory_mb} MB that it may have."}
    sys.stdout.write(to_line(answer))


def _come_last() -> None:
    """The deciding process gets the processor first; if memory is short, this process ends."""
    os.nice(NICE)
    with contextlib.suppress(OSError):  # there is no such file but on Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def compared(task: Task) -> dict[str, object]:
    """The change's effects. Raises NoRecordError."""
    began = time.monotonic()
    before = read_cluster(task.cluster.encode()).config
    after = Setting(0, None, task.change).of(before)
    failures: list[str] = []
    policies = order_policies.load(
        order_policies.once(lambda *how: failures.append(_failure(*how)))
    )
    failures.clear()  # a policy that can't be loaded: the leader logs it
    with _reader(task) as reader:
        bounded = _Bounded(began + task.seconds * REPLAY_SHARE, task.until)
        config, events = reader.open()
        replay = Replay(Simulation(config, _ignore, policies))
        recording = replay.run(bounded.events(events))
        bounded = _Bounded(began + task.seconds, recording.ends_at, bounded.is_cut)
        pair = SideBySide(
            _simulation(before, policies),
            _simulation(after, policies),
            ClusterChange(),
            _ignore,
            recording,
        )
        workload = Workload(recording, has_changes=False)
        _, events = reader.open()
        for _ in pair.run(workload.events(bounded.events(events))):
            pass
    comparison = compare(pair)
    since = bounded.begins_at or task.since
    until = bounded.at if bounded.is_cut else task.until  # nothing was recorded after the last one
    return {
        "since": time_of(since),
        "until": time_of(until),
        "days": round((until - since) / DAY_S, 2),
        "isPartial": bounded.is_cut,
        "tookSeconds": round(time.monotonic() - began, 1),
        **comparison_data(comparison),
        "text": [*failures, *headlines(comparison)],
        "table": "\n".join([*wrapped(failures), comparison_text(comparison)]),
    }


def _failure(name: str, how: str) -> str:
    """As a sentence."""
    text = order_policies.failure_text(name, how)
    return f"{text[0].upper()}{text[1:]}."


def _simulation(config: ClusterConfig, policies: Policies) -> Simulation:
    simulation = Simulation(enforced(config), _ignore, policies)
    simulation.core.is_explaining = False
    return simulation


def _ignore(_: object) -> None:
    """Drops warnings about events: no person wrote these events."""


class _Bounded:
    """Events up to a recorded time, within a time limit."""

    def __init__(self, until_clock: float, until: float, is_cut: bool = False) -> None:
        self._until_clock = until_clock
        self._until = until
        self.is_cut = is_cut
        self.begins_at: float | None = None
        self.at = 0.0

    def events(self, events: Iterator[Event]) -> Iterator[Event]:
        """Events of whole moments."""
        for event in events:
            if event.at > self.at:
                if event.at > self._until:
                    return
                if time.monotonic() > self._until_clock and self.begins_at is not None:
                    self.is_cut = True
                    return
            if self.begins_at is None:
                self.begins_at = event.at
            self.at = event.at
            yield event


class _Reader:
    """Reads the record, a page at a time, on demand."""

    def __init__(self, runner: asyncio.Runner, task: Task) -> None:
        self._runner = runner
        self._task = task

    def open(self) -> tuple[ClusterConfig, Iterator[Event]]:
        """The first cluster, and the events. Raises NoRecordError."""
        export = self._runner.run(_export(self._task))
        lines = self._lines(export)
        return read_cluster(next(lines)).config, read_events(lines)

    def _lines(self, export: Export) -> Iterator[bytes]:
        pages = export.lines()
        while True:
            try:
                page = self._runner.run(_next(pages))
            except Broken as error:  # old parts may be removed during the read
                raise NoRecordError(str(error)) from error
            if page is None:
                return
            yield from page.splitlines(keepends=True)


@contextmanager
def _reader(task: Task) -> Iterator[_Reader]:
    with asyncio.Runner() as runner:
        yield _Reader(runner, task)


async def _next(pages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pages, None)


async def _export(task: Task) -> Export:
    connect = _connecting(task)
    async with connect() as conn:
        first = await store.record.snapshot_before(conn, task.since)
    if first is None or first.at > task.until:
        raise NoRecordError("There is no record of that time.")
    return Export(connect, Stretch(task.since, task.until), first)


def _connecting(task: Task) -> Connect:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Connection]:
        conn: Any = await asyncpg.connect(
            task.database_url,
            timeout=task.statement_timeout_s,
            command_timeout=task.statement_timeout_s,
            server_settings={
                "search_path": "scheduler",
                "application_name": "muster-scheduler-what-if",
                "default_transaction_read_only": "on",
                "jit": "off",
            },
        )
        try:
            yield conn
        finally:
            await conn.close()

    return connect


if __name__ == "__main__":
    main()
