"""What a decision makes of the state: a gang has its places, runs, has them reserved, or leaves."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.extras import add_extra, hand_over, pod_of, spawn, wanted
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.model import (
    Decision,
    GangClass,
    Grown,
    Placed,
    Preempted,
    Reason,
    Role,
    Shrunk,
)
from scheduler.domain.core.protecting import is_inside
from scheduler.domain.core.seeking import Seeker, seeker_of


def settle(cluster: Cluster, live: Live, pods: Sequence[Pod], gang_class: GangClass) -> None:
    """The pods have their places."""
    live.gang_class = live.gang_class or gang_class
    if len(pods) == 1:
        live.pods[pods[0].name] = pods[0]
    else:
        by_name = {pod.name: pod for pod in pods}
        live.pods.update((name, by_name[name]) for name in names_of(live.waiting))
    if live.is_charged:
        for pod in pods:
            cluster.charges.count(live, pod, 1)
    cluster.sort_in(live)


def start(cluster: Cluster, live: Live, names: Iterable[str], now: float) -> Decision:
    """The pods run."""
    places = tuple([live.pods[name].place() for name in names])
    live.waiting, live.told = (), None
    if live.extra_of is not None:
        live.started_at = now
        return Grown(live.extra_of, places, live.lender)
    if live.started_at is not None and len(live.pods) + len(live.strangers) > len(places):
        return Grown(live.id, places, live.lender)
    live.started_at = now
    cluster.saving.began(live)
    cluster.preemptions.began(live, now)
    return Placed(live.id, places, live.lender)


def names_of(roles: Sequence[Role]) -> Sequence[str]:
    """Of all their pods, in order."""
    if len(roles) == 1:
        return roles[0].pods
    return [name for role in roles for name in role.pods]


def begin(
    cluster: Cluster, live: Live, pods: Sequence[Pod], gang_class: GangClass, now: float
) -> list[Decision]:
    """The gang has found its places, and runs."""
    settle(cluster, live, pods, gang_class)
    cluster.queue.remove(live)
    cluster.usage.begin(live, pods, now)
    if live.id in cluster.forecast.told and live.extra_of is None:
        cluster.forecast.started(live, now)
    decision = start(cluster, live, names_of(live.waiting), now)
    if live.surplus:
        spawn(cluster, live)
    return [decision]


def start_whole(cluster: Cluster, live: Live, now: float) -> list[Decision] | None:
    """The gang starts with the pods too that it can do without, where all its GPUs are free."""
    needed, surplus = live.waiting, live.surplus
    live.waiting = tuple(replace(role, least=None) for role in wanted(live))
    seeker = seeker_of(cluster, live, is_guest=live.is_guest)
    found = seeker.place(live.waiting)
    live.waiting = needed
    if not found:
        return None
    kind = GangClass.OPPORTUNISTIC if live.is_guest else GangClass.GUARANTEED
    names = {name for role in needed for name in role.pods}
    live.surplus = ()
    begin(cluster, live, [pod for pod in seeker.pods if pod.name in names], kind, now)
    roles = {name: role for role in surplus for name in role.pods}
    places = [pod.place() for pod in live.pods.values()]
    for pod in seeker.pods:
        if pod.name not in names:
            extra = add_extra(cluster, live, roles[pod.name], pod.name)
            begin(cluster, extra, [hand_over(cluster, pod, extra)], kind, now)
            places.append(pod.place())
    return [Placed(live.id, tuple(places))]


def start_at_once(cluster: Cluster, live: Live, now: float) -> list[Decision] | None:
    """The gang starts where all its GPUs are free; None, with nothing changed, if there is no such
    place.
    """
    seeker = seeker_of(cluster, live, is_guest=False)
    if not seeker.place(live.waiting):
        return None
    return begin(cluster, live, seeker.pods, GangClass.GUARANTEED, now)


def reserve(cluster: Cluster, live: Live, seeker: Seeker) -> None:
    """What the seeker found is the gang's as soon as the others have left."""
    hardware = cluster.hardware
    for pod in seeker.pods:
        hardware.reserve(pod)
    settle(cluster, live, seeker.pods, GangClass.GUARANTEED)
    cluster.queue.remove(live)
    live.reserved = tuple(names_of(live.waiting))
    cluster.reserved.add(live.id)


