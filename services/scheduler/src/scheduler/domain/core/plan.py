"""Which gangs get a reservation: the first of each virtual cluster and pool that can't start."""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter

from scheduler.domain.core.ends import end_of, leaving_s
from scheduler.domain.core.fit import No
from scheduler.domain.core.model import OPPORTUNISTIC, Decision
from scheduler.domain.core.node_models import NEVER
from scheduler.domain.core.nodes import Phase, Pool, Slot, Workload
from scheduler.domain.core.ordering import Rank
from scheduler.domain.core.queue import WorkloadClass
from scheduler.domain.core.records import Record
from scheduler.domain.core.reserve import ENDS, End, beside, lift_all, plan
from scheduler.domain.core.transitions import Transitions

PLANNED = 4
"""Gangs of a virtual cluster, of those that want the same GPU types, for which a reservation is
sought in one cycle.
"""

ALONE = frozenset[Workload]()
"""Of a class that is hopeless whoever has a reservation."""

Entry = tuple[Rank, Workload, WorkloadClass]
"""The first gang of a class."""

Types = frozenset[tuple[str, ...]]
"""The GPU types of all pods. Gangs of other types may want other chains."""

_RANK = itemgetter(0)


class Planner:
    """Plans in each cycle for classes whose first gang failed.

    ``_in_order``: by owner and GPU types the first gangs of classes, by their ranks when they were
    listed; those that have been placed since are among them, and those whose users have got more:
    such come later, and move back when they are looked at. ``_firsts``: the first of each class
    there. ``_may_borrow``: the gangs that may have yet to try it in this cycle.
    """

    def __init__(self, gangs: Transitions) -> None:
        self._gangs = gangs
        self._unwell: dict[Slot, int] | None = None
        self._failed: Counter[tuple[str, Types]] = Counter()
        self._in_order: dict[str, dict[Types, list[Entry]]] = {}
        self._firsts: dict[WorkloadClass, Workload] = {}
        self._may_borrow = True

    def begin(self) -> None:
        """A cycle begins."""
        self._may_borrow = True
        self._failed.clear()
        self._in_order.clear()
        self._firsts.clear()
        self._look_at_health()

    def failed(self, found: WorkloadClass, now: float) -> Iterator[Decision]:
        """The first of a class has failed: it, and those before it, get their reservations before
        gangs behind it are tried. Those that may borrow do so first.
        """
        owner = found.owner
        if owner is None or found.priority == OPPORTUNISTIC:
            return
        if owner in self._in_order:
            self._list(self._in_order[owner], found)
        if found.is_borrowing and self._may_borrow:
            return
        key = owner, _types_of(found)
        self._failed[key] += 1
        if self._failed[key] > PLANNED:
            return
        for _, workload, other in self._heads(owner):
            if not (other.is_borrowing and self._may_borrow):
                yield from self._plan_for(other, self._gangs.records.of(workload), now)
            if other is found:
                return

    def before(self, found: WorkloadClass, rank: Rank, now: float) -> Iterator[Decision]:
        """A gang of this class is to be tried. Where another's reservation has ended in this cycle,
        those before it get theirs first, though they are not tried: they failed as they would now.
        """
        owner = found.owner
        if owner not in self._gangs.records.unplanned or found.priority == OPPORTUNISTIC:
            return
        for _, workload, other in self._heads(owner, rank):
            if not (other.is_borrowing and self._may_borrow):
                yield from self._plan_for(other, self._gangs.records.of(workload), now)

    def plan(self, tried: Iterable[WorkloadClass], now: float) -> Iterator[list[Decision]]:
        """A reservation for the first gangs of owners of which some failed, or that may get one for
        another reason, gang by gang.
        """
        self._may_borrow = False
        unplanned = self._gangs.records.unplanned
        owners = dict.fromkeys(found.owner for found in tried if found.owner is not None)
        owners |= unplanned
        unplanned.clear()
        for owner in owners:
            for _, workload, found in self._heads(owner):
                yield list(self._plan_for(found, self._gangs.records.of(workload), now))

    def _heads(self, owner: str, until: Rank | None = None) -> list[Entry]:
        """The first gangs that failed, and that ends of others may help, in order. ``until``: those
        before this rank.
        """
        in_order = self._in_order.get(owner)
        if in_order is None:
            in_order = self._in_order[owner] = {}
            for found in self._gangs.queue.classes.values():
                if found.owner == owner and found.priority > OPPORTUNISTIC:  # not what is idle
                    self._list(in_order, found)
        heads = [
            head for some in in_order.values() for head in self._heads_of(in_order, some, until)
        ]
        return sorted(heads, key=_RANK)

    def _heads_of(
        self, in_order: dict[Types, list[Entry]], some: list[Entry], until: Rank | None
    ) -> list[Entry]:
        """The first of those that want the same GPU types."""
        heads, at = list[Entry](), 0
        while at < len(some) and len(heads) < PLANNED:
            rank, workload, found = some[at]
            if until is not None and rank >= until:
                break
            if workload.phase is not Phase.WAITING or self._firsts[found] is not workload:
                del some[at]
                self._list(in_order, found)
                continue
            if found.no is not None and found.hopeless_beside != ALONE:
                if self._gangs.queue.head(found) != (rank, workload):
                    del some[at], self._firsts[found]
                    self._list(in_order, found)
                    continue
                heads.append(some[at])
            at += 1
        return heads

    def _list(self, in_order: dict[Types, list[Entry]], found: WorkloadClass) -> None:
        """The first of a class is in the list."""
        head = self._gangs.queue.head(found)
        if head is not None and self._firsts.get(found) is not head[1]:
            self._firsts[found] = head[1]
            insort(in_order.setdefault(_types_of(found), []), (*head, found), key=_RANK)

    def _look_at_health(self) -> None:
        """Where it has changed, or may have before the first cycle, who had no reservation may get
        one, though none fails in this cycle.
        """
        unwell = {slot: slot.good for slot in self._gangs.state.unwell}
        if unwell == self._unwell:
            return
        self._unwell = unwell
        for found in self._gangs.queue.classes.values():
            found.hopeless_beside = None
            if found.no is not None and found.owner is not None:
                self._gangs.records.unplanned[found.owner] = None

    def _plan_for(self, found: WorkloadClass, record: Record, now: float) -> Iterator[Decision]:
        if record.reservation is not None:
            return
        gangs, workload = self._gangs, record.workload
        others = beside(gangs.records, workload)
        behind = [
            each
            for each in others
            if gangs.costs.goes_before(workload, each) and each not in gangs.records.kept
        ]
        ahead = [each for each in others if each not in behind]
        beside_them = frozenset(each.workload for each in ahead)
        if found.hopeless_beside is not None and found.hopeless_beside <= beside_them:
            return
        taken = {pool for each in ahead for pool in each.pools}
        if taken and not self._may_be_elsewhere(workload, taken):
            return
        with gangs.state.trial():
            lift_all(gangs.state, behind)
            planned = plan(gangs.state, workload, self._ends(workload, now), now, taken)
        if isinstance(planned, No):
            if planned.code == ENDS and not gangs.records.nominated:  # these may be in its way
                found.hopeless_beside = beside_them
            return
        for each in behind:
            if each.pools & planned.pools:
                yield gangs.unreserve(each)
        yield gangs.reserve(record, planned, now)

    def _ends(self, workload: Workload, now: float) -> list[End]:
        """When gangs of its virtual cluster end, or may be preempted for it. Without a budget those
        are left out that may be at once. Of a budget those have most that would end last.
        """
        costs, policy, records = self._gangs.costs, self._gangs.policy, self._gangs.records
        cost_of = costs.of(workload, is_inside=not costs.has_budget)
        overstaying = set(records.overstaying(workload.gang.id, now))
        ends, below = list[End](), list[End]()
        for record in records.around(workload):
            other, run = record.workload, record.run
            if run is None or other is workload.parent or cost_of(other) is not None:
                continue
            end = end_of(other.gang, run.started_at, policy, now)
            if other.priority < workload.priority:
                below.append((end, other))
                continue
            if other in overstaying:
                end = min(end, now + leaving_s(policy))
            ends.append((end, other))
        below.sort(key=lambda each: (-each[0], each[1].name))
        budget = costs.budget_until(workload.gang.virtual_cluster, len(below))
        for (end, other), until in zip(below, budget, strict=True):
            ends.append((min(end, max(until, costs.young_until(other))), other))
        return ends

    def _may_be_elsewhere(self, workload: Workload, taken: Collection[Pool]) -> bool:
        pools = [pool for pool in self._gangs.state.pools if pool not in taken]
        return all(
            any(want.least(pool.models) != NEVER for pool in pools) for want, _ in workload.wants
        )


def _types_of(found: WorkloadClass) -> Types:
    return frozenset(want.gpu_types for want, _ in found.wants)
