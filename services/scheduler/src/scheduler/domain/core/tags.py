"""What nodes are sorted by in the index, and the nodes of each as bit sets of their numbers."""

from collections.abc import Sequence

from scheduler.domain.core.shapes import REMEMBERED, Free, Shape


class Tag:
    """What a node's free leaves are worth, and its sort. There is one of each (`Tags`).

    ``is_shared``: guaranteed gangs are there too; only told of where guests look.
    """

    __slots__ = ("count", "free", "is_shared", "is_whole", "number", "sort")

    def __init__(self, free: Free, sort: int, is_shared: bool, number: int) -> None:
        self.free = free
        self.sort = sort
        self.is_shared = is_shared
        self.number = number
        self.count = free.count
        self.is_whole = free.is_whole


TagKey = tuple[Free, int, bool]


class Tags:
    """The tags of nodes of one sort, by their free leaves. ``shared``: of those with guaranteed
    gangs, where guests look; else they are in ``plain``.
    """

    __slots__ = ("_all", "_shape", "_sort", "plain", "shared")

    def __init__(self, shape: Shape, sort: int, every: dict[TagKey, Tag]) -> None:
        self._shape = shape
        self._sort = sort
        self._all = every
        self.plain: dict[int, Tag] = {}
        self.shared: dict[int, Tag] = {}

    def new(self, known: dict[int, Tag], mask: int) -> Tag:
        """One more of them."""
        key = (self._shape.free(mask), self._sort, known is self.shared)
        tag = self._all.get(key)
        if tag is None:
            tag = self._all[key] = Tag(*key, len(self._all))
        if len(known) >= REMEMBERED:
            known.clear()
        known[mask] = tag
        return tag


class Nodes:
    """A region's nodes as bit sets of their numbers: by tag, and ``whole[n]`` those of racks with n
    wholly free nodes.
    """

    __slots__ = ("_bits", "of", "whole")

    def __init__(self, bits: Sequence[int]) -> None:
        self._bits = bits
        self.of: dict[Tag, int] = {}
        self.whole: dict[int, int] = {}

    def copy(self) -> "Nodes":
        """Another with the same nodes."""
        other = Nodes(self._bits)
        other.of, other.whole = self.of.copy(), self.whole.copy()
        return other

    def move(self, number: int, old: Tag | None, new: Tag | None) -> None:
        """A node has another tag."""
        bit = 1 << number
        if old is not None:
            self.of[old] ^= bit
        if new is not None:
            self.of[new] = self.of.get(new, 0) | bit

    def count(self, rack: int, old: int | None, new: int | None) -> None:
        """A rack has another number of wholly free nodes."""
        bits = self._bits[rack]
        if old is not None:
            self.whole[old] ^= bits
        if new is not None:
            self.whole[new] = self.whole.get(new, 0) | bits
