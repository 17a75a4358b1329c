"""Who could leave a node when those have left who leave already, and what that costs and frees:
kept until the node changes.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, NamedTuple

from scheduler.domain.core.holdings import Live, Price
from scheduler.domain.core.machines import SlotState, Take
from scheduler.domain.core.prices import NOBODY, both, can_preempt, cost_of, floor_of

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

ON_A_NODE = 8
"""Gangs on a node of which every subset is looked at; of more the cheapest one for each number of
leaves.
"""


class _Present(NamedTuple):
    """A gang on a node, its leaves there, what it costs to let it go, and what it takes of each
    limited resource.
    """

    live: Live
    leaves: int
    price: Price
    amounts: tuple[int, ...]


class NodeWays:
    """The sets of gangs that could leave one node, cheapest first.

    ``_stay``: leaves that are in use all the same. ``_order``: sets, as bits of the gangs' numbers;
    of the same price small ones first.
    """

    __slots__ = ("_here", "_order", "_prices", "_stay")

    def __init__(self, state: SlotState, here: Sequence[_Present]) -> None:
        held, charged = state.held, state.charged | state.reserved
        for each in here:
            held &= ~state.holders.get(each.live.id, 0)
            charged &= ~state.chargers.get(each.live.id, 0)
        self._stay = held | charged
        self._prices: Mapping[int, Price] | Sequence[Price]
        if len(here) > ON_A_NODE:
            here = sorted(here, key=lambda each: (each.price, each.live.id))
            self._prices = _some_sets(here)
            self._order = sorted(self._prices, key=lambda some: (self._prices[some], some))
        else:
            prices = [NOBODY]
            for each in here:  # of sets without it, and of the same with it
                gpus, saved = each.price
                prices += [(g + gpus, s + saved) for g, s in prices]
            self._prices = prices
            self._order = sorted(_subsets(len(here)), key=prices.__getitem__)
        self._here = here

    def cheapest(
        self, state: SlotState, take: Take, mine: int, *, is_bare: bool
    ) -> tuple[Price, Sequence[Live]] | None:
        """Those without whom one more pod fits on the leaves ``mine``; ``is_bare``: nothing but
        GPUs counts.
        """
        here, need = self._here, take.leaves
        for some in self._order:
            stay = self._stay
            for index, present in enumerate(here):
                if not some >> index & 1:
                    stay |= present.leaves
            if (mine & ~stay).bit_count() >= need:
                gone = [present for index, present in enumerate(here) if some >> index & 1]
                if is_bare or _has(state, take, gone):
                    return self._prices[some], [present.live for present in gone]
        return None


class Ways:
    """``_of``: by node's number, and by who wants a place there."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self._of: dict[int, dict[tuple[str, int, int], NodeWays]] = {}
        self._read = -1

    def of(self, state: SlotState, live: Live) -> NodeWays:
        """Of a node, for a gang; who is away in thought already is not there."""
        self._update()
        floor, charges = floor_of(self.cluster, live.owner, live.reach), self.cluster.charges
        # Others' gangs that have their cells on sufferance leave for their own alone. Gangs without
        # cells, but with a priority, do not leave for all of their own.
        are_some = self.cluster.extras or charges.loans.gangs or charges.ranked_guests
        owner = live.owner if floor or are_some else ""
        key = owner, floor, live.gang.priority if charges.ranked_guests else 0
        of_node = self._of.setdefault(state.slot.number, {})
        found = of_node.get(key)
        if found is None or live.pods:
            found = NodeWays(state, self._here(state, live))
            if not live.pods:  # one that grows is in nobody's way but its own
                of_node[key] = found
        return found

    def _update(self) -> None:
        """Forget nodes that have changed since."""
        self._read, numbers = self.cluster.hardware.changed_since(self._read)
        if numbers is None:
            self._of.clear()
        else:
            for number in numbers:
                self._of.pop(number, None)

    def _here(self, state: SlotState, live: Live) -> list[_Present]:
        """Gangs on the node that could have to go."""
        machine, gangs = state.machine, self.cluster.gangs
        found: list[_Present] = []
        names = {*state.holders, *state.chargers}
        if machine.free:
            names.update(machine.pods)
        for gang in sorted(names):
            other = gangs[gang]
            if other.is_away or other is live or not can_preempt(live, other):
                continue
            mask = state.holders.get(gang, 0) | state.chargers.get(gang, 0)
            amounts = _amounts(other, state) if machine.free else ()
            found.append(_Present(other, mask, cost_of(other)[1], amounts))
        return found


def _amounts(other: Live, state: SlotState) -> tuple[int, ...]:
    takes = [pod.take.amounts for pod in other.pods.values() if pod.machine is state.machine]
    return tuple(map(sum, zip(*takes, strict=True)))


def _has(state: SlotState, take: Take, gone: Sequence[_Present]) -> bool:
    """Enough is left of each limited resource without these."""
    for index, (amount, free) in enumerate(zip(take.amounts, state.machine.later, strict=True)):
        if amount > free and amount and amount > free + sum(each.amounts[index] for each in gone):
            return False
    return True


def _some_sets(here: Sequence[_Present]) -> dict[int, Price]:
    """Sets that count where there are many, as bits, and what they cost: the cheapest of those that
    free so many leaves (a knapsack), and for what is limited beside GPUs the cheapest of each size.
    """
    best: dict[int, tuple[Price, int]] = {0: (NOBODY, 0)}
    for index, each in enumerate(here):
        leaves = each.leaves.bit_count()
        for freed, (before, some) in list(best.items()) if leaves else ():
            more = both(before, each.price), some | 1 << index
            best[freed + leaves] = min(more, best.get(freed + leaves, more))
    every = accumulate((each.price for each in here), both, initial=NOBODY)
    found = {(1 << size) - 1: price for size, price in enumerate(every)}
    found.update((some, price) for price, some in best.values())
    return found


@cache
def _subsets(count: int) -> Sequence[int]:
    """Sets of numbers below ``count``, as bits, small sets first."""
    sets = (some for size in range(count + 1) for some in combinations(range(count), size))
    return [sum(1 << number for number in some) for some in sets]
