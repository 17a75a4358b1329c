"""A gang that was placed before: after a restart, or under another configuration."""

from collections.abc import Iterable, Iterator

from scheduler.domain.core.forest import Cell
from scheduler.domain.core.interface import GangState
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    GangClass,
    PodPlace,
    Restored,
    without,
)
from scheduler.domain.core.owning import owner_of
from scheduler.domain.newcore.gangs import roles_of, workload_of
from scheduler.domain.newcore.lend import BORROWED, lender_of
from scheduler.domain.newcore.models import Want
from scheduler.domain.newcore.nodes import Binding, Phase, Place, QuotaLeft, Slot, Workload
from scheduler.domain.newcore.records import Record
from scheduler.domain.newcore.state import State


def restore(state: State, restored: Restored) -> tuple[Workload, tuple[PodPlace, ...]]:
    """Put a gang's pods where they are. Where it can't have its cells it is downgraded; where it
    was nominated it waits. Also returns the places of pods that run on hardware which the
    configuration does not have, or which another gang has.
    """
    gang, phase = restored.gang, _phase_of(restored)
    over = {pod for role in gang.roles for pod in role.pods}
    over -= {place.pod for place in restored.places}
    workload = workload_of(state, gang, without(gang.roles, over) if over else gang.roles)
    if restored.gang_class not in (None, GangClass.GUARANTEED) and workload.owner is not None:
        state.be_opportunistic(workload)
    is_charged = workload.owner is not None
    if is_charged and restored.lender is not None:
        state.borrow(workload, owner_of(restored.lender), BORROWED)
        if _take_all(state, workload, restored, phase):
            return workload, ()
        state.ask_anew(workload)
    if _take_all(state, workload, restored, phase) or phase is Phase.NOMINATED:
        return workload, ()
    if is_charged:
        state.be_opportunistic(workload)
    return workload, _take_some(state, workload, restored, phase)


def _phase_of(restored: Restored) -> Phase:
    if restored.started_at is None:
        return Phase.NOMINATED
    return Phase.RUNNING if restored.preempted_until is None else Phase.LEAVING


def _take_all(state: State, workload: Workload, restored: Restored, phase: Phase) -> bool:
    """All pods take their places in cells; or some of them can't, and nothing has changed."""
    found = list(_places(state, workload, restored))
    places = [place for _, place in found if place is not None]
    if len(places) < len(found):
        return False
    with state.trial() as trial:
        bound: list[Binding] = []
        if workload.owner is not None and phase is not Phase.LEAVING:
            bound = bind_again(state, workload.owner, restored.cells)
        for place in places:
            if not _may_take(state, workload, place, phase):
                return False
            state.take(workload, place, phase)
        if places:
            state.settle(workload, places, phase)
        state.unbind_unused(bound)
        trial.commit()
    return True


def _take_some(
    state: State, workload: Workload, restored: Restored, phase: Phase
) -> tuple[PodPlace, ...]:
    """A gang without cells runs where it does. Returns the places that it can't take; what is there
    of them is not free.
    """
    taken, orphaned = list[Place](), list[PodPlace]()
    for pod, place in _places(state, workload, restored):
        if place is not None and _may_take(state, workload, place, phase):
            parts = [place]
        else:
            orphaned.append(pod._replace(charged=()))
            parts = [each for each in _parts_of(state, pod) if not each.gpus & each.slot.used]
        for each in parts:
            state.take(workload, each, phase)
        taken += parts
    state.settle(workload, taken, phase)
    return tuple(orphaned)


def _places(
    state: State, workload: Workload, restored: Restored
) -> Iterator[tuple[PodPlace, Place | None]]:
    wants = {pod: want for want, pods in workload.wants for pod in pods}
    for pod in restored.places:
        if (want := wants.get(pod.pod)) is not None:
            yield pod, place_of(state, workload, want, pod)


def _may_take(state: State, workload: Workload, place: Place, phase: Phase) -> bool:
    slot = place.slot
    if place.gpus & (slot.used if phase is not Phase.NOMINATED else slot.staying):
        return False
    if workload.is_opportunistic or phase is Phase.LEAVING:
        return True
    if place.charge & slot.charged:
        return False
    return state.bind_around(place.owner, slot, place.charge)


def _parts_of(state: State, pod: PodPlace) -> Iterator[Place]:
    """What is there of a pod's GPUs: they are in no slot together."""
    node, none = state.nodes.get(pod.node), (0,) * len(state.resources.names)
    for slot in () if node is None else node.slots:
        gpus = 0 if slot.fixed is None else slot.fixed.mask_of(pod.gpus)
        if gpus:
            yield Place(pod.pod, slot, gpus, none)


