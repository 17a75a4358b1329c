"""A gang that was placed before: after a restart, or under another configuration."""

from collections.abc import Iterable

from scheduler.domain.core.model import OPPORTUNISTIC, CellUse, GangClass, PodPlace, Restored
from scheduler.domain.core.owning import owner_of
from scheduler.domain.newcore.gangs import workload_of
from scheduler.domain.newcore.lend import BORROWED, lender_of
from scheduler.domain.newcore.models import Want
from scheduler.domain.newcore.nodes import Binding, Phase, Place, Slot, Workload
from scheduler.domain.newcore.records import Record
from scheduler.domain.newcore.state import State


def restore(state: State, restored: Restored) -> Workload:
    """Put a gang's pods where they are. Where it can't have its cells it is
    downgraded. Pods on nodes or GPUs that are not there any more have no place.
    """
    gang = restored.gang
    workload = workload_of(state, gang, gang.roles)
    wants = {pod: want for want, pods in workload.wants for pod in pods}
    is_charged = restored.gang_class in (None, GangClass.GUARANTEED)
    phase = _phase_of(restored)
    if restored.lender is not None:
        state.borrow(workload, owner_of(restored.lender), BORROWED)
    if not is_charged and workload.owner is not None:
        state.be_opportunistic(workload)
    found = ((wants.get(pod.pod), pod) for pod in restored.places)
    some = [place_of(state, workload, want, pod) for want, pod in found if want is not None]
    places = [place for place in some if place is not None]
    with state.trial() as trial:
        if workload.owner is not None and phase is not Phase.LEAVING:
            bind_again(state, workload.owner, restored.cells)
        if _take(state, workload, places, phase):
            trial.commit()
    if not workload.places and workload.owner is not None:
        state.be_opportunistic(workload)
        with state.trial() as trial:
            if _take(state, workload, [place._replace(owner="") for place in places], phase):
                trial.commit()
    return workload


def _phase_of(restored: Restored) -> Phase:
    if restored.started_at is None:
        return Phase.NOMINATED
    return Phase.RUNNING if restored.preempted_until is None else Phase.LEAVING


def _take(state: State, workload: Workload, places: list[Place], phase: Phase) -> bool:
    """All pods take their places, or some of them can't. The caller undoes it then."""
    for place in places:
        slot = place.slot
        busy = slot.used if phase is not Phase.NOMINATED else slot.staying
        if place.gpus & busy:
            return False
        if not workload.is_opportunistic and phase is not Phase.LEAVING:
            if place.charge & slot.charged:
                return False
            if not state.bind_around(place.owner, slot, place.charge):
                return False
        state.take(workload, place, phase)
    if places:
        state.settle(workload, places, phase)
    return True


def place_of(state: State, workload: Workload, want: Want, pod: PodPlace) -> Place | None:
    """A pod's place by names; None: it is not there any more."""
    node = state.nodes.get(pod.node)
    if node is None:
        return None
    slot = _slot_of(node.slots, pod.gpus)
    if slot is None:
        return None
    first, last = node.port_range
    ports = sum(1 << port - first for port in pod.ports if first <= port <= last)
    gpus = 0 if slot.fixed is None else slot.fixed.mask_of(pod.gpus)
    more = 0 if slot.fixed is None else slot.fixed.mask_of(pod.charged)
    owner = workload.owner_of(want)
    is_opportunistic = workload.gang.priority == OPPORTUNISTIC
    charge = 0 if is_opportunistic else gpus | more  # it may be upgraded to it
    return Place(pod.pod, slot, gpus, want.amounts, charge, owner or "", ports)


def _slot_of(slots: Iterable[Slot], gpus: tuple[int, ...]) -> Slot | None:
    """The slot that has all these GPUs."""
    for slot in slots:
        known = () if slot.fixed is None else slot.fixed.gpus
        if all(gpu in known for gpu in gpus):
            return slot
    return None


def bind_again(state: State, owner: str, cells: Iterable[CellUse]) -> None:
    """Bind the cells that a gang says it has, out of the same quota, as far as that is allowed."""
    for use in cells:
        for quota in state.quotas.get(owner, ()):
            if quota.quota.path != use.quota or not quota.left:
                continue
            buddy = state.buddies[quota.chain.name]
            for cell in state.forest.by_address(quota.chain, use.cell):
                slot = state.slots_of(cell)[0]
                if cell.level == quota.level and cell.address == use.cell:
                    if buddy.may_bind(cell, None, slot):
                        state.bind(Binding(owner, quota, cell, None))
                elif cell.slot is not None and quota.level < cell.level:
                    for part in cell.slot.shape.parts[quota.level]:
                        is_it = cell.slot.address(part) == use.cell
                        if is_it and buddy.may_bind(cell, part, slot):
                            state.bind(Binding(owner, quota, cell, part))


def exported(record: Record) -> Restored:
    """All that is kept of a gang that has places."""
    workload, run = record.workload, record.run
    gang_class = GangClass.GUARANTEED
    if workload.is_opportunistic:
        is_opportunistic = workload.gang.priority < 0
        gang_class = GangClass.OPPORTUNISTIC if is_opportunistic else GangClass.DOWNGRADED
    return Restored(
        workload.gang,
        tuple(pod_place(place) for place in workload.places),
        gang_class,
        cells_of(workload),
        None if run is None else run.started_at,
        record.leaves_by,
        record.leaves_for,
        passed=None if record.backfill is None else record.backfill.gang,
        checkpointed_at=None if run is None else run.checkpointed_at,
        lender=lender_of(workload),
    )


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
        return PodPlace(place.pod, slot.node.name, (), _ports(slot, place.ports))
    more = place.charge & ~place.gpus
    gpus, charged = slot.fixed.indices(place.gpus), slot.fixed.indices(more) if more else ()
    return PodPlace(place.pod, slot.node.name, gpus, _ports(slot, place.ports), charged)


def _ports(slot: Slot, mask: int) -> tuple[int, ...]:
    first, found = slot.node.port_range[0], []
    while mask:
        low = mask & -mask
        found.append(first + low.bit_length() - 1)
        mask ^= low
    return tuple(found)
