"""The self-audit: every minute the books are compared with the placements, a little after each
cycle; whose gangs make them wrong is said until they are right.
"""

import time
from collections.abc import Generator

import structlog

from scheduler.domain.core.auditing import Drift, audit, by_gang
from scheduler.domain.core.cluster import Cluster
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()

GANGS_NAMED = 20
"""In the log and as metrics, of one audit; the others are counted."""


class Auditor:
    """Goes on with an audit, or begins one when it is due. ``drifts``: what the last whole one has
    found, by gang.
    """

    def __init__(self, settings: SchedulerSettings, metrics: SchedulerMetrics) -> None:
        self.drifts: dict[str, list[Drift]] = {}
        self._settings = settings
        self._metrics = metrics
        self._due_at = time.monotonic() + settings.audit_s
        self._cluster: Cluster | None = None
        self._steps: Generator[None, None, list[Drift]] | None = None

    def look(self, cluster: Cluster) -> bool:
        """Between two cycles. Whether an audit is under way, to be gone on with soon."""
        began = time.monotonic()
        if self._cluster is not cluster:  # another memory, which is looked at from its beginning
            self._cluster, self._steps = cluster, None
        if self._steps is None:
            if began < self._due_at:
                return False
            self._steps = audit(cluster)
        until = began + self._settings.audit_part_s
        while True:
            try:
                next(self._steps)
            except StopIteration as end:
                self._found(end.value)
                return False
            if time.monotonic() >= until:
                return True

    def _found(self, drifts: list[Drift]) -> None:
        self._steps, self._due_at = None, time.monotonic() + self._settings.audit_s
        before, self.drifts = self.drifts, by_gang(drifts)
        self._metrics.audits.inc()
        self._metrics.drifted.set(len(self.drifts))
        self._metrics.drift.clear()
        for gang, found in list(self.drifts.items())[:GANGS_NAMED]:
            for drift in found:
                self._metrics.drift.labels(gang, drift.book).inc(abs(drift.has - drift.should))
            _log.error(
                "the books are wrong",
                gang=gang,
                drifts=[drift.text for drift in found],
                gangs=len(self.drifts),
            )
        if before and not self.drifts:
            _log.info("the books are right again")
