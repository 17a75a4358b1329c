"""Who goes first in a virtual cluster: small policies, one after another, each of which says who
goes before whom; of gangs that are equal in all of them the one with the lowest id.

A site can have its own: an object of one of these two protocols, by the name under which it is
known (docs/scheduling.md, "Order").
"""

from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from scheduler.domain.core.config import FAIR_SHARE, PRIORITY, Finding, Policy, listed
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import OPPORTUNISTIC, Gang

UNSTABLE_ORDER = (
    "should begin with priority: who may preempt whom depends on it alone, so a gang that starts "
    "by another order may be preempted at once"
)


class UserUsage(NamedTuple):
    """What a user's gangs of one virtual cluster and class use, as shares of what the cluster has,
    by resource: a GPU type, ``cpu``, ``memoryMB`` or a counted one.

    ``now``; and ``lately``: the mean of the past, in which what is one half-life older counts half.
    ``weight``: as the policy has it.
    """

    virtual_cluster: str
    user: str
    weight: float
    now: Mapping[str, float]
    lately: Mapping[str, float]


Order: TypeAlias = tuple[tuple[float, ...], str]
"""By what of the policies of the order stays the same while it waits, then by id: low ones first.
"""


@runtime_checkable
class GangOrder(Protocol):
    """An order of gangs that stays the same while they wait."""

    def rank(self, gang: Gang) -> float:
        """The lower goes first."""


@runtime_checkable
class UserOrder(Protocol):
    """An order of users, which changes as they use the cluster."""

    def rank_user(self, usage: UserUsage) -> float:
        """The lower goes first, with all the user's gangs."""


OrderPolicy: TypeAlias = GangOrder | UserOrder


class ByPriority:
    """The highest priority goes first."""

    def rank(self, gang: Gang) -> float:
        """As `GangOrder` says."""
        return -gang.priority


class ByAge:
    """Who was submitted first goes first."""

    def rank(self, gang: Gang) -> float:
        """As `GangOrder` says."""
        return gang.submitted_at


class ByFairShare:
    """Who has, and lately had, least of the resource of which he has most goes first, by weight:
    dominant resource fairness (Ghodsi et al., NSDI 2011) over a window that fades.
    """

    def rank_user(self, usage: UserUsage) -> float:
        """As `UserOrder` says."""
        shares = (share + usage.now.get(name, 0.0) for name, share in usage.lately.items())
        return max(shares, default=0.0) / usage.weight


BUILT_IN: Mapping[str, OrderPolicy] = {
    PRIORITY: ByPriority(),
    FAIR_SHARE: ByFairShare(),
    "age": ByAge(),
}
"""By name. A site's own are beside these."""

Rank: TypeAlias = tuple[tuple[float, ...], str]
"""A gang's place among all: of two the lower goes first."""


def class_rank(*, is_opportunistic: bool, is_next: bool) -> float:
    """Opportunistic gangs come after all others; `grow.behind` puts elastic pods between classes.
    ``is_next``: the platform failed the job's last attempt, so the gang comes before all others.
    """
    return 2 * is_opportunistic - 0.5 * is_next


def ordering_of(policy: Policy, policies: Mapping[str, OrderPolicy]) -> "Ordering":
    """What a configuration names. Raises ConfigError where there is no such policy."""
    unknown = [
        Finding(f"policy.orderBy[{number}]", f"is {name!a}; there are {listed(policies)}")
        for number, name in enumerate(policy.order_by)
        if name not in policies
    ]
    if unknown:
        raise ConfigError(unknown)
    return Ordering([policies[name] for name in policy.order_by])


def doubtful(policy: Policy) -> list[Finding]:
    """Orders that are valid and do harm."""
    is_stable = policy.order_by[:1] == (PRIORITY,)
    return [] if is_stable else [Finding("policy.orderBy", UNSTABLE_ORDER)]


class Ordering:
    """These policies, one after another. ``has_users``: some are of users; ``is_by_priority``: of
    those of gangs the first is Muster's own, by priority.
    """

    def __init__(self, policies: Sequence[OrderPolicy]) -> None:
        self.policies = tuple(policies)
        self.of_users = [each for each in policies if isinstance(each, UserOrder)]
        of_gangs = [each for each in policies if not isinstance(each, UserOrder)]
        self._of_gangs = [each.rank for each in of_gangs]
        self.is_by_priority = isinstance(next(iter(of_gangs), None), ByPriority)
        places = {True: count(), False: count(1)}  # a gang's own ranks come after its class
        is_of_user = [isinstance(each, UserOrder) for each in policies]
        self.has_users = bool(self.of_users)
        after = len(policies) - len(self.of_users) + 1  # a user's ranks come after all of those
        found = [next(places[is_user]) + after * is_user for is_user in is_of_user]
        self._pick = itemgetter(0, *found) if found else tuple

    def order(self, gang: Gang) -> Order:
        """What of its place stays the same while it waits."""
        is_opportunistic = gang.priority == OPPORTUNISTIC
        is_next = gang.follows is not None
        ranks = [class_rank(is_opportunistic=is_opportunistic, is_next=is_next)]
        for rank in self._of_gangs:
            ranks.append(rank(gang))
        return tuple(ranks), gang.id

    def turn(self, gang: Gang) -> float:
        """Its rank by the first policy that is about gangs."""
        return next((rank(gang) for rank in self._of_gangs), 0.0)

    def rank(self, order: Order, of_user: tuple[float, ...]) -> Rank:
        """Its place now; ``of_user``: its user's, by the policies that are of users."""
        ranks, gang = order
        return self._pick(ranks + of_user), gang
