"""The end of a cycle: gangs that can never start are refused, others learn why they wait."""

from collections.abc import Iterable, Iterator

from scheduler.domain.core.explain import reasons, unsettled
from scheduler.domain.core.fit import ORDER
from scheduler.domain.core.interface import HEALTH
from scheduler.domain.core.model import Decision
from scheduler.domain.core.nodes import Phase, Workload
from scheduler.domain.core.ordering import Rank
from scheduler.domain.core.queue import WorkloadClass
from scheduler.domain.core.refuse import refusal
from scheduler.domain.core.transitions import Transitions


class Publisher:
    """Publishes what is new. ``explained``: how many reasons were found. ``is_explaining`` off:
    none are sought.
    """

    def __init__(self, gangs: Transitions) -> None:
        self._gangs = gangs
        self.explained = 0
        self.is_explaining = True

    def publish(self, tried: dict[WorkloadClass, None], *, is_settled: bool) -> Iterator[Decision]:
        """``tried``: classes whose first gang failed; ``is_settled``: gangs may be refused."""
        gangs, queue = self._gangs, self._gangs.queue
        tried = self._to_explain(tried, is_settled=is_settled)
        if not (tried or queue.new or gangs.records.misnamed):
            return
        if is_settled:
            yield from self._refuse(tried)
        if not self.is_explaining:
            return
        for record in gangs.records.misnamed:
            if record.misnamed is not None and not record.workload.is_surplus:
                wrong = record.misnamed if is_settled else unsettled(record.misnamed)
                yield from gangs.publish(record, wrong)
        heads = {found: head[1] for found in tried if (head := queue.head(found))}
        kept = [each.reservation for each in gangs.records.reserved if each.reservation]
        kept += gangs.records.kept
        found_of = reasons(gangs.state, heads, self._firsts(heads), kept, gangs.costs)
        self.explained += len(found_of)
        for found, reason in found_of.items():
            if not is_settled and (large := refusal(gangs.state, heads[found])) is not None:
                reason = unsettled(large)
            if found.reason is None or found.reason.code != reason.code:
                for workload in found.waiting():
                    yield from gangs.publish(gangs.records.of(workload), reason)
            found.reason = reason
        for workload, found in queue.new.items():
            if found.reason is not None and workload.phase is Phase.WAITING:
                yield from gangs.publish(gangs.records.of(workload), found.reason)
        queue.new.clear()

    def _to_explain(
        self, tried: dict[WorkloadClass, None], *, is_settled: bool
    ) -> dict[WorkloadClass, None]:
        """Surplus waits in silence. Once all nodes are well, nobody waits for that any longer."""
        found = {each: None for each in tried if not each.is_surplus}
        if is_settled and not self._gangs.state.unwell:
            every = self._gangs.queue.classes.values()
            found |= dict.fromkeys(e for e in every if e.reason and e.reason.code == HEALTH)
        return found

    def _firsts(self, tried: Iterable[WorkloadClass]) -> dict[WorkloadClass, str]:
        """Of classes that may not pass, the gangs that come before all of their virtual cluster."""
        queue, firsts = self._gangs.queue, dict[tuple[object, bool], tuple[Rank, Workload]]()
        behind = [found for found in tried if found.no is not None and found.no.code == ORDER]
        heads = [queue.head(found) for found in queue.classes.values() if behind]
        for record in self._gangs.records.nominated if behind else ():
            heads.append((queue.rank_of(record.workload, record.order), record.workload))
        for head in heads:
            if head is not None:
                place = head[1].gang.virtual_cluster, head[1].is_opportunistic
                firsts[place] = min(head, firsts.get(place, head), key=lambda each: each[0])
        return {found: firsts[found.key[0], found.is_opportunistic][1].gang.id for found in behind}

    def _refuse(self, tried: dict[WorkloadClass, None]) -> Iterator[Decision]:
        """Gangs of which names or counts prove that they can never start, and growth with wrong
        names. Growth that is too large waits.
        """
        gangs = self._gangs
        for record in list(gangs.records.misnamed):
            if record.misnamed is not None and not record.workload.is_surplus:
                yield gangs.refuse(record, record.misnamed)
        for found in list(tried):
            head = gangs.queue.head(found)
            if head is None or head[1].parent is not None or found.reason is not None:
                continue  # the class was looked at when it got its reason
            reason = refusal(gangs.state, head[1])
            if reason is not None:
                del tried[found]
                for workload in list(found.waiting()):
                    yield gangs.refuse(gangs.records.of(workload), reason)
