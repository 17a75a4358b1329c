"""The core behind its interface: its live objects as values."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from math import inf

from scheduler.domain.core.advising import Move as Moving
from scheduler.domain.core.advising import advise
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
from scheduler.domain.core.wishes import wishes


class OldCore(Cluster):
    """Implements `interface.Core`."""

    def __init__(
        self, config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
    ) -> None:
        super().__init__(config, policies)
        self.rows = OldRows(self)
        self.cells = OldCells(self)
        self.questions = OldQuestions(self)

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

    # The cycle.

    def cycle(self, now: float, is_enough: Callable[[int], bool] | None = None) -> list[Decision]:
        return run_cycle(self, now, is_enough)

    def idle_cycles(self) -> float:
        if self.preemptions.next_at() is not None:
            return inf
        return len(self.reservations.by_gang) if has_passers(self) else -1

    # Restoring.

    def note_told(self, gang: str, code: str | None) -> None:
        if gang in self.gangs:
            self.gangs[gang].told = code

    def note_tried(self, *, is_settled: bool) -> None:
        all_tried(self, is_settled=is_settled)

    def catch_up(self, limit: int) -> bool:
        return self.hardware.catch_up(limit)

    def forget(self, gang: str) -> None:
        self.release(gang)
        self.usage.forget(gang)
        self.said = [each for each in self.said if each.gang != gang]

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

    def audit(self) -> Generator[None, None, list[Drift]]:
        drifts = yield from audit(self)
        return [
            Drift(each.gang.partition(EXTRA)[0], each.book, abs(each.has - each.should), each.text)
            for each in drifts
        ]


class OldRows:
    """Implements `interface.Rows`."""

    def __init__(self, core: OldCore) -> None:
        self.core = core
        self._nominated: set[str] = set()

    def begin_restoring(self) -> None:
        self.core.usage.is_timed = False

    def restore_reservation(self, restored: RestoredReservation) -> None:
        keep_again(self.core, restored)

    def restore_usage(self, restored: RestoredUsage) -> None:
        self.core.usage.restore(restored)

    def forget_usage(self, user: UserKey) -> None:
        self.core.usage.restore_none(user)

    def restore_preemption(self, restored: RestoredPreemption) -> None:
        self.core.preemptions.restore(restored)
        self.core.preemptions.forget(restored.at)

    def restored(self, now: float) -> None:
        self.core.usage.is_timed = True
        self.core.usage.settle(now)
        self._nominated = set(self.core.reserved)

    def forget_reservations(self) -> None:
        let_go(self.core)

    def take_touched(self) -> Touched:
        moved = {gang.partition(EXTRA)[0] for gang in self.core.moved}
        found = Touched((self.core.reserved ^ self._nominated) | moved)
        self._nominated = set(self.core.reserved)
        self.core.moved.clear()
        found.preemptions = tuple(self.core.preemptions.added)
        self.core.preemptions.added.clear()
        calibration = self.core.forecast.calibration
        found.expectations, calibration.changed = calibration.changed, set()
        if self.core.under_way is None:  # else reservations may be lifted for a moment
            kept, usage = self.core.reservations, self.core.usage
            found.reservations, kept.changed = kept.changed, set()
            found.usage, usage.changed = usage.changed, set()
        return found

    def reservation(self, gang: str) -> RestoredReservation | None:
        found = self.core.reservations.by_gang.get(gang)
        return None if found is None else self.core.reservations.exported_of(found)

    def reservations(self) -> list[RestoredReservation]:
        return self.core.reservations.exported()

    def usage_of(self, key: UserKey) -> RestoredUsage | None:
        return self.core.usage.exported_of(key)

    def usages(self) -> list[RestoredUsage]:
        return self.core.usage.exported()

    def preemptions(self) -> list[RestoredPreemption]:
        return self.core.preemptions.exported()

    def expectation(self, gang: str) -> Told | None:
        return self.core.forecast.told.get(gang)

    def restore_expectation(self, gang: str, told: Told) -> None:
        live = self.core.gangs.get(gang)
        if live is not None and live.waiting:
            self.core.forecast.told[gang] = told

    def outcomes(self, kind: str) -> tuple[float, ...]:
        return self.core.forecast.calibration.exported(kind)

    def restore_outcomes(self, kind: str, ratios: Sequence[float]) -> None:
        self.core.forecast.calibration.restore(kind, ratios)


class OldCells:
    """Implements `interface.Cells`."""

    def __init__(self, core: OldCore) -> None:
        self.core = core

    def _free(self, state: Leaves) -> int:
        return state.usable & ~self.core.hardware.used(state)

    def slot(self, slot: Slot) -> SlotState:
        state, reserved = self.core.hardware.states[slot.number], list[ReservedLeaves]()
        for gang, each in self.core.reservations.by_gang.items():
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
            live = self.core.gangs.get(gang)
            if live is not None and live.gang.virtual_cluster != NO_ONE:
                yield leaves, live.gang.priority if live.is_charged else OPPORTUNISTIC

    def bound(self, owners: Collection[str]) -> Iterator[BoundCell]:
        bindings = self.core.hardware.bindings.values()
        return (_cell(each) for each in bindings if each.owner in owners)

    def free(self) -> Iterator[tuple[Slot, int, int]]:
        for state in self.core.hardware.states:
            yield state.slot, state.usable, self._free(state)

    def quotas(self) -> dict[str, QuotaState]:
        guests: dict[str, int] = {}
        for gang in self.core.charges.guests:
            live = self.core.gangs[gang]
            name = live.gang.virtual_cluster
            guests[name] = guests.get(name, 0) + live.gpus_in_use
        return {name: self._quota(name, guests.get(name, 0)) for name in self.core.forest.quotas}

    def _quota(self, name: str, opportunistic: int) -> QuotaState:
        hardware, owner, loans = self.core.hardware, owner_of(name), self.core.charges.loans
        quotas, unbound = self.core.forest.quotas[name], self.core.hardware.unbound.get(owner, {})
        pins = [pin for pin, vc in self.core.forest.pin_owners.items() if vc == name]
        keys = [(owner, leaf) for leaf in {quota.chain.leaf for quota in quotas}]
        keys += [(pin_owner(pin), "") for pin in pins]
        owned = sum(hardware.owning.owned.get(key, 0) for key in keys)
        return QuotaState(
            {quota.path: quota.count - unbound.get(quota.path, 0) for quota in quotas},
            owned + sum(hardware.owning.pin_leaves[pin] for pin in pins),
            sum(sum(self.core.charges.leaves.get(key, {}).values()) for key in keys),
            opportunistic,
            loans.lent_by(name),
            loans.borrowed_by(name),
        )

    def borrowing(self) -> dict[str, tuple[int, int]]:
        loans, names = self.core.charges.loans, self.core.forest.quotas
        return {name: (loans.lent_by(name), loans.borrowed_by(name)) for name in names}


class OldQuestions:
    """Implements `interface.Questions`."""

    def __init__(self, core: OldCore) -> None:
        self.core = core

    def reason_of(self, gang: str) -> Reason | None:
        live, line = self.core.gangs.get(gang), self.core.queue.gangs.get(gang)
        if live is not None and live.reserved:
            return preempting(self.core, live)
        return None if line is None else current(self.core, line)

    def starts_at(self, gang: str) -> float | None:
        live = self.core.gangs.get(gang)
        return None if live is None else self.core.forecast.kept_at(self.core, live)

    def counts(self) -> Counts:
        extras = (extra for some in self.core.extras.values() for extra in some.values())
        growing = sum(extra in self.core.queue.gangs for extra in extras)
        waiting = len(self.core.queue.gangs) - growing + len(self.core.reserved)
        return Counts(waiting, len(self.core.reserved), len(self.core.downgraded.gangs))

    def first(self, limit: int) -> list[str]:
        return self.core.forecast.everyone(self.core).first(limit)

    def before(self, gang: str) -> Before:
        rank = self.core.rank_of(self.core.gangs[gang])
        count, first = self.core.forecast.everyone(self.core).before(rank, AHEAD_NAMED)
        return Before(count, tuple(first))

    def ahead(self, gang: str) -> Ahead | None:
        return self.core.forecast.ahead(self.core, self.core.gangs[gang])

    def expected(self, gang: str) -> Expected | None:
        return self.core.forecast.expected(self.core, self.core.gangs[gang])

    def counterfactual(self, gang: str) -> Counterfactual | None:
        if gang not in self.core.queue.gangs:
            return None
        found = answer(self.core, self.core.gangs[gang])
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
        gangs = (End(e.id, e.gpus, ends_at(e, self.core.policy, self.core.now)) for e in ends.gangs)
        return Ends(tuple(gangs), ends.at, ends.is_least)

    def advise(self, chain: str | None, cell: str | None, cells: int) -> Advice | None:
        found = wishes(self.core.forest, chain, cell, cells)
        if not found:
            return None
        best = advise(self.core, found)
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
