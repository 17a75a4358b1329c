"""What users use of the cluster, and have used lately: accounts of gangs and their places."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from scheduler.domain.core.accounts import Accounts, Amounts
from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import NO_ONE, OPPORTUNISTIC, Gang, UserKey
from scheduler.domain.core.node_models import OTHERS, PORTS
from scheduler.domain.core.nodes import Place
from scheduler.domain.core.ordering import Order, Ordering, Rank
from scheduler.domain.core.state import State


class Usage(Accounts):
    """The accounts of a cluster's users."""

    def __init__(self, state: State, policy: Policy, ordering: Ordering) -> None:
        super().__init__(_capacity(state) if ordering.has_users else {}, policy, ordering)
        self._order = ordering
        self.is_by_priority = ordering.is_by_priority
        self._beside = [
            (i, self.numbers[name])
            for i, name in enumerate(state.resources.names)
            if name in self.numbers
        ]

    def begin(self, gang: Gang, places: Iterable[Place], now: float) -> None:
        """Pods of a gang run, or run on, from now on."""
        if self.is_kept and gang.virtual_cluster != NO_ONE:
            self.add(key_of(gang), self._amounts(places, 1), now)

    def end(self, gang: Gang, places: Iterable[Place]) -> None:
        """They don't any more."""
        if self.is_kept and gang.virtual_cluster != NO_ONE:
            self.leave(gang.id, key_of(gang), self._amounts(places, -1))

    def rank_of(self, gang: Gang, order: Order, now: float) -> Rank:
        """The gang's place among all that wait."""
        if not self.is_kept:
            return order
        return self._order.rank(order, self.ranks_of(key_of(gang), now))

    def rank_as(self, gang: Gang, now: float) -> Callable[[Order], Rank]:
        """The same for any gang of its user, virtual cluster and class."""
        if not self.is_kept:
            return lambda order: order
        of_user = self.ranks_of(key_of(gang), now)
        return lambda order: self._order.rank(order, of_user)

    def _amounts(self, places: Iterable[Place], times: int) -> Amounts:
        """What the pods use, so many times."""
        found: Amounts = []
        for place in places:
            leaf = place.slot.pool.gpu_type
            if leaf is not None:
                found.append((self.numbers[leaf], times * place.gpus.bit_count()))
            found += [(n, times * place.amounts[i]) for i, n in self._beside if place.amounts[i]]
        return found


def key_of(gang: Gang) -> UserKey:
    """The account of a gang."""
    return gang.virtual_cluster, gang.priority == OPPORTUNISTIC, gang.user


def _capacity(state: State) -> dict[str, int]:
    """What all nodes have together; 0 where it is not limited. Ports are nobody's share."""
    found: defaultdict[str, int] = defaultdict(int)
    for node in state.nodes.values():
        totals = state.resources.totals(node.limits)
        for name, total in zip(state.resources.names, totals, strict=True):
            found[name] += total or 0
        for slot in node.slots:
            if slot.pool.gpu_type is not None:
                found[slot.pool.gpu_type] += slot.shape.leaves
    found[PORTS] = found[OTHERS] = 0
    return found
