"""Downgraded gangs get their cells again where there is room."""

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.in_place import can_cover, cover_in_place, pod_in_place
from scheduler.domain.core.model import Decision, Upgraded


def upgrade(cluster: Cluster) -> list[Decision]:
    """Raise all that can be raised, the oldest first."""
    decisions: list[Decision] = []
    stirred = cluster.downgraded.stirred(cluster.hardware)
    if not stirred:
        return decisions
    lives = [cluster.gangs[gang] for gang in stirred]
    stamps = {owner: cluster.stamps.of_quota(owner) for owner in {live.owner for live in lives}}
    stale = [live for live in lives if live.downgraded_under != stamps[live.owner]]
    left = {live.owner: cluster.charges.left_of_all(live.owner, 0) for live in stale}
    for live in sorted(stale, key=lambda live: (live.gang.submitted_at, live.id)):
        if live.strangers or left[live.owner] < _least(live):
            continue
        versions = cluster.hardware.versions()
        if not _raise(cluster, live):
            cluster.hardware.unchanged(versions)
            live.downgraded_under = cluster.stamps.of_quota(live.owner)
        else:
            cluster.upgrade(live)
            left[live.owner] = cluster.charges.left_of_all(live.owner, 0)
            decisions.append(Upgraded(live.id))
    return decisions


def _least(live: Live) -> int:
    """Leaves that all its pods need of its quota."""
    return sum(pod.take.leaves for pod in live.pods.values() if pod.kind.pin is None)


def _raise(cluster: Cluster, live: Live) -> bool:
    """Give the gang cells around where it runs, all or none."""
    hardware = cluster.hardware
    charged = [pod for pod in live.pods.values() if pod.take.leaves]
    pods = [pod_in_place(hardware, live.owner, pod) for pod in charged]
    found = [each for each in pods if each is not None]
    if len(found) < len(pods) or not all(can_cover(hardware, each) for each in found):
        held = (each for each in found if not can_cover(hardware, each, binds=True))
        if (each := next(held, None)) is not None:
            cluster.downgraded.hold(live.id, each.states(), hardware)
        return False
    if not cover_in_place(hardware, live.owner, found):
        return False
    for each in found:
        each.pod.state, each.pod.leaves = each.state, each.leaves
        hardware.recharge(each.pod, each.bindings)
    return True
