"""Delivers: one lane for each channel, with a bounded number of deliveries under way.

What waits stays in the database, so memory does not grow with a receiver that is away. A receiver
has few slots of its lane, and none while it is paused, so one that hangs delays no other. Owners of
subscriptions share the slots, so one with many receivers that hang delays no other owner. A worker
that dies loses its lease and somebody else tries again; a recorded success is never sent again.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from traceback import extract_tb

import structlog
from muster.db import Connection, Pool, is_transient, transaction
from muster.telemetry import span
from opentelemetry.trace import SpanKind

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
    Next,
    Receiver,
    Sent,
    is_owner_told,
    next_attempt,
    other_channel,
    owners_at_share,
    receiver_after,
)
from alerting.domain.messages import failing_message
from alerting.metrics import AlertingMetrics
from alerting.store import deliveries as store
from alerting.store.deliveries import Busy, Claim, Lease
from alerting.subscriptions import Entry, Subscriptions

_log = structlog.get_logger()

Send = Callable[[Entry, Claim], Awaitable[Answer]]

UNKNOWN_TRIES = 6
"""A delivery whose subscription nobody knows is given up at this attempt: after some 7 hours."""

RESULTS = {Sent: "sent", Failed: "failed", Gone: "gone", GivenUp: "dropped"}
"""How metrics call what came of an attempt."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends what was claimed of a channel."""

    channel: Channel
    send: Send


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """``slots``: under way at once, ``receiver_slots`` of them to one receiver. ``stop_s``: how
    long a stop waits for what is being recorded.
    """

    slots: int
    receiver_slots: int
    poll_s: float
    lease_s: float
    stop_s: float
    retry_first_s: float
    retry_longest_s: float
    policy: DeliveryPolicy


