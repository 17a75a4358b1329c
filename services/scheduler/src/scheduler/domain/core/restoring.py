"""Gangs that run already get the cells that they had, or such as they would get now."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.domain.core.covering import bind_exactly, uncover
from scheduler.domain.core.extras import lives_of, restore_extras, want, without_extras
from scheduler.domain.core.holdings import REMNANT, Live, Pod
from scheduler.domain.core.in_place import cover_all, cover_in_place, pod_in_place
from scheduler.domain.core.keeping import keep_again
from scheduler.domain.core.machines import Machine, SlotState, Take
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    Downgraded,
    Gang,
    GangClass,
    Kind,
    PodPlace,
    PreemptionCancelled,
    Restored,
    Role,
)

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

NOTHING = Kind()


def restore(cluster: "Cluster", live: Live, restored: Restored) -> None:
    """Give a gang back all that it had."""
    gang = restored.gang
    kinds = {name: role.kind for role in gang.roles for name in role.pods}
    is_waiting = all(place.pod in restored.reserved for place in restored.places)
    live.started_at = None if is_waiting else restored.started_at
    live.preempted_until, live.preempted_for = restored.preempted_until, restored.preempted_for
    cluster.reservations.passes(live, restored.passed)
    cluster.saving.began(live, restored.checkpointed_at)
    live.gang_class = restored.gang_class or _class_of(gang)
    live.set_lender(_lender_of(live, restored))
    if live.is_leaving:
        cluster.told_to_leave.add(live.id)
    is_charged = live.is_charged and not live.is_guest
    pods = _pods(cluster, live, restored.places, kinds)
    reserved = restored.reserved
    if live.started_at is None:
        reserved = tuple(place.pod for place in restored.places)
    if reserved and (not is_charged or _are_of_wrong_types(gang.roles, pods, reserved)):
        pods, reserved = _without_reserved(cluster, live, pods, reserved), ()
        is_charged = is_charged and bool(pods)
    if is_charged:
        cells = () if restored.gang_class is None else restored.cells
        is_charged = _charge_anybody(cluster, live, pods, cells)
        if not is_charged:
            pods = _without_reserved(cluster, live, pods, reserved)
            reserved = ()
            is_charged = bool(pods) and _charge(cluster, live, pods, cells)
            if not is_charged and live.started_at is not None:
                _without_cells(cluster, live, restored)
    for pod in pods:
        if not is_charged and not live.is_leaving:
            pod.leaves = 0
        cluster.hardware.enter(pod, is_charged=is_charged, is_reserved=pod.name in reserved)
        live.pods[pod.name] = pod
        if is_charged:
            cluster.charges.count(live, pod, 1)
    live.reserved = reserved
    if reserved:
        roles = [replace(r, pods=tuple(p for p in r.pods if p in reserved)) for r in gang.roles]
        live.waiting = tuple(role for role in roles if role.pods)
        cluster.reserved.add(live.id)
    if live.gang_class is GangClass.DOWNGRADED and not live.is_leaving:
        cluster.downgraded.add(live.id)


def _without_cells(cluster: "Cluster", live: Live, restored: Restored) -> None:
    """It goes on without cells: as one that has lost them, or, where nothing is known of any and it
    could have begun without, as one that never had any.
    """
    is_new = restored.gang_class is None
    if is_new and all(role.kind.costs_nothing for role in live.gang.roles):
        live.gang_class = GangClass.OPPORTUNISTIC
        return
    live.gang_class = GangClass.DOWNGRADED
    cluster.said.append(Downgraded(live.id, None))


def _lender_of(live: Live, restored: Restored) -> str | None:
    """In whose quota it was, if not in its own."""
    is_lent = live.gang_class is GangClass.GUARANTEED
    return restored.lender if is_lent and restored.lender != live.gang.virtual_cluster else None


def _class_of(gang: Gang) -> GangClass:
    """What a gang is whose class was left out."""
    if gang.priority == OPPORTUNISTIC:
        return GangClass.OPPORTUNISTIC
    return GangClass.GUARANTEED


def _are_of_wrong_types(
    roles: Sequence[Role], pods: Sequence[Pod], reserved: Sequence[str]
) -> bool:
    """By a change a role would get GPUs of several types, or of one that it doesn't want."""
    types = {
        pod.name: pod.state.gpu_type
        for pod in pods
        if pod.gpus and pod.state is not None and pod.name in reserved
    }
    for role in roles:
        found = {types[pod] for pod in role.pods if pod in types}
        if len(found) > 1 or (role.kind.gpu_types and not found <= set(role.kind.gpu_types)):
            return True
    return False


