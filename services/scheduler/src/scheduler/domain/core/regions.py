"""Where free leaves are, for one owner and one GPU type, so that the best place costs no search.

Nodes are kept by what their free leaves are worth (`Free`), their sort and what else they have
left (`Room`): for each such tag the racks with such nodes are a bit set, and so are racks with so
many wholly free nodes. A change touches the tags of one node.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from operator import gt

from scheduler.domain.core.forest import Rack, Slot
from scheduler.domain.core.shapes import REMEMBERED, Free, Shape

Needs = tuple[int, ...]
"""Leaves that a pod needs, by the sort of node; more than any has: it can't be there."""

Room = tuple[int, ...]
"""What is left of each limited resource of a node (or what a pod takes of it), coarsely
(`Sort.room`).
"""

Wish = tuple[Needs, tuple[Room, ...], bool]
"""Needs, room needed by the sort of node (empty: none), and whether the pod is opportunistic."""

Rank = tuple[int, bool, int, int, int, tuple[object, ...], int]
"""Lowest common cell, whether a guest would be among guaranteed gangs, block broken, free leaves,
free nodes of the rack, form, sort.
"""


Front = tuple[int, bool, int, int]
"""The first of a rank, which a tag says."""

NEVER_RANK: Rank = (1 << 30, False, 0, 0, 0, (), 0)
"""Worse than any place."""

ROOMS_REMEMBERED = 10_000

ORDERS_KEPT = 64
"""So many different needs have an order of their own in a region; the one that was not asked for
longest goes first.
"""


class Tag:
    """What a node's free leaves are worth, its sort and its room. There is one of each (`Tags`).

    ``is_shared``: guaranteed gangs are there too; only told of where guests look.
    """

    __slots__ = ("count", "free", "is_shared", "is_whole", "number", "room", "sort")

    def __init__(self, free: Free, sort: int, room: Room, is_shared: bool, number: int) -> None:
        self.free = free
        self.sort = sort
        self.room = room
        self.is_shared = is_shared
        self.number = number
        self.count = free.count
        self.is_whole = free.is_whole


TagKey = tuple[Free, int, Room, bool]


class Tags:
    """The tags of nodes of one sort, by their free leaves and their room. ``plain``: of nodes on
    which nothing but GPUs is limited.
    """

    __slots__ = ("_all", "_known", "_shape", "_sort", "plain")

    def __init__(self, shape: Shape, sort: int, every: dict[TagKey, Tag]) -> None:
        self._shape = shape
        self._sort = sort
        self._all = every
        self._known: dict[tuple[Room, bool], dict[int, Tag]] = {}
        self.plain: dict[int, Tag] = {}

    def of(self, room: Room, is_shared: bool) -> dict[int, Tag]:
        """The tags of such nodes that are known, by their free leaves."""
        key = (room, is_shared)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= ROOMS_REMEMBERED:
                self._known.clear()
            found = self._known[key] = {}
        return found

    def new(self, known: dict[int, Tag], room: Room, is_shared: bool, mask: int) -> Tag:
        """One more of them."""
        key = (self._shape.free(mask), self._sort, room, is_shared)
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
    """Tags by rank, for one wish. ``queued``: tags that it has; ``read``: up to this tick."""

    __slots__ = ("heap", "queued", "read")

    def __init__(self, tags: Iterable[Tag]) -> None:
        self.queued = set(tags)
        self.heap: list[tuple[Front, int, Tag]] = []
        self.read = 0


