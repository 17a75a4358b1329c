"""What a change of the configuration does to gangs: nothing but, at worst, their class."""

from collections.abc import Callable, Sequence

from scheduler.domain.core.model import GangClass, Restored

from oracle import covers
from oracle.checker import findings
from oracle.hardware import Cell, Hardware, Path
from oracle.settling import without_cells
from oracle.state import Record, State, order_of


def changed(
    before: State, hardware: Hardware, exported: Callable[[str], Restored]
) -> tuple[State, list[str], set[str]]:
    """The state under another configuration as the core has it, what is wrong with it, and whose
    reservations are lost.
    """
    address = {(cell.chain, cell.address): cell.number for cell in hardware.cells}
    old = before.hardware.cells
    state = State(hardware, {}, before.waiting, before.growing)
    state.bad_nodes, state.bad_gpus = before.bad_nodes, before.bad_gpus
    state.cordoned, state.drained = before.cordoned, before.drained
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
        may_keep = same is not None and _is_sound(state, record, same)
        others = covers.cells_for(state, state.records[name], with_bad_ones=True)
        if name.endswith("+") and not state.records[name.rstrip("+")].is_guaranteed:
            may_keep, others = False, None  # A downgraded gang grows as an opportunistic one.
        if record.is_reserved and not may_keep and others is None:
            lost.add(name)
            gang = state.records.pop(name).gang
            if not name.endswith("+"):
                state.waiting[name] = gang
            continue
        kept = exported(name.rstrip("+"))
        if kept.gang_class is GangClass.GUARANTEED:
            found = ((hardware.cell_at(use.cell, use.quota), use.quota) for use in kept.cells)
            around = {at for leaf in state.charged_by(record) for at in hardware.path_up(leaf)}
            cells = frozenset((at, quota) for at, quota in found if at in around)
            if may_keep and cells != same:
                problems.append(f"change: {name} could keep its cells {record.cells}: {kept}")
            places = {place.pod: place for place in kept.places if place.pod in record.places}
            state.replace_record(name, gang_class=kept.gang_class, cells=cells, places=places)
        elif may_keep or others is not None:
            problems.append(f"change: {name} could stay in cells and is {kept.gang_class}")
    return state, problems, lost


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


def _is_sound(state: State, record: Record, cells: frozenset[tuple[int, Path]]) -> bool:
    trial = State(state.hardware, dict(state.records))
    trial.records[record.gang.id] = Record(
        record.gang, record.places, GangClass.GUARANTEED, cells, record.started_at
    )
    new = set(findings(trial)) - set(findings(state))
    return not new
