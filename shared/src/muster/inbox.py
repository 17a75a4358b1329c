"""Batches from the bus into the database: one transaction each, nothing lost, neighbours unhurt.

What passes by itself (a lost connection, a deadlock, a full disk) is retried without end while the
reader waits. A batch that fails otherwise is handled record by record, and a record that fails
three times alone becomes a dead letter.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import structlog

from muster.aggregates import Aggregate, apply_records, bury
from muster.bus import Bus
from muster.db import Connection, is_transient
from muster.errors import Transient
from muster.records import Received
from muster.relay import Relay
from muster.settings import DatabaseSettings

_log = structlog.get_logger()

ATTEMPTS_ALONE = 3

Handler = Callable[[Connection, Sequence[Received], datetime], Awaitable[Any]]
"""Handles records in the given transaction; ``now`` is the database's time."""


class Inbox:
    """Runs a handler over batches. ``after`` gets what the handler returned, once it is
    committed.
    """

    def __init__(
        self,
        bus: Bus,
        relay: Relay,
        handler: Handler,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        self._bus = bus
        self._relay = relay
        self._handler = handler
        self._after = after
        settings = bus.settings
        assert isinstance(settings, DatabaseSettings)
        self._settings = settings

    async def handle(self, records: Sequence[Received]) -> None:
        """Handle a batch; returns when every record of it is applied or buried."""
        metrics = self._bus.metrics
        for record in records:
            metrics.received.labels(record.topic).inc()
        metrics.batch_records.observe(len(records))
        with metrics.batch_seconds.time():
            try:
                await self._until_done(records, self._handler)
            except Exception:
                _log.exception("a batch failed; its records are handled one by one")
                for record in records:
                    await self._alone(record)

    async def _alone(self, record: Received) -> None:
        for attempt in range(1, ATTEMPTS_ALONE + 1):
            try:
                await self._until_done([record], self._handler)
            except Exception as error:
                if attempt == ATTEMPTS_ALONE:
                    await self._bury(record, error)
            else:
                return

    async def _bury(self, record: Received, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        _log.error("a record can't be handled", topic=record.topic, key=record.key, reason=reason)

        async def write(conn: Connection, _records: Sequence[Received], now: datetime) -> None:
            await bury(conn, self._bus.me, record, reason, now)

        await self._until_done([record], write)

    async def _until_done(self, records: Sequence[Received], handler: Handler) -> None:
        """One transaction, tried until it fails for a reason that does not pass by itself."""
        wait = self._settings.retry_first_s
        while True:
            try:
                async with self._relay.transaction() as conn:
                    now = await conn.fetchval("SELECT clock_timestamp()")
                    result = await handler(conn, records, now)
            except Exception as error:
                if not (is_transient(error) or isinstance(error, Transient)):
                    raise
                self._bus.metrics.retries.labels("batch").inc()
                _log.warning("a batch is retried", error=str(error) or type(error).__name__)
                await asyncio.sleep(wait * (1 + random.random() / 4))  # noqa: S311 - jitter
                wait = min(wait * 2, self._settings.retry_longest_s)
            else:
                if self._after is not None:
                    self._after(result)
                return


def words_of(aggregate: Aggregate[Any], bus: Bus) -> Handler:
    """The handler that applies words and acknowledgements to an aggregate."""

    async def handle(conn: Connection, records: Sequence[Received], now: datetime) -> Any:
        return await apply_records(conn, bus.me, aggregate, records, now)

    return handle
