"""Delivers: one lane for each channel, with a bounded number of deliveries under way.

What waits stays in the database, so memory does not grow with a receiver that is away. A claim
takes a few deliveries of each receiver, its *run*. A receiver has few slots of its lane, and none
while it is paused, so one that hangs delays no other. Owners of subscriptions share the slots, so
one with many receivers that hang delays no other owner. A worker that dies loses its lease and
somebody else tries again; a recorded success is never sent again.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from traceback import extract_tb

import structlog
from muster.db import Pool, is_transient, transaction
from muster.telemetry import span
from opentelemetry.trace import SpanKind

from alerting.domain.deliveries import (
    Answer,
    Channel,
    Failed,
    GivenUp,
    GiveUp,
    Sent,
    owners_at_share,
)
from alerting.metrics import AlertingMetrics
from alerting.recorder import Recorder, RecordLimits
from alerting.store import deliveries as store
from alerting.store.deliveries import Busy, Claim, Lease, Wanted
from alerting.subscriptions import Entry, Subscriptions

_log = structlog.get_logger()

Send = Callable[[Entry, Claim], Awaitable[Answer | GivenUp]]

UNKNOWN_TRIES = 6
"""A delivery whose subscription nobody knows is given up at this attempt: after some 7 hours."""

RUN, RUN_MOST = 16, 256
"""The most deliveries of a receiver in one claim: at first, and doubled while it takes them all in
time.
"""
CLAIMED = 1_024
"""What receivers that get more than ``RUN`` share."""
SLOT_RUN = 8
"""A receiver gets a slot for so many deliveries of its run, so a quick one gets many."""
QUICK_SHARE = 4
"""It gets a quarter of the lane at most: if it hangs, others of its owner have slots still."""
RUN_S = 2.0
"""What of a run was not begun within this time is released, so that others get the slot."""
FEW, GATHER_S = 8, 0.01
"""After a claim of fewer deliveries the next one waits for more: claims cost the database."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends what was claimed of a channel."""

    channel: Channel
    send: Send


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """``slots``: under way at once, ``receiver_slots`` of them to one receiver, unless it takes
    long runs in time. ``run_s``: how long after a claim an attempt may begin. ``stop_s``: how long
    a stop waits for what is being recorded.
    """

    slots: int
    receiver_slots: int
    poll_s: float
    lease_s: float
    run_s: float
    stop_s: float
    record: RecordLimits


@dataclass(slots=True)
class _Run:
    """Deliveries of one receiver that were claimed together, in their order, and how many slots
    send them, of ``most``; ``ending`` of these wait until it is recorded how the run ended.
    """

    owner: str
    most: int = 0
    waiting: deque[Claim] = field(default_factory=deque)
    claimed_at: float = 0.0
    slots: int = 0
    ending: int = 0


