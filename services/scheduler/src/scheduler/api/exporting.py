"""A period of the record as the simulator's files: the first line is the CLUSTER, the others are
the EVENTS.

It begins with the last snapshot before the period. Where memory was rebuilt within it, the events
state that and what the core knew then. The record is read page by page.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime

from muster.db import Connection
from muster.errors import Broken, Rejected

from scheduler import store
from scheduler.domain.formats.fields import MAX_NUMBER
from scheduler.domain.formats.writing import to_line, whole
from scheduler.store.record import Cycle, Whole

PAGE_BYTES = 1024 * 1024
LINE = "\n"
CHANGED = '{"event":"cluster-changed","cluster":'
"""How a snapshot begins; after it comes the CLUSTER, and a bracket."""

Connect = Callable[[], AbstractAsyncContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """From when until when, in seconds since 1970."""

    since: float
    until: float


def stretch_of(since: str, until: str | None, now: float) -> Stretch:
    """What is asked for. Raises Rejected."""
    found = Stretch(_time("since", since), now if until is None else _time("until", until))
    if found.until < found.since:
        raise Rejected("InvalidParametersError", "until is before since.")
    return found


def _time(name: str, text: str) -> float:
    """Seconds since 1970, or a time with its zone."""
    try:
        return _seconds(float(text))
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is not None:
            return _seconds(when.timestamp())
    except (ValueError, OverflowError):
        pass
    message = f"{name} must be seconds since 1970, or a time like 2026-01-31T13:00:00Z."
    raise Rejected("InvalidParametersError", message)


def _seconds(value: float) -> float:
    if not 0 <= value <= MAX_NUMBER:  # NaN is in no range
        raise ValueError
    return value


class Export:
    """One export. Each page has a connection of its own, for its time."""

    def __init__(self, connect: Connect, stretch: Stretch, first: Whole) -> None:
        self._connect = connect
        self._stretch = stretch
        self._first = first

    async def lines(self) -> AsyncIterator[bytes]:
        """Some lines at a time. Raises Broken where they are removed meanwhile."""
        opening, _ = await self._part(self._first.at, 0)
        yield f"{opening.partition(LINE)[0].removeprefix(CHANGED)[:-1]}\n".encode()
        memory_at, is_begun = self._first.memory_at, False
        missing: Cycle | None = None
        async for cycle in self._cycles(self._first.number):
            if cycle.memory_at != memory_at:
                if not await self._can_begin(cycle, missing):
                    missing = cycle
                    continue
                memory_at = cycle.memory_at
                yield _restarted(cycle.at, is_gap=missing is not None)
                async for text in self._snapshot(memory_at, cycle.at):
                    yield text
            elif not is_begun:
                async for text in self._snapshot(self._first.at, cycle.at, is_opening=True):
                    yield text
            is_begun, missing = True, None
            yield _timed(cycle.lines, cycle.at)
        if not is_begun:
            async for text in self._snapshot(self._first.at, self._first.at, is_opening=True):
                yield text
        if missing is not None:
            yield _restarted(missing.at, is_gap=True)

    async def _cycles(self, after: int) -> AsyncIterator[Cycle]:
        while True:
            async with self._connect() as conn:
                found = await store.record.page(conn, after, PAGE_BYTES)
            for cycle in found:
                if cycle.number != after + 1:
                    raise Broken("The record's part that was being exported has been removed.")
                if cycle.at > self._stretch.until:
                    return
                after = cycle.number
                yield cycle
            if not found:
                return

    async def _snapshot(
        self, at: float, given_at: float, *, is_opening: bool = False
    ) -> AsyncIterator[bytes]:
        """Its events, at another time. ``is_opening``: without its CLUSTER, which was sent
        before.
        """
        part, is_last = 0, False
        while not is_last:
            text, is_last = await self._part(at, part)
            if is_opening and part == 0:
                text = text.partition(LINE)[2]
            if text:
                yield _timed(text, given_at)
            part += 1

    async def _part(self, at: float, part: int) -> tuple[str, bool]:
        async with self._connect() as conn:
            found = await store.record.part_of(conn, at, part)
        if found is None:
            raise Broken("The record's part that was being exported has been removed.")
        return found

    async def _can_begin(self, cycle: Cycle, missing: Cycle | None) -> bool:
        """Whether the first state of this cycle's memory is there. If one of its cycles is missing
        it comes too late.
        """
        if missing is not None and missing.memory_at == cycle.memory_at:
            return False
        async with self._connect() as conn:
            return await store.record.has_whole(conn, cycle.memory_at)


def _restarted(at: float, *, is_gap: bool) -> bytes:
    how = {"gap": True} if is_gap else {}
    return _timed(to_line({"event": "scheduler-restarted", **how}), at)


def _timed(lines: str, at: float) -> bytes:
    """Lines with their time."""
    return "".join(_with_time(lines, f'{{"at":{to_line(whole(at))},')).encode()


def _with_time(lines: str, begin: str) -> Iterator[str]:
    for line in lines.split("\n"):
        yield f"{begin}{line[1:]}\n"
