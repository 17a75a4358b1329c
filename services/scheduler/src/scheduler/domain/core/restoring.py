"""Gangs that run already get the cells that they had, or such as they would get now."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.covering import bind_exactly, cover, floors, uncover
from scheduler.domain.core.hardware import pin_owner
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import Machine, SlotState, Take
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    Downgraded,
    GangClass,
    Kind,
    PodPlace,
    PreemptionCancelled,
    Restored,
)

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

NOTHING = Kind()


def restore(cluster: "Cluster", live: Live, restored: Restored, now: float) -> None:
    """Give a gang back all that it had."""
    gang = restored.gang
    kinds = {name: role.kind for role in gang.roles for name in role.pods}
    live.started_at = restored.started_at
    live.preempted_until, live.preempted_for = restored.preempted_until, restored.preempted_for
    is_guest = gang.priority == OPPORTUNISTIC or restored.gang_class in (
        GangClass.OPPORTUNISTIC,
        GangClass.DOWNGRADED,
    )
    live.gang_class = restored.gang_class or (
        GangClass.OPPORTUNISTIC if is_guest else GangClass.GUARANTEED
    )
    if live.is_leaving:
        cluster.told_to_leave.add(live.id)
    is_charged = not is_guest and not live.is_leaving
    pods = _pods(cluster, live, restored.places, kinds)
    reserved = restored.reserved
    if restored.started_at is None:
        reserved = tuple(place.pod for place in restored.places)
    if is_charged:
        cells = () if restored.gang_class is None else restored.cells
        is_charged = any(
            _charge(cluster, live, pods, first, floor)
            for first in ((cells, ()) if cells else ((),))
            for floor in floors(cluster.hardware, live.owner)
        )
        if not is_charged:
            pods = _give_up(cluster, live, restored, pods)
            reserved = ()
    for pod in pods:
        if not is_charged and not live.is_leaving:
            pod.leaves = 0
        cluster.hardware.enter(pod, is_charged=is_charged, is_reserved=pod.name in reserved)
        live.pods[pod.name] = pod
        if is_charged:
            cluster.count_charge(live, pod, 1)
    live.reserved = reserved
    if reserved:
        roles = [replace(r, pods=tuple(p for p in r.pods if p in reserved)) for r in gang.roles]
        live.waiting = tuple(role for role in roles if role.pods)
        cluster.reserved.add(live.id)
    if live.gang_class is GangClass.DOWNGRADED and not live.is_leaving:
        cluster.downgraded.add(live.id)


def _give_up(cluster: "Cluster", live: Live, restored: Restored, pods: Sequence[Pod]) -> list[Pod]:
    """The cells can't be had: what runs is downgraded, what was reserved waits again."""
    waits = {place.pod for place in restored.places} if live.started_at is None else set()
    waits |= set(restored.reserved)
    if waits:
        roles = [replace(r, pods=tuple(p for p in r.pods if p in waits)) for r in live.gang.roles]
        live.waiting = tuple(role for role in roles if role.pods)
        cluster.said.append(PreemptionCancelled(live.id))
    live.gang_class = GangClass.DOWNGRADED
    if live.started_at is None:
        live.gang_class, live.strangers = None, ()
    else:
        cluster.said.append(Downgraded(live.id, None))
    return [pod for pod in pods if pod.name not in waits]


def _pods(
    cluster: "Cluster", live: Live, places: Sequence[PodPlace], kinds: dict[str, Kind]
) -> list[Pod]:
    """The places as the hardware has them; what it does not know is carried as a stranger."""
    pods: list[Pod] = []
    strangers: list[PodPlace] = []
    for place in places:
        kind = kinds.get(place.pod, NOTHING)
        machine = cluster.hardware.machines.get(place.node)
        state = None if machine is None else _state(machine, (*place.gpus, *place.charged))
        if machine is None or (state is None and place.gpus):
            strangers.append(place)
            continue
        take = machine.sort.take(kind) or Take(0, (0,) * len(machine.sort.names))
        gpus = charged = 0
        if state is not None:
            gpus = state.slot.mask_of(place.gpus)
            charged = gpus | state.slot.mask_of(place.charged)
        pods.append(Pod(place.pod, live.id, kind, machine, take, state, charged, gpus, place.ports))
    live.strangers = tuple(strangers)
    return pods


