"""A gang that was placed before: after a restart, or under another configuration."""

from collections.abc import Collection, Iterable
from dataclasses import astuple, replace

from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    ExtraPod,
    GangClass,
    Kind,
    PodPlace,
    Restored,
    Role,
)
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.shapes import Part
from scheduler.domain.newcore.lend import BORROWED, lender_of
from scheduler.domain.newcore.models import Want
from scheduler.domain.newcore.nodes import Binding, Phase, Place, Slot, Workload, mask_on
from scheduler.domain.newcore.records import Record, Run
from scheduler.domain.newcore.state import State


def parts_of(restored: Restored) -> tuple[Restored, Restored | None, dict[str, Restored]]:
    """A gang, what it has nominated places to grow by, and pods that it can do without: each as if
    it were alone. Pods that have no place are over.
    """
    extra = {each.pod: each for each in restored.extra}
    held = () if restored.started_at is None else restored.reserved
    if all(place.pod in extra or place.pod in held for place in restored.places):
        held = ()
    known = {place.pod for place in restored.places} - extra.keys()
    own = replace(_only(restored, known.difference(held)), reserved=(), extra=())
    growth = None
    if held:
        growth = _only(restored, known.intersection(held))
        growth = replace(growth, started_at=None, passed=None, extra=())
    surplus = {
        pod: replace(
            _only(restored, (pod,)),
            gang_class=each.gang_class,
            started_at=each.started_at,
            preempted_until=each.preempted_until,
            preempted_for=each.preempted_for,
            lender=each.lender,
            passed=None,
            checkpointed_at=None,
            extra=(),
        )
        for pod, each in sorted(extra.items())
    }
    return own, growth, surplus


def _only(restored: Restored, pods: Collection[str]) -> Restored:
    some = (
        replace(role, pods=tuple(p for p in role.pods if p in pods)) for role in restored.gang.roles
    )
    gang = replace(restored.gang, roles=tuple(role for role in some if role.pods))
    places = tuple(place for place in restored.places if place.pod in pods)
    return replace(restored, gang=gang, places=places)


def restore(state: State, restored: Restored, workload: Workload) -> None:
    """Put a workload's pods where they are. Where it can't have its cells it is downgraded. Pods on
    nodes or GPUs that are not there any more have no place.
    """
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
            bind_again(state, workload.owner, restored.cells, places)
        if _take(state, workload, places, phase):
            trial.commit()
    if not workload.places and workload.owner is not None:
        state.be_opportunistic(workload)
        with state.trial() as trial:
            if _take(state, workload, [place._replace(owner="") for place in places], phase):
                trial.commit()


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


def bind_again(
    state: State, owner: str, cells: Iterable[CellUse], places: Collection[Place]
) -> None:
    """Bind the cells that a gang says it has and that these places are in, out of the same quota,
    as far as that is allowed.
    """
    for use in cells:
        for quota in state.quotas.get(owner, ()):
            if quota.quota.path != use.quota or not quota.left:
                continue
            buddy = state.buddies[quota.chain.name]
            for cell in state.forest.by_address(quota.chain, use.cell):
                slot = state.slots_of(cell)[0]
                parts: list[Part | None] = []
                if cell.level == quota.level and cell.address == use.cell:
                    parts = [None]
                elif cell.slot is not None and quota.level < cell.level:
                    every, fixed = cell.slot.shape.parts[quota.level], cell.slot
                    parts = [part for part in every if fixed.address(part) == use.cell]
                for part in parts:
                    binding = Binding(owner, quota, cell, part)
                    if _holds_any(state, binding, places) and buddy.may_bind(cell, part, slot):
                        state.bind(binding)


def _holds_any(state: State, binding: Binding, places: Collection[Place]) -> bool:
    slots = state.slots_of(binding.cell)
    return any(mask_on(binding, each.slot) & each.charge for each in places if each.slot in slots)


def exported(record: Record) -> Restored:
    """All that is kept of a gang that has places."""
    workload, run = record.workload, record.run
    placed = [workload, *(each.workload for each in record.children if each.workload.places)]
    pods: dict[Kind, tuple[str, ...]] = {}
    for each in placed:
        for want, names in each.wants:
            pods[want.kind] = (*pods.get(want.kind, ()), *names)
    roles = tuple(Role(kind, names) for kind, names in pods.items())
    held = [each for each in placed if each.parent is not None and not each.is_surplus]
    return Restored(
        replace(workload.gang, roles=roles),
        tuple(pod_place(place) for each in placed for place in each.places),
        _class_of(workload),
        tuple(sorted({cell for each in placed for cell in cells_of(each)}, key=astuple)),
        None if run is None else run.started_at,
        record.leaves_by,
        record.leaves_for,
        tuple(place.pod for each in held for place in each.places),
        passed=None if record.backfill is None else record.backfill.gang,
        checkpointed_at=None if run is None else run.checkpointed_at,
        extra=tuple(_extra(each, each.run) for each in record.children if each.run is not None),
        lender=lender_of(workload),
    )


def _extra(child: Record, run: Run) -> ExtraPod:
    (place,), lender = child.workload.places, lender_of(child.workload)
    return ExtraPod(
        place.pod,
        run.started_at,
        _class_of(child.workload),
        child.leaves_by,
        child.leaves_for,
        lender,
    )


def _class_of(workload: Workload) -> GangClass:
    if not workload.is_opportunistic:
        return GangClass.GUARANTEED
    is_opportunistic = workload.gang.priority == OPPORTUNISTIC
    return GangClass.OPPORTUNISTIC if is_opportunistic else GangClass.DOWNGRADED


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
