"""One cycle's attempts: a waiting gang is placed, or others leave for it, or it fails."""

from collections.abc import Iterator
from heapq import heappop, heappush

from scheduler.domain.core.model import Decision
from scheduler.domain.core.ordering import Rank
from scheduler.domain.newcore.attempt import attempt
from scheduler.domain.newcore.fit import ROOM, Fit, No
from scheduler.domain.newcore.lend import Lending
from scheduler.domain.newcore.nodes import Workload
from scheduler.domain.newcore.queue import Failed, WorkloadClass
from scheduler.domain.newcore.records import Record
from scheduler.domain.newcore.reserve import beside
from scheduler.domain.newcore.transitions import Transitions

Entry = tuple[Rank, int, WorkloadClass, Workload]
"""A class by its first gang."""


class Admission:
    """``tried``: classes whose first gang failed."""

    def __init__(self, gangs: Transitions, lending: Lending, now: float) -> None:
        self.tried: dict[WorkloadClass, None] = {}
        self._gangs = gangs
        self._state = gangs.state
        self._queue = gangs.queue
        self._lending = lending
        self._now = now
        self._failed = Failed()

    def admit(self) -> Iterator[Decision]:
        """All classes that are to be tried, in the order of their first gangs."""
        self._failed.clear()
        ready, self._queue.ready = self._queue.ready, {}
        heap: list[Entry] = []
        for number, found in enumerate(ready):
            self._push(heap, number, found)
        while heap:
            rank, number, found, workload = heappop(heap)
            if self._queue.has_users and (head := self._queue.head(found)) is not None:
                if head[0] > rank:  # its user has more by now
                    heappush(heap, (head[0], number, found, head[1]))
                    continue
                workload = head[1]
            record = self._gangs.records.of(workload)
            answer = self._answer(found, record)
            if isinstance(answer, No):
                found.no = answer
                self.tried[found] = None
                if answer.code == ROOM:
                    self._failed.add(found)
                continue
            yield from self._gangs.placed(record, answer, self._now)
            if answer.victims or answer.downgraded:
                self._failed.clear()
            self._push(heap, number, found)

    def _push(self, heap: list[Entry], number: int, found: WorkloadClass) -> None:
        if (head := self._queue.head(found)) is not None:
            heappush(heap, (head[0], number, found, head[1]))
        else:
            self._queue.forget(found)

    def _answer(self, found: WorkloadClass, record: Record) -> Fit | No:
        if self._failed.covers(found) and record.reservation is None:
            return No(ROOM)
        return self._attempt(record)

    def _attempt(self, record: Record) -> Fit | No:
        reservations = beside(self._gangs.records, record.workload)
        if record.reservation is not None:
            reservations.append(record.reservation)
        answer = attempt(self._state, record.workload, reservations, self._gangs.costs)
        if isinstance(answer, Fit):
            record.reservation = None
        return answer

    def borrow(self) -> Iterator[Decision]:
        """Gangs that failed and may borrow are placed in the idle quota of others, in order."""
        records = self._gangs.records
        waiting = [
            (self._queue.rank_of(each, records.of(each).order), each)
            for found in self.tried
            if found.is_borrowing and found.owner is not None
            for each in found.waiting()
        ]
        for _, workload in sorted(waiting, key=lambda each: each[0]):
            record = records.of(workload)
            has_pin = any(want.kind.pin for want, _ in workload.wants)
            if has_pin or record.reservation is not None:
                continue
            if self._lending.borrow(workload, records.borrowers()) is not None:
                yield from self._gangs.placed(record, Fit(), self._now)