def _state(machine: Machine, gpus: Sequence[int]) -> SlotState | None:
    """The tree of the node that all these GPUs are in."""
    for state in machine.slots:
        if gpus and state.slot.mask_of(gpus).bit_count() == len(set(gpus)):
            return state
    return None


def _charge(
    cluster: "Cluster", live: Live, pods: Sequence[Pod], cells: Sequence[CellUse], floor: int
) -> bool:
    """Bind what the pods are in; False, with nothing changed, where that is not allowed."""
    hardware = cluster.hardware
    if live.strangers:
        return False
    bound: list[Binding] = []
    for use in cells:
        binding = bind_exactly(hardware, live.owner, use.quota, use.cell)
        if binding is not None:
            bound.append(binding)
    done: list[Pod] = []
    taken: dict[int, int] = {}
    for pod in pods:
        if pod.state is None:
            continue
        number = pod.state.slot.number
        if not _may_own(cluster, live, pod) or pod.leaves & (
            pod.state.charged | taken.get(number, 0)
        ):
            break
        owner = live.owner if pod.kind.pin is None else pin_owner(pod.kind.pin)
        bindings = cover(hardware, owner, pod.state, pod.leaves, floor) if pod.leaves else ()
        if bindings is None:
            break
        taken[number] = taken.get(number, 0) | pod.leaves
        pod.bindings = bindings
        bound.extend(bindings)
        done.append(pod)
    else:
        uncover(
            hardware, [b for b in dict.fromkeys(bound) if not any(b in p.bindings for p in done)]
        )
        return True
    for pod in done:
        pod.bindings = ()
    uncover(hardware, dict.fromkeys(bound))
    return False


def _may_own(cluster: "Cluster", live: Live, pod: Pod) -> bool:
    """Its share of the node is within what it is charged, and a pin is its virtual cluster's."""
    if pod.kind.pin is not None:
        return cluster.hardware.forest.pin_owners.get(pod.kind.pin) == live.gang.virtual_cluster
    return pod.take.leaves <= pod.leaves.bit_count()


def change(old: "Cluster", fresh: "Cluster", now: float) -> None:
    """Carry nodes' health and all gangs over into a cluster of another configuration."""
    for name, machine in old.hardware.machines.items():
        found = fresh.hardware.machines.get(name)
        if found is not None:
            found.is_healthy, found.is_cordoned = machine.is_healthy, machine.is_cordoned
            found.is_drained, found.avoided = machine.is_drained, machine.avoided
            _carry_masks(machine, found)
            fresh.hardware.set_usable(found)
    fresh.said.extend(old.said)
    for live in sorted(old.gangs.values(), key=lambda live: live.order):
        if live.pods or live.strangers:
            fresh.restore(old.exported(live.id), now)
            carried = fresh.gangs[live.id]
            if not live.reserved:
                carried.waiting = live.waiting
        else:
            carried = Live(live.gang, live.order, live.owner, live.waiting)
            fresh.take_in(carried)
        carried.told = live.told
        if not carried.is_leaving and not carried.reserved:
            fresh.enqueue(carried)


def _carry_masks(machine: Machine, found: Machine) -> None:
    """Bad and blocked GPUs are so by their index."""
    for state in machine.slots:
        sick, blocked = state.slot.indices(state.sick), state.slot.indices(state.blocked)
        for other in found.slots:
            other.sick |= other.slot.mask_of(sick)
            other.blocked |= other.slot.mask_of(blocked)
