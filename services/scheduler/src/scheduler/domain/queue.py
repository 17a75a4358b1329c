"""The gangs that wait, in order, kept apart by shape so that a cycle tries each shape once.

Within a cycle room only shrinks: when one gang of a shape does not fit, no later one of it does.
Between cycles a shape is tried again only after something became free (the cluster's generation).
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heapreplace

from muster.contracts.model import Reason

from scheduler.domain.model import Shape

Order = tuple[int, datetime, str]
"""Highest priority first (negated), then oldest, then lowest id."""


@dataclass(slots=True)
class Line:
    """The waiting gangs of one shape. ``failed_at``: the generation at which it did not fit, with
    ``reason``; -1 before it was tried. ``judged_at``: the version of the nodes' sizes for which it
    is known that it could fit.
    """

    waiting: list[Order] = field(default_factory=list)
    failed_at: int = -1
    judged_at: int = -1
    reason: Reason | None = None


@dataclass(slots=True)
class Queue:
    """Every waiting gang. ``unexplained``: gangs that were not told (anew) why they wait."""

    lines: dict[Shape, Line] = field(default_factory=dict)
    unexplained: set[str] = field(default_factory=set)
    said: deque[tuple[float, str]] = field(default_factory=deque)
    size: int = 0

    def add(self, shape: Shape, order: Order) -> None:
        """A gang waits from now on."""
        insort(self.lines.setdefault(shape, Line()).waiting, order)
        self.size += 1

    def remove(self, shape: Shape, order: Order) -> None:
        """The gang does not wait any more."""
        line = self.lines[shape]
        index = bisect_left(line.waiting, order)
        assert line.waiting[index] == order
        del line.waiting[index]
        self.size -= 1
        self.unexplained.discard(order[2])
        if not line.waiting:
            del self.lines[shape]

    def in_order(self) -> list[Order]:
        """Everything that waits, first come first. Costs what the queue is long."""
        return sorted(order for line in self.lines.values() for order in line.waiting)


def candidates(queue: Queue, generation: int) -> Iterator[tuple[Shape, str]]:
    """The gangs to try now, in order. A gang that was not placed (it is still in the queue when the
    next is asked for) takes its shape out.
    """
    heads = [
        (line.waiting[0], 0, shape)
        for shape, line in queue.lines.items()
        if line.failed_at != generation
    ]
    heapify(heads)
    while heads:
        order, _, shape = heads[0]
        yield shape, order[2]
        line = queue.lines.get(shape)
        if line is None or line.waiting[0] == order:
            heappop(heads)
        else:
            heapreplace(heads, (line.waiting[0], 0, shape))
