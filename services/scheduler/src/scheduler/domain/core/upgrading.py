"""Downgraded gangs get their cells again where there is room, and those that run on a loan come to
their own virtual cluster's quota.
"""

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.in_place import can_cover, cover_in_place, pod_in_place
from scheduler.domain.core.loans import returned
from scheduler.domain.core.model import Decision, GangClass, Upgraded
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.queue import Stamp


def upgrade(cluster: Cluster) -> list[Decision]:
    """Raise all that can be raised, the oldest first."""
    decisions: list[Decision] = []
    stirred = {*cluster.downgraded.stirred(cluster.hardware), *cluster.charges.loans.gangs}
    if not stirred:
        return decisions
    lives = [cluster.gangs[gang] for gang in stirred]
    stale = [live for live in lives if live.downgraded_under != _stamp(cluster, live)]
    left = {_home(live): cluster.charges.left_of_all(_home(live), 0) for live in stale}
    for live in sorted(stale, key=lambda live: (live.gang.submitted_at, live.id)):
        owner = _home(live)
        if live.strangers or live.reserved or left[owner] < _least(live):
            continue
        versions = cluster.hardware.versions()
        if not (_raise(cluster, live) if live.lender is None else _bring_home(cluster, live)):
            cluster.hardware.unchanged(versions)
            live.downgraded_under = _stamp(cluster, live)
        else:
            left[owner] = cluster.charges.left_of_all(owner, 0)
            if live.extra_of is None:
                decisions.append(Upgraded(live.id))
    return decisions


def _stamp(cluster: Cluster, live: Live) -> Stamp:
    """What could help it, as versions."""
    own = cluster.stamps.of_quota(_home(live))
    return own if live.lender is None else (*own, *cluster.stamps.of_quota(live.owner))


def _home(live: Live) -> str:
    """Its own virtual cluster's owner."""
    return owner_of(live.gang.virtual_cluster)


def _bring_home(cluster: Cluster, live: Live) -> bool:
    """Put the gang's own quota around where it runs, in the place of what it has borrowed."""
    hardware, owner, lender = cluster.hardware, _home(live), live.lender
    if not all(_may_come_home(cluster, owner, pod) for pod in live.pods.values()):
        return False
    borrowed, rank = [(pod, pod.bindings) for pod in live.pods.values()], live.rank
    for pod in live.pods.values():
        cluster.charges.count(live, pod, -1)
        hardware.discharge(pod)
    live.set_lender(None)
    if not _cover(cluster, live):
        live.set_lender(lender)
        live.rank = rank
        for pod, bindings in reversed(borrowed):
            hardware.recharge(pod, bindings)
            cluster.charges.count(live, pod, 1)
        return False
    for pod in live.pods.values():
        cluster.charges.count(live, pod, 1)
    returned(cluster, live)
    cluster.stamps.touch(owner_of(lender or ""))
    cluster.moved.add(live.extra_of or live.id)
    if live.id in cluster.queue.gangs:  # what it grows by waits elsewhere now
        cluster.queue.remove(live)
        cluster.enqueue(live)
    return True


def _may_come_home(cluster: Cluster, owner: str, pod: Pod) -> bool:
    """Its GPUs are in cells of its own virtual cluster, or would be in nobody's without it."""
    state = pod.state
    if state is None:
        return True
    number, mine = state.slot.number, state.bound.get(owner, 0)
    mine |= cluster.hardware.spaces[number].get(number, 0)
    for mask, binding in state.bindings.get(pod.bindings[0].owner if pod.bindings else "", ()):
        if set(binding.users) == {pod.gang}:
            mine |= mask
    return not pod.gpus & ~mine


def _least(live: Live) -> int:
    """Leaves that all its pods need of its quota."""
    return sum(pod.take.leaves for pod in live.pods.values() if pod.kind.pin is None)


def _raise(cluster: Cluster, live: Live) -> bool:
    """A downgraded gang gets cells around where it runs, all or none."""
    if not _cover(cluster, live):
        return False
    cluster.upgrade(live)
    return True


def _cover(cluster: Cluster, live: Live) -> bool:
    """Give the gang cells of its owner around where it runs, all or none."""
    hardware = cluster.hardware
    charged = [pod for pod in live.pods.values() if pod.take.leaves]
    pods = [pod_in_place(hardware, live.owner, pod) for pod in charged]
    found = [each for each in pods if each is not None]
    if len(found) < len(pods) or not all(can_cover(hardware, each) for each in found):
        held = (each for each in found if not can_cover(hardware, each, binds=True))
        if (each := next(held, None)) is not None and live.gang_class is GangClass.DOWNGRADED:
            cluster.downgraded.hold(live.id, each.states(), hardware)
        return False
    if not cover_in_place(hardware, live.owner, found):
        return False
    for each in found:
        each.pod.state, each.pod.leaves = each.state, each.leaves
        hardware.recharge(each.pod, each.bindings)
    return True
