"""The policies that `orderBy` can name: Muster's own, and a site's, which any installed
distribution may offer as entry points of the group `muster.order`.

A site's policy may fail. Its gang or user then goes last, and no decision waits for a fix.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from math import inf, isnan
from typing import TypeVar

import structlog

from scheduler.domain.core.model import Gang
from scheduler.domain.core.ordering import BUILT_IN, GangOrder, OrderPolicy, UserOrder, UserUsage
from scheduler.domain.simulation.figures import cut

GROUP = "muster.order"

LAST = inf
"""The rank of a gang or user that a policy fails to rank."""

ERROR_LENGTH = 160
"""The most characters of the text of a site policy's exception."""

GOES_LAST = "its gang or user goes last"

Asked = TypeVar("Asked")
Failed = Callable[[str, str], None]
"""Receives the name of a failed policy, and the failure."""

_log = structlog.get_logger()


def load(failed: Failed) -> Mapping[str, OrderPolicy]:
    """By name; a site's policy replaces Muster's of the same name. One that can't be loaded, or is
    none, has failed and is left out: `orderBy` can name only Muster's of that name then.
    """
    policies = dict(BUILT_IN)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        where = f"its entry point {point.value} of {GROUP}"
        try:
            found = point.load()
            policy = found() if isinstance(found, type) else found
        except (Exception, SystemExit) as error:  # whatever a site's own code raises
            failed(point.name, f"{where} can't be loaded ({_in_short(error)})")
            continue
        is_of_gangs, is_of_users = isinstance(policy, GangOrder), isinstance(policy, UserOrder)
        if is_of_gangs == is_of_users:
            has = "both" if is_of_gangs else "neither"
            methods = "rank(gang) and rank_user(usage)"
            failed(point.name, f"{where} has {has} of the methods {methods}, and needs one")
            continue
        guard = GuardedGangOrder if is_of_gangs else GuardedUserOrder
        policies[point.name] = guard(point.name, policy, failed)
    return policies


def once(report: Failed) -> Failed:
    """Report only the first failure of each policy: it fails for each gang, in each cycle."""
    known: set[str] = set()

    def failed(name: str, how: str) -> None:
        if name not in known:
            known.add(name)
            report(name, how)

    return failed


def logged(count: Callable[[str], None]) -> Failed:
    """The first failure of each policy is logged; ``count`` is called for all of them."""
    log = once(lambda name, how: _log.error(failure_text(name, how), policy=name))

    def failed(name: str, how: str) -> None:
        count(name)
        log(name, how)

    return failed


def failure_text(name: str, how: str) -> str:
    """A failure as text."""
    return f"the policy {name} of the order failed: {how}"


@dataclass(frozen=True, slots=True)
class GuardedGangOrder:
    """A site's policy of gangs."""

    name: str
    policy: GangOrder
    failed: Failed

    def rank(self, gang: Gang) -> float:
        """As in `GangOrder`."""
        return _rank(self.policy.rank, gang, self.name, self.failed)


@dataclass(frozen=True, slots=True)
class GuardedUserOrder:
    """A site's policy of users."""

    name: str
    policy: UserOrder
    failed: Failed

    def rank_user(self, usage: UserUsage) -> float:
        """As in `UserOrder`."""
        return _rank(self.policy.rank_user, usage, self.name, self.failed)


def _rank(ask: Callable[[Asked], float], what: Asked, name: str, failed: Failed) -> float:
    try:
        found = float(ask(what))
    except (Exception, SystemExit) as error:  # whatever a site's own code raises
        failed(name, f"{_in_short(error)}; {GOES_LAST}")
        return LAST
    if isnan(found):
        failed(name, f"it answered NaN; {GOES_LAST}")
        return LAST
    return found


def _in_short(error: BaseException) -> str:
    """In one line."""
    return cut(" ".join(f"{type(error).__name__}: {error}".split()), ERROR_LENGTH)
