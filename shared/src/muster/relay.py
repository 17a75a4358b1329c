"""Publishes what transactions wrote: the outbox, repeats of unacknowledged words, acknowledgements.

What this process wrote is published from memory as soon as it is committed. What was left, by a
process that ended or while the bus was away, is taken from the table by any replica's relay, with
SKIP LOCKED. So each word is published at least once; a row that the bus refuses is parked until a
later word replaces it. Rows of a channel that is away wait in the table, and no others behind them;
when it is back, they go out in the order in which a process wrote, and before what it writes now.
More order is not needed: revisions give it.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from muster.acknowledgements import acknowledgements
from muster.bus import Bus
from muster.channels import Channel, Outgoing, is_in
from muster.contracts.notices import AppliedRevision
from muster.contracts.topics import DEAD_LETTER, TOPICS
from muster.db import Connection, Pool, is_transient, transaction
from muster.errors import Transient
from muster.exchange import ANSWER_AFTER, REPEAT_LONGEST, answered, repeated
from muster.outbox import Written, forget, noting_written, outgoing, park, take_left
from muster.settings import DatabaseSettings
from muster.subjects import Subject, load_due, update_exchanges
from muster.upkeep import Upkeep

_log = structlog.get_logger()

DUE_PAUSE_S = 0.1
"""What is due is said in groups: an acknowledgement has half a second."""

LEFT_EVERY_S = 5.0
"""How often rows that were left are looked for, and published ones forgotten at the latest."""

LEFT_AGE_S = 2 * LEFT_EVERY_S
"""Rows that are older were left: who wrote them would have published and forgotten them by now."""

FRESH_BYTES = 2 * 2**20
"""More is left to be taken from the table, as much at once, so that a slow bus costs no memory."""

LATEST_DUE_S = 1.5 * REPEAT_LONGEST.total_seconds()
CATCH_UP_S = 60.0
END_S = 1.0
"""What an orderly stop may take to forget what was published."""


class Relay:
    """One relay of a service."""

    def __init__(self, bus: Bus, pool: Pool) -> None:
        self._bus = bus
        self._pool = pool
        settings = bus.settings
        assert isinstance(settings, DatabaseSettings)
        self._settings = settings
        self._woken = asyncio.Event()
        self._fresh: deque[Written] = deque()
        self._fresh_bytes = 0
        self._behind: frozenset[Channel] = frozenset()
        self._published: list[int] = []
        self._left_at = 0.0
        self._leave()  # a process before this one may have ended in the middle
        self._missed: set[str] = set()
        self._soon: set[str] = set()
        self._catching_up_until = 0.0
        self._due_at = 0.0
        self._repeats_left = float(settings.repeats_per_s)
        self._looked = time.monotonic()
        self._upkeep = Upkeep(pool, bus.metrics, settings.closed_subjects_days)
        bus.on_new_bus.append(self._on_new_bus)
        bus.on_open.append(self._on_open)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction whose words are published as soon as it is committed."""
        async with transaction(self._pool) as conn:
            with noting_written(conn) as written:
                yield conn
        for row in written:
            if row.record.topic.endswith(DEAD_LETTER):
                self._bus.metrics.dead.labels(row.record.topic.removesuffix(DEAD_LETTER)).inc()
        size = sum(row.size for row in written)
        if self._fresh_bytes + size > FRESH_BYTES:
            self._leave()
        else:
            self._fresh.extend(written)
            self._fresh_bytes += size
        written.clear()  # cancelled timers hold the context, and it the list, for a while
        self._due_at = min(self._due_at, time.monotonic() + ANSWER_AFTER.total_seconds())
        self._woken.set()

    def _leave(self) -> None:
        """What is in the table now is to be published from there."""
        self._has_left = True
        self._left_since = time.monotonic()

    def _on_new_bus(self) -> None:
        self._soon |= TOPICS.keys()
        self._catching_up_until = time.monotonic() + CATCH_UP_S
        self._due_at = 0.0
        self._woken.set()

    def _on_open(self) -> None:
        self._leave()
        self._soon |= self._missed
        self._missed.clear()
        self._woken.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        try:
            await self._run()
        finally:  # so that the next process need not publish it again
            with contextlib.suppress(Exception):
                async with asyncio.timeout(END_S):
                    await self._forget_published()

    async def _run(self) -> None:
        wait = self._settings.retry_first_s
        while True:
            try:
                pause = await self._pass()
                wait = self._settings.retry_first_s
            except Exception as error:
                if not is_transient(error):
                    raise
                self._bus.metrics.retries.labels("relay").inc()
                _log.warning("publishing is retried", error=str(error) or type(error).__name__)
                self._leave()
                await asyncio.sleep(wait)  # whatever is written: it would be tried for each word
                wait = min(wait * 2, self._settings.retry_longest_s)
            else:
                await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _pass(self) -> float:
        """One round, with at most a batch of each; returns how long nothing is due."""
        self._woken.clear()
        await self._upkeep.count()  # first, so that it is done also while the bus is away
        if self._soon:
            await self._say_soon()
        was_busy = await self._publish_fresh()
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + self._settings.relay_poll_s  # transactions may bring it forward
            wait = await self._say_due()
            self._due_at = min(self._due_at, now + wait)
        if now >= self._left_at:
            self._left_at = now + LEFT_EVERY_S
            self._has_left = True
            await self._bring_forward()
        if self._has_left:
            await self._publish_left()
        await self._upkeep.clean()
        if was_busy or self._has_left:
            return 0.0
        return max(min(self._due_at, self._left_at) - time.monotonic(), 0.0)

    async def _publish_fresh(self) -> bool:
        """What this process has written; whether there was anything. What the bus does not take
        now is left in the table.
        """
        rows = self._next_fresh()
        if rows:
            taken, refused = await self._publish(rows)
            self._published += taken
            if refused:
                async with transaction(self._pool) as conn:
                    await self._park(conn, refused)
        if len(self._published) >= self._settings.relay_batch:
            await self._forget_published()
        return bool(rows)

    def _next_fresh(self) -> list[Written]:
        """The oldest. What comes after rows of its channel in the table waits for them, there where
        the channel is away.
        """
        rows: list[Written] = []
        waiting: list[Written] = []
        away = self._bus.away
        while self._fresh and len(rows) < self._settings.relay_batch:
            row = self._fresh.popleft()
            is_behind = is_in(row.record, self._behind)
            if is_behind and not is_in(row.record, away):
                waiting.append(row)
                continue
            self._fresh_bytes -= row.size
            if not is_behind:
                rows.append(row)
        self._fresh.extendleft(reversed(waiting))
        return rows

    async def _forget_published(self) -> None:
        """A failure leaves them remembered, so that they are not published again."""
        ids = self._published
        if ids:
            async with self._pool.acquire() as conn:
                await forget(conn, ids)
            self._published = self._published[len(ids) :]

    async def _publish_left(self) -> None:
        """What nobody has published in time; after a failure, and at the start, what was written
        before.
        """
        self._has_left = False
        await self._forget_published()
        age_s = min(LEFT_AGE_S, time.monotonic() - self._left_since)
        away = self._bus.away
        async with transaction(self._pool) as conn:
            rows = await take_left(conn, self._settings.relay_batch, FRESH_BYTES, age_s, away)
            self._drop_fresh({row.id for row in rows})
            taken, refused = await self._publish(rows)
            await self._park(conn, refused)
            await forget(conn, taken)
        if not rows:
            self._behind &= away
        elif taken or refused or self._bus.away != away:
            self._has_left = True

    def _drop_fresh(self, taken: Set[int]) -> None:
        """Rows that were taken from the table are not published from memory as well."""
        if taken and self._fresh:
            self._fresh = deque(row for row in self._fresh if row.id not in taken)
            self._fresh_bytes = sum(row.size for row in self._fresh)

    async def _publish(
        self, rows: Sequence[Written]
    ) -> tuple[list[int], list[tuple[Written, BaseException]]]:
        """Which rows the bus has, and which it refuses for ever, and why."""
        taken: list[int] = []
        refused: list[tuple[Written, BaseException]] = []
        outcomes = await self._bus.publish([row.record for row in rows]) if rows else []
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome is None:
                taken.append(row.id)
            elif not isinstance(outcome, Transient):
                refused.append((row, outcome))
        if len(taken) + len(refused) < len(rows):
            self._behind |= self._bus.away
        return taken, refused

    async def _park(
        self, conn: Connection, refused: Sequence[tuple[Written, BaseException]]
    ) -> None:
        for row, refusal in refused:
            why = f"{type(refusal).__name__}: {refusal}"
            record = row.record
            _log.error("the bus refuses a record", topic=record.topic, key=record.key, reason=why)
            self._bus.metrics.parked.labels(record.topic).inc()
            await park(conn, row.id, why)

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
                rows = await load_due(conn, now, self._allowance(), FRESH_BYTES)
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
        applied: list[tuple[str, AppliedRevision]] = []
        after: list[Subject] = []
        for row in rows:
            changed = self._say_again(row, now, records)
            answer_at = changed.exchange.answer_at
            if answer_at is not None and answer_at <= now:
                applied.append((row.key or row.subject, _applied(row)))
                changed = changed.with_exchange(answered(changed.exchange))
            after.append(changed)
        await update_exchanges(conn, after)
        self._bus.metrics.acknowledged.inc(len(applied))
        words = len(records)
        records += acknowledgements(self._bus.me, applied, now.timestamp())
        for n, outcome in enumerate(await self._bus.publish(records)):
            if outcome is not None and not isinstance(outcome, Transient):
                _log.warning("a repeated record was refused", reason=str(outcome))
            elif outcome is not None and n < words:
                self._repeats_left += 1  # it took nothing of what others may say
                self._missed.add(records[n].topic)

    def _say_again(self, row: Subject, now: datetime, records: list[Outgoing]) -> Subject:
        """Adds my last word where it is due again; returns the row after that."""
        if row.word is None:  # only its answer is due, or too many words are
            return row
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
            records.append(outgoing(row.last_word(self._bus.me), now))
        return changed

    async def _say_soon(self) -> None:
        """The bus was thrown away, or did not take what was said again: what is not acknowledged
        is said again soon.
        """
        topics = list(self._soon)
        async with self._pool.acquire() as conn:
            await conn.execute(_SOON, topics)
        self._soon.difference_update(topics)

    async def _bring_forward(self) -> None:
        """The database's clock went back: what is due later than anything can be is due now."""
        async with self._pool.acquire() as conn:
            if await conn.execute(_BRING_FORWARD, LATEST_DUE_S) != "UPDATE 0":
                _log.warning("the database's clock went back; what waited for it is said now")
                self._due_at = 0.0


def _applied(row: Subject) -> AppliedRevision:
    return AppliedRevision(
        kind=row.kind.value,
        subject=row.subject,
        revision=row.exchange.seen,
        spoken=row.exchange.revision,
        dead=row.exchange.dead > 0,
    )


_NEXT = """
    SELECT clock_timestamp() AS now, least(
        (SELECT min(repeat_at) FROM subject WHERE repeat_at IS NOT NULL),
        (SELECT min(answer_at) FROM subject WHERE answer_at IS NOT NULL),
        (SELECT min(encore_at) FROM subject WHERE encore_at IS NOT NULL)
    ) AS next_at
"""
_SOON = """
    UPDATE subject SET repeats = 0, repeat_at = now() + random() * interval '2 s'
    WHERE repeat_at IS NOT NULL AND topic = ANY($1::text[])
"""
_BRING_FORWARD = """
    UPDATE subject SET repeat_at = least(repeat_at, now()), answer_at = least(answer_at, now())
    WHERE repeat_at > now() + $1 * interval '1 s' OR answer_at > now() + $1 * interval '1 s'
"""
