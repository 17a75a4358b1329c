"""The policies of the order that can be named: Muster's own, and a site's, which any installed
distribution may offer as entry points of the group `muster.order`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

from scheduler.domain.core.ordering import BUILT_IN, GangOrder, OrderPolicy, UserOrder

GROUP = "muster.order"


class WrongPolicyError(Exception):
    """An entry point is no policy of the order."""


def load() -> Mapping[str, OrderPolicy]:
    """By name; a site's own comes before Muster's of the same name. Raises WrongPolicyError."""
    policies = dict(BUILT_IN)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        found = point.load()
        policy = found() if isinstance(found, type) else found
        if not isinstance(policy, GangOrder | UserOrder):
            raise WrongPolicyError(
                f"The entry point {point.name} of {GROUP}, {point.value}, has neither the method"
                " rank(gang) nor rank_user(usage): see docs/scheduling.md, Order"
            )
        policies[point.name] = policy
    return policies
