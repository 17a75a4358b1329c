"""Where free leaves are, for one owner and one GPU type, so that the best place costs no search.

Nodes are kept by what their free leaves are worth (`Free`), their sort, what else they have left
(`Room`), and how many nodes of their rack are wholly free; racks of equal key in a bit set. A
change touches one node's key and, where the count of free nodes changes, those of its rack.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from operator import gt

from scheduler.domain.core.forest import Rack, Slot
from scheduler.domain.core.shapes import REMEMBERED, Free, Shape

Needs = tuple[int, ...]
"""Leaves that a pod needs, by the sort of node; more than any has: it can't be there."""

Room = tuple[int, ...]
"""What is left of each limited resource of a node (or what a pod takes of it), in shares of one
GPU, rounded down.
"""

Wish = tuple[Needs, tuple[Room, ...], bool]
"""Needs, room needed by the sort of node (empty: none), and whether the pod is opportunistic."""

Rank = tuple[int, int, int, int, tuple[object, ...], int]
"""Lowest common cell, block broken, free leaves, free nodes of the rack, form, sort."""


NEVER_RANK: Rank = (1 << 30, 0, 0, 0, (), 0)
"""Worse than any place."""

WHOLE_BITS = 24
"""A key is a tag's number and, in so many bits, the rack's number of free nodes."""

ROOMS_REMEMBERED = 10_000

ORDERS_KEPT = 64
"""So many different needs have an order of their own in a region; the one that was not asked for
longest goes first.
"""


class Tag:
    """What a node's free leaves are worth, its sort and its room. There is one of each (`Tags`)."""

    __slots__ = ("count", "free", "is_whole", "number", "room", "sort")

    def __init__(self, free: Free, sort: int, room: Room, number: int) -> None:
        self.free = free
        self.sort = sort
        self.room = room
        self.number = number
        self.count = free.count
        self.is_whole = free.is_whole


class Tags:
    """The tags of nodes of one sort, by their free leaves and their room."""

    __slots__ = ("_all", "_known", "_shape", "_sort")

    def __init__(self, shape: Shape, sort: int, every: dict[tuple[Free, int, Room], Tag]) -> None:
        self._shape = shape
        self._sort = sort
        self._all = every
        self._known: dict[Room, dict[int, Tag]] = {}

    def of(self, room: Room) -> dict[int, Tag]:
        """The tags of nodes with so much room that are known, by their free leaves."""
        found = self._known.get(room)
        if found is None:
            if len(self._known) >= ROOMS_REMEMBERED:
                self._known.clear()
            found = self._known[room] = {}
        return found

    def new(self, known: dict[int, Tag], room: Room, mask: int) -> Tag:
        """One more of them."""
        key = (self._shape.free(mask), self._sort, room)
        tag = self._all.get(key)
        if tag is None:
            tag = self._all[key] = Tag(*key, len(self._all))
        if len(known) >= REMEMBERED:
            known.clear()
        known[mask] = tag
        return tag


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
                positions.bit_count() * (tag.count // needs[tag.sort] if needs[tag.sort] else 0)
                for tag, positions in self.slots.items()
            )
            self.caps[needs] = found
        return found

    def free(self) -> int:
        """Free leaves in it."""
        return sum(positions.bit_count() * tag.count for tag, positions in self.slots.items())


class Order:
    """Keys by rank, for one wish. ``queued``: keys that it has; ``read``: up to this tick."""

    __slots__ = ("heap", "queued", "read")

    def __init__(self, keys: Iterable[int]) -> None:
        self.queued = set(keys)
        self.heap: list[tuple[Rank, int]] = []
        self.read = 0


