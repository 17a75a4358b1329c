"""Alerting's timers: silence of jobs and nodes, digests, gauges, and the deletion of old rows."""

import asyncio
import time
from collections.abc import Callable

import structlog
from muster.db import is_transient, transaction
from muster.service import Runtime

from alerting.domain import jobs
from alerting.domain.deliveries import GiveUp
from alerting.handlers import Listener, Notified
from alerting.metrics import AlertingMetrics
from alerting.reported import ReportedNodes
from alerting.settings import AlertingSettings
from alerting.store import alerts, cleaning, deliveries, digests, watches

_log = structlog.get_logger()

GATHER_S = 0.5
"""What changes within this time is looked at together."""
DOUBT_S = 60.0
"""How often the health of all nodes is compared with their alerts, changed or not."""


class Timers:
    """Handles due timers. Silence counts only once the bus has answered for some time: until then,
    unread records look like silence.
    """

    def __init__(
        self,
        runtime: Runtime,
        listener: Listener,
        nodes: ReportedNodes,
        metrics: AlertingMetrics,
        after: Callable[[Notified], None],
    ) -> None:
        assert isinstance(runtime.settings, AlertingSettings)
        self._settings = runtime.settings
        self._bus = runtime.bus
        self._pool = runtime.pool
        self._relay = runtime.relay
        self._listener = listener
        self._nodes = nodes
        self._metrics = metrics
        self._after = after
        self._up_since: float | None = None
        self._cleaned = self._doubted = time.monotonic()

    async def run(self) -> None:
        """Look until cancelled; before the usual time where the health of nodes has changed."""
        while True:
            try:
                await self._look()
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("timers wait", error=str(error) or type(error).__name__)
            await self._rest()

    async def _rest(self) -> None:
        """Until the next look. What has changed waits for a moment: more may come with it."""
        try:
            async with asyncio.timeout(self._settings.alert_timer_poll_s):
                await self._nodes.changed.wait()
        except TimeoutError:
            return
        self._nodes.changed.clear()
        await asyncio.sleep(min(GATHER_S, self._settings.alert_timer_poll_s))

    async def _look(self) -> None:
        if time.monotonic() - self._doubted >= DOUBT_S:
            self._doubted = time.monotonic()
            self._nodes.doubt()
        while await self._pass_time(is_settled=self._is_settled()):
            pass
        async with transaction(self._pool) as conn:
            made = await digests.make_digests(conn, self._settings.alert_timer_batch)
        if made:
            _log.info("digests are made", count=made)
        async with self._pool.acquire() as conn:
            firing = await alerts.firing(conn)
            counts = await deliveries.counts(conn)
        self._metrics.firing.clear()
        for name, number in firing.items():
            self._metrics.firing.labels(name).set(number)
        self._metrics.waiting.labels("webhook").set(counts.webhooks)
        self._metrics.waiting.labels("mail").set(counts.mails)
        self._metrics.paused.set(counts.paused)
        self._metrics.disabled.set(counts.disabled)
        if time.monotonic() - self._cleaned >= self._settings.clean_rows_every_s:
            cleaned = time.monotonic()
            if await self._clean() < self._settings.clean_rows:  # else the next look goes on
                self._cleaned = cleaned

    def _is_settled(self) -> bool:
        if not self._bus.is_up:
            self._up_since = None
            return False
        if self._up_since is None:
            self._up_since = time.monotonic()
        return time.monotonic() - self._up_since >= self._settings.alert_settle_s

    async def _pass_time(self, *, is_settled: bool) -> bool:
        """Whether reports of nodes are left that have to be looked at."""
        async with self._relay.transaction() as opened:
            notified = await self._listener.pass_time(
                opened, self._settings.alert_timer_batch, is_settled=is_settled
            )
        self._after(notified)
        return self._nodes.see(notified.seen) and bool(notified.seen)

    async def _clean(self) -> int:
        """Delete old rows in one transaction; the most that one statement had."""
        settings = self._settings
        notified = Notified()
        async with self._relay.transaction() as opened:
            conn = opened.conn
            expired = await cleaning.expire(conn, settings.give_up_after_s, settings.clean_rows)
            deleted = await cleaning.clean(
                conn,
                days=settings.retention_days,
                rows=settings.clean_rows,
                subscriptions=[it.subscription.id for it in self._listener.subscriptions.entries()],
            )
            forgotten = await watches.forget_jobs(conn, settings.open_job_days, settings.clean_rows)
            for watch in forgotten:
                notified.add((), jobs.forgotten(watch, now=opened.now))
            await alerts.save_alerts(opened, notified.alerts)
        self._after(notified)
        if expired:
            self._metrics.given_up.labels("any", GiveUp.EXPIRED).inc(expired)
            _log.warning("deliveries were too old", count=expired)
        return max(expired, deleted, len(forgotten))
