"""Which jobs have preempted which others in the last hour, and how often that was inside a virtual
cluster.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

from scheduler.domain.core.model import RestoredPreemption

HOUR_S = 3_600.0
"""So long a preemption counts."""


class Hour:
    """The preemptions of the last hour: ``all``, the oldest first."""

    def __init__(self) -> None:
        self.all: deque[RestoredPreemption] = deque()
        self._inside: Counter[str] = Counter()
        self._pairs: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def note(self, preemption: RestoredPreemption) -> None:
        """One more."""
        self.all.append(preemption)
        if preemption.virtual_cluster is not None:
            self._inside[preemption.virtual_cluster] += 1
        one, other = preemption.job, preemption.for_job
        self._pairs[one][other] = self._pairs[other][one] = preemption.at

    def forget(self, now: float) -> None:
        """What is an hour old counts no more."""
        while self.all and self.all[0].at + HOUR_S <= now:
            old = self.all.popleft()
            if old.virtual_cluster is not None:
                self._inside[old.virtual_cluster] -= 1
            for one, other in ((old.job, old.for_job), (old.for_job, old.job)):
                if self._pairs.get(one, {}).get(other) == old.at:
                    del self._pairs[one][other]
                    if not self._pairs[one]:
                        del self._pairs[one]

    def inside(self, virtual_cluster: str) -> int:
        """Gangs that were preempted inside a virtual cluster."""
        return self._inside[virtual_cluster]

    def pairs(self, job: str) -> Mapping[str, float]:
        """Jobs that have preempted one, or were preempted for it, and when last."""
        return self._pairs.get(job, {})

    def exported(self) -> list[RestoredPreemption]:
        """All that is kept of them: those that count for a budget, and of others the last of each
        two jobs.
        """
        last = {(each.job, each.for_job): each for each in self.all}
        return [
            each
            for each in self.all
            if each.virtual_cluster is not None or last[each.job, each.for_job] is each
        ]
