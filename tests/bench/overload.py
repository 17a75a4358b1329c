"""10,000 gangs wait: gangs of W2 are queued in a full cluster, then one that runs ends after the
other.

Each end is one cycle, in which new gangs are requested for those that were placed in the cycle
before, so that the queue stays as long. A cycle is not left before its end; ``steps`` are the CPU
seconds between the moments in which it could be, and ``parts`` those of what the service makes of
it: it leaves a cycle as soon as that has taken `PART_S`, commits, and goes on with the rest.
"""

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from busy import Busy, timed_gang
from meter import Meter
from scheduler.domain.core.model import Decision, Gang
from w2 import drawn_gang

WAITING = 10_000
QUEUED_PER_CYCLE = 100
PART_S = 0.025
"""`MUSTER_CYCLE_PART_S`."""

FIRST_NUMBER = 10_000_000
"""Gangs of the queue are numbered from here, above all of the stream before."""


@dataclass(slots=True)
class OverloadRun:
    """A cluster that is full already."""

    busy: Busy
    rng: random.Random
    queueing: Meter = field(default_factory=Meter)
    steady: Meter = field(default_factory=Meter)
    number: int = FIRST_NUMBER
    asked: list[Gang] = field(default_factory=list)
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    parts: "array[float]" = field(default_factory=lambda: array("d"))

    def queue_up(self, count: int) -> None:
        """Request so many gangs, not beyond 10,000, for one cycle. Victims of the one before have
        left.
        """
        self.busy.let_leave(self.queueing)
        self._draw(min(count, WAITING - len(self.busy.waiting)))
        self._cycle(None, self.queueing)

    @property
    def is_queueing(self) -> bool:
        return len(self.busy.waiting) < WAITING and not self.steady.walls

    def release(self, count: int) -> None:
        """So many ends, one after the other."""
        for _ in range(count):
            self._release_one()

    def _release_one(self) -> None:
        """A gang by lot ends; the cycle after it, with new gangs for those placed before."""
        busy = self.busy
        busy.let_leave(self.steady)
        if busy.accounting.order:
            self._cycle(
                busy.accounting.order[self.rng.randrange(len(busy.accounting.order))], self.steady
            )
            self._draw(WAITING - len(busy.waiting))
        busy.sample()

    def _draw(self, count: int) -> None:
        for _ in range(count):
            gang, _, _ = drawn_gang(self.rng, self.number)
            self.number += 1
            self.asked.append(gang)

    def _cycle(self, released: str | None, meter: Meter) -> None:
        busy, core, now = self.busy, self.busy.core, float(self.number)
        asked, self.asked = self.asked, []
        for gang in asked:
            busy.expect(gang)
        if released is not None:
            busy.accounting.forget(released)

        stops: list[float] = []

        def go_on(_decided: int) -> bool:
            stops.append(time.process_time())
            return False

        def decide() -> list[Decision]:
            if released is not None:
                core.release(released)
            for gang in asked:
                core.request(gang)
            decided = core.cycle(now, go_on)
            stops.append(time.process_time())
            return decided

        busy.heed(timed_gang(meter, decide), meter)
        if meter is self.steady:
            self.steps.extend(after - before for before, after in pairwise(stops))
            self.parts.extend(parts_of(stops))


def parts_of(stops: Sequence[float]) -> Iterator[float]:
    """What the service would make of a cycle that could be left at these moments: its parts."""
    began = stops[0]
    for stop in stops:
        if stop - began >= PART_S:
            yield stop - began
            began = stop
    yield stops[-1] - began


def start(busy: Busy, seed: int) -> OverloadRun:
    return OverloadRun(busy, random.Random(seed))