def _without_reserved(
    cluster: "Cluster", live: Live, pods: Sequence[Pod], reserved: Sequence[str]
) -> list[Pod]:
    """The cells can't be had for all: what was reserved waits again."""
    if reserved:
        roles = [
            replace(r, pods=tuple(p for p in r.pods if p in reserved)) for r in live.gang.roles
        ]
        live.waiting = tuple(role for role in roles if role.pods)
        live.strangers = tuple(place for place in live.strangers if place.pod not in reserved)
        cluster.said.append(PreemptionCancelled(live.id))
    kept = [pod for pod in pods if pod.name.partition(REMNANT)[0] not in reserved]
    if not kept and not live.strangers:  # nothing of it runs
        live.started_at = None
    if live.started_at is None:
        live.gang_class = None
    return kept


def _pods(
    cluster: "Cluster", live: Live, places: Sequence[PodPlace], kinds: dict[str, Kind]
) -> list[Pod]:
    """The places as the hardware has them; one that it does not have whole, or on a node that has
    less than the pod wants, is a stranger, and what is left of it there a pod beside it.
    """
    pods: list[Pod] = []
    strangers: list[PodPlace] = []
    for place in places:
        kind = kinds.get(place.pod, NOTHING)
        machine = cluster.hardware.machines.get(place.node)
        if machine is None:
            strangers.append(place._replace(charged=()))
            continue
        take = machine.sort.take(kind)
        is_charged = take is not None and take.leaves > 0
        state = _state(machine, place.gpus or (place.charged if is_charged else ()))
        if take is None or (state is None and place.gpus):
            strangers.append(place._replace(charged=()))
            pods += _remnants(live, place, machine, Take(kind.gpus, machine.sort.amounts(kind)))
            continue
        gpus = charged = 0
        if state is not None:
            gpus = state.slot.mask_of(place.gpus)
            charged = gpus | state.slot.mask_of(place.charged)
        pods.append(Pod(place.pod, live.id, kind, machine, take, state, charged, gpus, place.ports))
    live.strangers = tuple(strangers)
    return pods


def _remnants(live: Live, place: PodPlace, machine: Machine, take: Take) -> Iterator[Pod]:
    """What a place takes up whose GPUs are no longer all there, or no longer in one tree: nobody
    else gets that before the pod ends or leaves.
    """
    ports = place.ports
    masks = [(state, state.slot.mask_of(place.gpus)) for state in machine.slots]
    there = [(state, mask) for state, mask in masks if mask]
    state: SlotState | None
    for number, (state, gpus) in enumerate(there or ((None, 0),)):
        name = f"{place.pod}{REMNANT}{number}"
        yield Pod(name, live.id, NOTHING, machine, take, state, 0, gpus, ports)
        take, ports = Take(0, (0,) * len(take.amounts)), ()


def _state(machine: Machine, gpus: Sequence[int]) -> SlotState | None:
    """The tree of the node that all these GPUs are in."""
    for state in machine.slots:
        if gpus and state.slot.mask_of(gpus).bit_count() == len(set(gpus)):
            return state
    return None


