"""Whether pods of several kinds fit together at all: an exact search, for as long as it may take.

Greedy packing finds nearly everything at once. Where it does not, though each kind alone and the
sum would fit, this looks at all ways to spread the kinds over the nodes.
"""

from collections.abc import Sequence

from scheduler.domain.model import Demand
from scheduler.domain.nodes import room


def arrange(
    rooms: Sequence[Demand], kinds: Sequence[tuple[Demand, int]], steps: int
) -> tuple[list[list[int]] | None, int]:
    """How many pods of each kind go to each node, and how many steps are left.

    None where there is no way, or none was found in ``steps``: then none are left.
    """
    search = _Search(list(rooms), kinds, steps)
    found = search.fill(0, 0, kinds[0][1])
    return search.counts if found else None, search.steps


class _Search:
    """Kind by kind, node by node, as many as fit first; depth is kinds times nodes."""

    def __init__(
        self, rooms: list[Demand], kinds: Sequence[tuple[Demand, int]], steps: int
    ) -> None:
        self.steps = steps
        self.counts = [[0] * len(rooms) for _ in kinds]
        self._rooms = rooms
        self._kinds = kinds

    def fill(self, kind: int, node: int, left: int) -> bool:
        """Place ``left`` more pods of a kind from this node on, and all later kinds."""
        if not left:
            kind, node = kind + 1, 0
            if kind == len(self._kinds):
                return True
            left = self._kinds[kind][1]
        demand, _ = self._kinds[kind]
        if sum(room(each, demand, left) for each in self._rooms[node:]) < left:
            return False
        before = self._rooms[node]
        for count in range(room(before, demand, left), -1, -1):
            if self.steps <= 0:
                break
            self.steps -= 1
            self._rooms[node] = before + demand.times(-count)
            self.counts[kind][node] = count
            if self.fill(kind, node + 1, left - count):
                return True
        self._rooms[node], self.counts[kind][node] = before, 0
        return False
