"""Whose turn it is within a cycle, and which cells gangs have at that moment."""

from collections.abc import Collection
from dataclasses import replace

from scheduler.domain.core.model import OPPORTUNISTIC, Gang

from oracle import choices, covers
from oracle.checker import findings
from oracle.fitting import TooHardError
from oracle.settling import held_cells
from oracle.state import Record, State, order_of
from oracle.told import growth_of


def growths(state: State) -> set[str]:
    """The pods by which gangs want to grow, by name."""
    names = {growth_of(name) for name in state.growing if not state.records[name].is_leaving}
    return names - state.records.keys()


def wanting(state: State, grow: Collection[str]) -> list[Gang]:
    """Gangs that wait, and of the growths these as gangs of the class that theirs have."""
    found = list(state.waiting.values())
    for name, roles in state.growing.items():
        whole = state.records[name]
        if growth_of(name) in grow and growth_of(name) in growths(state):
            priority = whole.gang.priority if whole.is_guaranteed else OPPORTUNISTIC
            found.append(replace(whole.gang, id=growth_of(name), roles=roles, priority=priority))
    return found


def turn_of(state: State, gang: Gang) -> tuple[int, float, str]:
    """A growth has the turn of its gang."""
    name = gang.id.rstrip("+")
    return order_of(state.records[name].gang if name != gang.id else gang)


def fits_nowhere(state: State, gang: Gang) -> bool:
    """At this moment, at any cost; False also where that is not known."""
    try:
        return not choices.fits(state, gang)
    except TooHardError:
        return False


def with_other_cells(state: State, names: Collection[str]) -> dict[str, Record] | None:
    """Gangs whose cells the core does not tell any more, as they leave later in the same cycle, in
    other cells around the same GPUs; None: that mends nothing.
    """
    hardware = state.hardware
    trial = state.trial(state.records)
    some = [name for name in sorted(names) if name in trial.records]
    some = [name for name in some if trial.records[name].is_guaranteed]
    for name in some:
        trial.replace_record(name, cells=frozenset())
    for name in some:
        record = trial.records[name]
        found = covers.cells_for(trial, record, with_bad_ones=True)
        if found is None:
            return None
        vc = record.gang.virtual_cluster
        mine = {at: path for at, (owner, path) in trial.bound().items() if owner == vc}
        cells = held_cells(hardware, mine | dict(found), trial.charged_by(record))
        trial.records[name] = replace(record, cells=cells)
    return None if findings(trial) else trial.records


def with_others_exchanged(
    state: State, record: Record, names: Collection[str]
) -> dict[str, Record]:
    """The gangs beside one that is placed: those that leave later in other cells, where it has no
    room beside them else.
    """
    name = record.gang.id
    beside = state.trial({**state.records, name: record})
    if findings(beside) and (found := with_other_cells(beside, {*names} - {name})) is not None:
        return {other: kept for other, kept in found.items() if other != name}
    return state.records
