"""The end of a cycle: gangs that can never start are refused, others learn why they wait."""

from collections.abc import Iterator

from scheduler.domain.core.model import Decision
from scheduler.domain.newcore.explain import Explainer
from scheduler.domain.newcore.nodes import Phase
from scheduler.domain.newcore.queue import WorkloadClass
from scheduler.domain.newcore.refuse import refusal
from scheduler.domain.newcore.transitions import Transitions


class Publisher:
    """Publishes what is new."""

    def __init__(self, gangs: Transitions) -> None:
        self._gangs = gangs
        self._explainer = Explainer(gangs.state)

    def publish(self, tried: dict[WorkloadClass, None], *, is_settled: bool) -> Iterator[Decision]:
        """``tried``: classes whose first gang failed; ``is_settled``: gangs may be refused."""
        gangs, queue = self._gangs, self._gangs.queue
        if not (tried or queue.new or gangs.records.misnamed):
            return
        tried = {found: None for found in tried if not found.is_surplus}  # it waits in silence
        if is_settled:
            yield from self._refuse(tried)
        waiting = {found: head[1] for found in tried if (head := queue.head(found))}
        for found, reason in self._explainer.reasons(waiting):
            if found.reason is None or found.reason.code != reason.code:
                for workload in found.waiting():
                    yield from gangs.publish(gangs.records.of(workload), reason)
            found.reason = reason
        for workload, found in queue.new.items():
            if found.reason is not None and workload.phase is Phase.WAITING:
                yield from gangs.publish(gangs.records.of(workload), found.reason)
        queue.new.clear()

    def _refuse(self, tried: dict[WorkloadClass, None]) -> Iterator[Decision]:
        """Gangs of which names or counts prove that they can never start."""
        gangs = self._gangs
        for record in list(gangs.records.misnamed):
            if record.misnamed is not None:
                yield gangs.refuse(record, record.misnamed)
        for found in list(tried):
            head = gangs.queue.head(found)
            if head is None or found.reason is not None:
                continue  # the class was looked at when it got its reason
            reason = refusal(gangs.state, head[1])
            if reason is not None:
                del tried[found]
                for workload in list(found.waiting()):
                    yield gangs.refuse(gangs.records.of(workload), reason)
