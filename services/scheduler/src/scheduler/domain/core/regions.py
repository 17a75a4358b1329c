"""Where free leaves are, for one owner and one GPU type, so that the best place costs no search.

Nodes are kept by what their free leaves are worth (`Free`) and their sort: for each such tag the
racks with such nodes are a bit set, and so are racks with so many wholly free nodes. Where more
than GPUs is limited, so are the nodes themselves: what they have left beside GPUs is a bit set too
(`amounts`). A change touches the tags of one node.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import reduce
from heapq import merge
from operator import or_

from scheduler.domain.core.forest import Rack, Slot
from scheduler.domain.core.ranks import Form, Front, Needs, Order, Rank, Wish, front_of
from scheduler.domain.core.tags import Nodes, Tag

ORDERS_KEPT = 64
"""So many different needs have an order of their own in a region; the one that was not asked for
longest goes first.
"""


class View:
    """A rack as one owner sees it. ``bit``: the rack among all of them. ``slots``: tag → its nodes'
    positions as bits. ``caps``: how many pods fit; ``quiet_caps``: where nothing is charged.
    """

    __slots__ = ("bit", "caps", "quiet_caps", "rack", "slots", "whole")

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.bit = 1 << rack.number
        self.slots: dict[Tag, int] = {}
        self.whole = 0
        self.caps: dict[Needs, int] = {}
        self.quiet_caps: dict[Needs, int] = {}

    def cap(self, needs: Needs) -> int:
        """How many such pods fit into it."""
        found = self.caps.get(needs)
        if found is None:
            found = self.caps[needs] = _fitting(needs, self.slots.items())
        return found

    def quiet_cap(self, needs: Needs) -> int:
        """How many fit on its nodes on which nothing is charged."""
        found = self.quiet_caps.get(needs)
        if found is None:
            quiet = (each for each in self.slots.items() if not each[0].is_shared)
            found = self.quiet_caps[needs] = _fitting(needs, quiet)
        return found

    def changed(self) -> None:
        """What it takes has to be counted anew."""
        self.caps.clear()
        self.quiet_caps.clear()

    def copy(self) -> "View":
        """Another like it."""
        other = View(self.rack)
        other.slots, other.whole = self.slots.copy(), self.whole
        return other

    def free(self, *, is_quiet: bool = False) -> int:
        """Free leaves in it; ``is_quiet``: where nothing is charged."""
        return sum(
            positions.bit_count() * tag.count
            for tag, positions in self.slots.items()
            if not (is_quiet and tag.is_shared)
        )


def _fitting(needs: Needs, slots: Iterable[tuple[Tag, int]]) -> int:
    return sum(
        positions.bit_count() * (tag.count // needs[tag.sort] if needs[tag.sort] else 0)
        for tag, positions in slots
    )


class Region:
    """Free leaves of one owner. ``_whole[n]``: racks with n wholly free nodes, as bits; of no n
    without any, in order in ``_wholes``.

    ``_racks``: tag → racks with such nodes; ``_nodes``: the nodes themselves, None where nothing
    but GPUs is limited. ``bits``: of each rack its nodes' numbers as a bit set.
    ``catch_up``: brings what has changed here, before somebody looks.
    """

    def __init__(
        self,
        racks: Sequence[Rack],
        places: Sequence[tuple[int, int]],
        catch_up: Callable[[], object],
        bits: Sequence[int] | None = None,
    ) -> None:
        self.racks = racks
        self.places = places
        self._catch_up = catch_up
        self._views: dict[int, View] = {}
        self._whole: dict[int, int] = {}
        self._wholes: list[int] = []
        self.by_number: dict[int, Tag] = {}
        self._racks: dict[Tag, int] = {}
        self._nodes = None if bits is None else Nodes(bits)
        self._orders: dict[Wish, Order] = {}
        self._known: list[Tag] = []

    def copy(self) -> "Region":
        """Another with the same nodes."""
        other = Region(self.racks, self.places, self._catch_up)
        other._views = {rack: view.copy() for rack, view in self._views.items()}
        other._whole, other._wholes = self._whole.copy(), self._wholes.copy()
        other.by_number, other._racks = self.by_number.copy(), self._racks.copy()
        other._nodes = None if self._nodes is None else self._nodes.copy()
        other._known = self._known.copy()
        return other

    @property
    def views(self) -> dict[int, View]:
        """Racks with nodes of the owner, by number."""
        self._catch_up()
        return self._views

    @property
    def whole(self) -> dict[int, int]:
        """By number of wholly free nodes: racks, as bits."""
        self._catch_up()
        return self._whole

    @property
    def tags(self) -> dict[int, Tag]:
        """The owner's nodes, by number."""
        self._catch_up()
        return self.by_number

    def put(self, number: int, tag: Tag) -> None:
        """A node's free leaves are these now."""
        old = self.by_number.get(number)
        if old is tag:
            return
        self.by_number[number] = tag
        rack, bit = self.places[number]
        view = self._views.get(rack)
        if view is None:
            view = self._views[rack] = View(self.racks[rack])
            self._set_whole(0, self._whole.get(0, 0) | view.bit)
            if self._nodes is not None:
                self._nodes.count(rack, None, 0)
        elif view.caps or view.quiet_caps:
            view.changed()
        was_whole = old is not None and old.is_whole
        if old is not None:
            self._take(view, bit, old)
        positions = view.slots.get(tag)
        if positions:
            view.slots[tag] = positions | bit
        else:
            view.slots[tag] = bit
            before = self._racks.get(tag)
            if before is None:
                self._racks[tag] = view.bit
                self._known.append(tag)
            else:
                self._racks[tag] = before | view.bit
        if self._nodes is not None:
            self._nodes.move(number, old, tag)
        if tag.is_whole != was_whole:
            self._count(view, rack, 1 if tag.is_whole else -1)

    def drop(self, number: int) -> None:
        """The node is not the owner's any more."""
        old = self.by_number.pop(number, None)
        if old is None:
            return
        rack, bit = self.places[number]
        view = self._views[rack]
        view.changed()
        self._take(view, bit, old)
        if self._nodes is not None:
            self._nodes.move(number, old, None)
        if old.is_whole:
            self._count(view, rack, -1)
        if not view.slots:
            self._set_whole(0, self._whole[0] ^ view.bit)
            del self._views[rack]
            if self._nodes is not None:
                self._nodes.count(rack, 0, None)

    def has_any(self, wish: Wish, among: int) -> bool:
        """Some of these nodes has leaves enough for one pod."""
        self._catch_up()
        if self._nodes is not None:
            return any(among & self._nodes.of[entry[2]] for entry in self._order(wish))
        found = (self.by_number[number] for number in numbers_in(among) if number in self.by_number)
        return any(0 < wish[0][tag.sort] <= tag.count for tag in found)

    def best(self, wish: Wish, among: int | None = None) -> "tuple[Rank, int] | None":
        """The best node for one pod, by its number: of the lowest rank the lowest. ``among``: of
        these nodes.
        """
        self._catch_up()
        if among is not None and self._nodes is not None:
            return next(self.ranked(wish, among), None)
        racks, front = self._racks, None
        found: list[tuple[Tag, int]] = []
        for entry in self._order(wish):
            if front is not None and entry[0] != front:
                break
            if here := racks[entry[2]]:
                front = entry[0]
                found.append((entry[2], here))
        if front is None:
            return None
        if len(found) > 1:
            return next(self._in_front(front, found, wish))
        (tag, here), by_whole = found[0], self._whole
        for whole in reversed(self._wholes) if wish[1] else self._wholes:
            if some := here & by_whole[whole]:
                view = self._views[(some & -some).bit_length() - 1]
                position = view.slots[tag]
                number = view.rack.slots[(position & -position).bit_length() - 1].number
                return (*front, -whole if wish[1] else whole, tag.free.form), number
        return None

    def fullest(self, sorts: Collection[int], among: int | None) -> Iterator[int]:
        """Nodes of these sorts, those with the fewest free leaves first. ``among``: of these."""
        self._catch_up()
        tags: dict[int, list[Tag]] = {}
        for tag, racks in self._racks.items():
            if racks and tag.sort in sorts:
                tags.setdefault(tag.count, []).append(tag)
        for count in sorted(tags):
            yield from self._with_any(tags[count], among)

    def roomiest(self, wish: Wish, among: int | None) -> Iterator[tuple[int, int]]:
        """How many of the pods a node's leaves do for, and the node: the most first. ``among``: of
        these nodes.
        """
        self._catch_up()
        tags: dict[int, list[Tag]] = {}
        for tag, racks in self._racks.items():
            if racks and front_of(tag, wish) is not None:
                tags.setdefault(tag.count // wish[0][tag.sort], []).append(tag)
        for fits in sorted(tags, reverse=True):
            for number in self._with_any(tags[fits], among):
                yield fits, number

    def roomy(self, wish: Wish) -> Iterator[tuple[int, View]]:
        """Racks in which there are leaves for one pod at the least, by number."""
        self._catch_up()
        racks = 0
        for _, _, tag in self._order(wish):
            racks |= self._racks[tag]
        for number in numbers_in(racks):
            yield number, self._views[number]

    def rank_of(self, number: int, wish: Wish) -> Rank | None:
        """How good a node is for one pod; None where it does not fit."""
        self._catch_up()
        tag = self.by_number.get(number)
        front = None if tag is None else front_of(tag, wish)
        if tag is None or front is None:
            return None
        whole = self._views[self.places[number][0]].whole
        return *front, -whole if wish[1] else whole, tag.free.form

    def ranked(self, wish: Wish, among: int | None = None) -> Iterator[tuple[Rank, int]]:
        """Every node on which one pod fits, best first. ``among``: of these nodes."""
        self._catch_up()
        nodes = None if among is None else self._nodes
        front: Front | None = None
        found: list[tuple[Tag, int]] = []
        for entry in list(self._order(wish)):
            tag = entry[2]
            some = self._racks[tag] if nodes is None or among is None else nodes.of[tag] & among
            if not some:
                continue
            if front is not None and entry[0] != front:
                yield from self._in_front(front, found, wish, nodes)
                found = []
            front = entry[0]
            found.append((tag, some))
        if front is not None:
            yield from self._in_front(front, found, wish, nodes)

    def slots_of(self, view: View) -> Iterator[tuple[Tag, Slot]]:
        """The nodes of a rack that are the owner's."""
        self._catch_up()
        for tag, positions in view.slots.items():
            while positions:
                lowest = positions & -positions
                positions ^= lowest
                yield tag, view.rack.slots[lowest.bit_length() - 1]

    def _in_front(
        self,
        front: Front,
        found: Sequence[tuple[Tag, int]],
        wish: Wish,
        nodes: "Nodes | None" = None,
    ) -> Iterator[tuple[Rank, int]]:
        """Nodes of these tags, which share the first of their rank: best first, then by number.
        ``found``: with each tag its racks, or its ``nodes``.
        """
        sign = -1 if wish[1] else 1
        for whole in self._wholes[::sign]:
            within = self._whole.get(whole, 0) if nodes is None else nodes.whole[whole]
            by_form: dict[Form, list[tuple[Tag, int]]] = {}
            for tag, some in found:
                if inside := some & within:
                    by_form.setdefault(tag.free.form, []).append((tag, inside))
            for form in sorted(by_form):
                rank = (*front, sign * whole, form)
                for number in self._numbers(by_form[form], is_nodes=nodes is not None):
                    yield rank, number

    def _numbers(self, found: Sequence[tuple[Tag, int]], *, is_nodes: bool) -> Iterator[int]:
        """The nodes of all these tags, by number."""
        if is_nodes:
            return numbers_in(reduce(or_, (nodes for _, nodes in found)))
        return merge(*(self._by_number(tag, racks) for tag, racks in found))

    def _with_any(self, tags: Sequence[Tag], among: int | None) -> Iterator[int]:
        """Nodes with one of these tags, by number."""
        if self._nodes is None or among is None:
            return merge(*(self._by_number(tag, self._racks[tag]) for tag in tags))
        return numbers_in(among & reduce(or_, (self._nodes.of[tag] for tag in tags)))

    def _by_number(self, tag: Tag, racks: int) -> Iterator[int]:
        """Nodes with a tag in these racks, by number."""
        while racks:
            lowest = racks & -racks
            racks ^= lowest
            view = self._views[lowest.bit_length() - 1]
            positions = view.slots.get(tag, 0)
            while positions:
                lowest = positions & -positions
                positions ^= lowest
                yield view.rack.slots[lowest.bit_length() - 1].number

    def _order(self, wish: Wish) -> list[tuple[Front, int, Tag]]:
        """The tags that nodes for such pods have or had, by rank."""
        order = self._orders.get(wish)
        if order is None:
            if len(self._orders) >= ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._orders[wish] = Order()
        if order.read < len(self._known):
            for tag in self._known[order.read :]:
                front = front_of(tag, wish)
                if front is not None:
                    insort(order.ranked, (front, tag.number, tag))
            order.read = len(self._known)
        return order.ranked

    def _take(self, view: View, bit: int, tag: Tag) -> None:
        positions = view.slots[tag] ^ bit
        if positions:
            view.slots[tag] = positions
        else:
            del view.slots[tag]
            self._racks[tag] ^= view.bit

    def _count(self, view: View, rack: int, by: int) -> None:
        """The rack's number of wholly free nodes changes."""
        if self._nodes is not None:
            self._nodes.count(rack, view.whole, view.whole + by)
        self._set_whole(view.whole, self._whole[view.whole] ^ view.bit)
        view.whole += by
        self._set_whole(view.whole, self._whole.get(view.whole, 0) | view.bit)

    def _set_whole(self, whole: int, racks: int) -> None:
        """These racks have so many wholly free nodes."""
        if not racks:
            del self._whole[whole]
            self._wholes.remove(whole)
            return
        if whole not in self._whole:
            insort(self._wholes, whole)
        self._whole[whole] = racks


def numbers_in(nodes: int) -> Iterator[int]:
    """The numbers in a bit set, the lowest first."""
    while nodes:
        lowest = nodes & -nodes
        nodes ^= lowest
        yield lowest.bit_length() - 1
