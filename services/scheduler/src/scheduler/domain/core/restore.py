"""A gang that was placed before: after a restart, or under another configuration."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, replace

from scheduler.domain.core.interface import GangState
from scheduler.domain.core.lend import BORROWED, lender_of
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    ExtraPod,
    Gang,
    GangClass,
    Kind,
    PodPlace,
    Restored,
    Role,
)
from scheduler.domain.core.node_models import Want
from scheduler.domain.core.nodes import Binding, Phase, Place, Slot, Workload, mask_on
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.records import Growth, Record, Run
from scheduler.domain.core.shapes import Part
from scheduler.domain.core.state import State, pods_in


def parts_of(restored: Restored) -> tuple[Restored, Restored | None, dict[str, Restored]]:
    """A gang, what it has nominated places to grow by, and pods that it can do without: each as if
    it were alone. Pods that have no place are over.
    """
    if restored.places and all(place.pod in restored.reserved for place in restored.places):
        restored = replace(restored, started_at=None)  # nothing of it runs
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


def restore(state: State, restored: Restored, workload: Workload) -> tuple[PodPlace, ...]:
    """Put a workload's pods where they are. Without its cells it is downgraded, or waits if it was
    nominated. Returns the places of pods on hardware which the configuration has not, or which
    another gang has.
    """
    phase, is_charged = _phase_of(restored), workload.owner is not None
    if is_charged and restored.gang_class not in (None, GangClass.GUARANTEED):
        state.be_opportunistic(workload)
        is_charged = False
    if is_charged and restored.lender not in (None, workload.gang.virtual_cluster):
        state.borrow(workload, owner_of(restored.lender or ""), BORROWED)
        if _take_all(state, workload, restored, phase):
            return ()
        state.ask_anew(workload)
    if _take_all(state, workload, restored, phase):
        return ()
    if phase is Phase.NOMINATED:
        state.ask_anew(workload)
        return ()
    if is_charged:
        state.be_opportunistic(workload)
    return _take_some(state, workload, restored, phase)


def _phase_of(restored: Restored) -> Phase:
    if restored.started_at is None:
        return Phase.NOMINATED
    return Phase.RUNNING if restored.preempted_until is None else Phase.PREEMPTED


def _take_all(state: State, workload: Workload, restored: Restored, phase: Phase) -> bool:
    """All pods take their places; or some of them can't, and nothing has changed."""
    found = list(_places(state, workload, restored))
    places = [place for _, place in found if place is not None]
    is_charged = workload.owner is not None and phase is not Phase.PREEMPTED
    if len(places) < len(found):
        return False
    if phase is Phase.NOMINATED and any(
        len({p.slot.fixed.chain.gpu_type for p in places if p.pod in pods and p.slot.fixed}) > 1
        for want, pods in workload.wants
        if want.gpus
    ):
        return False  # a change has made its GPUs of two types
    if is_charged and not state.has_pins(workload.owner or "", workload):
        return False
    with state.trial() as trial:
        if is_charged and workload.owner is not None:
            bind_again(state, workload.owner, restored.cells, places)
        for place in places:
            if not _may_take(state, workload, place, phase):
                return False
            state.take(workload, place, phase)
        if places:
            state.settle(workload, places, phase)
        trial.commit()
    return True


def _take_some(
    state: State, workload: Workload, restored: Restored, phase: Phase
) -> tuple[PodPlace, ...]:
    """A gang without cells runs where it does. Returns the places that are not there whole; no
    other gang gets what is left of them.
    """
    taken, orphaned = list[Place](), list[PodPlace]()
    for pod, place in _places(state, workload, restored):
        if place is not None and _may_take(state, workload, place, phase):
            parts = [place]
        else:
            orphaned.append(pod._replace(charged=()))
            parts = list(_parts_of(state, workload, pod))
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
    if workload.is_opportunistic or phase is Phase.PREEMPTED:
        return True
    if place.charge & slot.charged:
        is_mine = slot.bound.get(place.owner, 0) & place.charge != 0
        return place.is_shared and is_mine and state.has_room(slot, place.charge, place.amounts)
    return state.bind_around(place.owner, slot, place.charge)


