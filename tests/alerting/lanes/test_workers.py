"""A delivery is one worker's at a time, and never sent again after a recorded success."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from alerting.domain.deliveries import Answer, DeliveryPolicy, Failed, Sent
from alerting.store.deliveries import Claim

pytestmark = pytest.mark.postgres


async def test_a_worker_that_died_before_it_sent_is_replaced(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    began = asyncio.Event()

    async def dies(_claim: Claim) -> Answer:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with post.lane(dies):
        await began.wait()
    async with post.lane(post.sends):
        await post.now_due()
        await post.until(post.counted("sent"), 1)
    assert post.sent == ["a:job-failed/j1"]


async def test_quiet_hours_are_not_counted_as_a_slow_delivery(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    await post.pool.execute("UPDATE delivery SET created_at = now() - interval '9 hours'")
    async with post.lane(post.sends):
        await post.until(post.counted("sent"), 1)
    assert first_attempts(post, within_s="+Inf") == 1
    assert first_attempts(post, within_s="5.0") == 1


def first_attempts(post: Any, within_s: str) -> float:
    """As Prometheus sees them."""
    (metric,) = post.metrics.first_attempt_seconds.collect()
    (found,) = [it.value for it in metric.samples if it.labels.get("le") == within_s]
    return float(found)


LONG_AGO = "now() - interval '1 hour'"


@pytest.mark.parametrize("is_paused", [True, False])
async def test_what_waits_for_a_receiver_that_fails_is_no_slow_delivery(
    post: Any, is_paused: bool
) -> None:
    """Neither what a pause kept back nor what follows the first success after it."""
    post.subscribe("a")
    await post.notify("first")

    async def fails_once(claim: Claim) -> Answer:
        return Failed("HTTP 500", retry_after_s=7200.0) if "first" in claim.event_key else Sent()

    policy = DeliveryPolicy(pause_failures=1 if is_paused else 1000, pause_s=300)
    async with post.lane(fails_once, policy=policy):
        await post.until("SELECT failures FROM receiver", 1)
    await post.notify(*(f"j{number}" for number in range(40)))  # more than one claim takes
    behind = "WHERE event_key <> 'job-failed/first'"
    await post.pool.execute(
        f"UPDATE delivery SET created_at = {LONG_AGO}, next_at = {LONG_AGO} {behind}"
    )
    if is_paused:
        for ends in ("paused_until", "free_at"):
            await post.pool.execute(f"UPDATE receiver SET {ends} = {ends} - interval '300 s'")
    async with post.lane(post.sends):
        await post.until(post.counted("sent"), 40)
    assert first_attempts(post, within_s="+Inf") == first_attempts(post, within_s="5.0") == 41


async def test_a_delivery_that_only_muster_delays_is_a_slow_one(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    await post.pool.execute(f"UPDATE delivery SET created_at = {LONG_AGO}, next_at = {LONG_AGO}")
    async with post.lane(post.sends):
        await post.until(post.counted("sent"), 1)
    assert (first_attempts(post, within_s="+Inf"), first_attempts(post, within_s="5.0")) == (1, 0)


@pytest.mark.parametrize("can_retry", [True, False])
async def test_a_recorded_success_is_never_sent_again(post: Any, can_retry: bool) -> None:
    """A slow worker has lost its lease, another one has succeeded: its late failure changes
    nothing.
    """
    post.subscribe("a")
    await post.notify("j1")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_claim: Claim) -> Answer:
        if began.is_set():
            return Sent()
        began.set()
        await go_on.wait()
        return Failed("HTTP 500", can_retry=can_retry)

    async with post.lane(slow, receiver_slots=1):
        await began.wait()
        async with post.lane(post.sends):
            await post.now_due()
            await post.until(post.counted("sent"), 1)
            go_on.set()
            await post.until("SELECT failures FROM receiver", 1)
            await post.now_due()
            await post.notify("j1", "j2")
            await post.until(post.counted("sent"), 2)
    assert post.sent.count("a:job-failed/j1") == 1


@asynccontextmanager
async def lease_lost_while_sending(post: Any, answer: Answer) -> AsyncIterator[None]:
    """A lane whose only delivery is taken over by another worker before its receiver answers."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_claim: Claim) -> Answer:
        began.set()
        await go_on.wait()
        return answer

    async with post.lane(slow):
        await began.wait()
        await post.pool.execute("UPDATE delivery SET lease = 'another'")
        go_on.set()
        yield


