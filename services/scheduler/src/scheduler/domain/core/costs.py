"""What a preemption costs, and which gangs are protected: the rules of quiet preemption."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from scheduler.domain.core.config import Policy
from scheduler.domain.core.evict import NO_COST, Cost, CostOf
from scheduler.domain.core.lend import lender_of
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, RestoredPreemption
from scheduler.domain.core.nodes import Phase, Workload
from scheduler.domain.core.ordering import Ordering
from scheduler.domain.core.preemptions import HOUR_S, Hour
from scheduler.domain.core.records import Records, Reservation, job_of


@dataclass(eq=False)
class Costs:
    """``hour``: the preemptions of the last hour; ``added``: those not yet stored. ``now``,
    ``before``: this cycle, and the last. ``spared``: those that did not leave as they were
    protected, and until when.
    """

    records: Records
    policy: Policy
    ordering: Ordering
    hour: Hour = field(default_factory=Hour)
    now: float = 0.0
    before: float = 0.0
    spared: dict[Workload, float] = field(default_factory=dict)
    added: list[RestoredPreemption] = field(default_factory=list)

    def begin(self, now: float) -> None:
        """A cycle begins."""
        self.before, self.now = self.now, now
        self.hour.forget(now)

    def preempted(self, asking: Workload, victim: Workload, now: float) -> None:
        """A workload was preempted for another. Its cells are another's by now."""
        if _is_inside(asking, victim):
            jobs, vc = (job_of(victim.gang), job_of(asking.gang)), asking.gang.virtual_cluster
            self.added.append(RestoredPreemption(now, *jobs, vc))
            self.hour.note(self.added[-1])

    def is_too_many(self, asking: Workload, victims: Iterable[Workload]) -> bool:
        """More gangs would leave inside its virtual cluster than its budget has left."""
        most, vc = self.policy.preemptions_per_hour, asking.gang.virtual_cluster
        inside = sum(v.phase is Phase.RUNNING and _is_inside(asking, v) for v in victims)
        return most is not None and inside > max(most - self.hour.inside(vc), 0)

    def of(self, asking: Workload, *, is_inside: bool = True) -> CostOf:
        """What it costs that others leave for a workload. ``is_inside`` False: none of its own
        virtual cluster.
        """
        is_spent = not is_inside or self._is_spent(asking.gang.virtual_cluster)

        def cost_of(other: Workload) -> Cost | None:
            if other is asking or other.phase not in (Phase.RUNNING, Phase.NOMINATED):
                return None
            if not self._is_below(asking, other):
                return None
            if other.phase is Phase.NOMINATED:
                if is_spent and other.owner == asking.owner:
                    self._note_end(other)
                    return None
                return NO_COST
            gpus = other.gpus
            run = self.records.of(other).run
            held = max(gpus, 1)
            lost_ms = held * (0 if run is None else run.lost_ms(other.gang, self.now))
            rank = held * (other.gang.priority - OPPORTUNISTIC)
            if other.is_surplus:
                return Cost(surplus=gpus)
            if _overstays(other):
                return Cost(lost_ms=lost_ms)
            is_protected = self.now < self.young_until(other)
            if other.is_opportunistic:
                is_protected |= self._is_spent(other.gang.virtual_cluster)
                return Cost(held if is_protected else 0, held, priority=rank, lost_ms=lost_ms)
            if lender_of(other) is not None:
                return Cost(borrowed=gpus, priority=rank, lost_ms=lost_ms)
            if is_protected or is_spent:
                self._note_end(other)
                return None
            return Cost(gpus=held, priority=rank, lost_ms=lost_ms)

        return cost_of

    def _note_end(self, other: Workload) -> None:
        """The gang that asks is tried again when the protection ends."""
        self.spared[other] = self.protected_until(other)

    @property
    def again_at(self) -> float:
        """When the first protection ends that kept a gang from leaving; inf: none."""
        return min(self.spared.values(), default=inf)

    def no_longer_spared(self) -> list[Workload]:
        """Those whose protection has ended. They are not told again."""
        ended = [other for other, until in self.spared.items() if until <= self.now]
        for other in ended:
            del self.spared[other]
        return ended

    def copy(self) -> "Costs":
        """The same, with notes of its own."""
        return replace(self, spared={})

    @property
    def has_budget(self) -> bool:
        """So many gangs may be preempted inside a virtual cluster in an hour, and no more."""
        return self.policy.preemptions_per_hour is not None

    def after(self, ends: Iterable[float]) -> "Costs":
        """The same when these protections have ended, and without a budget."""
        now = max((end for end in ends if end < inf), default=self.now)
        policy = replace(self.policy, preemptions_per_hour=None)
        return replace(self, spared={}, hour=Hour(), policy=policy, now=now)

    def goes_before(self, workload: Workload, reservation: Reservation) -> bool:
        """The reservation does not hold back the workload: it is its own, or kept of its own gang,
        or of a gang that comes later by the first policy of the order that is about gangs. Of
        equals next attempts of jobs that the platform failed come first.
        """
        gang, other = workload.gang, reservation.workload.gang
        is_own = workload is reservation.workload or (reservation.is_kept and gang.id == other.id)
        return is_own or self._turn(gang) < self._turn(other)

    def _turn(self, gang: Gang) -> tuple[float, bool]:
        return self.ordering.turn(gang), gang.follows is None

    def protected_until(self, other: Workload) -> float:
        """When a protected workload may have to leave, at the earliest; inf: a budget is too small
        for it, whatever time passes.
        """
        until, vc = self.young_until(other), other.gang.virtual_cluster
        if self.now < until and not self._is_spent(vc):
            return until
        spent_at = (each.at for each in self.hour.all if each.virtual_cluster == vc)
        return max(until, min(spent_at, default=inf) + HOUR_S)

    def protected(
        self, asking: Workload, others: Iterable[Workload], *, is_inside: bool = True
    ) -> list[float]:
        """Until when those are protected that a workload could preempt else, in its own cells.
        ``is_inside`` False: all of them are.
        """
        cost_of = self.copy().of(asking, is_inside=is_inside)  # it notes when to try again
        return [
            self.protected_until(other)
            for other in others
            if other.phase in (Phase.RUNNING, Phase.NOMINATED)
            and not other.is_opportunistic
            and self._is_below(asking, other)
            and cost_of(other) is None
        ]

    def lazy(self, asking: Workload) -> Iterable[Workload]:
        """Those that are downgraded before they are preempted for a workload."""
        below = self.records.charged_below(asking.owner, asking.priority)
        return [
            other
            for other in (record.workload for record in below)
            if other.phase is Phase.RUNNING and self.is_lazy(other)
        ]

    def surplus(self, asking: Workload) -> Iterable[Workload]:
        """Pods that their gangs can spare, and that may have to leave for a workload."""
        cost_of = self.of(asking)
        found = (each.workload for each in self.records.children.values())
        return (each for each in found if each.is_surplus and cost_of(each) is not None)

    def is_lazy(self, other: Workload) -> bool:
        """It is downgraded before it is preempted. A gang that uses no GPU only loses a charge."""
        if other.gang.is_lazy is not None:
            return other.gang.is_lazy
        return self.policy.is_lazy or lender_of(other) is not None or not other.gpus

    def _is_below(self, asking: Workload, other: Workload) -> bool:
        """It may have to leave, protected or not. None leaves for a gang of equal or lower
        priority of its own virtual cluster.
        """
        if other.is_opportunistic:
            is_same = other.gang.virtual_cluster == asking.gang.virtual_cluster
            return not is_same or other.is_surplus or other.gang.priority < asking.priority
        return other.owner == asking.owner and other.priority < asking.priority

    def budget_until(self, virtual_cluster: str, count: int) -> list[float]:
        """From when on one, two, … gangs may be preempted inside a virtual cluster; inf: never so
        many, as its budget is smaller.
        """
        most = self.policy.preemptions_per_hour
        if most is None:
            return [-inf] * count
        noted = [e.at + HOUR_S for e in self.hour.all if e.virtual_cluster == virtual_cluster]
        later = noted[max(len(noted) - most, 0) :]
        return [*[-inf] * (most - len(later)), *later, *[inf] * count][:count]

    def young_until(self, other: Workload) -> float:
        """Until then its least run time protects a workload."""
        run, least = self.records.of(other).run, other.gang.min_run_s
        least = self.policy.min_run_s if least is None else least
        return -inf if run is None else run.started_at + least

    def _is_spent(self, virtual_cluster: str) -> bool:
        most = self.policy.preemptions_per_hour
        return most is not None and self.hour.inside(virtual_cluster) >= most


def _is_inside(asking: Workload, victim: Workload) -> bool:
    """The preemption counts for the budget of its virtual cluster."""
    is_own = victim.owner is not None and victim.owner == asking.owner
    is_whole = lender_of(victim) is None and victim.parent is None
    return is_own and is_whole and not _overstays(victim)


def _overstays(other: Workload) -> bool:
    """It has lost its priority, as it stays too long on reserved cells."""
    is_own = other.owner is not None and lender_of(other) is None
    return is_own and other.priority < other.gang.priority
