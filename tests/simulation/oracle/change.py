"""What a change of the configuration does to gangs: nothing but, at worst, their class."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scheduler.domain.core.model import GangClass, Restored

from oracle import covers
from oracle.checker import findings
from oracle.hardware import Cell, Hardware, Path
from oracle.settling import without_cells
from oracle.state import BeforeChange, Record, State, kinds_of, order_of
from oracle.told import growth_of
from oracle.views import demands


def changed(
    before: State, hardware: Hardware, exported: Callable[[str], Restored]
) -> tuple[State, list[str], set[str]]:
    """The state under another configuration as the core has it, what is wrong with it, and whose
    reservations are lost.
    """
    address = {(cell.chain, cell.address): cell.number for cell in hardware.cells}
    old = before.hardware.cells
    state = _on_other_hardware(before, hardware)
    problems: list[str] = []
    lost: set[str] = set()
    records = sorted(before.records.values(), key=lambda record: order_of(record.gang))
    for record in records:
        low = without_cells(record, GangClass.DOWNGRADED)
        state.records[record.gang.id] = low if record.is_guaranteed else record
    for record in records:
        if not record.is_guaranteed:
            continue
        name = record.gang.id
        same = _same_cells(record, old, address)
        is_whole = state.is_whole(record)
        may_keep = same is not None and is_whole and _is_sound(state, record, same)
        others = covers.cells_for(state, state.records[name], with_bad_ones=True)
        if name.endswith("+") and not state.records[name.rstrip("+")].is_guaranteed:
            may_keep, others = False, None  # A downgraded gang grows as an opportunistic one.
        if record.is_reserved and _has_wrong_types(state, record):
            may_keep, others = False, None
        if record.is_reserved and not may_keep and others is None:
            lost.add(name)
            gang = state.records.pop(name).gang
            if not name.endswith("+"):
                state.waiting[name] = gang
            continue
        kept = exported(name.rstrip("+"))
        if kept.gang_class is GangClass.GUARANTEED:
            places = {place.pod: place for place in kept.places if place.pod in record.places}
            charged = state.charged_by(replace(record, places=places))
            around = {at for leaf in charged for at in hardware.path_up(leaf)}
            found = ((hardware.cell_at(use.cell, use.quota), use.quota) for use in kept.cells)
            cells = frozenset((at, quota) for at, quota in found if at in around)
            grows = growth_of(name) in before.records and bool(kept.reserved)
            if may_keep and cells != same and not grows:  # else others do for all that it has
                problems.append(f"change: {name} could keep its cells {record.cells}: {kept}")
            state.replace_record(name, gang_class=kept.gang_class, cells=cells, places=places)
        elif may_keep or others is not None:
            problems.append(f"change: {name} could stay in cells and is {kept.gang_class}")
    return state, problems, lost


def _on_other_hardware(before: State, hardware: Hardware) -> State:
    """Nothing runs yet. What is not in the configuration any more is forgotten."""
    state = State(hardware, {}, before.waiting, before.growing)
    machines = set(hardware.machines)
    state.now = before.now
    state.bad_nodes, state.cordoned = before.bad_nodes & machines, before.cordoned & machines
    state.bad_gpus = before.bad_gpus & hardware.leaf_at.keys()
    state.drained = before.drained & machines
    ran, broken, used = set(), set(), Counter[tuple[str, str]]()
    for record in before.records.values():
        kinds = kinds_of(record.gang.roles)
        for pod, place in () if record.is_reserved else record.places.items():
            ran.add((record.gang.id, pod))
            if not hardware.holds(kinds[pod], place):
                broken.add((record.gang.id, pod))
            used.update({(place.node, name): count for name, count in demands(kinds[pod])})
    state.before_change = BeforeChange(frozenset(ran), frozenset(broken), used)
    return state


def lowered(before: Mapping[str, Record], after: State) -> set[str]:
    """Who has lost its cells."""
    records = after.records.items()
    return {name for name, now in records if now.gang_class is not before[name].gang_class}


def still_used(state: State) -> BeforeChange:
    """As the pods that ran before the last change end, what they used is free."""
    used = Counter[tuple[str, str]]()
    for record in state.records.values():
        kinds = kinds_of(record.gang.roles)
        for pod, place in record.places.items():
            if (record.gang.id, pod) in state.before_change.ran:
                used.update({(place.node, name): count for name, count in demands(kinds[pod])})
    return replace(state.before_change, used=used)


def _same_cells(
    record: Record, old: Sequence[Cell], address: dict[tuple[str, str], int]
) -> frozenset[tuple[int, Path]] | None:
    cells = set()
    for number, path in record.cells:
        at = address.get((old[number].chain, old[number].address))
        if at is None:
            return None
        cells.add((at, path))
    return frozenset(cells)


def _has_wrong_types(state: State, record: Record) -> bool:
    """A role has GPUs of several types, or of one that it doesn't want."""
    hardware = state.hardware
    for role in record.gang.roles:
        places = [record.places[pod] for pod in role.pods if pod in record.places]
        at = [(place.node, gpu) for place in places for gpu in place.gpus]
        types = {hardware.leaf_type(hardware.leaf_at[gpu]) for gpu in at if gpu in hardware.leaf_at}
        if len(types) > 1 or (role.kind.gpu_types and not types <= set(role.kind.gpu_types)):
            return True
    return False


def _is_sound(state: State, record: Record, cells: frozenset[tuple[int, Path]]) -> bool:
    trial = state.trial(state.records)
    trial.records[record.gang.id] = Record(
        record.gang, record.places, GangClass.GUARANTEED, cells, record.started_at
    )
    new = set(findings(trial)) - set(findings(state))
    return not new
