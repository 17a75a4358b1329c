"""Publishes what transactions wrote, republishes what is unacknowledged, and acknowledges.

A message goes out from memory as soon as its transaction is committed. Nothing remembers whether it
got through: a message that was lost, with the process, with the bus, or because memory was full, is
republished from its subject's row. That is the one delivery guarantee.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, cast

import structlog

from muster import notices
from muster.acknowledgements import Acknowledgement, acknowledgements
from muster.bus import Bus
from muster.channels import Outgoing
from muster.contracts.topics import DEAD_LETTER, TOPICS, Kind
from muster.db import Connection, Pool, Transaction, answers, is_transient, transaction
from muster.errors import Transient
from muster.exchange import ANSWER_AFTER
from muster.fresh import FRESH_BYTES, Fresh
from muster.incarnation import Incarnations
from muster.records import read_message_id
from muster.settings import DatabaseSettings
from muster.subject import LATEST_DUE, Subject
from muster.subjects import load_due, reject_by_bus, repeat_soon, update_exchanges
from muster.upkeep import Upkeep

_log = structlog.get_logger()

DUE_PAUSE_S = 0.1
"""What is due goes out in groups: an acknowledgement has half a second."""

NOTICES_EVERY_S = 5.0
NOTICES_AT_ONCE = 100
"""Dead letters and alerts; each has at most some 20 kB."""

CATCH_UP_LEAST_S, CATCH_UP_MOST_S = 5.0, 60.0
"""After a loss more may be republished than usual: while some is overdue, within these bounds."""


class Relay:
    """One relay of a process. Replicas share what is due: each row is taken by one of them."""

    def __init__(self, bus: Bus, pool: Pool, incarnations: Incarnations) -> None:
        self._bus = bus
        self._pool = pool
        self.incarnations = incarnations
        settings = bus.settings
        assert isinstance(settings, DatabaseSettings)
        self._settings = settings
        self._woken = asyncio.Event()
        self._fresh = Fresh()
        self._has_notices = True  # a process before this one may have left some
        self._notices_at = 0.0
        self._recovered: set[str] = set()
        self._due_at = 0.0
        self._looked = time.monotonic()
        self._lost_at = self._looked  # a process before this one may have published nothing
        self._repeats_left = float(settings.repeats_per_s)
        self._upkeep = Upkeep(pool, bus.metrics, settings)
        bus.on_new_bus.append(lambda: self._recover(TOPICS.keys()))
        bus.on_open.append(lambda channel: self._recover([channel.topic]))
        incarnations.on_restored.append(lambda _floor: self._catch_up())
        incarnations.on_peer_restored.append(self._catch_up)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction whose messages go out once it is committed. Raises DatabaseRestored."""
        async with transaction(self._pool) as conn:
            now = await self.incarnations.begin_transaction(conn)
            opened = Transaction(conn, now, floor=self.incarnations.revision_floor())
            yield opened
            await notices.write(conn, opened.notices)
        if opened.outgoing or opened.notices:
            self.incarnations.note_commit()
        self._bus.metrics.stray.inc(len(opened.strays))
        self._has_notices = self._has_notices or bool(opened.notices)
        for notice in opened.notices:
            if notice.topic.endswith(DEAD_LETTER):
                topic = notice.topic.removesuffix(DEAD_LETTER)
                self._bus.metrics.dead.labels(topic).inc()
        self._publish_soon(opened.outgoing)

    def _publish_soon(self, records: Sequence[Outgoing]) -> None:
        if not self._fresh.add(records):
            self._catch_up()
        self._due_at = min(self._due_at, time.monotonic() + ANSWER_AFTER.total_seconds())
        self._woken.set()

    def _recover(self, topics: Iterable[str]) -> None:
        """What went to these topics may be lost: its unacknowledged messages go out again soon."""
        self._recovered.update(topics)
        self._has_notices = True
        self._due_at = 0.0
        self._woken.set()

    def _catch_up(self) -> None:
        """More may be republished for a while."""
        self._lost_at = time.monotonic()

    async def database_answers(self) -> bool:
        """Whether the database answers at once."""
        return await answers(self._pool)

    async def run(self) -> None:
        """Publish until cancelled."""
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
                await asyncio.sleep(wait)
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
        """One round with at most a batch of each, so that none starves; returns how long nothing is
        due.
        """
        self._woken.clear()
        if fresh := self._fresh.take(self._settings.relay_batch):
            await self._publish(fresh)
        await self._upkeep.end_hung()
        await self._upkeep.count()
        if self._recovered:
            await self._bring_forward_recovered()
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + self._settings.relay_poll_s  # transactions may bring it forward
            wait = await self._publish_due()
            self._due_at = min(self._due_at, now + wait)
        if self._has_notices or now >= self._notices_at:
            self._notices_at = now + NOTICES_EVERY_S
            await self._publish_notices()
            await self._bring_forward_late()
        await self._upkeep.clean()
        if self._fresh or self._has_notices:
            return 0.0
        return max(min(self._due_at, self._notices_at) - time.monotonic(), 0.0)

    async def _publish(self, records: Sequence[Outgoing]) -> int:
        """Give records to the bus; returns how many messages it can't take now. Those are
        republished from their rows. One that it rejects for good is not, until a later message
        replaces it.
        """
        left = 0
        outcomes = await self._bus.publish(records)
        for record, outcome in zip(records, outcomes, strict=True):
            named = read_message_id(record.event_id)
            if outcome is None or named is None:
                continue
            if isinstance(outcome, Transient):
                left += 1
                continue
            _, kind, subject, revision = named
            async with transaction(self._pool) as conn:
                await reject_by_bus(conn, (Kind(kind), subject), revision)
        return left

    async def _publish_due(self) -> float:
        """Repeats, acknowledgements and delayed repeats; returns the time to look again."""
        async with self._pool.acquire() as conn:
            now, next_at, is_overdue = cast(tuple[Any, ...], await conn.fetchrow(_NEXT))
            allowance = self._allowance(is_overdue=bool(is_overdue))
            if next_at is None or next_at > now:
                longest = self._settings.relay_poll_s
                return longest if next_at is None else min(longest, (next_at - now).total_seconds())
            async with conn.transaction():
                rows = await load_due(conn, now, allowance, FRESH_BYTES)
                records = await self._settle(conn, rows, now)
        # What a channel that is away did not take costs the others nothing of their allowance.
        self._repeats_left += await self._publish(records)
        return DUE_PAUSE_S

    def _allowance(self, *, is_overdue: bool) -> int:
        """How many messages may be republished now. ``is_overdue``: there is something to be."""
        now = time.monotonic()
        settings = self._settings
        if now - self._lost_at > (CATCH_UP_MOST_S if is_overdue else CATCH_UP_LEAST_S):
            self._lost_at = float("-inf")
        is_catching_up = self._lost_at > float("-inf")
        rate = settings.repeats_per_s_after_loss if is_catching_up else settings.repeats_per_s
        self._repeats_left = min(rate, self._repeats_left + rate * (now - self._looked))
        self._looked = now
        # Below 0 where rows that were taken for a delayed repeat were due to be repeated as well.
        return max(0, int(self._repeats_left))

    async def _settle(
        self, conn: Connection, rows: Sequence[Subject], now: datetime
    ) -> list[Outgoing]:
        """Write that what is due on ``rows`` goes out, and return it."""
        records: list[Outgoing] = []
        due: list[Acknowledgement] = []
        after: list[Subject] = []
        for row in rows:
            found = row.due(now, random.random(), may_repeat=True)  # noqa: S311 - jitter
            self._repeats_left -= found.is_repeat
            self._bus.metrics.repeated.inc(found.is_repeat)
            if found.acknowledgement is not None:
                due.append(found.acknowledgement)
            changed = found.row.repeated_for_listeners(now)
            if found.is_repeat or changed is not found.row:
                records.append(row.latest(self._bus.me, now))
            after.append(changed)
        await update_exchanges(conn, after)
        self._bus.metrics.acknowledged.inc(len(due))
        return records + acknowledgements(self._bus.me, due, now.timestamp())

    async def _publish_notices(self) -> None:
        """Dead letters and alerts. Those of a topic that takes no records stay in the table."""
        self._has_notices = False
        away = {channel.topic for channel in self._bus.away}
        async with transaction(self._pool) as conn:
            taken = await notices.take(conn, NOTICES_AT_ONCE, away)
            outcomes = await self._bus.publish([record for _, record in taken]) if taken else []
            done = [
                ident
                for (ident, _), outcome in zip(taken, outcomes, strict=True)
                if not isinstance(outcome, Transient)
            ]
            await notices.delete(conn, done)
        # What is left of these is in channels that are away since then; others may be behind them.
        self._has_notices = self._has_notices or bool(taken)

    async def _bring_forward_recovered(self) -> None:
        """Messages on topics that are back are due within 2 s, however rarely they were repeated by
        now.
        """
        topics = list(self._recovered)
        async with self._pool.acquire() as conn:
            await conn.execute(_RECOVERED, topics)
        self._catch_up()  # the database may have been away meanwhile
        self._recovered.difference_update(topics)

    async def _bring_forward_late(self) -> None:
        """The database's clock went back: what is due later than anything can be is due now."""
        async with self._pool.acquire() as conn:
            if await conn.execute(_LATE, LATEST_DUE.total_seconds()) != "UPDATE 0":
                _log.warning("the database's clock went back; what waited for it goes out now")
                self._due_at = 0.0


_NEXT = """
    SELECT now, least(repeat_at, answer_at, delayed_repeat_at), repeat_at <= now FROM (
        SELECT clock_timestamp() AS now, (SELECT min(repeat_at) FROM subject) AS repeat_at,
            (SELECT min(answer_at) FROM subject) AS answer_at,
            (SELECT min(delayed_repeat_at) FROM subject) AS delayed_repeat_at
    ) AS earliest
"""
_RECOVERED = repeat_soon("repeat_at IS NOT NULL AND topic = ANY($1::text[])")
_LATE = """
    UPDATE subject
    SET repeat_at = CASE WHEN repeat_at IS NOT NULL THEN least(repeat_at, now()) END,
        answer_at = CASE WHEN answer_at IS NOT NULL THEN least(answer_at, now()) END
    WHERE (kind, subject) IN (
        SELECT kind, subject FROM subject
        WHERE repeat_at > now() + $1 * interval '1 s' OR answer_at > now() + $1 * interval '1 s'
        ORDER BY kind, subject FOR UPDATE
    )
"""