def start_reserved(cluster: Cluster, live: Live, now: float) -> list[Decision]:
    """The gang starts if all who leave for it have left and what is reserved for it is free."""
    if any(cluster.gangs[gang].preempted_for == live.id for gang in cluster.told_to_leave):
        return []
    return start_if_free(cluster, live, now)


def start_if_free(cluster: Cluster, live: Live, now: float) -> list[Decision]:
    """The gang, for whom nobody leaves, starts if what is reserved for it is free."""
    pods = [live.pods[name] for name in live.reserved]
    if any(
        (pod.state is not None and pod.gpus & (pod.state.held | pod.state.leaving))
        or min(pod.machine.free, default=0) < 0
        for pod in pods
    ):
        return []
    names, live.reserved = live.reserved, ()
    cluster.reserved.discard(live.id)
    cluster.looked_at_anew(live)
    for pod in pods:
        cluster.hardware.start(pod)
    cluster.usage.begin(live, pods, now)
    if live.extra_of is None:
        cluster.forecast.started(live, now)
    decision = start(cluster, live, names, now)
    spawn(cluster, live)
    return [decision]


def preempt(cluster: Cluster, victim: Live, live: Live | None, now: float) -> Preempted | Shrunk:
    """The victim is told to leave."""
    until = now + cluster.policy.grace_s
    if live is None:
        reason = Reason("drain", "Its node is drained.", {})
    elif victim.is_overdue:
        text = f"Its cells were kept for the gang {live.id}, and it has not ended in time."
        reason = Reason("reservation", text, {"gpus": victim.gpus})
    elif victim.extra_of is not None:
        text = f"The gang {live.id} needs these cells, and this one can do without the pod."
        reason = Reason("surplus", text, {"gpus": victim.gpus})
    elif victim.is_lent and victim.owner == live.owner:
        text = f"{victim.lender} needs these cells, which this one has borrowed, for {live.id}."
        reason = Reason("reclaimed", text, {"gpus": victim.gpus})
    elif victim.owner == live.owner and victim.gang_class is GangClass.GUARANTEED:
        numbers = {"priority": victim.gang.priority, "forPriority": live.gang.priority}
        text = (
            f"The gang {live.id} of the same virtual cluster has priority {live.gang.priority},"
            f" this one {victim.gang.priority}."
        )
        reason = Reason("priority", text, numbers)
    else:
        text = f"The gang {live.id} has a guarantee of {live.gang.virtual_cluster} on these GPUs."
        if not _is_on_gpus_of(victim, live):
            text = (
                f"The gang {live.id} of {live.gang.virtual_cluster}, which is guaranteed, wants"
                " CPU, memory, ports or other resources that this one uses."
            )
        reason = Reason("guarantee", text, {"gpus": victim.gpus})
    if live is not None and victim.extra_of is None:
        # Who was to be gone costs no budget.
        inside = is_inside(live, victim) and not victim.is_overdue
        cluster.preemptions.preempted(victim, live, is_inside=inside)
    for_gang = None if live is None else live.id
    cluster.tell_to_leave(victim, for_gang, until)
    if victim.extra_of is not None:
        return Shrunk(victim.extra_of, (pod_of(victim),), for_gang, until, reason)
    return Preempted(victim.id, for_gang, until, reason)


def _is_on_gpus_of(victim: Live, live: Live) -> bool:
    """It uses GPUs that the other is charged."""
    mine: dict[int, int] = {}
    for pod in live.pods.values():
        if pod.state is not None:
            number = pod.state.slot.number
            mine[number] = mine.get(number, 0) | pod.leaves | pod.gpus
    return any(
        pod.state is not None and pod.gpus & mine.get(pod.state.slot.number, 0)
        for pod in victim.pods.values()
    )
