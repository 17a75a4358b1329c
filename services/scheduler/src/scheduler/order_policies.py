"""The policies of the order that can be named: Muster's own, and a site's, which any installed
distribution may offer as entry points of the group `muster.order`.

A site's own code may fail: who it is about goes last then, and no decision waits for its mending.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from math import inf, isnan
from typing import TypeVar

import structlog

from scheduler.domain.core.model import Gang
from scheduler.domain.core.ordering import BUILT_IN, GangOrder, OrderPolicy, UserOrder, UserUsage

GROUP = "muster.order"

LAST = inf
"""The rank of who a policy fails to rank."""

Asked = TypeVar("Asked")
Failed = Callable[[str, str], None]
"""What to do when a policy, by its name, has failed, and how it has."""

_log = structlog.get_logger()


class WrongPolicyError(Exception):
    """An entry point is no policy of the order."""


def load(failed: Failed) -> Mapping[str, OrderPolicy]:
    """By name; a site's own comes before Muster's of the same name. Raises WrongPolicyError."""
    policies = dict(BUILT_IN)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        found = point.load()
        policy = found() if isinstance(found, type) else found
        is_of_gangs, is_of_users = isinstance(policy, GangOrder), isinstance(policy, UserOrder)
        if is_of_gangs == is_of_users:
            has = "both" if is_of_gangs else "neither"
            raise WrongPolicyError(
                f"The entry point {point.name} of {GROUP}, {point.value}, has {has} of the methods"
                " rank(gang) and rank_user(usage), and needs one: see docs/scheduling.md, Order"
            )
        guard = GuardedGangOrder if is_of_gangs else GuardedUserOrder
        policies[point.name] = guard(point.name, policy, failed)
    return policies


def once(tell: Failed) -> Failed:
    """Tell the first failure of each policy alone: they fail for each gang, in each cycle."""
    known: set[str] = set()

    def failed(name: str, how: str) -> None:
        if name not in known:
            known.add(name)
            tell(name, how)

    return failed


def logged(count: Callable[[str], None]) -> Failed:
    """The first failure of each policy is logged; ``count`` is called for all of them."""
    log = once(lambda name, how: _log.error(said(name, how), policy=name))

    def failed(name: str, how: str) -> None:
        count(name)
        log(name, how)

    return failed


def said(name: str, how: str) -> str:
    """A failure in words."""
    return f"the policy {name} of the order failed ({how}): who it is about goes last in it"


@dataclass(frozen=True, slots=True)
class GuardedGangOrder:
    """A site's policy of gangs."""

    name: str
    policy: GangOrder
    failed: Failed

    def rank(self, gang: Gang) -> float:
        """As `GangOrder` says."""
        return _rank(self.policy.rank, gang, self.name, self.failed)


@dataclass(frozen=True, slots=True)
class GuardedUserOrder:
    """A site's policy of users."""

    name: str
    policy: UserOrder
    failed: Failed

    def rank_user(self, usage: UserUsage) -> float:
        """As `UserOrder` says."""
        return _rank(self.policy.rank_user, usage, self.name, self.failed)


def _rank(ask: Callable[[Asked], float], what: Asked, name: str, failed: Failed) -> float:
    try:
        found = float(ask(what))
    except Exception as error:  # whatever a site's own code raises
        failed(name, f"{type(error).__name__}: {error}")
        return LAST
    if isnan(found):
        failed(name, "it answered NaN")
        return LAST
    return found
