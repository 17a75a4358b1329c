"""What becomes of a waiting gang, and of others, when cells are kept for it, or no longer."""

from typing import TYPE_CHECKING

from scheduler.domain.core.aside import put_aside
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import RestoredReservation
from scheduler.domain.core.queue import GUESTS

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster


def set_apart(cluster: "Cluster", live: Live) -> None:
    """Cells are kept for the gang: it is tried whenever its virtual cluster is helped."""
    live.is_kept_for = True
    _requeue(cluster, live)


def unreserve(cluster: "Cluster", live: Live) -> None:
    """Nothing is kept for the gang any more, which others may have now."""
    reservation = cluster.reservations.by_gang.get(live.id)
    if reservation is not None:
        cluster.reservations.remove(reservation)
        freed_by(cluster, live.owner)
        live.is_kept_for = False
        _requeue(cluster, live)


def freed_by(cluster: "Cluster", owner: str) -> None:
    """Something of the owner's quota is free that was only kept, with its share of the nodes: gangs
    that have to leave that alone are tried (`admitting.reserved_shares`).
    """
    cluster.hardware.free_version += 1
    cluster.stamps.touch(owner)
    for line in cluster.queue.tried.get((owner, False), ()):
        if GUESTS in line.groups and cluster.gangs[line.waiting[0][1]].extra_of is None:
            cluster.queue.added[line] = None


def keep_again(cluster: "Cluster", restored: RestoredReservation) -> None:
    """Cells that were kept for a gang before. Where it does not wait, or they are there no longer,
    nothing is kept: a later cycle sees to it.
    """
    live = cluster.gangs.get(restored.gang) if cluster.is_keeping else None
    if live is None or live.id not in cluster.queue.gangs or live.pods:
        return
    if cluster.reservations.restore(live, restored):
        live.is_kept_for = True
        cluster.queue.remove(live)
        cluster.enqueue(live)


def let_go(cluster: "Cluster") -> None:
    """Nothing is kept for anybody, as if it never had been: before gangs are restored beside which
    it was kept.
    """
    for reservation in list(cluster.reservations.by_gang.values()):
        live = reservation.live
        cluster.reservations.remove(reservation)
        live.is_kept_for = False
        cluster.queue.remove(live)
        cluster.enqueue(live)


def _requeue(cluster: "Cluster", live: Live) -> None:
    """A gang that waits is in another line from now on, for the same reason."""
    before = cluster.queue.gangs.get(live.id)
    if before is None:
        return
    cluster.queue.remove(live)
    cluster.enqueue(live)
    line = cluster.queue.gangs[live.id]
    if line.reason is None:
        cluster.queue.added.pop(line, None)
        put_aside(cluster, line)
    if before.reason is not None and line.reason is None:
        cluster.queue.explain(line, before.reason, before.explained or ())
