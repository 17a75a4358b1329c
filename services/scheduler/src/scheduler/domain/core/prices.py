"""What leaves on each node cost others, the cheapest node first: the index behind victims.

The price of so many leaves of a node is a lower bound: it is exact but for what lies beside GPUs.
Prices are worked out again for nodes that have changed, when they are asked for.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush, merge
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from scheduler.domain.core.holdings import Live, Price
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.model import OPPORTUNISTIC, GangClass, Kind
from scheduler.domain.core.ranks import Needs

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

NOBODY: Price = (0, 0)
ANY_PRICE: Price = (1 << 120, 0)

BORROWED = 1 << 12
"""A borrowed GPU in a price, of which a gang without GPUs, or that has to go anyway, and a GPU of a
pod that a gang can do without are 1: so what is suffered costs least, and more than nobody.
"""

BORROWED_PROTECTED = 1 << 24
"""The same where its gang is protected."""

GPU = 1 << 36
"""Any other GPU: no number of those that are suffered costs as much."""

PROTECTED_BARE = 1 << 60
"""A protected opportunistic or downgraded gang without GPUs costs so much more. No number of GPUs
costs as much.
"""

PROTECTED = 1 << 84
"""Each GPU of a protected opportunistic or downgraded gang costs so much more. No number of such
gangs without GPUs costs as much.
"""

STAYS = 1 << 30
"""The rank of who can't be made to leave."""

NO_BOUND = 1 << 30
"""Pods that there may be room for where that is not known."""

ORDERS_KEPT = 64
"""So many different needs have an order of their own; the oldest goes first."""

STALE_TIMES = 4
"""An order with so many times more entries than nodes is made anew."""

LISTS_KEPT = 256
"""So many owners, types and priorities are known; then all begin anew."""

Key = TypeVar("Key", bound=tuple[object, ...])
List = TypeVar("List")


def cost_of(live: Live) -> tuple[int, Price]:
    """The rank of a gang, and what it costs to let it go. Gangs of its own virtual cluster with a
    higher priority than its rank can make it leave, others only where that is below 0: a guest's
    (`can_preempt` says it in full).
    """
    if live.cost is None:
        rank = live.rank if live.gang_class is GangClass.GUARANTEED else OPPORTUNISTIC
        if live.is_leaving or live.gang_class is None:  # which costs nobody more, or who comes
            rank = STAYS
        price = NOBODY if live.started_at is None else _price(live)
        if live.lender is None and live.is_protected and not live.is_overdue and rank < STAYS:
            if rank > OPPORTUNISTIC:
                rank = STAYS
            price = price[0] + (live.gpus_in_use * PROTECTED or PROTECTED_BARE), price[1]
        live.cost = rank, price
    return live.cost


def can_preempt(live: Live, other: Live) -> bool:
    """The gang may preempt the other one. Of gangs with cells it may preempt those in its own quota
    whose rank is below its reach; of the others all that it does not spare.
    """
    rank = (other.cost or cost_of(other))[0]
    if other.gang_class is GangClass.GUARANTEED:
        return other.owner == live.owner and rank < live.reach
    return rank < STAYS and not is_spared(other, live.owner, live.gang.priority)


def is_spared(guest: Live, owner: str, priority: int) -> bool:
    """No gang of this owner and priority may preempt the guest: it has no lower priority, and the
    same virtual cluster. A surplus pod is not a gang.
    """
    is_as_high = guest.gang.priority >= priority and guest.extra_of is None
    return is_as_high and guest.owner == owner and guest.lender is None


def may_leave(live: Live) -> bool:
    """Somebody can make it leave."""
    return (live.cost or cost_of(live))[0] < STAYS


def _price(live: Live) -> Price:
    if live.extra_of is not None:  # its gang goes on: nothing of its work is lost
        return live.gpus_in_use or 1, 0
    gpus = 0 if live.is_overdue else live.gpus_in_use
    if live.lender is not None:
        return gpus * (BORROWED_PROTECTED if live.is_protected else BORROWED) or 1, (
            -(gpus or 1) * live.saved_ms
        )
    return gpus * GPU or 1, -(gpus or 1) * live.saved_ms


def price_of(gangs: Iterable[Live]) -> Price:
    """What it costs to let these gangs go."""
    return reduce(both, (cost_of(live)[1] for live in gangs), NOBODY)


def both(one: Price, other: Price) -> Price:
    """What both cost together."""
    return one[0] + other[0], one[1] + other[1]


@dataclass(slots=True)
class _Order:
    """Nodes by price for one need: a heap with entries that may be out of date. ``read``: so many
    of the nodes with other prices are in it. ``taken``: what was told since somebody asked, to be
    brought back when the next one does.
    """

    heap: list[tuple[Price, int]]
    read: int
    taken: list[tuple[Price, int]] = field(default_factory=list)


