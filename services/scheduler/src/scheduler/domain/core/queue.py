"""The gangs that wait, in order, those that want the same in one line.

Within a cycle room only shrinks: when the first of a line can't be placed, no later one can.
Between cycles a line is tried again only after something changed that could help it (its stamp).
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from scheduler.domain.core.holdings import Live, Order
from scheduler.domain.core.model import Kind, Reason

Shape = tuple[tuple[Kind, int], ...]
"""Pods that want the same, counted."""

Key = tuple[str, int, Shape, str, frozenset[str] | None, str]
"""Owner, priority, shape, what is near, allowed nodes, and the gang itself where it grows."""

Stamp = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Line:
    """Waiting gangs of one key. ``failed``: the stamp under which its head could not be placed,
    with ``reason``, found in the state ``explained``. ``untold``: gangs that were not told the
    reason's code.
    """

    key: Key
    waiting: list[Order] = field(default_factory=list)
    failed: Stamp | None = None
    reason: Reason | None = None
    untold: set[str] = field(default_factory=set)
    explained: Stamp | None = None


@dataclass(slots=True, eq=False)
class Queue:
    """Every waiting gang."""

    lines: dict[Key, Line] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    added: list[Line] = field(default_factory=list)

    def add(self, live: Live, key: Key) -> None:
        """A gang waits from now on."""
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(key)
        insort(line.waiting, live.order)
        self.added.append(line)
        line.untold.add(live.id)
        self.keys[live.id] = key

    def remove(self, live: Live) -> None:
        """The gang does not wait any more."""
        key = self.keys.pop(live.id, None)
        if key is None:
            return
        line = self.lines[key]
        del line.waiting[bisect_left(line.waiting, live.order)]
        line.untold.discard(live.id)
        if not line.waiting:
            del self.lines[key]

    def line_of(self, gang: str) -> Line | None:
        """Where a gang waits."""
        key = self.keys.get(gang)
        return None if key is None else self.lines[key]

    def candidates(self, stamp: Callable[[Key], Stamp]) -> Iterator[tuple[Line, str]]:
        """The gangs to try now, in order. A gang that still waits when the next is asked for takes
        its line out; one that is added meanwhile brings its line in again.
        """
        self.added.clear()
        heads = [
            (line.waiting[0], number, line)
            for number, line in enumerate(self.lines.values())
            if line.failed is None or line.failed != stamp(line.key)
        ]
        heapify(heads)
        number = len(self.lines)
        while heads:
            order, _, line = heappop(heads)
            if line.waiting and line.waiting[0] == order:
                yield line, order[2]
            if line.waiting and line.waiting[0] != order:
                number += 1
                heappush(heads, (line.waiting[0], number, line))
            for each in self.added:
                is_new = each.failed is None or each.failed != stamp(each.key)
                if is_new and each.waiting and all(each is not other for _, _, other in heads):
                    number += 1
                    heappush(heads, (each.waiting[0], number, each))
            self.added.clear()
