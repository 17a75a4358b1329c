"""Bounds what is counted by user: metrics must not grow with the number of users."""

from collections import Counter
from collections.abc import Mapping

ByUser = Mapping[tuple[str, str, str], int]
"""By virtual cluster, user and whatever else."""

OTHERS = "other"
"""Stands for all users but those with the highest sums."""


def bounded(counts: ByUser, most: int) -> ByUser:
    """The same sums with at most ``most`` users, those with the highest sums, and OTHERS."""
    of_users: Counter[str] = Counter()
    for (_, user, _), count in counts.items():
        of_users[user] += count
    named = {user for user, _ in of_users.most_common(most)}
    found: Counter[tuple[str, str, str]] = Counter()
    for (virtual_cluster, user, state), count in counts.items():
        found[virtual_cluster, user if user in named else OTHERS, state] += count
    return found