def _charge(cluster: "Cluster", live: Live, pods: Sequence[Pod], cells: Sequence[CellUse]) -> bool:
    """Bind what the pods are in, these cells if that can be; False, with nothing changed, where
    there is no way.
    """
    hardware = cluster.hardware
    if live.strangers:
        return False
    charged = [pod for pod in pods if pod.take.leaves or pod.leaves]
    found = [pod_in_place(hardware, live.owner, pod, pod.leaves) for pod in charged]
    staying = [each for each in found if each is not None]
    if len(staying) < len(found):
        return False
    bound = [bind_exactly(hardware, live.owner, use.quota, use.cell) for use in cells]
    is_done = bool(cells) and cover_all(hardware, staying)
    kept = {id(binding) for each in staying if is_done for binding in each.bindings}
    uncover(hardware, (b for b in bound if b is not None and id(b) not in kept))
    if not is_done and not cover_in_place(hardware, live.owner, staying):
        return False
    for each in staying:
        each.pod.state, each.pod.leaves, each.pod.bindings = each.state, each.leaves, each.bindings
    return True


def _charge_anybody(
    cluster: "Cluster", live: Live, pods: Sequence[Pod], cells: Sequence[CellUse]
) -> bool:
    """The same in the quota where it was, be it another's, else in its own."""
    if _charge(cluster, live, pods, cells):
        return True
    if live.lender is None:
        return False
    live.set_lender(None)
    return _charge(cluster, live, pods, ())


def export(live: Live) -> Restored:
    """All that is kept of a gang that has places."""
    is_charged = live.gang_class is GangClass.GUARANTEED
    own = [pod for pod in live.pods.values() if REMNANT not in pod.name]
    return Restored(
        live.gang,
        (*(pod.place(is_charged=is_charged) for pod in own), *live.strangers),
        live.gang_class,
        live.cells(),
        live.started_at,
        live.preempted_until,
        live.preempted_for,
        () if live.started_at is None else live.reserved,
        live.passed,
        live.checkpointed_at,
        lender=live.lender,
    )


def carry_over(old: "Cluster", fresh: "Cluster", now: float) -> None:
    """Carry nodes' health and all gangs over into a cluster of another configuration."""
    for name, machine in old.hardware.machines.items():
        found = fresh.hardware.machines.get(name)
        if found is not None:
            found.is_healthy, found.is_cordoned = machine.is_healthy, machine.is_cordoned
            found.is_drained, found.avoided = machine.is_drained, machine.avoided
            _carry_masks(machine, found)
            fresh.hardware.set_usable(found)
    fresh.said.extend(old.said)
    fresh.preemptions.take_over(old.preemptions)
    _carry_gangs(old, fresh, now)
    fresh.usage.take_over(old.usage)
    for reservation in old.reservations.exported():
        keep_again(fresh, reservation)
    for hardware in (fresh.hardware, fresh.blank):
        hardware.catch_up()


def _carry_gangs(old: "Cluster", fresh: "Cluster", now: float) -> None:
    """All of them; what is had on sufferance after all that is its virtual cluster's own."""
    grown: list[tuple[Live, Restored]] = []
    for live in sorted(old.gangs.values(), key=lambda live: (live.lender is not None, live.order)):
        if live.extra_of is not None:
            continue
        if live.pods or live.strangers:
            restored = old.exported(live.id)
            if restored.extra:
                grown.append((live, restored))
            fresh.restore(without_extras(restored), now)
            carried = fresh.gangs[live.id]
            if not live.reserved:  # else it has its reservation again, or waits already
                carried.waiting = live.waiting
                fresh.enqueue(carried)
        else:
            carried = fresh.take_in(live.gang, live.waiting)
            fresh.enqueue(carried)
        carried.surplus = live.surplus
        for extra in lives_of(old, live.id):
            if extra.waiting:
                want(fresh, carried, extra.waiting[0])
        carried.told = None if live.reserved and not carried.reserved else live.told
    for live, restored in grown:
        restore_extras(fresh, fresh.gangs[live.id], restored, now)


def _carry_masks(machine: Machine, found: Machine) -> None:
    """Bad and blocked GPUs are so by their index."""
    for state in machine.slots:
        sick, blocked = state.slot.indices(state.sick), state.slot.indices(state.blocked)
        for other in found.slots:
            other.sick |= other.slot.mask_of(sick)
            other.blocked |= other.slot.mask_of(blocked)
