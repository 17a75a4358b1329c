"""Questions about waiting gangs, answered by values. Nothing is changed."""

from collections import Counter
from collections.abc import Callable
from itertools import islice

from scheduler.domain.core import answers
from scheduler.domain.core.advise import advise
from scheduler.domain.core.interface import (
    Advice,
    Ahead,
    Before,
    Counterfactual,
    Counts,
)
from scheduler.domain.core.lend import Lending
from scheduler.domain.core.model import GangClass, Reason
from scheduler.domain.core.nodes import Phase
from scheduler.domain.core.records import Record
from scheduler.domain.core.restore import class_of
from scheduler.domain.core.transitions import Transitions
from scheduler.domain.core.wishes import wishes


class Questions:
    """Implements `interface.Questions`."""

    def __init__(
        self, gangs: Transitions, lending: Lending, is_under_way: Callable[[], bool]
    ) -> None:
        self._gangs = gangs
        self._lending = lending
        self._is_under_way = is_under_way

    def _part(self, gang: str) -> Record | None:
        record = self._gangs.records.all.get(gang)
        return None if record is None else answers.part_of(record)

    def reason_of(self, gang: str) -> Reason | None:
        part = self._part(gang)
        return None if part is None else answers.reason_of(self._gangs, part)

    def reason_now(self, gang: str) -> Reason | None:
        if self._is_under_way():
            return self.reason_of(gang)
        part = self._part(gang)
        return None if part is None else answers.reason_now(self._gangs, part)

    def starts_at(self, gang: str) -> float | None:
        part = self._part(gang)
        reservation = None if part is None else part.reservation
        return None if reservation is None or reservation.is_kept else reservation.starts_at

    def counts(self) -> Counts:
        records = self._gangs.records.all.values()
        parts = [part for each in records if (part := answers.part_of(each)) is not None]
        nominated = sum(part.workload.phase is Phase.NOMINATED for part in parts)
        running = (each for each in records if each.workload.phase is Phase.RUNNING)
        downgraded = sum(class_of(each) is GangClass.DOWNGRADED for each in running)
        wanted = Counter[tuple[str, str]]()
        for part in parts:
            gpus = sum(want.gpus * len(pods) for want, pods in part.workload.wants)
            wanted[part.workload.gang.virtual_cluster, part.published or ""] += gpus
        return Counts(len(parts), nominated, downgraded, wanted)

    def has_at_most(self, waiting: int) -> bool:
        return len(list(islice(answers.waiting(self._gangs), waiting + 1))) <= waiting

    def first(self, limit: int) -> list[str]:
        return [each.gang.id for each in answers.everyone(self._gangs)[:limit]]

    def before(self, gang: str) -> Before:
        part = answers.part_of(self._gangs.records.all[gang])
        if part is None:
            return Before(0, ())
        ahead = answers.everywhere(self._gangs, part)
        return Before(ahead.position - 1, tuple(each for each, _ in ahead.first))

    def ahead(self, gang: str) -> Ahead | None:
        part = answers.part_of(self._gangs.records.all[gang])
        if part is None or part.workload.phase is Phase.NOMINATED:
            return None
        return answers.inside(self._gangs, part)

    def counterfactual(self, gang: str) -> Counterfactual | None:
        record = self._gangs.records.all.get(gang)
        if record is None:
            return None
        is_under_way = self._is_under_way()
        return answers.answer(self._gangs, self._lending, record, is_under_way=is_under_way)

    def advise(self, chain: str | None, cell: str | None, cells: int) -> Advice | None:
        asked = wishes(self._gangs.state.forest, chain, cell, cells)
        return advise(self._gangs, self._lending, asked) if asked else None
