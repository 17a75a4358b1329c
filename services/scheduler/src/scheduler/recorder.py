"""The record of the core's inputs: written with its decisions, and kept for some days.

Cycles are written in the transaction of their decisions. Cycles without decisions wait a while for
the next one. A snapshot is taken between two cycles and written beside them.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager

import structlog
from muster.db import Connection, is_transient

from scheduler import store
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.interface import Core
from scheduler.domain.formats.snapshot import Taken, taking
from scheduler.domain.formats.writing import to_record
from scheduler.domain.given import Noted, changed_line
from scheduler.domain.moments import DAY_S
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from scheduler.store.record import End, Part, Row

_log = structlog.get_logger()

HOUR_S = 3600.0
MB = 1024 * 1024
PART_CHARACTERS = 512 * 1024
"""The most bytes of a snapshot in one row."""

Connect = Callable[[], AbstractAsyncContextManager[Connection]]


class _Snapshot:
    """The part of a snapshot that is not written yet."""

    def __init__(self, at: float, number: int, memory_at: float, config: ClusterConfig) -> None:
        self.at, self.number, self.memory_at = at, number, memory_at
        self.taken = Taken()
        self._config = config

    def parts(self) -> list[Part]:
        """It takes long for a large cluster."""
        texts = list(_texts(self._lines()))
        last = len(texts) - 1
        return [
            Part(self.at, part, self.number, self.memory_at, part == last, text)
            for part, text in enumerate(texts)
        ]

    def _lines(self) -> Iterator[str]:
        yield changed_line(self._config)
        for event in self.taken.events():
            yield to_record(event)


def _texts(lines: Iterator[str]) -> Iterator[str]:
    """Lines joined, some at a time."""
    some: list[str] = []
    characters = 0
    for line in lines:
        some.append(line)
        characters += len(line)
        if characters >= PART_CHARACTERS:
            yield "\n".join(some)
            some, characters = [], 0
    if some:
        yield "\n".join(some)


class Recorder:
    """A process's record, while it leads. ``deciding``: a transaction that begins with the epoch
    check. ``connect``: a connection without that check.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        metrics: SchedulerMetrics,
        deciding: Connect,
        connect: Connect,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._deciding = deciding
        self._connect = connect
        self._end = End()
        self._memory_at = 0.0
        self._rows: list[Row] = []
        self._noted_at = 0.0
        self._snapshot: _Snapshot | None = None
        self._number_taken = 0
        self._taken_at = 0.0
        self._is_full = False
        self._cleaned_at = -settings.record_clean_s
        self._woken = asyncio.Event()

    # Between cycles, in the decider.

    async def begin(self, end: End, core: Core, at: float) -> None:
        """Memory is new, at ``at`` seconds: unwritten cycles of the previous one are void."""
        self._end, self._memory_at, self._rows, self._snapshot = end, at, [], None
        await self.take(core, at)

    def note(self, cycles: Sequence[Noted]) -> None:
        """Note a cycle's inputs."""
        if cycles and not self._rows:
            self._noted_at = time.monotonic()
        for noted in cycles:
            end = self._end
            size = sum(len(line.encode()) + 1 for line in noted.lines) - 1
            self._end = End(end.number + 1, noted.at, end.bytes_to + size)
            self._rows.append(Row(self._end.number, noted, self._memory_at, self._end.bytes_to))

    @property
    def is_due(self) -> bool:
        """Some cycle has waited long enough for a transaction."""
        return bool(self._rows) and (
            len(self._rows) >= self._settings.record_wait_cycles
            or time.monotonic() - self._noted_at >= self._settings.record_wait_s
        )

    async def write(self, conn: Connection) -> None:
        """Write the noted cycles, in the transaction that begins with the epoch check. If that
        fails, memory is rebuilt.
        """
        if self._rows:
            rows, self._rows = self._rows, []
            await store.record.add(conn, rows)

    @property
    def is_snapshot_due(self) -> bool:
        """The last snapshot is old, or the record after it is long, and there are changes. It is
        not due while cycles wait for a transaction: it would include cycles that may be void.
        """
        if self._snapshot is not None or self._rows or self._end.number == self._number_taken:
            return False
        age_s = time.monotonic() - self._taken_at
        return self._is_full or age_s >= self._settings.record_snapshot_h * HOUR_S

    async def take(self, core: Core, at: float) -> None:
        """Take the core's whole state after the cycle at ``at`` seconds. No other cycle runs before
        this returns; heartbeats arrive and leases are renewed meanwhile.
        """
        config = core.forest.config
        snapshot = _Snapshot(at, self._end.number, self._memory_at, config)
        for _ in taking(core, snapshot.taken):
            await asyncio.sleep(0)
        self._snapshot = snapshot
        self._number_taken, self._taken_at = self._end.number, time.monotonic()
        self._is_full = False
        self._woken.set()

    # Beside cycles.

    async def run(self) -> None:
        """Write snapshots and remove old parts, until cancelled. Raises Deposed."""
        wait_s = self._settings.retry_first_s
        while True:
            try:
                await self.write_snapshot()
                await self.clean()
                wait_s = self._settings.retry_first_s
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("the record waits", error=str(error) or type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, self._settings.retry_longest_s)
                continue
            self._woken.clear()
            if self._snapshot is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.record_clean_s):
                        await self._woken.wait()

    async def write_snapshot(self) -> None:
        """Write the snapshot, in parts. Raises Deposed."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        parts = await asyncio.to_thread(snapshot.parts)
        for part in parts:
            async with self._deciding() as conn:
                if self._snapshot is not snapshot:  # memory was rebuilt
                    return
                await store.record.add_part(conn, part)
        if self._snapshot is snapshot:
            self._snapshot = None
            self._metrics.record_snapshots.inc()

    async def clean(self) -> None:
        """Remove parts that are too old, and the oldest if there is too much. It does not lock the
        leader's row: any process may remove old parts.
        """
        if time.monotonic() - self._cleaned_at < self._settings.record_clean_s:
            return
        self._cleaned_at = time.monotonic()
        async with self._connect() as conn:
            now = await store.record.clock(conn)
            size = await store.record.size(conn)
            is_full = size.size_bytes > self._settings.record_mb * MB
            first = await store.record.keep_from(conn, now - self._settings.record_days * DAY_S)
            if is_full:
                second = await store.record.keep_from(conn, None)
                self._is_full = second is None
                first = max(filter(None, (first, second)), key=lambda one: one.at, default=None)
        has_more = first is not None
        while has_more and first is not None:
            async with self._connect() as conn:
                most = self._settings.record_clean_cycles
                has_more = await store.record.remove_before(conn, first, most)
        if first is not None:
            async with self._connect() as conn:
                size = await store.record.size(conn)
        self._metrics.record_cycles.set(size.cycles)
        self._metrics.record_bytes.set(size.size_bytes)
        self._metrics.record_age.set(0.0 if size.since is None else max(now - size.since, 0.0))
