"""Where free leaves are, for one owner and one GPU type, so that the best place costs no search.

Nodes are kept by what their free leaves are worth (`Free`), their sort, and how many nodes of their
rack are wholly free; racks of equal key in a bit set. A change touches one node's key and, where
the count of free nodes changes, those of its rack.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from scheduler.domain.core.forest import Rack, Slot
from scheduler.domain.core.shapes import Free

Needs = tuple[int, ...]
"""Leaves that a pod needs, by the sort of node; more than any has: it can't be there."""

Tag = tuple[Free, int]
"""What a node's free leaves are worth, and the node's sort."""

Wish = tuple[Needs, bool]
"""Needs, and whether the pod is opportunistic."""

Rank = tuple[int, int, int, int, tuple[object, ...], int]
"""Lowest common cell, free nodes of the rack, block broken, free leaves, form, sort."""


NEVER_RANK: Rank = (1 << 30, 0, 0, 0, (), 0)
"""Worse than any place."""

ORDERS_KEPT = 64
"""So many different needs have an order of their own in a region; the oldest goes first."""


class View:
    """A rack as one owner sees it. ``slots``: tag → its nodes' positions as bits."""

    __slots__ = ("caps", "rack", "slots", "whole")

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.slots: dict[Tag, int] = {}
        self.whole = 0
        self.caps: dict[Needs, int] = {}

    def cap(self, needs: Needs) -> int:
        """How many such pods fit into it."""
        found = self.caps.get(needs)
        if found is None:
            found = sum(
                positions.bit_count() * (free.count // needs[sort] if needs[sort] else 0)
                for (free, sort), positions in self.slots.items()
            )
            self.caps[needs] = found
        return found

    def free(self) -> int:
        """Free leaves in it."""
        return sum(
            positions.bit_count() * free.count for (free, _), positions in self.slots.items()
        )


class Region:
    """Free leaves of one owner. ``whole[n]``: racks with n wholly free nodes."""

    def __init__(self, racks: Sequence[Rack], places: Sequence[tuple[int, int]]) -> None:
        self.racks = racks
        self.places = places
        self.views: dict[int, View] = {}
        self.whole: dict[int, int] = {}
        self.tags: dict[int, Tag] = {}
        self._sets: dict[tuple[Tag, int], int] = {}
        self._heaps: dict[Wish, list[tuple[Rank, tuple[Tag, int]]]] = {}
        self._queued: dict[Wish, set[tuple[Tag, int]]] = {}

    def put(self, number: int, tag: Tag) -> None:
        """A node's free leaves are these now."""
        old = self.tags.get(number)
        if old == tag:
            return
        self.tags[number] = tag
        rack, bit = self.places[number]
        view = self.views.get(rack)
        if view is None:
            view = self.views[rack] = View(self.racks[rack])
        elif view.caps:
            view.caps.clear()
        by = tag[0].is_whole - (old is not None and old[0].is_whole)
        if by:
            self._count(view, rack, by)
        if old is not None:
            self._take(view, rack, bit, old)
        positions = view.slots.get(tag, 0)
        view.slots[tag] = positions | bit
        if not positions:
            self._add((tag, view.whole), 1 << rack)

    def drop(self, number: int) -> None:
        """The node is not the owner's any more."""
        old = self.tags.pop(number, None)
        if old is None:
            return
        rack, bit = self.places[number]
        view = self.views[rack]
        view.caps.clear()
        if old[0].is_whole:
            self._count(view, rack, -1)
        self._take(view, rack, bit, old)
        if not view.slots:
            del self.views[rack]

    def best(self, needs: Needs, *, is_guest: bool = False) -> "tuple[Rank, int] | None":
        """The best node for one pod, by its number: of the lowest rank the lowest."""
        wish = (needs, is_guest)
        heap = self._heaps.get(wish)
        if heap is None:
            heap = self._open(wish)
        while heap:
            rank, key = heap[0]
            racks = self._sets.get(key)
            if racks:
                rack = (racks & -racks).bit_length() - 1
                return rank, self._lowest(self.views[rack], key[0])
            heappop(heap)
            self._queued[wish].discard(key)
        return None

    def rank_of(self, number: int, needs: Needs) -> Rank | None:
        """How good a node is for one pod; None where it does not fit."""
        tag = self.tags.get(number)
        if tag is None:
            return None
        return _rank((tag, self.views[self.places[number][0]].whole), (needs, False))

    def ranked(self, needs: Needs, *, is_guest: bool = False) -> Iterator[tuple[Rank, int]]:
        """Every node on which one pod fits, best first."""
        wish = (needs, is_guest)
        ranks = sorted((rank, key) for key in self._sets if (rank := _rank(key, wish)) is not None)
        for rank, key in ranks:
            racks = self._sets.get(key, 0)
            while racks:
                rack = (racks & -racks).bit_length() - 1
                racks &= racks - 1
                view = self.views[rack]
                yield from ((rank, number) for number in self._numbers(view, key[0]))

    def slots_of(self, view: View) -> Iterator[tuple[Tag, Slot]]:
        """The nodes of a rack that are the owner's."""
        for tag, positions in view.slots.items():
            while positions:
                lowest = positions & -positions
                positions ^= lowest
                yield tag, view.rack.slots[lowest.bit_length() - 1]

    def _lowest(self, view: View, tag: Tag) -> int:
        positions = view.slots[tag]
        return view.rack.slots[(positions & -positions).bit_length() - 1].number

    def _numbers(self, view: View, tag: Tag) -> Iterator[int]:
        positions = view.slots.get(tag, 0)
        while positions:
            lowest = positions & -positions
            positions ^= lowest
            yield view.rack.slots[lowest.bit_length() - 1].number

    def _open(self, wish: Wish) -> list[tuple[Rank, tuple[Tag, int]]]:
        """Begin to keep an order for such pods."""
        if len(self._heaps) >= ORDERS_KEPT:
            oldest = next(iter(self._heaps))
            del self._heaps[oldest], self._queued[oldest]
        heap = [(rank, key) for key in self._sets if (rank := _rank(key, wish)) is not None]
        heapify(heap)
        self._heaps[wish] = heap
        self._queued[wish] = {key for _, key in heap}
        return heap

    def _add(self, key: tuple[Tag, int], bit: int) -> None:
        before = self._sets.get(key, 0)
        self._sets[key] = before | bit
        if not before:
            for wish, queued in self._queued.items():
                if key not in queued and (rank := _rank(key, wish)) is not None:
                    heappush(self._heaps[wish], (rank, key))
                    queued.add(key)

    def _remove(self, key: tuple[Tag, int], bit: int) -> None:
        after = self._sets[key] & ~bit
        if after:
            self._sets[key] = after
        else:
            del self._sets[key]

    def _take(self, view: View, rack: int, bit: int, tag: Tag) -> None:
        positions = view.slots[tag] & ~bit
        if positions:
            view.slots[tag] = positions
        else:
            del view.slots[tag]
            self._remove((tag, view.whole), 1 << rack)

    def _count(self, view: View, rack: int, by: int) -> None:
        """The rack's number of free nodes changes, and with it the key of each of its nodes."""
        bit, before = 1 << rack, view.whole
        view.whole = after = before + by
        for tag in view.slots:
            self._remove((tag, before), bit)
            self._add((tag, after), bit)
        if before:
            left = self.whole[before] & ~bit
            if left:
                self.whole[before] = left
            else:
                del self.whole[before]
        if after:
            self.whole[after] = self.whole.get(after, 0) | bit


def _rank(key: tuple[Tag, int], wish: Wish) -> Rank | None:
    (free, sort), whole = key
    need = wish[0][sort]
    if not 0 < need <= free.count:
        return None
    pick = free.picks[need]
    return pick.level, -whole if wish[1] else whole, pick.block, free.count, free.form, sort
