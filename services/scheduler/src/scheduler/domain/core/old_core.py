"""The core behind its interface: its live objects as values."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from scheduler.domain.core.advising import Move as Moving
from scheduler.domain.core.advising import advise, wishes
from scheduler.domain.core.answers import Ends as Ending
from scheduler.domain.core.answers import answer
from scheduler.domain.core.aside import all_tried
from scheduler.domain.core.auditing import audit
from scheduler.domain.core.binding import Binding
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.ends import ends_at
from scheduler.domain.core.extras import EXTRA, lives_of, want_more, wanted
from scheduler.domain.core.forest import Forest, Slot
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.interface import (
    AHEAD_NAMED,
    Advice,
    Ahead,
    Before,
    BoundCell,
    Counterfactual,
    Counts,
    Drift,
    End,
    Ends,
    Expected,
    GangState,
    Leaving,
    Move,
    NodeState,
    QuotaState,
    ReservedLeaves,
    SlotState,
    Told,
    Touched,
)
from scheduler.domain.core.keeping import keep_again, let_go
from scheduler.domain.core.machines import SlotState as Leaves
from scheduler.domain.core.model import (
    NO_ONE,
    OPPORTUNISTIC,
    Decision,
    Reason,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    Role,
    UserKey,
)
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.passing import has_passers
from scheduler.domain.core.reasons import current, preempting


class OldCore(Cluster):
    """Implements `interface.Core`."""

    def __init__(
        self, config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
    ) -> None:
        super().__init__(config, policies)
        self._nominated: set[str] = set()

    @property
    def forest(self) -> Forest:
        return self.hardware.forest

    @property
    def explained(self) -> int:
        return self.queue.explained

    @property
    def is_under_way(self) -> bool:
        return self.under_way is not None

    def want_more(self, gang: str, roles: Sequence[Role]) -> None:
        want_more(self, gang, roles)

    # Nodes.

    def set_node_health(self, node: str, is_healthy: bool) -> None:
        self.nodes.set_node_health(node, is_healthy)

    def set_gpu_health(self, node: str, gpu: int, is_healthy: bool) -> None:
        self.nodes.set_gpu_health(node, gpu, is_healthy)

    def block(
        self,
        node: str,
        gpus: Collection[int],
        amounts: Mapping[str, int],
        ports: Collection[int],
        avoided: Collection[int],
    ) -> bool:
        machine = self.hardware.machines[node]
        is_new = self.nodes.block(node, gpus, amounts, ports) or machine.avoided != set(avoided)
        machine.avoided = set(avoided)
        return is_new

    def cordon(self, node: str) -> None:
        self.nodes.cordon(node)

    def drain(self, node: str) -> None:
        self.nodes.drain(node)

    def uncordon(self, node: str) -> None:
        self.nodes.uncordon(node)

    # The cycle.

    def cycle(self, now: float, is_enough: Callable[[int], bool] | None = None) -> list[Decision]:
        return run_cycle(self, now, is_enough)

    def idle_cycles(self) -> float:
        if self.preemptions.next_at() is not None:
            return inf
        return len(self.reservations.by_gang) if has_passers(self) else -1

    # Restoring.

    def begin_restoring(self) -> None:
        self.usage.is_timed = False

    def note_told(self, gang: str, code: str | None) -> None:
        if gang in self.gangs:
            self.gangs[gang].told = code

    def restore_reservation(self, restored: RestoredReservation) -> None:
        keep_again(self, restored)

    def restore_usage(self, restored: RestoredUsage) -> None:
        self.usage.restore(restored)

    def forget_usage(self, user: UserKey) -> None:
        self.usage.restore_none(user)

    def restore_preemption(self, restored: RestoredPreemption) -> None:
        self.preemptions.restore(restored)
        self.preemptions.forget(restored.at)

    def note_tried(self, *, is_settled: bool) -> None:
        all_tried(self, is_settled=is_settled)

    def catch_up(self, limit: int) -> bool:
        return self.hardware.catch_up(limit)

    def restored(self, now: float) -> None:
        self.usage.is_timed = True
        self.usage.settle(now)
        self._nominated = set(self.reserved)

    def forget_reservations(self) -> None:
        let_go(self)

    def forget(self, gang: str) -> None:
        self.release(gang)
        self.usage.forget(gang)
        self.said = [each for each in self.said if each.gang != gang]

    # Stored rows.

    def take_touched(self) -> Touched:
        moved = {gang.partition(EXTRA)[0] for gang in self.moved}
        found = Touched((self.reserved ^ self._nominated) | moved)
        self._nominated = set(self.reserved)
        self.moved.clear()
        found.preemptions = tuple(self.preemptions.added)
        self.preemptions.added.clear()
        calibration = self.forecast.calibration
        found.expectations, calibration.changed = calibration.changed, set()
        if self.under_way is None:  # else reservations may be lifted for a moment
            found.reservations, self.reservations.changed = self.reservations.changed, set()
            found.usage, self.usage.changed = self.usage.changed, set()
        return found

    def reservation(self, gang: str) -> RestoredReservation | None:
        found = self.reservations.by_gang.get(gang)
        return None if found is None else self.reservations.exported_of(found)

    def kept_reservations(self) -> list[RestoredReservation]:
        return self.reservations.exported()

    def usage_of(self, key: UserKey) -> RestoredUsage | None:
        return self.usage.exported_of(key)

    def usages(self) -> list[RestoredUsage]:
        return self.usage.exported()

    def late_preemptions(self) -> list[RestoredPreemption]:
        return self.preemptions.exported()

    # Questions about gangs.

    def gang(self, gang: str) -> GangState | None:
        live = self.gangs.get(gang)
        if live is None:
            return None
        has_places = bool(live.pods or live.strangers)
        return GangState(
            live.gang,
            live.waiting if has_places else wanted(live),
            self._elastic(live) if has_places else (),
            live.started_at,
            live.gang_class,
            live.lender,
            live.preempted_until,
            live.told,
            is_waiting=gang in self.queue.gangs or bool(live.reserved),
            is_nominated=bool(live.reserved),
        )

    def _elastic(self, live: Live) -> tuple[Role, ...]:
        if live.id not in self.extras:
            return live.surplus
        extras = (each.waiting[0] for each in lives_of(self, live.id) if each.waiting)
        return (*live.surplus, *extras)

    def gang_ids(self) -> list[str]:
        return [gang for gang, live in self.gangs.items() if live.extra_of is None]

    def reason_of(self, gang: str) -> Reason | None:
        live, line = self.gangs.get(gang), self.queue.gangs.get(gang)
        if live is not None and live.reserved:
            return preempting(self, live)
        return None if line is None else current(self, line)

    def starts_at(self, gang: str) -> float | None:
        live = self.gangs.get(gang)
        return None if live is None else self.forecast.kept_at(self, live)

    def unpublished(self) -> set[str]:
        return {decision.gang for decision in self.said}

    def was_tried(self) -> bool:
        return bool(self.queue.lines) and not self.queue.added and self.under_way is None

    def leaving(self) -> list[Leaving]:
        found: list[Leaving] = []
        for name in self.told_to_leave:
            gang, _, pod = name.partition(EXTRA)
            found.append(Leaving(gang, pod or None, self.gangs[name].preempted_until or 0.0))
        return found

    def counts(self) -> Counts:
        extras = (extra for some in self.extras.values() for extra in some.values())
        growing = sum(extra in self.queue.gangs for extra in extras)
        waiting = len(self.queue.gangs) - growing + len(self.reserved)
        return Counts(waiting, len(self.reserved), len(self.downgraded.gangs))

    def first(self, limit: int) -> list[str]:
        return self.forecast.everyone(self).first(limit)

    def before(self, gang: str) -> Before:
        rank = self.rank_of(self.gangs[gang])
        count, first = self.forecast.everyone(self).before(rank, AHEAD_NAMED)
        return Before(count, tuple(first))

    def ahead(self, gang: str) -> Ahead | None:
        return self.forecast.ahead(self, self.gangs[gang])

    def expected(self, gang: str) -> Expected | None:
        return self.forecast.expected(self, self.gangs[gang])

    def counterfactual(self, gang: str) -> Counterfactual | None:
        if gang not in self.queue.gangs:
            return None
        found = answer(self, self.gangs[gang])
        return Counterfactual(
            None if found.ends is None else self._ends(found.ends),
            found.fewer,
            found.is_opportunistic,
            found.is_borrowing,
            found.lender,
            found.nodes,
            found.left_out,
        )

    def _ends(self, ends: Ending) -> Ends:
        gangs = (End(e.id, e.gpus, ends_at(e, self.policy, self.now)) for e in ends.gangs)
        return Ends(tuple(gangs), ends.at, ends.is_least)

    def advise(self, chain: str | None, cell: str | None, cells: int) -> Advice | None:
        found = wishes(self.forest, chain, cell, cells)
        if not found:
            return None
        best = advise(self, found)
        return Advice(
            best.wish.chain.name,
            best.wish.cell_type,
            best.cells,
            best.already,
            *best.price,
            tuple(map(_move, best.moves)),
            best.reason,
            best.is_least,
            best.is_cut,
        )

    # Questions about the cluster.

    def node(self, node: str) -> NodeState | None:
        machine = self.hardware.machines.get(node)
        if machine is None:
            return None
        slots, names = machine.slots, machine.sort.names
        amounts = dict(zip(names, machine.blocked, strict=False))
        amounts.pop("ports", None)
        return NodeState(
            machine.is_healthy,
            machine.is_cordoned,
            machine.is_drained,
            frozenset(gpu for each in slots for gpu in each.slot.indices(each.sick)),
            tuple(gpu for each in slots for gpu in each.slot.indices(each.blocked)),
            amounts,
            machine.blocked_ports,
            machine.avoided,
            tuple(machine.ports),
            frozenset(gpu for each in slots for gpu in each.slot.indices(each.reserved)),
            sum(self._free(each).bit_count() for each in slots),
            dict(zip(names, machine.free, strict=True)),
        )

    def _free(self, state: Leaves) -> int:
        return state.usable & ~self.hardware.used(state)

    def slot(self, slot: Slot) -> SlotState:
        state, reserved = self.hardware.states[slot.number], list[ReservedLeaves]()
        for gang, each in self.reservations.by_gang.items():
            leaves = each.leaves.get(slot.number, 0) | state.chargers.get(gang, 0)
            if leaves:
                reserved.append(ReservedLeaves(gang, leaves, each.starts_at))
        kept = {each.gang for each in reserved}
        chargers = ((gang, mask) for gang, mask in state.chargers.items() if gang not in kept)
        return SlotState(
            state.machine.is_healthy,
            state.sick,
            state.held | state.leaving | state.blocked,
            state.reserved,
            self._free(state),
            tuple(self._seen_as((*state.holders.items(), *chargers))),
            tuple(reserved),
            tuple((mask, _cell(each)) for some in state.bindings.values() for mask, each in some),
        )

    def _seen_as(self, held: Collection[tuple[str, int]]) -> Iterator[tuple[int, int]]:
        """Any gang with cells can preempt a gang without cells."""
        for gang, leaves in held:
            live = self.gangs.get(gang)
            if live is not None and live.gang.virtual_cluster != NO_ONE:
                yield leaves, live.gang.priority if live.is_charged else OPPORTUNISTIC

    def bound_cells(self, owners: Collection[str]) -> Iterator[BoundCell]:
        return (_cell(each) for each in self.hardware.bindings.values() if each.owner in owners)

    def free(self) -> Iterator[tuple[Slot, int, int]]:
        for state in self.hardware.states:
            yield state.slot, state.usable, self._free(state)

    def quotas(self) -> dict[str, QuotaState]:
        guests: dict[str, int] = {}
        for gang in self.charges.guests:
            live = self.gangs[gang]
            name = live.gang.virtual_cluster
            guests[name] = guests.get(name, 0) + live.gpus_in_use
        return {name: self._quota(name, guests.get(name, 0)) for name in self.forest.quotas}

    def _quota(self, name: str, opportunistic: int) -> QuotaState:
        hardware, owner, loans = self.hardware, owner_of(name), self.charges.loans
        quotas, unbound = self.forest.quotas[name], self.hardware.unbound.get(owner, {})
        pins = [pin for pin, vc in self.forest.pin_owners.items() if vc == name]
        keys = [(owner, leaf) for leaf in {quota.chain.leaf for quota in quotas}]
        keys += [(pin_owner(pin), "") for pin in pins]
        owned = sum(hardware.owning.owned.get(key, 0) for key in keys)
        return QuotaState(
            {quota.path: quota.count - unbound.get(quota.path, 0) for quota in quotas},
            owned + sum(hardware.owning.pin_leaves[pin] for pin in pins),
            sum(sum(self.charges.leaves.get(key, {}).values()) for key in keys),
            opportunistic,
            loans.lent_by(name),
            loans.borrowed_by(name),
        )

    def borrowing(self) -> dict[str, tuple[int, int]]:
        loans = self.charges.loans
        return {name: (loans.lent_by(name), loans.borrowed_by(name)) for name in self.forest.quotas}

    def audit(self) -> Generator[None, None, list[Drift]]:
        drifts = yield from audit(self)
        return [replace(each, gang=each.gang.partition(EXTRA)[0]) for each in drifts]

    # Learnt expectations.

    def expectation(self, gang: str) -> Told | None:
        return self.forecast.told.get(gang)

    def restore_expectation(self, gang: str, told: Told) -> None:
        live = self.gangs.get(gang)
        if live is not None and live.waiting:
            self.forecast.told[gang] = told

    def outcomes(self, kind: str) -> tuple[float, ...]:
        return self.forecast.calibration.exported(kind)

    def restore_outcomes(self, kind: str, ratios: Sequence[float]) -> None:
        self.forecast.calibration.restore(kind, ratios)


def _cell(binding: Binding) -> BoundCell:
    path = None if binding.quota is None else binding.quota.path
    return BoundCell(binding.owner, path, binding.cell, binding.part)


def _move(move: Moving) -> Move:
    live = move.live
    return Move(
        live.extra_of or live.id,
        move.is_extra,
        live.gang_class,
        move.gpus,
        move.lost_gpu_s,
        move.lender,
        move.before,
        move.after,
    )
