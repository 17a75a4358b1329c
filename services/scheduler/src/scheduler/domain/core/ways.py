"""Who could leave a node, and what that costs and frees: kept until the node changes."""

from collections.abc import Collection, Sequence
from functools import cache, reduce
from itertools import combinations
from operator import add, or_
from typing import TYPE_CHECKING, NamedTuple

from scheduler.domain.core.holdings import Live
from scheduler.domain.core.machines import SlotState, Take
from scheduler.domain.core.prices import NOBODY, Price, both, floor_of, may_go, price_of

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

ON_A_NODE = 8
"""Gangs on a node of which every subset is looked at; of more, one after another is taken."""

NODES_KEPT = 50_000
"""Of so many nodes the ways are kept; then all begin anew."""


class Way(NamedTuple):
    """Without ``gangs`` only ``stay`` of a node's leaves are in use, and ``freed`` more of each
    limited resource is left.
    """

    price: Price
    gangs: Sequence[Live]
    stay: int
    freed: tuple[int, ...]

    def is_enough(self, state: SlotState, take: Take, mine: int, *, is_bare: bool) -> bool:
        """One more pod fits then, on the leaves ``mine``; ``is_bare``: nothing but GPUs counts."""
        if (mine & ~self.stay).bit_count() < take.leaves:
            return False
        if not is_bare:
            free = state.machine.free
            for amount, have, more in zip(take.amounts, free, self.freed, strict=True):
                if amount > have + more and amount:
                    return False
        return True


class _Present(NamedTuple):
    """A gang on a node, its leaves there, and what it takes of each limited resource."""

    live: Live
    leaves: int
    amounts: tuple[int, ...]


class Ways:
    """``_of``: by node's number, and by who wants a place there."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self._of: dict[int, dict[tuple[str, int], list[Way]]] = {}
        self._read = -1

    def of(self, state: SlotState, live: Live, gone: Collection[str]) -> list[Way]:
        """Of a node, for a gang, the cheapest first. ``gone``: who is away in thought already."""
        self._update()
        floor = floor_of(self.cluster, live.owner, live.gang.priority)
        key = (live.owner if floor else "", floor)
        number = state.slot.number
        of_node = self._of.get(number)
        if of_node is None:
            if len(self._of) >= NODES_KEPT:
                self._of.clear()
            of_node = self._of[number] = {}
        found = of_node.get(key)
        if found is None or live.pods:
            found = _sorted(state, self._here(state, live, floor, gone))
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

    def _here(
        self, state: SlotState, live: Live, floor: int, gone: Collection[str]
    ) -> list[_Present]:
        """Gangs on the node that could have to go."""
        machine, gangs = state.machine, self.cluster.gangs
        found: list[_Present] = []
        names = {*state.holders, *state.chargers}
        if machine.free:
            names.update(machine.pods)
        for gang in sorted(names):
            other = gangs[gang]
            is_own = other.owner == live.owner
            if gang in gone or other is live or not may_go(other, floor if is_own else -1):
                continue
            mask = state.holders.get(gang, 0) | state.chargers.get(gang, 0)
            found.append(_Present(other, mask, _amounts(other, state) if machine.free else ()))
        return found


def _amounts(other: Live, state: SlotState) -> tuple[int, ...]:
    takes = [pod.take.amounts for pod in other.pods.values() if pod.machine is state.machine]
    return tuple(map(sum, zip(*takes, strict=True)))


def _sorted(state: SlotState, here: Sequence[_Present]) -> list[Way]:
    """The cheapest first, of the same price small ones first."""
    held, charged = state.held, state.charged | state.reserved
    for other, _, _ in here:
        held &= ~state.holders.get(other.id, 0)
        charged &= ~state.chargers.get(other.id, 0)
    if len(here) > ON_A_NODE:
        here = sorted(here, key=lambda each: (price_of((each.live,)), each.live.id))
        sets = [tuple(range(size)) for size in range(1, len(here) + 1)]
    else:
        sets = _subsets(len(here))
    prices = [price_of((each.live,)) for each in here]
    leaves = [each.leaves for each in here]
    others = held | charged
    found: dict[tuple[int, ...], Way] = {
        (): Way(NOBODY, (), reduce(or_, leaves, others), (0,) * len(state.machine.free))
    }
    for some in sets:
        before, last = found[some[:-1]], some[-1]
        stay, freed = others, before.freed
        for index, mask in enumerate(leaves):
            if index not in some:
                stay |= mask
        if here[last].amounts:
            freed = tuple(map(add, freed, here[last].amounts))
        gangs = (*before.gangs, here[last].live)
        found[some] = Way(both(before.price, prices[last]), gangs, stay, freed)
    return sorted(found.values(), key=lambda way: way.price)


@cache
def _subsets(count: int) -> list[tuple[int, ...]]:
    """Numbers below ``count``, small sets first."""
    return [some for size in range(1, count + 1) for some in combinations(range(count), size)]
