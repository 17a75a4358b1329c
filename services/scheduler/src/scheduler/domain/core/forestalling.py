"""Who starts before a waiting gang is tried, though it could have what is reserved for them: gangs
with a reservation start first in a cycle, and may be protected from then on.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live


def starting_first(cluster: Cluster, live: Live, ended: Iterable[Live]) -> list[Live]:
    """Gangs of a lower priority of a gang's virtual cluster that only have a reservation, start
    when these have ended, with all that they have grown by, and need not leave then.
    """
    names = {each.id for each in ended}
    reserved = (cluster.gangs[gang] for gang in sorted(cluster.reserved))
    return [
        other
        for other in reserved
        if other.owner == live.owner
        and other.started_at is None
        and other.rank < live.gang.priority
        and _would_be_protected(cluster, live, other)
        and all(each.extra_of in names for each in _awaited(cluster, other))
    ]


def _would_be_protected(cluster: Cluster, live: Live, other: Live) -> bool:
    """From the gang, as soon as it has started."""
    protection, run_s = cluster.preemptions, other.gang.min_run_s
    return (
        bool(cluster.policy.min_run_s if run_s is None else run_s)
        or other.job in protection.hour.pairs(live.job)
        or protection.left(live.gang.virtual_cluster) is not None
    )


def _awaited(cluster: Cluster, other: Live) -> Iterator[Live]:
    """Who has to be gone before it starts: who leaves for it, or from its GPUs."""
    for gang in sorted(cluster.told_to_leave):
        leaving = cluster.gangs[gang]
        is_there = any(
            pod.state is state and pod.gpus & mask
            for pod in leaving.pods.values()
            for state, mask in ((each.state, each.gpus) for each in other.pods.values())
        )
        if is_there or leaving.preempted_for == other.id:
            yield leaving


@contextmanager
def as_if_started(cluster: Cluster, live: Live, others: Sequence[Live]) -> Iterator[None]:
    """What these have reserved the gang can't have, for the moment."""
    ranks = [other.rank for other in others]
    for other in others:
        cluster.set_rank(other, live.gang.priority)
    try:
        yield
    finally:
        for other, rank in zip(others, ranks, strict=True):
            cluster.set_rank(other, rank)