class Region:
    """Free leaves of one owner. ``whole[n]``: racks with n wholly free nodes.

    ``_news``: keys and the tick at which they last came, the newest last.
    """

    def __init__(self, racks: Sequence[Rack], places: Sequence[tuple[int, int]]) -> None:
        self.racks = racks
        self.places = places
        self.views: dict[int, View] = {}
        self.whole: dict[int, int] = {}
        self.tags: dict[int, Tag] = {}
        self._sets: dict[int, int] = {}
        self._keys: dict[int, tuple[Tag, int]] = {}
        self._orders: dict[Wish, Order] = {}
        self._news: dict[int, int] = {}
        self._tick = 0

    def put(self, number: int, tag: Tag) -> None:
        """A node's free leaves are these now."""
        old = self.tags.get(number)
        if old is tag:
            return
        self.tags[number] = tag
        rack, bit = self.places[number]
        view = self.views.get(rack)
        if view is None:
            view = self.views[rack] = View(self.racks[rack])
        elif view.caps:
            view.caps.clear()
        by = tag.is_whole - (old is not None and old.is_whole)
        if by:
            self._count(view, rack, by)
        if old is not None:
            self._take(view, rack, bit, old)
        positions = view.slots.get(tag, 0)
        view.slots[tag] = positions | bit
        if not positions:
            self._add(tag, view.whole, 1 << rack)

    def drop(self, number: int) -> None:
        """The node is not the owner's any more."""
        old = self.tags.pop(number, None)
        if old is None:
            return
        rack, bit = self.places[number]
        view = self.views[rack]
        view.caps.clear()
        if old.is_whole:
            self._count(view, rack, -1)
        self._take(view, rack, bit, old)
        if not view.slots:
            del self.views[rack]

    def best(self, wish: Wish) -> "tuple[Rank, int] | None":
        """The best node for one pod, by its number: of the lowest rank the lowest. It may lack a
        fraction of a share of what is beside GPUs.
        """
        order = self._order(wish)
        heap = order.heap
        equal: list[tuple[Rank, int]] = []
        lowest = -1
        while heap and (not equal or heap[0][0] == equal[0][0]):
            racks = self._sets.get(heap[0][1])
            if not racks:
                order.queued.discard(heappop(heap)[1])
                continue
            rank, key = heap[0]
            number = self._lowest(self.views[(racks & -racks).bit_length() - 1], self._keys[key][0])
            if not wish[1]:  # without rooms each rank has one key
                return rank, number
            equal.append(heappop(heap))
            lowest = number if lowest < 0 else min(lowest, number)
        for entry in equal:
            heappush(heap, entry)
        return (equal[0][0], lowest) if equal else None

    def fullest(self, rooms: Mapping[int, Room]) -> Iterator[int]:
        """Nodes of these sorts with so much room: those with the fewest free leaves first."""
        keys: dict[int, list[int]] = {}
        for key in self._sets:
            tag = self._keys[key][0]
            room = rooms.get(tag.sort)
            if room is not None and not any(map(gt, room, tag.room)):
                keys.setdefault(tag.count, []).append(key)
        for count in sorted(keys):
            yield from merge(*map(self._nodes_of, keys[count]))

    def rank_of(self, number: int, wish: Wish) -> Rank | None:
        """How good a node is for one pod; None where it does not fit."""
        tag = self.tags.get(number)
        if tag is None:
            return None
        return _rank(tag, self.views[self.places[number][0]].whole, wish)

    def ranked(self, wish: Wish) -> Iterator[tuple[Rank, int]]:
        """Every node on which one pod fits, best first."""
        keys: dict[Rank, list[int]] = {}
        for key in self._sets:
            rank = _rank(*self._keys[key], wish)
            if rank is not None:
                keys.setdefault(rank, []).append(key)
        for rank in sorted(keys):
            numbers = (n for key in keys[rank] for n in self._nodes_of(key))
            yield from ((rank, number) for number in (sorted(numbers) if wish[1] else numbers))

    def _nodes_of(self, key: int) -> Iterator[int]:
        racks = self._sets.get(key, 0)
        while racks:
            rack = (racks & -racks).bit_length() - 1
            racks &= racks - 1
            yield from self._numbers(self.views[rack], self._keys[key][0])

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

    def _order(self, wish: Wish) -> "Order":
        """The keys of nodes for such pods, with all that has come since it was last asked for."""
        order = self._orders.pop(wish, None)
        if order is None:
            if len(self._orders) >= ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._orders[wish] = Order(k for k in self._sets if self._keys[k][0].count)
            order.heap = [
                (rank, key)
                for key in order.queued
                if (rank := _rank(*self._keys[key], wish)) is not None
            ]
            heapify(order.heap)
        else:
            self._orders[wish] = order  # the one that was used last comes last
            for key in reversed(self._news):
                if self._news[key] <= order.read:
                    break
                if key not in order.queued:
                    order.queued.add(key)
                    rank = _rank(*self._keys[key], wish)
                    if rank is not None:
                        heappush(order.heap, (rank, key))
        order.read = self._tick
        return order

    def _add(self, tag: Tag, whole: int, bit: int) -> None:
        key = tag.number << WHOLE_BITS | whole
        before = self._sets.get(key, 0)
        self._sets[key] = before | bit
        if not before:
            self._keys[key] = tag, whole
            if tag.count:
                self._tick += 1
                self._news.pop(key, None)
                self._news[key] = self._tick

    def _remove(self, tag: Tag, whole: int, bit: int) -> None:
        key = tag.number << WHOLE_BITS | whole
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
            self._remove(tag, view.whole, 1 << rack)

    def _count(self, view: View, rack: int, by: int) -> None:
        """The rack's number of free nodes changes, and with it the key of each of its nodes."""
        bit, before = 1 << rack, view.whole
        view.whole = after = before + by
        for tag in view.slots:
            self._remove(tag, before, bit)
            self._add(tag, after, bit)
        if before:
            left = self.whole[before] & ~bit
            if left:
                self.whole[before] = left
            else:
                del self.whole[before]
        if after:
            self.whole[after] = self.whole.get(after, 0) | bit


def _rank(tag: Tag, whole: int, wish: Wish) -> Rank | None:
    needs, rooms, is_guest = wish
    free, need = tag.free, needs[tag.sort]
    if not 0 < need <= tag.count:
        return None
    if rooms and any(map(gt, rooms[tag.sort], tag.room)):
        return None
    pick = free.picks[need]
    return pick.level, pick.block, tag.count, -whole if is_guest else whole, free.form, tag.sort
