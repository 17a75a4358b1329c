"""Whose open jobs ask for and hold GPUs, in a bounded number of rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from launcher.domain.states import JobPhase

OTHERS = "other"
"""Stands for all users but those with the most GPUs."""


@dataclass(frozen=True, slots=True)
class Share:
    """Open jobs of a user in a virtual cluster and a phase."""

    virtual_cluster: str
    user: str
    phase: JobPhase


def bounded(gpus: Mapping[Share, int], most: int) -> Mapping[Share, int]:
    """The same sums with at most ``most`` users, those with the most GPUs, and OTHERS."""
    of_users: Counter[str] = Counter()
    for share, count in gpus.items():
        of_users[share.user] += count
    named = {user for user, _ in of_users.most_common(most)}
    found: Counter[Share] = Counter()
    for share, count in gpus.items():
        found[share if share.user in named else replace(share, user=OTHERS)] += count
    return found
