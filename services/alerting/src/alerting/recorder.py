"""Records what came of deliveries: all answers that have come meanwhile in one transaction, and the
next ones as soon as that is committed. So an answer waits for two commits at the most.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog
from muster.db import Connection, Pool, is_transient, transaction

from alerting.domain.deliveries import (
    Answer,
    Attempt,
    Channel,
    DeliveryPolicy,
    Done,
    Failed,
    GivenUp,
    GiveUp,
    Gone,
    Receiver,
    Sent,
    is_owner_told,
    next_attempt,
    other_channel,
    receiver_after,
)
from alerting.domain.messages import failing_message
from alerting.metrics import AlertingMetrics
from alerting.store import deliveries as store
from alerting.store.deliveries import Claim, Result
from alerting.subscriptions import Subscriptions

_log = structlog.get_logger()

RESULTS = {Sent: "sent", Failed: "failed", Gone: "gone", GivenUp: "dropped"}
"""How metrics call what came of an attempt."""


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """``room``: the most attempts that are under way or not recorded yet. ``retry_first_s`` to
    ``retry_longest_s``: the waits while the database is away.
    """

    room: int
    retry_first_s: float
    retry_longest_s: float
    policy: DeliveryPolicy


@dataclass(slots=True)
class _Batch:
    """``is_recorded`` is set once all of it is."""

    answers: list[tuple[Claim, Answer | GivenUp]] = field(default_factory=list)
    released: list[Claim] = field(default_factory=list)
    is_recorded: asyncio.Event = field(default_factory=asyncio.Event)


class Recorder:
    """One lane's. An attempt needs ``room``, which it has until it is recorded."""

    def __init__(
        self,
        channel: Channel,
        pool: Pool,
        subscriptions: Subscriptions,
        limits: RecordLimits,
        metrics: AlertingMetrics,
    ) -> None:
        self._channel = channel
        self._pool = pool
        self._subscriptions = subscriptions
        self._limits = limits
        self._metrics = metrics
        self.room = asyncio.Semaphore(limits.room)
        self._next = _Batch()
        self._woken = asyncio.Event()
        self._is_closed = False
        self._attempts = {it: metrics.attempts.labels(channel, RESULTS[it]) for it in RESULTS}
        for why in GiveUp:
            metrics.given_up.labels(channel, why)

    def answered(self, claim: Claim, answer: Answer | GivenUp) -> asyncio.Event:
        """Record an answer; the event is set once that is done."""
        self._next.answers.append((claim, answer))
        self._woken.set()
        return self._next.is_recorded

    def release(self, claims: Iterable[Claim]) -> asyncio.Event:
        """Record that these were not tried, so anybody may take them at once; the event is set once
        that is done.
        """
        self._next.released += claims
        self._woken.set()
        return self._next.is_recorded

    def close(self) -> None:
        """Nothing more comes."""
        self._is_closed = True
        self._woken.set()

    async def run(self) -> None:
        """Record, however long the database is away, until it is closed and all is recorded."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            batch, self._next = self._next, _Batch()
            if batch.answers or batch.released:
                await self._until_recorded(batch)
                batch.is_recorded.set()
            if self._is_closed and not (self._next.answers or self._next.released):
                return

    async def _until_recorded(self, batch: _Batch) -> None:
        wait_s = self._limits.retry_first_s
        while True:
            try:
                results, dropped = await self._record(batch)
            except Exception as error:
                if not is_transient(error):
                    raise
                number = len(batch.answers)
                _log.warning("answers are not recorded yet", number=number, error=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, self._limits.retry_longest_s)
            else:
                for (_, answer), result in zip(batch.answers, results, strict=True):
                    self._note(answer, result)
                    self.room.release()
                self._metrics.given_up.labels(self._channel, GiveUp.GONE).inc(dropped)
                return

    async def _record(self, batch: _Batch) -> tuple[list[Result], int]:
        """What follows each answer, and how many other deliveries ended with them."""
        async with transaction(self._pool) as conn:
            # Receivers first, in their order: all replicas lock these rows.
            of_answers = [(it, a) for it, a in batch.answers if not isinstance(a, GivenUp)]
            sent = {it.subscription for it, answer in of_answers if isinstance(answer, Sent)}
            failed = {it.subscription for it, answer in of_answers if not isinstance(answer, Sent)}
            before = await store.lock_receivers(conn, failed, sent)
            now: datetime = await conn.fetchval("SELECT clock_timestamp()")
            policy, health, told = self._limits.policy, dict(before), []
            results = []
            for claim, answer in batch.answers:
                result = self._result(claim, answer, now)
                results.append(result)
                receiver = health.get(claim.subscription)
                if isinstance(answer, GivenUp) or receiver is None:
                    continue
                # What fails at once is one failure: a quick receiver gets many messages at a time.
                failures = min(receiver.failures, before[claim.subscription].failures)
                receiver = replace(receiver, failures=failures)
                changed = receiver_after(receiver, answer, result.after, now=now, policy=policy)
                if is_owner_told(receiver, changed, policy, is_ordered=claim.is_ordered):
                    told.append((claim, changed, result.reason))
                health[claim.subscription] = changed
            await store.record(conn, results)
            await store.release(conn, batch.released)
            dropped = 0
            for name, receiver in health.items():
                if receiver != before[name]:
                    dropped += await store.save_receiver(conn, receiver)
            for claim, receiver, reason in told:
                await self._tell_owner(conn, claim, receiver, reason)
            return results, dropped

    def _result(self, claim: Claim, answer: Answer | GivenUp, now: datetime) -> Result:
        if isinstance(answer, GivenUp):
            return Result(claim, answer, answer.reason)
        after = next_attempt(
            Attempt(claim.attempts, claim.created_at),
            answer,
            now=now,
            jitter=random.random(),  # noqa: S311 - jitter
            policy=self._limits.policy,
        )
        return Result(claim, after, "" if isinstance(answer, Sent) else answer.reason)

    async def _tell_owner(
        self, conn: Connection, claim: Claim, receiver: Receiver, reason: str
    ) -> None:
        """Over another channel of the owner, where there is one."""
        entries = {it.subscription.id: it for it in self._subscriptions.entries()}
        failing = entries.get(receiver.subscription)
        if failing is None:
            return
        troubled = await store.troubled_receivers(conn, claim.owner, len(entries))
        known = [it.subscription for it in entries.values()]
        told = other_channel(failing.subscription, known, {it.subscription for it in troubled})
        log = _log.bind(
            subscription=receiver.subscription,
            given_up=receiver.given_up,
            disabled=receiver.disabled,
        )
        if told is None:
            log.warning("a receiver fails, and its owner has no other one to be told")
            return
        policy, key = self._limits.policy, f"receiver-failing/{claim.id}/{claim.attempts}"
        message = failing_message(key, receiver, reason, policy, claim.now)
        await store.add_message(conn, told, entries[told.id].version, message)
        log.warning("a receiver fails; its owner is told", over=told.id)

    def _note(self, answer: Answer | GivenUp, result: Result) -> None:
        claim, after = result.claim, result.after
        about = {
            "delivery": claim.id,
            "subscription": claim.subscription,
            "event_key": claim.event_key,
            "attempt": claim.attempts,
        }
        self._attempts[type(answer)].inc()
        if isinstance(after, Done):
            _log.info("delivered", **about)
        elif isinstance(after, GivenUp):
            self._metrics.given_up.labels(self._channel, after.why).inc()
            _log.warning("a delivery is given up", why=after.why, reason=after.reason, **about)
        else:
            at = after.at.isoformat()
            _log.info("a delivery is tried again", at=at, reason=result.reason, **about)
