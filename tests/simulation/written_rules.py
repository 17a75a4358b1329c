"""Where guaranteed pods go, by a program that is written from docs/scheduling.md, "Which place":
without an index, cell by cell. Quota is nodes, and nothing but GPUs is limited.
"""

from collections.abc import Sequence
from copy import deepcopy

RACKS, NODES = 4, 3
WIDTHS = (8, 4, 2, 1)
"""GPUs of a node and of the cells inside, down to one GPU."""

Free = frozenset[int]
Places = list[tuple[int, list[int]]]
"""Node and GPUs of each pod."""


class Cell:
    """A cell in a node by its first GPU and its depth, with what is free of it."""

    def __init__(self, free: Free, first: int = 0, depth: int = 0) -> None:
        self.first, self.depth, self.width = first, depth, WIDTHS[depth]
        self.free = sorted(free & set(range(first, first + self.width)))
        self.is_leaf = depth == len(WIDTHS) - 1
        step = self.width // 2
        starts = () if self.is_leaf else (first, first + step)
        self.children = [Cell(free, start, depth + 1) for start in starts]

    def has(self, count: int) -> bool:
        """It has so many free GPUs."""
        return len(self.free) >= count


def block(node: Cell, gpu: int) -> int:
    """GPUs of the largest wholly free cell around a free one."""
    cell = node
    while not cell.has(cell.width):
        cell = next(child for child in cell.children if gpu in child.free)
    return cell.width


def picked(node: Cell, cell: Cell, count: int) -> tuple[int, int, list[int]]:
    """Height of the lowest common cell, block broken, and the GPUs."""
    found = [(child, picked(node, child, count)) for child in cell.children if child.has(count)]
    if found:
        return min(found, key=lambda each: (*each[1][:2], len(each[0].free), each[0].first))[1]
    gpus = sorted(gathered(cell, count))
    return len(WIDTHS) - 1 - cell.depth, max(block(node, gpu) for gpu in gpus), gpus


def gathered(cell: Cell, count: int) -> list[int]:
    """All of the child with the most, and so on; the rest of the one that has it most tightly."""
    if cell.is_leaf:
        return cell.free
    gpus: list[int] = []
    left = list(cell.children)
    while len(gpus) < count:
        rest = count - len(gpus)
        enough = [child for child in left if child.has(rest)]
        if enough:
            some = min(enough, key=lambda child: (len(child.free), child.first))
        else:
            some = min(left, key=lambda child: (-len(child.free), child.first))
        left.remove(some)
        gpus += gathered(some, min(rest, len(some.free)))
    return gpus


def spread(cell: Cell) -> tuple[object, ...]:
    """How free GPUs lie: fewer first, then cell by cell, those with the fewest first."""
    if not cell.free or cell.has(cell.width):
        return (len(cell.free),)
    return (len(cell.free), *sorted(spread(child) for child in cell.children))


class Written:
    """What is free of each node, and the nodes that are bound; of so many at the most."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.free = [set(range(WIDTHS[0])) for _ in range(RACKS * NODES)]
        self.bound: set[int] = set()

    def may_have(self, number: int) -> bool:
        """The node is bound, or may be."""
        return number in self.bound or len(self.bound) < self.quota

    def take(self, number: int, gpus: Sequence[int], *, is_guest: bool = False) -> None:
        """These are used from now on."""
        self.free[number] -= set(gpus)
        if not is_guest:
            self.bound.add(number)

    def place(self, pods: int, count: int) -> Places:
        """Where equal pods go; nowhere, if not all have a place."""
        return self._one(count) if pods == 1 else self._many(pods, count)

    def _one(self, count: int) -> Places:
        found = []
        for number, free in enumerate(self.free):
            if len(free) < count or not self.may_have(number):
                continue
            node, is_fresh = Cell(frozenset(free)), number not in self.bound
            height, broken, gpus = picked(node, node, count)
            whole = sum(
                len(self.free[other]) == WIDTHS[0] and (other not in self.bound) == is_fresh
                for other in nodes_in(number // NODES)
            )
            order = height, is_fresh, broken, len(free), whole, spread(node), number
            found.append((order, (number, gpus)))
        return [min(found)[1]] if found else []

    def _many(self, pods: int, count: int) -> Places:
        fresh = [self._holds(rack, count, is_fresh=True) for rack in range(RACKS)]
        bound = [self._holds(rack, count, is_fresh=False) for rack in range(RACKS)]
        both = [fresh[rack] + bound[rack] for rack in range(RACKS)]
        tried = sorted(
            (not bound[rack], both[rack], rack) for rack in range(RACKS) if both[rack] >= pods
        )
        racks = [rack for _, _, rack in tried]
        if count == WIDTHS[0]:
            for held in (fresh, bound):
                alone = [(held[rack], rack) for rack in range(RACKS) if held[rack] >= pods]
                racks[:0] = [rack for _, rack in sorted(alone)[:1]]
        for rack in racks:
            places = deepcopy(self)._in_rack(rack, pods, count)
            if len(places) == pods:
                return places
        return deepcopy(self)._on_several(pods, count, both, bound)

    def _holds(self, rack: int, count: int, *, is_fresh: bool) -> int:
        """How many pods a rack should hold."""
        if is_fresh and len(self.bound) == self.quota:
            return 0
        return sum(
            len(self.free[number]) // count
            for number in nodes_in(rack)
            if (number not in self.bound) == is_fresh
        )

    def _on_several(
        self, pods: int, count: int, both: Sequence[int], bound: Sequence[int]
    ) -> Places:
        places: Places = []
        left = {rack for rack in range(RACKS) if both[rack]}
        while left and len(places) < pods:
            rest = pods - len(places)
            enough = [(not bound[rack], both[rack], rack) for rack in left if both[rack] >= rest]
            most = [(-both[rack], not bound[rack], rack) for rack in left]
            rack = min(enough or most)[2]
            left.remove(rack)
            places += self._in_rack(rack, rest, count)
        return places if len(places) == pods else []

    def _in_rack(self, rack: int, pods: int, count: int) -> Places:
        """As many of the pods as go there."""
        places: Places = []
        left = {number: len(self.free[number]) // count for number in nodes_in(rack)}
        left = {number: held for number, held in left.items() if held}
        while left and len(places) < pods:
            rest = pods - len(places)
            is_fresh = {number: number not in self.bound for number in left}
            enough = [
                (len(self.free[number]), is_fresh[number], number)
                for number, held in left.items()
                if held >= rest
            ]
            most = [(-held, is_fresh[number], number) for number, held in left.items()]
            number = min(enough or most)[2]
            held = left.pop(number)
            for _ in range(min(held, rest) if self.may_have(number) else 0):
                node = Cell(frozenset(self.free[number]))
                gpus = picked(node, node, count)[2]
                self.take(number, gpus)
                places.append((number, gpus))
        return places


def nodes_in(rack: int) -> range:
    """The numbers of its nodes."""
    return range(rack * NODES, (rack + 1) * NODES)
