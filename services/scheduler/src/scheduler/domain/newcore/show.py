"""The state as values, by names: nodes, slots, bound cells, quotas."""

from collections.abc import Collection, Iterator

from scheduler.domain.core.forest import Slot as FixedSlot
from scheduler.domain.core.interface import (
    BoundCell,
    NodeState,
    QuotaState,
    ReservedLeaves,
    SlotState,
)
from scheduler.domain.core.model import NO_ONE, OPPORTUNISTIC
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.newcore.lend import lender_of
from scheduler.domain.newcore.models import PORTS
from scheduler.domain.newcore.nodes import Binding, Phase, Slot, Workload
from scheduler.domain.newcore.records import Record, Records
from scheduler.domain.newcore.state import UNLIMITED, State


def node_state(state: State, name: str) -> NodeState | None:
    """A node; None: the configuration has none of this name."""
    node = state.nodes.get(name)
    if node is None:
        return None
    names, slots = state.resources.names, node.slots
    left = zip(names, node.left, strict=True)
    return NodeState(
        node.is_healthy,
        node.is_cordoned,
        node.is_drained,
        frozenset(_gpus(slots, [slot.sick for slot in slots])),
        tuple(_gpus(slots, [slot.blocked for slot in slots])),
        {n: a for n, a in zip(names, node.blocked, strict=False) if n != PORTS},
        node.ports_in(node.blocked_ports),
        node.ports_in(node.avoided_ports),
        node.ports_in(node.ports),
        frozenset(_gpus(slots, [slot.held for slot in slots])),
        sum(_free(slot).bit_count() for slot in slots),
        {n: amount for n, amount in left if amount < UNLIMITED >> 1},
    )


def _gpus(slots: Collection[Slot], masks: Collection[int]) -> Iterator[int]:
    for slot, mask in zip(slots, masks, strict=True):
        yield from () if slot.fixed is None else slot.fixed.indices(mask)


def _free(slot: Slot) -> int:
    return slot.good & ~(slot.used | slot.held)


def free(state: State) -> Iterator[tuple[FixedSlot, int, int]]:
    """Of each slot the leaves that new pods may have, and those of them that are free."""
    for pool in state.pools:
        for slot in pool.slots:
            if slot.fixed is not None:
                yield slot.fixed, slot.good, _free(slot)


def slot_state(state: State, records: Records, fixed: FixedSlot) -> SlotState:
    """A node's GPUs in one tree."""
    slot = next(each for each in state.nodes[fixed.machine].slots if each.fixed is fixed)
    reservations = records.reservations()
    holds = {each.hold: each for each in reservations}
    reserved = [
        ReservedLeaves(each.workload.gang.id, leaves, each.starts_at)
        for each in reservations
        if (leaves := each.cells.get(slot, 0) | slot.pods.get(each.hold, (0, 0))[1])
    ]
    gangs = (
        (gpus | charge, _seen_as(each))
        for each, (gpus, charge) in slot.pods.items()
        if each not in holds and each.gang.virtual_cluster != NO_ONE and gpus | charge
    )
    return SlotState(
        slot.node.is_healthy,
        slot.sick,
        slot.used | slot.blocked,
        slot.held,
        _free(slot),
        tuple(gangs),
        tuple(reserved),
        tuple((mask, _cell(each)) for mask, each in slot.bindings),
    )


def _seen_as(workload: Workload) -> int:
    """Any gang with cells can preempt a gang without cells."""
    has_cells = not workload.is_opportunistic and workload.phase is not Phase.LEAVING
    return workload.gang.priority if has_cells else OPPORTUNISTIC


def bound_cells(state: State, owners: Collection[str]) -> Iterator[BoundCell]:
    """The cells that are bound to these owners, each once."""
    slots = (slot for pool in state.pools for slot in pool.slots)
    found = {each: None for slot in slots for _, each in slot.bindings if each.owner in owners}
    return map(_cell, found)


def _cell(binding: Binding) -> BoundCell:
    path = None if binding.quota is None else binding.quota.quota.path
    return BoundCell(binding.owner, path, binding.cell, binding.part)


def quotas(state: State, records: Records) -> dict[str, QuotaState]:
    """The GPUs of each virtual cluster."""
    opportunistic = _gpus_outside(records.all.values())
    return {
        name: _quota(state, name, opportunistic.get(name, 0), *lent_and_borrowed)
        for name, lent_and_borrowed in borrowing(state, records).items()
    }


def _gpus_outside(records: Collection[Record]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        workload = record.workload
        if workload.is_opportunistic and workload.phase is Phase.RUNNING:
            name = workload.gang.virtual_cluster
            found[name] = found.get(name, 0) + workload.gpus
    return found


def _quota(state: State, name: str, opportunistic: int, lent: int, borrowed: int) -> QuotaState:
    pins = [pin_owner(pin) for pin, vc in state.forest.pin_owners.items() if vc == name]
    owners = {owner_of(name), *pins}
    bound = {each.quota.path: each.quota.count - each.left for each in state.quotas[owner_of(name)]}
    owned = sum(leaves for (owner, _), leaves in state.owned.items() if owner in owners)
    charged = sum(
        sum(by_priority.values())
        for (owner, _), by_priority in state.charged.items()
        if owner in owners
    )
    return QuotaState(bound, owned, charged, opportunistic, lent, borrowed)


def borrowing(state: State, records: Records) -> dict[str, tuple[int, int]]:
    """GPUs that each virtual cluster lends and borrows."""
    found = {name: [0, 0] for name in state.forest.quotas}
    for record in records.away:
        workload = record.workload
        lender = lender_of(workload)
        if lender is not None:
            leaves = sum(place.charge.bit_count() for place in workload.places)
            found[lender][0] += leaves
            found[workload.gang.virtual_cluster][1] += leaves
    return {name: (lent, borrowed) for name, (lent, borrowed) in found.items()}