def place_of(state: State, workload: Workload, want: Want, pod: PodPlace) -> Place | None:
    """A pod's place by names; None: it is not there any more."""
    node = state.nodes.get(pod.node)
    if node is None:
        return None
    slot = _slot_of(node.slots, pod.gpus)
    if slot is None:
        return None
    gpus = 0 if slot.fixed is None else slot.fixed.mask_of(pod.gpus)
    more = 0 if slot.fixed is None else slot.fixed.mask_of(pod.charged)
    owner = workload.owner_of(want)
    is_opportunistic = workload.gang.priority == OPPORTUNISTIC
    charge = 0 if is_opportunistic else gpus | more  # it may be upgraded to it
    return Place(pod.pod, slot, gpus, want.amounts, charge, owner or "", node.port_bits(pod.ports))


def _slot_of(slots: Iterable[Slot], gpus: tuple[int, ...]) -> Slot | None:
    """The slot that has all these GPUs."""
    for slot in slots:
        known = () if slot.fixed is None else slot.fixed.gpus
        if all(gpu in known for gpu in gpus):
            return slot
    return None


def bind_again(state: State, owner: str, cells: Iterable[CellUse]) -> list[Binding]:
    """Bind the cells that a gang has had, out of the same quota, as far as that is allowed."""
    bound: list[Binding] = []
    for use in cells:
        for quota in state.quotas.get(owner, ()):
            if quota.quota.path != use.quota or not quota.left:
                continue
            for cell in state.forest.by_address(quota.chain, use.cell):
                found = _cell_at(owner, quota, cell, use.cell)
                slot, buddy = state.slots_of(cell)[0], state.buddies[quota.chain.name]
                if found is not None and buddy.may_bind(cell, found.part, slot):
                    state.bind(found)
                    bound.append(found)
    return bound


def _cell_at(owner: str, quota: QuotaLeft, cell: Cell, address: str) -> Binding | None:
    if cell.level == quota.level and cell.address == address:
        return Binding(owner, quota, cell, None)
    if cell.slot is not None and quota.level < cell.level:
        for part in cell.slot.shape.parts[quota.level]:
            if cell.slot.address(part) == address:
                return Binding(owner, quota, cell, part)
    return None


def exported(record: Record) -> Restored:
    """All that is kept of a gang that has places."""
    workload, run = record.workload, record.run
    orphaned = {place.pod for place in record.orphaned}
    places = (place for place in workload.places if place.pod not in orphaned)
    return Restored(
        workload.gang,
        (*map(pod_place, places), *record.orphaned),
        class_of(record) if workload.places or orphaned else None,
        cells_of(workload),
        None if run is None else run.started_at,
        record.leaves_by,
        record.leaves_for,
        checkpointed_at=None if run is None else run.checkpointed_at,
        lender=lender_of(workload),
    )


def state_of(record: Record) -> GangState:
    """A gang as it is shown."""
    workload, run = record.workload, record.run
    is_waiting = workload.phase in (Phase.WAITING, Phase.NOMINATED)
    has_places = bool(workload.places or record.orphaned)
    return GangState(
        workload.gang,
        roles_of(workload) if is_waiting else (),
        started_at=None if run is None else run.started_at,
        gang_class=class_of(record) if has_places else None,
        lender=lender_of(workload) if has_places else None,
        preempted_until=record.leaves_by,
        told=record.published,
        is_waiting=is_waiting,
        is_nominated=workload.phase is Phase.NOMINATED,
    )


def class_of(record: Record) -> GangClass:
    """How a gang with places holds its GPUs."""
    workload = record.workload
    if not workload.is_opportunistic:
        return GangClass.GUARANTEED
    if workload.is_away or (record.orphaned and workload.gang.priority != OPPORTUNISTIC):
        return GangClass.DOWNGRADED
    return GangClass.OPPORTUNISTIC


def cells_of(workload: Workload) -> tuple[CellUse, ...]:
    """The cells that a workload is charged, each once."""
    if workload.is_opportunistic or workload.phase is Phase.LEAVING:
        return ()
    found = {
        (address_of(binding, place.slot), "" if binding.quota is None else binding.quota.quota.path)
        for place in workload.places
        for mask, binding in place.slot.bindings
        if mask & place.charge
    }
    return tuple(CellUse(cell, quota) for cell, quota in sorted(found))


def address_of(binding: Binding, slot: Slot) -> str:
    """The address of a bound cell."""
    if binding.part is None or slot.fixed is None:
        return binding.cell.address
    return slot.fixed.address(binding.part)


def pod_place(place: Place) -> PodPlace:
    """A place by names."""
    slot = place.slot
    if slot.fixed is None:
        return PodPlace(place.pod, slot.node.name, (), slot.node.ports_in(place.ports))
    more = place.charge & ~place.gpus
    gpus, charged = slot.fixed.indices(place.gpus), slot.fixed.indices(more) if more else ()
    return PodPlace(place.pod, slot.node.name, gpus, slot.node.ports_in(place.ports), charged)