class Region:
    """Free leaves of one owner. ``whole[n]``: racks with n wholly free nodes, as bits; of no n
    without any, in order in ``_wholes``.

    ``_racks``: tag → racks with such nodes. ``_news``: tags and the tick at which they last came,
    the newest last.
    """

    def __init__(self, racks: Sequence[Rack], places: Sequence[tuple[int, int]]) -> None:
        self.racks = racks
        self.places = places
        self.views: dict[int, View] = {}
        self.whole: dict[int, int] = {}
        self._wholes: list[int] = []
        self.tags: dict[int, Tag] = {}
        self._racks: dict[Tag, int] = {}
        self._orders: dict[Wish, Order] = {}
        self._news: dict[Tag, int] = {}
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
            self._set_whole(0, self.whole.get(0, 0) | 1 << rack)
        elif view.caps:
            view.caps.clear()
        by = int(tag.is_whole)
        if old is not None:
            by -= old.is_whole
            self._take(view, rack, bit, old)
        positions = view.slots.get(tag)
        if positions:
            view.slots[tag] = positions | bit
        else:
            view.slots[tag] = bit
            before = self._racks.get(tag)
            self._racks[tag] = 1 << rack if before is None else before | 1 << rack
            if not before and tag.count:
                self._tick += 1
                self._news.pop(tag, None)
                self._news[tag] = self._tick
        if by:
            self._count(view, rack, by)

    def drop(self, number: int) -> None:
        """The node is not the owner's any more."""
        old = self.tags.pop(number, None)
        if old is None:
            return
        rack, bit = self.places[number]
        view = self.views[rack]
        view.caps.clear()
        self._take(view, rack, bit, old)
        if old.is_whole:
            self._count(view, rack, -1)
        if not view.slots:
            self._set_whole(0, self.whole[0] ^ 1 << rack)
            del self.views[rack]

    def best(self, wish: Wish) -> "tuple[Rank, int] | None":
        """The best node for one pod, by its number: of the lowest rank the lowest. It may lack a
        fraction of a share of what is beside GPUs.
        """
        order = self._order(wish)
        heap, racks = order.heap, self._racks
        while heap and not racks[heap[0][2]]:
            order.queued.discard(heappop(heap)[2])
        if not heap:
            return None
        front, _, tag = heap[0]
        tags, below = [tag], [1, 2]  # equal entries of a heap hang together at its top
        while below:
            index = below.pop()
            if index < len(heap) and heap[index][0] == front:
                tags.append(heap[index][2])
                below += (2 * index + 1, 2 * index + 2)
        if len(tags) > 1:
            return next(self._in_front(front, tags, wish))
        here, by_whole = racks[tag], self.whole
        for whole in reversed(self._wholes) if wish[2] else self._wholes:
            if some := here & by_whole[whole]:
                view = self.views[(some & -some).bit_length() - 1]
                position = view.slots[tag]
                number = view.rack.slots[(position & -position).bit_length() - 1].number
                rank = (*front, -whole if wish[2] else whole, tag.free.form, tag.sort)
                return rank, number
        return None

    def fullest(self, rooms: Mapping[int, Room]) -> Iterator[int]:
        """Nodes of these sorts with so much room: those with the fewest free leaves first."""
        tags: dict[int, list[Tag]] = {}
        for tag, racks in self._racks.items():
            room = rooms.get(tag.sort) if racks else None
            if room is not None and not any(map(gt, room, tag.room)):
                tags.setdefault(tag.count, []).append(tag)
        for count in sorted(tags):
            yield from merge(*(self._nodes(tag, self._racks[tag]) for tag in tags[count]))

    def roomiest(self, wish: Wish) -> Iterator[tuple[int, int]]:
        """How many of the pods a node's leaves do for, and the node: the most first."""
        tags: dict[int, list[Tag]] = {}
        for tag, racks in self._racks.items():
            if racks and _front(tag, wish) is not None:
                tags.setdefault(tag.count // wish[0][tag.sort], []).append(tag)
        for fits in sorted(tags, reverse=True):
            for number in merge(*(self._nodes(tag, self._racks[tag]) for tag in tags[fits])):
                yield fits, number

    def rank_of(self, number: int, wish: Wish) -> Rank | None:
        """How good a node is for one pod; None where it does not fit."""
        tag = self.tags.get(number)
        front = None if tag is None else _front(tag, wish)
        if tag is None or front is None:
            return None
        whole = self.views[self.places[number][0]].whole
        return *front, -whole if wish[2] else whole, tag.free.form, tag.sort

    def ranked(self, wish: Wish) -> Iterator[tuple[Rank, int]]:
        """Every node on which one pod fits, best first."""
        fronts: dict[Front, list[Tag]] = {}
        for tag, racks in self._racks.items():
            front = _front(tag, wish) if racks else None
            if front is not None:
                fronts.setdefault(front, []).append(tag)
        for front in sorted(fronts):
            yield from self._in_front(front, fronts[front], wish)

    def slots_of(self, view: View) -> Iterator[tuple[Tag, Slot]]:
        """The nodes of a rack that are the owner's."""
        for tag, positions in view.slots.items():
            while positions:
                lowest = positions & -positions
                positions ^= lowest
                yield tag, view.rack.slots[lowest.bit_length() - 1]

    def _in_front(
        self, front: Front, tags: Sequence[Tag], wish: Wish
    ) -> Iterator[tuple[Rank, int]]:
        """Nodes of these tags, which share the first of their rank: best first, then by number."""
        sign = -1 if wish[2] else 1
        for whole in self._wholes[:: -1 if wish[2] else 1]:
            racks = self.whole.get(whole, 0)
            found = [(tag, some) for tag in tags if (some := self._racks[tag] & racks)]
            if len(found) == 1:
                rank = (*front, sign * whole, found[0][0].free.form, found[0][0].sort)
                for number in self._nodes(*found[0]):
                    yield rank, number
                continue
            alike: dict[tuple[tuple[object, ...], int], list[tuple[Tag, int]]] = {}
            for tag, some in found:
                alike.setdefault((tag.free.form, tag.sort), []).append((tag, some))
            for form, sort in sorted(alike):
                rank = (*front, sign * whole, form, sort)
                numbers = merge(*(self._nodes(*each) for each in alike[form, sort]))
                for number in numbers:
                    yield rank, number

    def _nodes(self, tag: Tag, racks: int) -> Iterator[int]:
        """Nodes with a tag in these racks, by number."""
        while racks:
            lowest = racks & -racks
            racks ^= lowest
            view = self.views[lowest.bit_length() - 1]
            positions = view.slots.get(tag, 0)
            while positions:
                lowest = positions & -positions
                positions ^= lowest
                yield view.rack.slots[lowest.bit_length() - 1].number

    def _order(self, wish: Wish) -> Order:
        """The tags of nodes for such pods, with all that has come since it was last asked for."""
        order = self._orders.pop(wish, None)
        if order is None:
            if len(self._orders) >= ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._orders[wish] = Order(t for t, racks in self._racks.items() if racks)
            order.heap = [
                (front, tag.number, tag)
                for tag in order.queued
                if (front := _front(tag, wish)) is not None
            ]
            heapify(order.heap)
        else:
            self._orders[wish] = order  # the one that was used last comes last
            for tag in reversed(self._news):
                if self._news[tag] <= order.read:
                    break
                if tag not in order.queued:
                    order.queued.add(tag)
                    front = _front(tag, wish)
                    if front is not None:
                        heappush(order.heap, (front, tag.number, tag))
        order.read = self._tick
        return order

    def _take(self, view: View, rack: int, bit: int, tag: Tag) -> None:
        positions = view.slots[tag] ^ bit
        if positions:
            view.slots[tag] = positions
        else:
            del view.slots[tag]
            self._racks[tag] ^= 1 << rack

    def _count(self, view: View, rack: int, by: int) -> None:
        """The rack's number of wholly free nodes changes."""
        bit = 1 << rack
        self._set_whole(view.whole, self.whole[view.whole] ^ bit)
        view.whole += by
        self._set_whole(view.whole, self.whole.get(view.whole, 0) | bit)

    def _set_whole(self, whole: int, racks: int) -> None:
        """These racks have so many wholly free nodes."""
        if not racks:
            del self.whole[whole]
            self._wholes.remove(whole)
            return
        if whole not in self.whole:
            insort(self._wholes, whole)
        self.whole[whole] = racks


def _front(tag: Tag, wish: Wish) -> Front | None:
    needs, rooms, _ = wish
    need = needs[tag.sort]
    if not 0 < need <= tag.count:
        return None
    if rooms and any(map(gt, rooms[tag.sort], tag.room)):
        return None
    pick = tag.free.picks[need]
    return pick.level, tag.is_shared, pick.block, tag.count