class Lane:
    """One channel's deliveries."""

    def __init__(
        self,
        sender: Sender,
        pool: Pool,
        subscriptions: Subscriptions,
        limits: LaneLimits,
        metrics: AlertingMetrics,
    ) -> None:
        self._channel = sender.channel
        self._send = sender.send
        self._pool = pool
        self._subscriptions = subscriptions
        self._limits = limits
        self._metrics = metrics
        self._busy: Counter[str] = Counter()
        self._owners: Counter[str] = Counter()
        self._woken = asyncio.Event()
        self._first_attempts = metrics.first_attempt_seconds.labels(self._channel)
        for result in RESULTS.values():
            metrics.attempts.labels(self._channel, result)
        for why in GiveUp:
            metrics.given_up.labels(self._channel, why)

    def wake(self) -> None:
        """There may be something to deliver."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled; the next process tries unfinished deliveries again."""
        wait_s = self._limits.retry_first_s
        async with asyncio.TaskGroup() as group:
            while True:
                self._woken.clear()
                try:
                    claimed = await self._claim()
                    wait_s = self._limits.retry_first_s
                except Exception as error:
                    if not is_transient(error):
                        raise
                    _log.warning("deliveries wait", error=str(error) or type(error).__name__)
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, self._limits.retry_longest_s)
                    continue
                for claim in claimed:
                    if claim.attempts == 1:
                        waited = (claim.now - claim.due_at).total_seconds()
                        self._first_attempts.observe(max(0.0, waited))
                    self._busy[claim.subscription] += 1
                    self._owners[claim.owner] += 1
                    group.create_task(self._deliver(claim))
                if not claimed:
                    await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._limits.poll_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _claim(self) -> list[Claim]:
        free = self._limits.slots - self._busy.total()
        if free <= 0:
            return []
        full = [it for it, n in self._busy.items() if n >= self._limits.receiver_slots]
        at_share = owners_at_share(self._owners, self._limits.slots)
        self._metrics.owners_at_share.labels(self._channel).set(len(at_share))
        busy = Busy(full, sorted(at_share))
        async with transaction(self._pool) as conn:
            lease = Lease(secrets.token_hex(8), self._limits.lease_s)
            return await store.claim(conn, self._channel, lease, busy=busy, limit=free)

    async def _deliver(self, claim: Claim) -> None:
        try:
            with span(f"{self._channel} send", kind=SpanKind.CLIENT, parent=claim.traceparent):
                answer = await self._try(claim)
                await self._finish(asyncio.create_task(self._until_recorded(claim, answer)))
        finally:
            _count_down(self._busy, claim.subscription)
            _count_down(self._owners, claim.owner)
            self._woken.set()

    async def _finish(self, recording: "asyncio.Task[None]") -> None:
        """A stop lets what is being recorded be recorded: it is not to be sent again."""
        try:
            await asyncio.shield(recording)
        except asyncio.CancelledError:
            await asyncio.wait({recording}, timeout=self._limits.stop_s)
            recording.cancel()
            raise

    async def _try(self, claim: Claim) -> Answer | GivenUp:
        entry = self._subscriptions.entry(claim.subscription)
        if entry is None:
            # Another replica may know it already, or its file can't be read just now.
            if claim.attempts < UNKNOWN_TRIES:
                return Failed("the subscription is unknown here", is_receivers=False)
            return GivenUp(GiveUp.UNSUBSCRIBED, "the subscription was removed")
        if not entry.subscription.enabled:
            return GivenUp(GiveUp.UNSUBSCRIBED, "the subscription is switched off")
        with self._metrics.attempt_seconds.labels(self._channel).time():
            try:
                return await self._send(entry, claim)
            except Exception as error:  # one that can't be sent must not stop all the others
                name, place = type(error).__name__, extract_tb(error.__traceback__)[-1]
                where = f"{place.filename}:{place.lineno}"  # its words might hold an address
                _log.error("a delivery can't be sent", delivery=claim.id, error=name, where=where)
                return Failed(f"it can't be sent: {name}", is_receivers=False)

    async def _until_recorded(self, claim: Claim, answer: Answer | GivenUp) -> None:
        """Record what became of an attempt, however long the database is away."""
        wait_s = self._limits.retry_first_s
        while True:
            try:
                after, dropped = await self._record(claim, answer)
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("a delivery is not recorded yet", delivery=claim.id, error=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, self._limits.retry_longest_s)
            else:
                self._note(claim, answer, after)
                self._metrics.given_up.labels(self._channel, GiveUp.GONE).inc(dropped)
                return

    async def _record(self, claim: Claim, answer: Answer | GivenUp) -> tuple[Next, int]:
        """What follows, and how many other deliveries ended with it."""
        dropped = 0
        async with transaction(self._pool) as conn:
            if isinstance(answer, GivenUp):
                await store.record(conn, claim, answer, answer.reason)
                return answer, dropped
            now = await conn.fetchval("SELECT clock_timestamp()")
            after = next_attempt(
                Attempt(claim.attempts, claim.created_at),
                answer,
                now=now,
                jitter=random.random(),  # noqa: S311 - jitter
                policy=self._limits.policy,
            )
            reason = "" if isinstance(answer, Sent) else answer.reason
            await store.record(conn, claim, after, reason)
            receiver = await store.load_receiver(conn, claim.subscription)
            if receiver is not None:
                policy = self._limits.policy
                changed = receiver_after(receiver, answer, after, now=now, policy=policy)
                if changed != receiver:
                    dropped = await store.save_receiver(conn, changed)
                    if is_owner_told(receiver, changed, policy):
                        await self._tell_owner(conn, claim, changed, reason)
            return after, dropped

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

    def _note(self, claim: Claim, answer: Answer | GivenUp, after: Next) -> None:
        log = _log.bind(
            delivery=claim.id,
            subscription=claim.subscription,
            event_key=claim.event_key,
            attempt=claim.attempts,
        )
        self._metrics.attempts.labels(self._channel, RESULTS[type(answer)]).inc()
        if isinstance(after, Done):
            log.info("delivered")
        elif isinstance(after, GivenUp):
            self._metrics.given_up.labels(self._channel, after.why).inc()
            log.warning("a delivery is given up", why=after.why.value, reason=after.reason)
        else:
            assert isinstance(answer, Failed)
            log.info("a delivery is tried again", at=after.at.isoformat(), reason=answer.reason)


def _count_down(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]