async def test_a_late_failure_leaves_the_lease_of_another_worker_alone(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    async with lease_lost_while_sending(post, Failed("HTTP 500")):
        await post.until("SELECT failures FROM receiver", 1)
    assert await post.pool.fetchval("SELECT lease FROM delivery") == "another"


async def test_a_late_success_counts_though_the_lease_was_lost(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    async with lease_lost_while_sending(post, Sent()):
        await post.until(post.counted("sent"), 1)


class AwayAtFirst:
    """The pool, but once something was sent the database is away a few times."""

    def __init__(self, post: Any) -> None:
        self._post = post
        self.failures: list[Exception] = [asyncpg.AdminShutdownError("away"), OSError("away")]

    def acquire(self) -> Any:
        if self._post.sent and self.failures:
            raise self.failures.pop()
        return self._post.pool.acquire()


async def test_a_success_is_recorded_when_the_database_is_back(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    away: Any = AwayAtFirst(post)
    async with post.lane(post.sends, pool=away):
        await post.until(post.counted("sent"), 1)
    assert not away.failures
    assert post.sent == ["a:job-failed/j1"]


class Held:
    """The pool, but once something was sent the database waits for ``go_on``."""

    def __init__(self, post: Any) -> None:
        self._post = post
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        if self._post.sent:
            self.asked.set()
            await self.go_on.wait()
        async with self._post.pool.acquire() as conn:
            yield conn


async def test_a_stop_lets_a_success_be_recorded(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    held: Any = Held(post)
    async with post.lane(post.sends, pool=held):
        await held.asked.wait()
        asyncio.get_running_loop().call_soon(held.go_on.set)
    assert await post.pool.fetchval(post.counted("sent")) == 1


async def test_a_kill_repeats_no_more_than_the_slots(post: Any) -> None:
    """What was sent and is not recorded yet has its slot."""
    post.subscribe("a", "b", "c")
    await post.notify(*(f"j{n}" for n in range(20)))
    held: Any = Held(post)
    async with post.lane(post.sends, pool=held):
        await held.asked.wait()
        for _ in range(100):  # what could be sent meanwhile is sent
            await asyncio.sleep(0)
        assert len(post.sent) == post.limits.slots
        held.go_on.set()
        await post.until(post.counted("sent"), 60)
    assert len(post.sent) == len(set(post.sent)) == 60


UNTRIED = "SELECT count(*) FROM delivery WHERE attempts = 0 AND lease IS NULL"


async def test_what_was_claimed_with_a_failure_does_not_count_as_tried(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1", "j2", "j3", "j4")
    policy = DeliveryPolicy(pause_failures=1, pause_s=3600)
    async with post.lane(post.fails, receiver_slots=1, policy=policy):
        await post.until(UNTRIED, 3)
        await post.until("SELECT attempts FROM delivery WHERE reason = 'HTTP 500'", 1)


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_what_waits_behind_a_slow_answer_is_released(post: Any, is_stopped: bool) -> None:
    """At once where the lane stops; after a while where others may have more time."""
    post.subscribe("a")
    await post.notify("j1", "j2", "j3", "j4")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_claim: Claim) -> Answer:
        began.set()
        await go_on.wait()
        return Sent()

    async with post.lane(slow, receiver_slots=1, run_s=0.0 if not is_stopped else 60.0):
        if is_stopped:
            await began.wait()
        else:
            await post.until(UNTRIED, 4)
    assert await post.pool.fetchval(UNTRIED) == (3 if is_stopped else 4)
