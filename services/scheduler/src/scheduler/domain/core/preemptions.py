"""The preemptions inside virtual clusters in the last hour, which their budgets are about."""

from collections import Counter, deque

from scheduler.domain.core.model import RestoredPreemption

HOUR_S = 3_600.0
"""So long a preemption counts."""


class Hour:
    """``all``: those of the last hour, the oldest first."""

    def __init__(self) -> None:
        self.all: deque[RestoredPreemption] = deque()
        self._inside: Counter[str] = Counter()

    def note(self, preemption: RestoredPreemption) -> None:
        """One more. One for a guarantee counts for no budget."""
        if preemption.virtual_cluster is not None:
            self.all.append(preemption)
            self._inside[preemption.virtual_cluster] += 1

    def forget(self, now: float) -> None:
        """What is an hour old counts no more."""
        while self.all and self.all[0].at + HOUR_S <= now:
            old = self.all.popleft()
            if old.virtual_cluster is not None:
                self._inside[old.virtual_cluster] -= 1

    def inside(self, virtual_cluster: str) -> int:
        """Gangs that were preempted inside a virtual cluster."""
        return self._inside[virtual_cluster]
