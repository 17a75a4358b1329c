"""Whose open jobs ask for and hold GPUs, in a bounded number of rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    return _summed((_of(share, named), count) for share, count in gpus.items())


def _of(share: Share, named: set[str]) -> Share:
    user = share.user if share.user in named else OTHERS
    return Share(share.virtual_cluster, user, share.phase)


def _summed(counts: Iterable[tuple[Share, int]]) -> Mapping[Share, int]:
    summed: Counter[Share] = Counter()
    for share, count in counts:
        summed[share] += count
    return summed
