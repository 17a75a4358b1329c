"""Publishes what transactions wrote: the outbox, repeats of unacknowledged words, acknowledgements.

Every replica runs one; rows are taken with SKIP LOCKED, and stay locked until the bus has them, so
each word is published at least once, and a row that the bus refuses is parked until a later word
replaces it. Order is not needed: revisions give it.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import datetime

import asyncpg
import structlog

from muster.bus import LINGER_FROM, LINGER_S, Bus, Outgoing
from muster.contracts.notices import RevisionAcknowledged
from muster.db import Connection, Pool, is_transient, transaction
from muster.errors import Transient
from muster.exchange import ANSWER_AFTER, answered, repeated
from muster.records import said, word_id
from muster.settings import DatabaseSettings
from muster.subjects import Subject, load_due, update_subjects

_log = structlog.get_logger()

DUE_PAUSE_S = 0.1
"""What is due is said in groups: an acknowledgement has half a second."""

CATCH_UP_S = 60.0
CLEAN_EVERY_S = 600.0
CLEAN_ROWS = 5000


class Relay:
    """One relay of a service."""

    def __init__(self, bus: Bus, pool: Pool) -> None:
        self._bus = bus
        self._pool = pool
        settings = bus.settings
        assert isinstance(settings, DatabaseSettings)
        self._settings = settings
        self._woken = asyncio.Event()
        self._new_bus = False
        self._catching_up_until = 0.0
        self._due_at = 0.0
        self._repeats_left = float(settings.repeats_per_s)
        self._looked = time.monotonic()
        self._cleaned = time.monotonic()
        bus.on_new_bus.append(self._on_new_bus)

    def wake(self) -> None:
        """There is something in the outbox, and perhaps something to answer soon."""
        self._due_at = min(self._due_at, time.monotonic() + ANSWER_AFTER.total_seconds())
        self._woken.set()

    def _on_new_bus(self) -> None:
        self._new_bus = True
        self._catching_up_until = time.monotonic() + CATCH_UP_S
        self._due_at = 0.0
        self._woken.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        wait = self._settings.retry_first_s
        while True:
            try:
                pause = await self._pass()
                wait = self._settings.retry_first_s
            except Exception as error:
                if not (is_transient(error) or isinstance(error, Transient)):
                    raise
                self._bus.metrics.retries.labels("relay").inc()
                _log.warning("publishing is retried", error=str(error) or type(error).__name__)
                pause, wait = wait, min(wait * 2, self._settings.retry_longest_s)
                self._woken.clear()
            await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _pass(self) -> float:
        """One round; returns how long nothing is due."""
        self._woken.clear()
        if self._new_bus:
            await self._say_all_again()
            self._new_bus = False
        published = await self._publish_outbox()
        if published == self._settings.relay_batch:
            return 0.0
        if published >= LINGER_FROM:  # there will be more in a moment
            await asyncio.sleep(LINGER_S)
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + await self._say_due()
        await self._clean()
        return max(self._due_at - time.monotonic(), 0.0)

    async def _publish_outbox(self) -> int:
        async with transaction(self._pool) as conn:
            rows = await conn.fetch(_TAKE, self._settings.relay_batch)
            if not rows:
                return 0
            outcomes = await self._bus.publish(
                [
                    Outgoing(
                        r["topic"],
                        r["key"],
                        r["value"].encode(),
                        r["event_id"],
                        r["written_at"].timestamp(),
                        r["traceparent"],
                    )
                    for r in rows
                ]
            )
            for row, refusal in zip(rows, outcomes, strict=True):
                if refusal is not None:
                    await self._park(conn, row, refusal)
        return len(rows)

    async def _park(self, conn: Connection, row: asyncpg.Record, why: BaseException) -> None:
        reason = f"{type(why).__name__}: {why}"
        _log.error("the bus refuses a record", topic=row["topic"], key=row["key"], reason=reason)
        self._bus.metrics.parked.labels(str(row["topic"])).inc()
        await conn.execute(_PARK, *(row[c] for c in _OUTBOX_COLUMNS), reason)

    async def _say_due(self) -> float:
        """Repeats, acknowledgements and encores that are due; returns the time to look again."""
        async with self._pool.acquire() as conn:
            times = await conn.fetchrow(_NEXT)
            assert times is not None
            now, next_at = times
            if next_at is None:
                return self._settings.relay_poll_s
            if next_at > now:
                wait: float = (next_at - now).total_seconds()
                return min(wait, self._settings.relay_poll_s)
            async with conn.transaction():
                rows = await load_due(conn, now, self._allowance())
                if rows:
                    await self._say(conn, rows, now)
        return DUE_PAUSE_S

    def _allowance(self) -> int:
        now = time.monotonic()
        is_new_bus = now < self._catching_up_until
        settings = self._settings
        rate = settings.repeats_per_s_on_new_bus if is_new_bus else settings.repeats_per_s
        self._repeats_left = min(rate, self._repeats_left + rate * (now - self._looked))
        self._looked = now
        # Below 0 where rows that were taken for their answer were due to be repeated as well.
        return max(0, int(self._repeats_left))

    async def _say(self, conn: Connection, rows: Sequence[Subject], now: datetime) -> None:
        records: list[Outgoing] = []
        after: list[Subject] = []
        for row in rows:
            said_again, changed = self._again(row, now)
            records += said_again
            after.append(changed)
        await update_subjects(conn, after)
        for refusal in await self._bus.publish(records):
            if refusal is not None:
                _log.warning("a repeated record was refused", reason=str(refusal))

    def _again(self, row: Subject, now: datetime) -> tuple[list[Outgoing], Subject]:
        """What is said again about a subject, and its row after that."""
        records: list[Outgoing] = []
        changed = row
        is_repeat = row.exchange.repeat_at is not None and row.exchange.repeat_at <= now
        if is_repeat:
            self._repeats_left -= 1
            self._bus.metrics.repeated.inc()
            jitter = random.random()  # noqa: S311 - jitter
            changed = changed.with_exchange(repeated(changed.exchange, now, jitter))
        if row.encore_at is not None and row.encore_at <= now:
            changed = changed.with_encore(now)
        if is_repeat or changed.encores > row.encores:
            records += self._last_word(row, now)
        answer_at = changed.exchange.answer_at
        if answer_at is not None and answer_at <= now:
            self._bus.metrics.acknowledged.inc()
            records.append(self._acknowledgement(row, now))
            changed = changed.with_exchange(answered(changed.exchange))
        return records, changed

    def _last_word(self, row: Subject, now: datetime) -> list[Outgoing]:
        if row.topic is None or row.key is None or row.word is None:
            return []
        revision = row.exchange.revision
        return [
            Outgoing(
                row.topic,
                row.key,
                said(row.word, revision, row.exchange.named).encode(),
                word_id(self._bus.me.value, row.kind.value, row.subject, revision),
                now.timestamp(),
                row.traceparent,
            )
        ]

    def _acknowledgement(self, row: Subject, now: datetime) -> Outgoing:
        notice = RevisionAcknowledged(
            kind=row.kind.value,
            subject=row.subject,
            sender=self._bus.me.value,
            revision=row.exchange.seen,
            spoken=row.exchange.revision,
            dead=row.exchange.dead > 0,
        )
        return Outgoing(
            "revision-acknowledged",
            row.key or row.subject,
            notice.model_dump_json(exclude_defaults=True).encode(),
            f"{self._bus.me.value}/{row.kind.value}/{row.subject}/seen-{row.exchange.seen}",
            now.timestamp(),
            row.traceparent,
        )

    async def _say_all_again(self) -> None:
        """The bus was thrown away: what is not acknowledged is said again soon."""
        async with self._pool.acquire() as conn:
            await conn.execute(_SOON)

    async def _clean(self) -> None:
        """Forget subjects that were closed longer ago than topics keep records; count the rest."""
        if time.monotonic() - self._cleaned < CLEAN_EVERY_S:
            return
        self._cleaned = time.monotonic()
        async with self._pool.acquire() as conn:
            await conn.execute(_FORGET, float(self._settings.closed_subjects_days), CLEAN_ROWS)
            counts = await conn.fetchrow(_COUNTS)
        assert counts is not None
        self._bus.metrics.outbox_rows.set(counts["outbox_rows"])
        self._bus.metrics.open_subjects.set(counts["unacknowledged"])


_OUTBOX_COLUMNS = ("topic", "key", "kind", "subject", "event_id", "value", "traceparent")
_TAKE = """
    DELETE FROM outbox WHERE id IN (
        SELECT id FROM outbox WHERE parked_for IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    RETURNING topic, key, kind, subject, event_id, value, traceparent, written_at
"""
_PARK = """
    INSERT INTO outbox (topic, key, kind, subject, event_id, value, traceparent, parked_for)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
_NEXT = """
    SELECT clock_timestamp() AS now, least(
        (SELECT min(repeat_at) FROM subject WHERE repeat_at IS NOT NULL),
        (SELECT min(answer_at) FROM subject WHERE answer_at IS NOT NULL),
        (SELECT min(encore_at) FROM subject WHERE encore_at IS NOT NULL)
    ) AS next_at
"""
_SOON = """
    UPDATE subject SET repeats = 0, repeat_at = now() + random() * interval '2 s'
    WHERE repeat_at IS NOT NULL
"""
_FORGET = """
    DELETE FROM subject WHERE (kind, subject) IN (
        SELECT kind, subject FROM subject
        WHERE NOT is_open AND repeat_at IS NULL AND changed_at < now() - $1 * interval '1 day'
        LIMIT $2
    )
"""
_COUNTS = """
    SELECT (SELECT count(*) FROM outbox) AS outbox_rows,
           (SELECT count(*) FROM subject WHERE repeat_at IS NOT NULL) AS unacknowledged
"""
