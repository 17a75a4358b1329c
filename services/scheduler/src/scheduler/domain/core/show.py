"""Cells as they are shown: who uses, holds and owns them."""

from collections import Counter
from collections.abc import Collection, Iterator

from scheduler.domain.core.forest import Slot as FixedSlot
from scheduler.domain.core.interface import (
    BORROWED,
    OPPORTUNISTIC_GPUS,
    OWN,
    BoundCell,
    QuotaState,
    ReservedLeaves,
    SlotState,
)
from scheduler.domain.core.lend import lender_of
from scheduler.domain.core.model import NO_ONE, OPPORTUNISTIC
from scheduler.domain.core.nodes import Binding, Phase, Workload
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.records import Records
from scheduler.domain.core.state import Account, State


class Cells:
    """Implements `interface.Cells`."""

    def __init__(self, state: State, records: Records) -> None:
        self._state = state
        self._records = records

    def free(self) -> Iterator[tuple[FixedSlot, int, int]]:
        for pool in self._state.pools:
            for slot in pool.slots:
                if slot.fixed is not None:
                    yield slot.fixed, slot.good, slot.free

    def slot(self, fixed: FixedSlot) -> SlotState:
        slots = self._state.nodes[fixed.machine].slots
        slot = next(each for each in slots if each.fixed is fixed)
        reservations = [*self._records.reservations(), *self._records.kept]
        holds = {each.hold for each in reservations}
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
            slot.free,
            tuple(gangs),
            tuple(reserved),
            tuple((mask, _cell(each)) for mask, each in slot.bindings),
        )

    def bound(self, owners: Collection[str]) -> Iterator[BoundCell]:
        slots = (slot for pool in self._state.pools for slot in pool.slots)
        found = {e: None for slot in slots for _, e in slot.bindings if e.owner in owners}
        return map(_cell, found)

    def quotas(self) -> dict[str, QuotaState]:
        opportunistic = Counter[str]()
        for record in (*self._records.all.values(), *self._records.children.values()):
            workload = record.workload
            if workload.is_opportunistic and workload.phase is Phase.RUNNING:
                opportunistic[workload.gang.virtual_cluster] += workload.gpus
        return {
            name: self._quota(name, opportunistic[name], *found)
            for name, found in self.borrowing().items()
        }

    def usable(self) -> dict[str, int]:
        state = self._state
        unbound, bound = Counter[str](), Counter[Account]()
        for gpu_type, pools in state.pools_of.items():
            for pool in pools:
                for slot in pool.slots:
                    leaves = slot.good & ~slot.charged
                    if leaves and pool.chain is not None:
                        unbound[pool.chain.name] += (leaves & slot.open).bit_count()
                        for owner, mine in slot.bound.items():
                            bound[owner, gpu_type] += (leaves & mine).bit_count()

        def of(account: Account) -> int:
            owner, gpu_type = account
            reach = Counter[str]()  # by chain: what cells that are not bound may come to
            for each in state.quotas.get(owner, ()):
                if each.chain.gpu_type == gpu_type:
                    reach[each.chain.name] += each.left * each.chain.leaves(each.level)
            more = sum(min(unbound[chain], leaves) for chain, leaves in reach.items())
            left = state.owned[account] - sum(state.charged[account].values())
            return min(left, bound[account] + more)

        return {name: sum(map(of, self._accounts(name))) for name in state.forest.quotas}

    def _accounts(self, virtual_cluster: str) -> list[Account]:
        pins = self._state.forest.pin_owners.items()
        mine = {pin_owner(pin) for pin, vc in pins if vc == virtual_cluster}
        owners = {owner_of(virtual_cluster), *mine}
        return [account for account in self._state.owned if account[0] in owners]

    def _quota(self, name: str, opportunistic: int, lent: int, borrowed: int) -> QuotaState:
        state = self._state
        quotas = state.quotas[owner_of(name)]
        accounts = self._accounts(name)
        return QuotaState(
            {each.quota.path: each.quota.count - each.left for each in quotas},
            sum(state.owned[account] for account in accounts),
            sum(sum(state.charged[account].values()) for account in accounts),
            opportunistic,
            lent,
            borrowed,
        )

    def borrowing(self) -> dict[str, tuple[int, int]]:
        lent, borrowed = Counter[str](), Counter[str]()
        for record in self._records.away:
            lender = lender_of(record.workload)
            if lender is not None:
                leaves = sum(place.charge.bit_count() for place in record.workload.places)
                lent[lender] += leaves
                borrowed[record.workload.gang.virtual_cluster] += leaves
        return {name: (lent[name], borrowed[name]) for name in self._state.forest.quotas}

    def users(self) -> dict[tuple[str, str, str], int]:
        found = Counter[tuple[str, str, str]]()
        for record in (*self._records.all.values(), *self._records.children.values()):
            workload = record.workload
            gang = workload.gang
            if not workload.places or gang.virtual_cluster == NO_ONE:
                continue
            held_as = OPPORTUNISTIC_GPUS if workload.is_opportunistic else OWN
            if lender_of(workload) is not None:
                held_as = BORROWED
            found[gang.virtual_cluster, gang.user, held_as] += workload.gpus
        return found


def _seen_as(workload: Workload) -> int:
    """Any gang with cells can preempt a gang without cells."""
    if workload.is_opportunistic or workload.phase is Phase.PREEMPTED:
        return OPPORTUNISTIC
    return workload.gang.priority


def _cell(binding: Binding) -> BoundCell:
    path = None if binding.quota is None else binding.quota.quota.path
    return BoundCell(binding.owner, path, binding.cell, binding.part)