class Prices:
    """Of the nodes in an owner's bound cells, for its gangs of one priority. ``owner`` None: of
    space in no bound cell, where only guests are in the way. They count all guests, also those that
    are spared (`is_spared`): a price stays a lower bound.

    ``_leaves``: by sort of node and number of leaves that could be had, how many nodes.
    """

    def __init__(self, cluster: "Cluster", owner: str | None, gpu_type: str, priority: int) -> None:
        self.cluster = cluster
        self.owner = owner
        self.gpu_type = gpu_type
        self.priority = priority
        self.may_bind = False
        self._read = -1
        self._prices: dict[int, list[Price]] = {}
        self._leaves: dict[tuple[int, int], int] = {}
        self._mixed: set[int] = set()
        self._orders: dict[Needs, _Order] = {}
        self._repriced: list[int] = []

    def ordered(self, needs: Needs) -> Iterator[tuple[Price, int]]:
        """Nodes and what one pod costs there at the least, cheapest first, then by number."""
        order = self._order(needs)
        while order.heap:
            entry = heappop(order.heap)
            if order.taken and order.taken[-1] == entry:
                continue
            if self._price(entry[1], needs) == entry[0]:
                order.taken.append(entry)
                yield entry

    def _order(self, needs: Needs) -> _Order:
        """Nodes by price, all of them in the heap."""
        self._update()
        most = STALE_TIMES * len(self._prices) + ORDERS_KEPT
        if len(self._repriced) > most:
            self._orders.clear()
            self._repriced.clear()
        order = self._orders.get(needs)
        if order is None or len(order.heap) + len(order.taken) > most:
            if order is None and len(self._orders) >= ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            found = ((self._price(number, needs), number) for number in self._prices)
            heap = [(price, number) for price, number in found if price is not None]
            heapify(heap)
            order = self._orders[needs] = _Order(heap, len(self._repriced))
        for entry in order.taken:
            heappush(order.heap, entry)
        order.taken.clear()
        for number in set(self._repriced[order.read :]):
            if (price := self._price(number, needs)) is not None:
                heappush(order.heap, (price, number))
        order.read = len(self._repriced)
        return order

    def most(self, needs: Needs) -> int:
        """How many pods there would be room for if all that may go were gone, at the most."""
        self._update()
        return sum(
            nodes * (leaves // needs[sort])
            for (sort, leaves), nodes in self._leaves.items()
            if needs[sort]
        )

    def _price(self, number: int, needs: Needs) -> Price | None:
        prices = self._prices.get(number)
        need = needs[self.cluster.hardware.states[number].sort]
        return prices[need] if prices is not None and need < len(prices) else None

    def _update(self) -> None:
        """Work out what has changed since."""
        hardware = self.cluster.hardware
        if self.owner is not None:
            may_bind = hardware.may_bind_more(self.owner, self.gpu_type)
        else:
            may_bind = True
        self._read, numbers = hardware.changed_since(self._read)
        if numbers is None:
            self._orders.clear()
            self._repriced.clear()
            self._prices.clear()
            self._leaves.clear()
            self._mixed.clear()
            self.may_bind = may_bind
            for number in self._numbers():
                self._work_out(number)
            return
        changed = set(numbers)
        if may_bind != self.may_bind:
            self.may_bind = may_bind
            changed |= self._mixed
        states, owner, known = hardware.states, self.owner, self._prices
        for number in changed:
            if owner is not None and number not in known and owner not in states[number].bound:
                continue
            if self._work_out(number):
                self._repriced.append(number)

    def _numbers(self) -> Iterable[int]:
        hardware = self.cluster.hardware
        if self.owner is None:
            return list(hardware.index.empty[self.gpu_type].tags)
        region = hardware.index.regions.get(self.owner, {}).get(self.gpu_type)
        return () if region is None else list(region.tags)

    def _work_out(self, number: int) -> bool:
        """A node's prices now; whether they are others than before."""
        hardware, owner, mine = self.cluster.hardware, self.owner, 0
        state, before = hardware.states[number], self._prices.get(number)
        if state.gpu_type == self.gpu_type:
            space = hardware.spaces[number][number]
            mine = space if owner is None else state.bound.get(owner, 0)
            if mine and owner is not None and space:
                self._mixed.add(number)
                mine |= space if self.may_bind else 0
        after = self._all(state, mine & state.usable) if mine else None
        if after == before:
            return False
        if before is not None:
            self._leaves[state.sort, len(before) - 1] -= 1
        if after is None:
            del self._prices[number]
        else:
            self._prices[number] = after
            key = (state.sort, len(after) - 1)
            self._leaves[key] = self._leaves.get(key, 0) + 1
        return True

    def _all(self, state: SlotState, mine: int) -> list[Price]:
        """By number of leaves: the least price (a knapsack of the gangs that are there)."""
        taken = (state.held | state.charged | state.reserved) & mine
        free = (mine & ~taken).bit_count()
        found: list[Price] = [NOBODY] * (free + 1)
        here = self._in_the_way(state, mine) if taken else []
        if not here:
            return found
        if len(here) == 1:
            return found + [here[0][0]] * here[0][1]
        best = [NOBODY]
        for (gpus, saved), leaves in here:
            before = [best[0]] * leaves + best  # had without it, had with it
            more = [(g + gpus, s + saved) for g, s in before]
            more[: len(best)] = map(min, best, more)
            best = more
        return found + best[1:]

    def _in_the_way(self, state: SlotState, mine: int) -> list[tuple[Price, int]]:
        """What gangs cost that could have to go, and how many of these leaves each has."""
        gangs, found = self.cluster.gangs, []
        loose = mine & ~(state.lifted | state.leaving | state.charged)
        for gang in (*state.holders, *(g for g in state.chargers if g not in state.holders)):
            mask = state.holders.get(gang, 0) & loose
            mask |= state.chargers.get(gang, 0) & mine
            if mask:
                live = gangs[gang]
                rank, price = live.cost or cost_of(live)
                is_guest = live.gang_class is not GangClass.GUARANTEED
                if rank < (0 if is_guest else self.priority):
                    found.append((price, mask.bit_count()))
        return found


def cheapest(
    cluster: "Cluster", owner: str, gpu_type: str, needs: Needs, priority: int
) -> Iterator[tuple[Price, int]]:
    """Every node where an owner's gang of a priority may have a pod: cheapest first."""
    bound = _list(cluster, owner, gpu_type, priority).ordered(needs)
    if not cluster.hardware.may_bind_more(owner, gpu_type):
        return bound
    states = cluster.hardware.states
    space = _list(cluster, None, gpu_type, 0).ordered(needs)
    return merge(bound, (each for each in space if owner not in states[each[1]].bound))


def room_at_most(cluster: "Cluster", owner: str, kind: Kind, priority: int) -> int:
    """How many such pods there would be room for without all who may go, on GPUs of one type (for
    pods without GPUs of any).
    """
    hardware = cluster.hardware
    is_free = kind.gpus == 0 and hardware.demands.least_leaves(kind) == 0
    if kind.pin is not None or is_free or _may_move(cluster, owner, priority):
        return NO_BOUND
    needs = hardware.demands.wish(kind, is_guest=False)[0]
    rooms = []
    for gpu_type in kind.gpu_types or hardware.gpu_types:
        room = _list(cluster, owner, gpu_type, priority).most(needs)
        if hardware.may_bind_more(owner, gpu_type):
            room += _list(cluster, None, gpu_type, 0).most(needs)
        rooms.append(room)
    return max(rooms, default=0) if kind.gpus else sum(rooms)


def _may_move(cluster: "Cluster", owner: str, priority: int) -> bool:
    """Without gangs of lower priority some of an owner's cells could be bound elsewhere."""
    charged = cluster.charges.guaranteed.get(owner, {})
    lower = {gang for other, gangs in charged.items() if other < priority for gang in gangs}
    return any(
        binding.quota is not None and binding.users.keys() <= lower
        for gang in lower
        for pod in cluster.gangs[gang].pods.values()
        for binding in pod.bindings
    )


def floor_of(cluster: "Cluster", owner: str, priority: int) -> int:
    """The lowest priority for which the same of an owner's gangs may go; below 0: none."""
    lower, charges = -1, cluster.charges
    ranks = chain(
        charges.guaranteed.get(owner, {}).items(), charges.ranked_guests.get(owner, {}).items()
    )
    for other, gangs in ranks:
        if lower < other < priority and gangs:
            lower = other
    return min(1 + lower, priority)


def _list(cluster: "Cluster", owner: str | None, gpu_type: str, priority: int) -> Prices:
    floor = 0 if owner is None else floor_of(cluster, owner, priority)
    key = (owner, gpu_type, floor)
    return kept(cluster.prices, key, lambda: Prices(cluster, *key))


def kept(lists: dict[Key, List], key: Key, make: Callable[[], List]) -> List:
    """What is known of nodes by owner, type and priority, made where it is not."""
    found = lists.get(key)
    if found is None:
        if len(lists) >= LISTS_KEPT:
            lists.clear()
        found = lists[key] = make()
    return found
