"""The self-audit: every minute it compares the accounting with the placements, in parts after the
cycles. It publishes each gang with a difference until there is none.
"""

import time
from collections.abc import Generator, Iterable
from datetime import UTC, datetime

import structlog
from muster.bus import Bus, Outgoing
from muster.contracts.notices import AccountingDrifted
from muster.contracts.topics import Service

from scheduler.domain.core.interface import Core, Drift
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()

GANGS_NAMED = 20
"""The most gangs of one audit in the log, metrics and messages; the rest is counted."""


DRIFTS_PUBLISHED = 20
"""The most differences of one gang in one message."""

DRIFTED = "accounting-drifted"

NOBODY = "-"
"""Stands for a gang's id if none can be named."""


class Auditor:
    """Continues an audit, or begins one when it is due. ``drifts``: differences that the last
    complete audit found, by gang.
    """

    def __init__(self, settings: SchedulerSettings, metrics: SchedulerMetrics) -> None:
        self.drifts: dict[str, list[Drift]] = {}
        self._settings = settings
        self._metrics = metrics
        self._due_at = time.monotonic() + settings.audit_s
        self._core: Core | None = None
        self._since: dict[str, datetime] = {}
        self._messages: list[Outgoing] = []
        self._steps: Generator[None, None, list[Drift]] | None = None

    def look(self, core: Core) -> bool:
        """Runs between two cycles. Returns whether an audit is under way, to be continued soon."""
        began = time.monotonic()
        if self._core is not core:  # memory was rebuilt: the audit starts again
            self._core, self._steps = core, None
        if self._steps is None:
            if began < self._due_at:
                return False
            self._steps = core.audit()
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
                self._metrics.drift.labels(gang, drift.book).inc(drift.size)
            _log.error(
                "the accounting is wrong",
                gang=gang,
                drifts=[drift.text for drift in found],
                gangs=len(self.drifts),
            )
        self._messages = self._drift_messages(datetime.fromtimestamp(time.time(), UTC))
        if before and not self.drifts:
            _log.info("the accounting is right again")

    def _drift_messages(self, now: datetime) -> list[Outgoing]:
        """Messages for Alerting about this audit."""
        self._since = {gang: self._since.get(gang, now) for gang in self.drifts}
        messages: list[Outgoing] = []
        for gang, found in list(self.drifts.items())[:GANGS_NAMED]:
            key, since = gang or NOBODY, self._since[gang]
            drifts = tuple(drift.text for drift in found[:DRIFTS_PUBLISHED])
            message = AccountingDrifted(gang=key, drifts=drifts, since=since, at=now)
            value = message.model_dump_json(exclude_none=True).encode()
            event_id = f"{Service.SCHEDULER.value}/{DRIFTED}/{key}/{int(now.timestamp() * 1000)}"
            messages.append(Outgoing(DRIFTED, key, value, event_id, now.timestamp()))
        return messages

    async def publish(self, bus: Bus) -> None:
        """Publish the last audit's differences once; the next audit publishes them again."""
        messages, self._messages = self._messages, []
        for failure in await bus.publish(messages) if messages else ():
            if failure is not None:
                _log.warning("a drift was not published; it is repeated", error=str(failure))


def by_gang(drifts: Iterable[Drift]) -> dict[str, list[Drift]]:
    """Differences of each gang, in the order in which they were found."""
    found: dict[str, list[Drift]] = {}
    for drift in drifts:
        found.setdefault(drift.gang, []).append(drift)
    return found
