"""Who can never start here: names that are wrong, and what counts prove to be too large."""

from collections.abc import Iterator

from scheduler.domain.core.config import listed
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind, Reason
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.newcore.models import MOST_UNITS, NEVER, Want
from scheduler.domain.newcore.nodes import Slot, Workload
from scheduler.domain.newcore.state import State
from scheduler.domain.newcore.wording import in_words, wanted

Wrong = tuple[str, str]
"""A code and a text."""


def refusal(state: State, workload: Workload) -> Reason | None:
    """Why a healthy, empty cluster of this configuration could not hold a workload; None: by counts
    it could.
    """
    gang = workload.gang
    if not any(_is_too_large(state, workload)):
        return None
    where = "the whole cluster" if gang.priority == OPPORTUNISTIC else gang.virtual_cluster
    if gang.allowed_nodes is not None:
        where = f"{where}, on the nodes that it allows,"
    numbers = wanted(workload)
    text = (
        f"{in_words(workload)}, {numbers['cpu']} CPUs and {numbers['memoryMB']} MB at once: {where}"
        " could not hold that, were it healthy and empty. Ask for fewer tasks, or for less in each."
    )
    return Reason("too-large", text, numbers)


def wrong_name(state: State, gang: Gang) -> Wrong | None:
    """The first name that a gang may not use; None: all are right."""
    owners = state.forest.quotas
    if gang.virtual_cluster not in owners:
        text = f"There is no virtual cluster {gang.virtual_cluster}; there are {listed(owners)}."
        return "unknown-virtual-cluster", text
    kinds = (role.kind for role in gang.roles)
    return next((found for kind in kinds if (found := _wrong(state, gang, kind))), None)


def _wrong(state: State, gang: Gang, kind: Kind) -> Wrong | None:
    forest, types, pin = state.forest, kind.gpu_types, kind.pin
    if types and forest.racks.keys().isdisjoint(types):
        text = f"There is no GPU type {' or '.join(types)}; there are {listed(forest.gpu_types)}."
        return "unknown-gpu-type", text
    if pin is None:
        return None
    if forest.pin_owners.get(pin) != gang.virtual_cluster:
        return "unknown-pin", f"{gang.virtual_cluster} owns no pinned cell {pin}."
    if gang.priority == OPPORTUNISTIC:
        return "pin", "An opportunistic gang can't use a pinned cell."
    pinned = next(leaf for owner, leaf in state.owned if owner == pin_owner(pin))
    if types and pinned not in types:
        text = f"The pinned cell {pin} has GPUs of type {pinned}, not {' or '.join(types)}."
        return "pin", text
    return None


def _is_too_large(state: State, workload: Workload) -> Iterator[bool]:
    gang = workload.gang
    may_be_guest = all(want.kind.costs_nothing for want, _ in workload.wants)
    if workload.owner is not None and not gang.is_borrowing and not may_be_guest:
        yield _wants_more_than_owned(state, workload)
    for want, pods in workload.wants:
        asked = state.want(want.kind, is_charged=False) if may_be_guest else want
        yield _rooms(state, asked, gang.allowed_nodes, len(pods)) < len(pods)


def _wants_more_than_owned(state: State, workload: Workload) -> bool:
    """More leaves of some GPU types, or of all, than its virtual cluster owns beside pins."""
    every = tuple(state.forest.racks)
    wanted_of: dict[tuple[str, ...], int] = {}
    for want, pods in workload.wants:
        least = want.least(state.models)
        if want.kind.pin is None and least != NEVER:
            for types in dict.fromkeys((want.gpu_types or every, every)):
                wanted_of[types] = wanted_of.get(types, 0) + least * len(pods)
    owner = owner_of(workload.gang.virtual_cluster)
    return any(
        leaves > sum(state.owned.get((owner, name), 0) for name in types)
        for types, leaves in wanted_of.items()
    )


def _rooms(state: State, want: Want, allowed: frozenset[str] | None, enough: int) -> int:
    """Pods that all empty nodes together have room for, by counts; ``enough`` of them at most."""
    found = 0
    for pool in state.pools:
        if want.gpu_types and pool.leaf not in want.gpu_types:
            continue
        for slot in pool.slots:
            if allowed is None or slot.node.name in allowed:
                found += _room(state, want, slot)
                if found >= enough:
                    return enough
    return found


def _room(state: State, want: Want, slot: Slot) -> int:
    if want.need(slot.model)[0] == NEVER:
        return 0
    key = state.looks.key(slot.model, slot.shape.full, min(slot.model.units, MOST_UNITS))
    return want.room(key)
