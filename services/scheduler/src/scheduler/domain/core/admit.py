"""One cycle's attempts: a waiting gang is placed, or others leave for it, or it fails."""

from collections.abc import Iterator
from heapq import heappop, heappush

from scheduler.domain.core.attempt import attempt
from scheduler.domain.core.fit import ORDER, ROOM, Fit, No, fit, lacks
from scheduler.domain.core.lend import Lending, lender_of
from scheduler.domain.core.model import Decision
from scheduler.domain.core.nodes import Phase, Workload
from scheduler.domain.core.ordering import Rank
from scheduler.domain.core.plan import Planner
from scheduler.domain.core.queue import Sizes, WorkloadClass
from scheduler.domain.core.records import Record
from scheduler.domain.core.reserve import beside, end, passed_by
from scheduler.domain.core.transitions import Transitions

Entry = tuple[Rank, int, WorkloadClass, Workload]
"""A class by its first gang."""


class Admission:
    """``tried``: classes whose first gang failed. ``_first``: where the order is strict, the gangs
    that wait and that none behind them may pass. ``planner``: who reserves cells for the
    first gangs. ``_ranked_before``: the last entry that was ranked before users got more.
    """

    def __init__(
        self, gangs: Transitions, lending: Lending, planner: Planner | None, now: float
    ) -> None:
        self.tried: dict[WorkloadClass, None] = {}
        self._gangs = gangs
        self._state = gangs.state
        self._queue = gangs.queue
        self._lending = lending
        self._planner = planner
        self._now = now
        self._is_strict = gangs.policy.is_strict
        self._failed = Sizes()
        self._first: dict[tuple[str, bool], tuple[Rank, Workload]] = {}
        self._pushed = self._ranked_before = 0

    def admit(self, *, is_opportunistic: bool) -> Iterator[list[Decision]]:
        """Classes that are to be tried, in the order of their first gangs, gang by gang. Gangs with
        a reservation are tried also behind others of their class.
        """
        self._failed.clear()
        heap: list[Entry] = []
        classes = self._to_try(is_opportunistic)
        for found in classes:
            self._push(heap, found)
        for record in self._gangs.records.reserved:
            if (found := self._queue.class_of(record.workload)) in classes:
                rank = self._queue.rank_of(record.workload, record.order)
                self._push_one(heap, found, rank, record.workload)
        while heap:
            rank, number, found, workload = heappop(heap)
            if workload.phase is not Phase.WAITING:
                self._follow(heap, found, workload)
                continue
            if found.helps is not None and not found.helps():
                found.no = found.no or found.was  # it fails as before
                continue
            record = self._gangs.records.of(workload)
            is_old = self._queue.has_users and number <= self._ranked_before
            if is_old and record.reservation is None:
                head = self._queue.head(found)
                if head is not None and head[0] > rank:  # its user has more by now
                    self._push(heap, found)
                    continue
            yield from self._reserved_before(found, rank)
            answer = self._answer(found, rank, record)
            if isinstance(answer, No):
                self._note(found, answer, workload)
                yield self._reserved_for(found)
                continue
            decisions = list(self._gangs.placed(record, answer, self._now))
            self._ranked_before = self._pushed
            if answer.victims or answer.downgraded:
                self._failed.clear()
            if self._is_strict and record in self._gangs.records.nominated:
                self._none_passes(rank, workload)
            self._push(heap, found)
            self._push_ready(heap, is_opportunistic)
            yield decisions

    def _reserved_before(self, found: WorkloadClass, rank: Rank) -> Iterator[list[Decision]]:
        if self._planner is not None and self._gangs.records.unplanned:
            yield list(self._planner.before(found, rank, self._now))

    def _reserved_for(self, found: WorkloadClass) -> list[Decision]:
        return [] if self._planner is None else list(self._planner.failed(found, self._now))

    def _note(self, found: WorkloadClass, answer: No, workload: Workload) -> None:
        found.no, found.helps = answer, None
        self.tried[found] = None
        if answer.code == ROOM and workload.parent is None:
            self._failed.add(found)

    def _follow(self, heap: list[Entry], found: WorkloadClass, workload: Workload) -> None:
        """The next of the class, where a gang asks no longer for what it was to grow by."""
        if workload.phase is Phase.OVER:
            self._push(heap, found)

    def _push_ready(self, heap: list[Entry], is_opportunistic: bool) -> None:
        """What a gang that has started can do without is tried in the same turn, and in its order
        a gang that has lost its nominated placement.
        """
        for found in self._queue.take_ready(is_opportunistic=is_opportunistic):
            self._push(heap, found)

    def _to_try(self, is_opportunistic: bool) -> list[WorkloadClass]:
        ready = self._queue.take_ready(is_opportunistic=is_opportunistic)
        if not self._is_strict:
            return ready
        self._first.clear()
        for record in self._gangs.records.nominated:
            self._none_passes(self._queue.rank_of(record.workload, record.order), record.workload)
        every = self._queue.classes.values()
        return [each for each in every if each.is_opportunistic is is_opportunistic]

    def _push(self, heap: list[Entry], found: WorkloadClass) -> None:
        head = self._queue.head(found)
        if head is None:
            self._queue.forget(found)
            return
        self._push_one(heap, found, *head)

    def _push_one(
        self, heap: list[Entry], found: WorkloadClass, rank: Rank, workload: Workload
    ) -> None:
        self._pushed += 1
        heappush(heap, (rank, self._pushed, found, workload))

    def _answer(self, found: WorkloadClass, rank: Rank, record: Record) -> Fit | No:
        if self._is_strict:
            return self._in_turn(found, rank, record)
        if self._failed.has_easier(found) and record.reservation is None:
            return No(ROOM)
        return self._attempt(record)

    def _in_turn(self, found: WorkloadClass, rank: Rank, record: Record) -> Fit | No:
        if record.workload.gang.is_preflight:  # it takes no place that others wait for
            return self._attempt(record)
        first = self._first.get(_place_of(record.workload))
        if first is not None and first[0] < rank:
            return No(ORDER)
        is_known = found.no is not None and found.no.code != ORDER
        answer = found.no if found.no and is_known else self._attempt(record)
        if isinstance(answer, No):
            self._none_passes(rank, record.workload)
        return answer

    def _none_passes(self, rank: Rank, workload: Workload) -> None:
        place = _place_of(workload)
        first = self._first.get(place)
        if first is None or rank < first[0]:
            self._first[place] = rank, workload

    def _attempt(self, record: Record) -> Fit | No:
        """Surplus only where that costs nothing."""
        state, workload = self._state, record.workload
        if workload.is_surplus:
            state.set_near(workload, self._gangs.records.racks_near(workload))
            return fit(state, workload, None)
        if workload.parent is not None and lender_of(workload) is not None:
            return lacks(state, workload) or No(ROOM)  # it borrows as well
        if self._gangs.children.place_whole(record):
            self._end_reservation(record)
            return Fit()
        reservations = beside(self._gangs.records, workload)
        if record.reservation is not None:
            reservations.append(record.reservation)
        answer, passed = attempt(state, workload, reservations, self._gangs.costs)
        if isinstance(answer, Fit):
            self._end_reservation(record)
            if passed:
                record.passed = passed_by(workload, passed)
        return answer

    def _end_reservation(self, record: Record) -> None:
        """The gang has its places."""
        if record.reservation is not None:
            end(self._state, record.reservation)
            record.reservation = None

    def borrow(self) -> Iterator[list[Decision]]:
        """Gangs that failed and may borrow are placed in the idle quota of others, in order."""
        records, failed = self._gangs.records, Sizes()
        heap: list[Entry] = []
        for found in list(self.tried):
            if found.is_borrowing and not found.is_opportunistic:
                self._push(heap, found)
        while heap:
            _, _, found, workload = heappop(heap)
            if workload.phase is not Phase.WAITING or failed.has_easier(found):
                continue
            record = records.of(workload)
            if not self._may_borrow(record):
                continue
            if self._lending.borrow(workload, records.borrowers()) is None:
                if workload.parent is None:
                    failed.add(found)
                continue
            self._end_reservation(record)
            yield list(self._gangs.placed(record, Fit(), self._now))
            self._push(heap, found)

    def _may_borrow(self, record: Record) -> bool:
        workload = record.workload
        if self._is_strict and self._first[_place_of(workload)][1] is not workload:
            return False
        is_growth = workload.parent is not None and not workload.is_surplus
        if is_growth and lender_of(workload) is None:  # its gang is in its own cells
            return False
        has_pin = any(want.kind.pin for want, _ in workload.wants)
        return not has_pin


def _place_of(workload: Workload) -> tuple[str, bool]:
    return workload.gang.virtual_cluster, workload.is_opportunistic
