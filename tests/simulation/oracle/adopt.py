"""The oracle's state as a core has it: who waits, and who holds what."""

from collections.abc import Iterator
from dataclasses import replace

from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import Gang, PodPlace, Restored, Role
from scheduler.domain.core.model import without as roles_without

from oracle.state import Record, State, kinds_of
from oracle.told import growth_of


def adopted(state: State, core: Core) -> State:
    """The same nodes, with the gangs as the core has them."""
    fresh = replace(state, records={}, waiting={}, growing={})
    for name in core.gang_ids():
        found = core.gang(name)
        assert found is not None
        if found.gang_class is None:
            fresh.waiting[name] = found.gang
            continue
        kept = core.exported(name)
        started = None if kept.started_at is None else found.started_at
        others = {each.pod for each in kept.places if each.pod in kept.reserved}
        roles = roles_without(kept.gang.roles, others)
        for known in _known_roles(state, name):
            if kinds_of(known) == kinds_of(roles):
                roles = known  # what it has grown by may have other GPU types
        fresh.records[name] = _record(fresh, replace(kept.gang, roles=roles), kept, started)
        if started is not None and found.waiting:
            fresh.growing[name] = found.waiting
        if others:
            growth = replace(kept.gang, id=growth_of(name), roles=_only(kept.gang.roles, others))
            fresh.records[growth.id] = _record(fresh, growth, kept, None)
    return fresh


def published(core: Core) -> Iterator[tuple[str, str]]:
    """The last reasons of gangs that wait, and of what others are to grow by."""
    for name in core.gang_ids():
        found = core.gang(name)
        if found is not None and found.published is not None:
            yield name if found.gang_class is None else growth_of(name), found.published


def _known_roles(state: State, name: str) -> Iterator[tuple[Role, ...]]:
    """As it ran before, and with what it was to grow by."""
    before = state.records.get(name)
    if before is not None:
        yield before.gang.roles
        yield before.gang.roles + state.growing.get(name, ())


def _only(roles: tuple[Role, ...], pods: set[str]) -> tuple[Role, ...]:
    found = (replace(role, pods=tuple(pod for pod in role.pods if pod in pods)) for role in roles)
    return tuple(role for role in found if role.pods)


def _record(state: State, gang: Gang, kept: Restored, started_at: float | None) -> Record:
    """A gang, or what one grows by, with the cells that its pods are charged in."""
    assert kept.gang_class is not None
    wanted = kinds_of(gang.roles)
    places: dict[str, PodPlace] = {each.pod: each for each in kept.places if each.pod in wanted}
    record = Record(gang, places, kept.gang_class, frozenset(), started_at)
    used = {at for leaf in state.charged_by(record) for at in state.hardware.path_up(leaf)}
    cells = frozenset(
        (at, use.quota)
        for use in kept.cells
        if (at := state.hardware.cell_at(use.cell, use.quota)) is not None and at in used
    )
    return replace(
        record,
        cells=cells,
        preempted_until=kept.preempted_until,
        preempted_for=kept.preempted_for,
        checkpointed_at=kept.checkpointed_at,
    )