def _parts_of(state: State, workload: Workload, pod: PodPlace) -> Iterator[Place]:
    """What is free of a pod's place, which is not there whole. With its first part it has its CPU,
    memory and ports.
    """
    node = state.nodes.get(pod.node)
    if node is None:
        return
    amounts = next(want.amounts for want, pods in workload.wants if pod.pod in pods)
    ports = node.port_bits(pod.ports) & ~node.ports
    for number, slot in enumerate(node.slots):
        gpus = 0 if slot.fixed is None else slot.fixed.mask_of(pod.gpus) & ~slot.used
        if gpus or not number:
            yield Place(pod.pod, slot, gpus, amounts, ports=ports)
            amounts, ports = (0,) * len(amounts), 0


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
    is_shared = want.kind.costs_nothing and charge.bit_count() == 1
    ports = node.port_bits(pod.ports)
    return Place(pod.pod, slot, gpus, want.amounts, charge, owner or "", ports, is_shared)


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
    children = (each for each in record.children if each.workload.phase is not Phase.WAITING)
    placed = [record, *children]
    pods: dict[bool, dict[str, Kind]] = {False: {}, True: {}}
    for each in placed:
        pods[each.workload.is_surplus] |= _kinds(each.workload)
    roles = _roles(workload.gang, pods[False], pods[True])
    cells = {cell for each in placed for cell in cells_of(each.workload)}
    asking = None if record.growth is None else record.growth.asking
    held = () if asking is None else asking.workload.places
    return Restored(
        replace(workload.gang, roles=roles),
        tuple(place for each in placed for place in _places_of(each)),
        class_of(record),
        tuple(sorted(cells, key=astuple)),
        None if run is None else run.started_at,
        record.leaves_by,
        record.leaves_for,
        tuple(place.pod for place in held),
        passed=record.passed,
        checkpointed_at=None if run is None else run.checkpointed_at,
        extra=tuple(_extra(each, each.run) for each in record.children if each.run is not None),
        lender=lender_of(workload),
    )


def _places_of(record: Record) -> Iterator[PodPlace]:
    orphaned = {place.pod for place in record.orphaned}
    for place in record.workload.places:
        if place.pod not in orphaned:
            yield pod_place(place)
    yield from record.orphaned


def _extra(child: Record, run: Run) -> ExtraPod:
    (pod,), lender = pods_in(child.workload.wants), lender_of(child.workload)
    return ExtraPod(pod, run.started_at, class_of(child), child.leaves_by, child.leaves_for, lender)


def class_of(record: Record) -> GangClass:
    """How a gang with places holds its GPUs."""
    workload = record.workload
    if not workload.is_opportunistic:
        return GangClass.GUARANTEED
    had_cells = record.orphaned or any(place.charge for place in workload.places)
    if workload.gpus and not workload.is_surplus:
        had_cells = True  # those of pods that are over
    is_opportunistic = workload.gang.priority == OPPORTUNISTIC or not had_cells
    return GangClass.OPPORTUNISTIC if is_opportunistic else GangClass.DOWNGRADED


def state_of(record: Record) -> GangState:
    """A gang as it is shown."""
    workload, run, growth = record.workload, record.run, record.growth or Growth()
    is_waiting = workload.phase is Phase.WAITING
    needed, spare = _kinds(workload), dict(growth.spare)
    for child in growth.surplus.values():
        if child.workload.phase is Phase.WAITING:
            spare |= _kinds(child.workload)
    wanted = needed if workload.phase in (Phase.WAITING, Phase.NOMINATED) else growth.wanted
    asking = growth.asking or record
    return GangState(
        workload.gang,
        _roles(workload.gang, wanted, spare if is_waiting else {}),
        () if is_waiting else _roles(workload.gang, spare, {}),
        None if run is None else run.started_at,
        None if is_waiting else class_of(record),
        None if is_waiting else lender_of(workload),
        record.leaves_by,
        asking.published,
        is_waiting=asking.workload.phase in (Phase.WAITING, Phase.NOMINATED),
        is_nominated=asking.workload.phase is Phase.NOMINATED,
    )


def _kinds(workload: Workload) -> dict[str, Kind]:
    return {pod: want.kind for want, pods in workload.wants for pod in pods}


def _roles(gang: Gang, pods: Mapping[str, Kind], spare: Mapping[str, Kind]) -> tuple[Role, ...]:
    """The gang's roles with these pods; ``spare``: those that it can do without."""
    found: list[Role] = []
    left = {**pods, **spare}
    for role in gang.roles:
        needed = tuple(pod for pod in role.pods if pod in pods)
        more = tuple(pod for pod in role.pods if pod in spare)
        least = len(needed) if more else None
        found.append(replace(role, pods=(*needed, *more), least=least))
        for pod in role.pods:
            left.pop(pod, None)
    found += [Role(kind, (pod,), least=None if pod in pods else 0) for pod, kind in left.items()]
    return tuple(role for role in found if role.pods)


def cells_of(workload: Workload) -> tuple[CellUse, ...]:
    """The cells that a workload is charged, each once."""
    if workload.is_opportunistic or workload.phase is Phase.PREEMPTED:
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