class Lane:
    """One channel's deliveries. No more than its slots are under way or not recorded yet: a kill
    repeats no more.
    """

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
        self._runs: dict[str, _Run] = {}
        self._sizes: dict[str, int] = {}
        self._owners: Counter[str] = Counter()
        self._woken = asyncio.Event()
        self._recorder = Recorder(self._channel, pool, subscriptions, limits.record, metrics)
        self._attempts = metrics.attempt_seconds.labels(self._channel)
        self._first_attempts = metrics.first_attempt_seconds.labels(self._channel)

    def wake(self) -> None:
        """There may be something to deliver."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled; the next process tries unfinished deliveries again. A stop lets
        answers be recorded: what they are about is not to be sent again.
        """
        recording = asyncio.create_task(self._recorder.run())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_shielded(recording))
                await self._claim_on(group)
        finally:
            for run in self._runs.values():
                self._recorder.release(run.waiting)
            self._recorder.close()
            await asyncio.wait({recording}, timeout=self._limits.stop_s)
            recording.cancel()

    async def _claim_on(self, group: asyncio.TaskGroup) -> None:
        first_s, longest_s = self._limits.record.retry_first_s, self._limits.record.retry_longest_s
        wait_s = first_s
        while True:
            self._woken.clear()
            try:
                claimed = await self._claim()
                wait_s = first_s
            except Exception as error:
                if not is_transient(error):
                    raise
                _log.warning("deliveries wait", error=str(error) or type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, longest_s)
                continue
            self._staff(group, claimed)
            if not claimed:
                await self._rest()
            elif sum(len(run.waiting) for run in claimed.values()) < FEW:
                await asyncio.sleep(GATHER_S)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._limits.poll_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _claim(self) -> dict[str, _Run]:
        """Claim, into the runs of receivers; those that got something."""
        free = self._limits.slots - self._owners.total()
        if free <= 0:
            return {}
        full = [it for it, r in self._runs.items() if r.slots >= r.most or r.waiting or r.ending]
        at_share = owners_at_share(self._owners, self._limits.slots)
        self._metrics.owners_at_share.labels(self._channel).set(len(at_share))
        busy = Busy(full, sorted(at_share))
        now = asyncio.get_running_loop().time()
        async with transaction(self._pool) as conn:
            lease = Lease(secrets.token_hex(8), self._limits.lease_s)
            claims = await store.claim(
                conn, self._channel, lease, busy=busy, wanted=Wanted(free, RUN, self._sizes)
            )
        runs = {}
        for claim in claims:
            run = self._runs.setdefault(claim.subscription, _Run(claim.owner))
            run.waiting.append(claim)
            run.claimed_at = now
            runs[claim.subscription] = run
        for name, run in runs.items():
            quick = min(len(run.waiting) // SLOT_RUN, self._limits.slots // QUICK_SHARE)
            run.most = max(self._limits.receiver_slots, quick)
            self._resize(name, len(run.waiting))
        return runs

    def _resize(self, name: str, got: int) -> None:
        """The size of a receiver's next run, after it got so many: larger while there are more."""
        if got < self._sizes.get(name, RUN):
            self._sizes.pop(name, None)
        else:
            self._sizes[name] = 2 * got
            most = min(RUN_MOST, max(RUN, CLAIMED // len(self._sizes)))
            self._sizes = {it: min(size, most) for it, size in self._sizes.items()}

    def _staff(self, group: asyncio.TaskGroup, runs: dict[str, _Run]) -> None:
        """Give a slot to each run that got something; more while its owner may have them."""
        most = max((run.most for run in runs.values()), default=0)
        for is_first in (True, *[False] * (most - 1)):
            for name, run in runs.items():
                if is_first or (
                    run.slots < min(run.most, len(run.waiting))
                    and run.owner not in owners_at_share(self._owners, self._limits.slots)
                ):
                    run.slots += 1
                    self._owners[run.owner] += 1
                    group.create_task(self._deliver(name, run))

    async def _deliver(self, name: str, run: _Run) -> None:
        """Send what waits in a run, one after another, until one fails or it takes too long."""
        try:
            while run.waiting and not run.ending:
                await self._recorder.room.acquire()
                waited_s = asyncio.get_running_loop().time() - run.claimed_at
                if run.ending or not run.waiting or waited_s > self._limits.run_s:
                    self._recorder.room.release()
                    await self._end(name, run)
                    break
                claim = run.waiting.popleft()
                if claim.attempts == 1:
                    self._first_attempts.observe(max(0.0, claim.late_s + waited_s))
                with span(f"{self._channel} send", kind=SpanKind.CLIENT, parent=claim.traceparent):
                    answer = await self._try(claim)
                recorded = self._recorder.answered(claim, answer)
                if not isinstance(answer, Sent):
                    await self._end(name, run, recorded)
        finally:
            run.slots -= 1
            _count_down(self._owners, run.owner)
            if not run.slots and not run.waiting:
                del self._runs[name]
            self._woken.set()

    async def _end(self, name: str, run: _Run, recorded: asyncio.Event | None = None) -> None:
        """Release what waits; its receiver gets nothing more before that is recorded."""
        if run.waiting:
            self._sizes.pop(name, None)
            recorded = self._recorder.release(run.waiting)
            run.waiting.clear()
        if recorded is not None:
            run.ending += 1
            await recorded.wait()
            run.ending -= 1

    async def _try(self, claim: Claim) -> Answer | GivenUp:
        entry = self._subscriptions.entry(claim.subscription)
        if entry is None:
            # Another replica may know it already.
            if claim.attempts < UNKNOWN_TRIES:
                return Failed("the subscription is unknown here", is_receivers=False)
            return GivenUp(GiveUp.UNSUBSCRIBED, "the subscription was removed")
        if not entry.subscription.enabled:
            return GivenUp(GiveUp.UNSUBSCRIBED, "the subscription is switched off")
        with self._attempts.time():
            try:
                return await self._send(entry, claim)
            except Exception as error:  # one that can't be sent must not stop all the others
                name, place = type(error).__name__, extract_tb(error.__traceback__)[-1]
                where = f"{place.filename}:{place.lineno}"  # its words might hold an address
                _log.error("a delivery can't be sent", delivery=claim.id, error=name, where=where)
                return Failed(f"it can't be sent: {name}", is_receivers=False)


async def _shielded(recording: "asyncio.Task[None]") -> None:
    """Fail where it fails; its end is the lane's."""
    await asyncio.shield(recording)


def _count_down(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]
