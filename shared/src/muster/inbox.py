"""Batches from the bus into the database: one transaction each. No record is lost, and a bad one
does not stop the others.

The inbox retries what passes by itself (a lost connection, a deadlock, a full disk, a failover)
without end, while its reader waits. It halves a batch that takes too long. It handles a batch that
fails otherwise record by record, and a record that fails three times alone becomes a dead letter.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from muster.aggregates import Aggregate, apply_records, dead_letter
from muster.bus import Bus
from muster.db import Transaction, is_too_slow, is_transient
from muster.records import Received
from muster.relay import Relay
from muster.settings import DatabaseSettings

_log = structlog.get_logger()

ATTEMPTS_ALONE = 3

Handler = Callable[[Transaction, Sequence[Received]], Awaitable[Any]]
"""Handles records in the given transaction."""


class Inbox:
    """Runs a handler over batches. ``after`` gets what it returned, once that is committed."""

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
        """Handle a batch; returns when every record of it is applied or dead-lettered."""
        metrics = self._bus.metrics
        for record in records:
            metrics.received.labels(record.topic).inc()
        metrics.batch_records.observe(len(records))
        with metrics.batch_seconds.time():
            await self._handle(records)
        now = time.time()
        for record in records:
            if (at := record.published_at) is not None:
                metrics.lag_seconds.labels(record.topic).observe(max(0.0, now - at))

    async def _handle(self, records: Sequence[Received]) -> None:
        if len(records) == 1:
            await self._alone(records[0])
            return
        try:
            await self._until_done(records, self._handler)
        except Exception as error:
            if is_too_slow(error):
                _log.warning("a batch takes too long; it is halved", records=len(records))
                half = len(records) // 2
                await self._handle(records[:half])
                await self._handle(records[half:])
                return
            _log.exception("a batch failed; its records are handled one by one")
            for record in records:
                await self._alone(record)

    async def _alone(self, record: Received) -> None:
        for attempt in range(1, ATTEMPTS_ALONE + 1):
            try:
                await self._until_done([record], self._handler)
            except Exception as error:
                if attempt == ATTEMPTS_ALONE:
                    await self._dead_letter(record, error)
            else:
                return

    async def _dead_letter(self, record: Received, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        _log.error("a record can't be handled", topic=record.topic, key=record.key, reason=reason)

        async def write(transaction: Transaction, _records: Sequence[Received]) -> None:
            await dead_letter(transaction, self._bus.me, record, reason)

        while True:
            try:
                await self._until_done([record], write)
            except Exception as failure:
                if not is_too_slow(failure):
                    raise
            else:
                return

    async def _until_done(self, records: Sequence[Received], handler: Handler) -> None:
        """One transaction, tried until it succeeds. Raises what does not pass by itself, and what
        took too long on a database that answers.
        """
        wait = self._settings.retry_first_s
        while True:
            try:
                async with self._relay.transaction() as opened:
                    result = await handler(opened, records)
            except Exception as error:
                if not is_transient(error):
                    raise
                if is_too_slow(error) and await self._relay.database_answers():
                    raise
                self._bus.metrics.retries.labels("batch").inc()
                _log.warning("a batch is retried", error=str(error) or type(error).__name__)
                await asyncio.sleep(wait * (1 + random.random() / 4))  # noqa: S311 - jitter
                wait = min(wait * 2, self._settings.retry_longest_s)
            else:
                self._relay.incarnations.note_commit()
                if self._after is not None and handler is self._handler:
                    self._after(result)
                return


def messages_of(aggregate: Aggregate[Any], bus: Bus) -> Handler:
    """The handler that applies messages and acknowledgements to an aggregate."""

    async def handle(transaction: Transaction, records: Sequence[Received]) -> Any:
        return await apply_records(transaction, bus.me, aggregate, records)

    return handle
