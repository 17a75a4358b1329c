"""Lanes over a real database: bounded, fair, and never again after a recorded success."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from alerting.book import Book, Entry
from alerting.domain.deliveries import Answer, Channel, DeliveryPolicy, Failed, Gone, Sent
from alerting.domain.deliveries import deliveries as made_from
from alerting.domain.events import Event, Severity
from alerting.lanes import UNKNOWN_TRIES, Lane, LaneLimits
from alerting.metrics import AlertingMetrics
from alerting.settings import AlertingSettings
from alerting.store import cleaning
from alerting.store.deliveries import CLAIM, Claim, add_deliveries
from muster.contracts.subscriptions import AlertEvent, Subscription
from muster.db import open_pool, transaction
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

pytestmark = pytest.mark.postgres

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 20.0
LIMITS = LaneLimits(
    slots=8,
    receiver_slots=2,
    poll_s=0.02,
    lease_s=60.0,
    stop_s=10.0,
    retry_first_s=0.01,
    retry_longest_s=0.05,
    policy=DeliveryPolicy(pause_failures=1000),
)
BUG = "it can't be sent: RuntimeError"
Behaviour = Callable[[Claim], Awaitable[Answer]]


@dataclass
class Post:
    """A post office: subscriptions, their deliveries in the database, and lanes that deliver."""

    pool: asyncpg.Pool
    metrics: AlertingMetrics = field(default_factory=lambda: AlertingMetrics(CollectorRegistry()))
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = Book(SecretStr("key"), self.metrics)
        self.subscriptions: dict[str, Subscription] = {}

    def subscribe(self, *ids: str) -> None:
        for ident in ids:
            self.subscriptions[ident] = Subscription(
                id=ident, owner="ada", events=(AlertEvent.JOB_FAILED,), webhook_url="http://x/"
            )
        self.book.use_file({it.id: Entry(it, "1") for it in self.subscriptions.values()})

    async def tell(self, *jobs: str, version: str = "1") -> None:
        """Each of these jobs has failed."""
        events = [
            Event(f"job-failed/{job}", AlertEvent.JOB_FAILED, NOW, Severity.INFO, "t", "x", job, {})
            for job in jobs
        ]
        wanted = [it for e in events for it in made_from(self.subscriptions.values(), e)]
        versions = dict.fromkeys(self.subscriptions, version)
        async with transaction(self.pool) as conn:
            await add_deliveries(conn, [(event, None) for event in events], wanted, versions)

    @asynccontextmanager
    async def lane(
        self, behave: Behaviour, *, pool: asyncpg.Pool | None = None, **limits: Any
    ) -> AsyncIterator[Lane]:
        async def send(_entry: Entry, claim: Claim) -> Answer:
            answer = await behave(claim)
            if isinstance(answer, Sent):
                self.sent.append(f"{claim.subscription}:{claim.event_key}")
            return answer

        kept = replace(LIMITS, **limits)
        lane = Lane(Channel.WEBHOOK, send, pool or self.pool, self.book, kept, self.metrics)
        task = asyncio.create_task(lane.run())
        try:
            yield lane
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, sql: str, wanted: object) -> None:
        found: object = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (found := await self.pool.fetchval(sql)) != wanted:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"{sql}: {found}, not {wanted}")

    async def now_due(self) -> None:
        """Let time pass: whatever waits for its next attempt, or for a lost worker, is due."""
        await self.pool.execute(
            "UPDATE delivery SET next_at = now(), lease_until = now() WHERE state = 'waiting'"
        )


@pytest.fixture
async def post(database_url: str) -> AsyncIterator[Post]:
    settings = AlertingSettings(database_url=SecretStr(database_url), database_connections=5)
    pool = await open_pool(settings, "alerting")
    yield Post(pool)
    await pool.close()


async def sends(_claim: Claim) -> Answer:
    return Sent()


async def fails(_claim: Claim) -> Answer:
    return Failed("HTTP 500")


def counted(state: str) -> str:
    return f"SELECT count(*) FROM delivery WHERE state = '{state}'"


async def test_each_event_is_delivered_once_to_each_subscription(post: Post) -> None:
    post.subscribe("a", "b")
    for _ in range(3):
        await post.tell("j1", "j2")
    async with post.lane(sends), post.lane(sends):
        await post.until(counted("sent"), 4)
        await post.tell("j1", "j2")
        await post.tell("j3")
        await post.until(counted("sent"), 6)
    assert len(post.sent) == len(set(post.sent)) == 6


async def test_receivers_that_hang_delay_no_other(post: Post) -> None:
    post.subscribe("good", "hangs-1", "hangs-2")

    async def behave(claim: Claim) -> Answer:
        if claim.subscription != "good":
            await asyncio.Event().wait()
        return Sent()

    await post.tell(*(f"j{n}" for n in range(50)))
    async with post.lane(behave, slots=5):
        await post.until(counted("sent"), 50)
    assert all(it.startswith("good:") for it in post.sent)


async def test_a_receiver_has_few_slots_and_all_of_them_are_used(post: Post) -> None:
    post.subscribe("a", "b")
    under_way: list[str] = []
    four, go_on = asyncio.Event(), asyncio.Event()

    async def behave(claim: Claim) -> Answer:
        if claim.subscription != "c":
            under_way.append(claim.subscription)
            if len(under_way) == 4:
                four.set()
            await go_on.wait()
        return Sent()

    await post.tell(*(f"j{n}" for n in range(10)))
    async with post.lane(behave):
        await four.wait()
        post.subscribe("c")
        await post.tell("late")  # when it is sent to c, the lane has looked for more
        await post.until(counted("sent"), 1)
        assert sorted(under_way) == ["a", "a", "b", "b"]
        go_on.set()
        await post.until(counted("sent"), 23)


async def test_a_lane_has_no_more_under_way_than_its_slots(post: Post) -> None:
    post.subscribe(*(f"s{n}" for n in range(9)))
    under_way: list[str] = []
    full = asyncio.Event()

    async def behave(claim: Claim) -> Answer:
        under_way.append(claim.subscription)
        assert len(under_way) <= LIMITS.slots
        if len(under_way) == LIMITS.slots:
            full.set()
        await full.wait()
        under_way.remove(claim.subscription)
        return Sent()

    await post.tell("j1", "j2", "j3")
    async with post.lane(behave):
        await post.until(counted("sent"), 27)


async def test_thousands_of_deliveries_stay_rows(post: Post) -> None:
    post.subscribe("away")
    tasks: list[int] = []

    async def behave(_claim: Claim) -> Answer:
        tasks.append(len(asyncio.all_tasks()))
        return Failed("ConnectError")

    await post.tell(*(f"j{n}" for n in range(3000)))
    async with post.lane(behave, policy=DeliveryPolicy(pause_failures=5, pause_s=3600)):
        await post.until("SELECT failures >= 5 FROM receiver WHERE paused_until IS NOT NULL", True)
    assert await post.pool.fetchval(counted("waiting")) == 3000
    assert len(tasks) <= 5 + LIMITS.receiver_slots
    assert max(tasks) <= 10


async def test_a_failure_is_tried_again_until_it_is_given_up(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    async with post.lane(fails):
        for attempt in range(1, 8):
            await post.until("SELECT attempts FROM delivery WHERE lease IS NULL", attempt)
            assert await post.pool.fetchval("SELECT next_at > now() FROM delivery")
            await post.now_due()
        await post.until("SELECT why FROM delivery", "attempts-used")
    assert await post.pool.fetchval("SELECT reason FROM delivery") == "HTTP 500"
    assert await post.pool.fetchval("SELECT attempts FROM delivery") == 8


async def test_what_cannot_be_sent_stops_no_other(post: Post) -> None:
    post.subscribe("a", "b")
    await post.tell("j1")

    async def behave(claim: Claim) -> Answer:
        if claim.subscription == "a":
            raise RuntimeError("a bug")
        return Sent()

    async with post.lane(behave):
        await post.until(counted("sent"), 1)
        await post.until(
            "SELECT reason FROM delivery WHERE lease IS NULL AND subscription = 'a'", BUG
        )
    assert post.sent == ["b:job-failed/j1"]


async def test_a_subscription_that_is_not_known_yet_is_waited_for(post: Post) -> None:
    """Another replica has read it already; or the file of subscriptions can't be read just now."""
    post.subscribe("a")
    await post.tell("j1", "j2")
    post.book.use_file({})
    async with post.lane(sends):
        await post.until("SELECT count(*) FROM delivery WHERE attempts = 1 AND lease IS NULL", 2)
        post.subscribe("a")
        await post.now_due()
        await post.until(counted("sent"), 2)


async def test_a_subscription_that_nobody_knows_is_waited_for_no_longer_than_its_tries(
    post: Post,
) -> None:
    post.subscribe("a")
    await post.tell("j1")
    post.book.use_file({})
    async with post.lane(sends):
        for attempt in range(1, UNKNOWN_TRIES + 1):
            await post.until("SELECT attempts FROM delivery WHERE lease IS NULL", attempt)
            await post.now_due()
        await post.until("SELECT why FROM delivery", "unsubscribed")
    assert post.sent == []


async def test_a_worker_that_died_before_it_sent_is_replaced(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    began = asyncio.Event()

    async def dies(_claim: Claim) -> Answer:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with post.lane(dies):
        await began.wait()
    async with post.lane(sends):
        await post.now_due()
        await post.until(counted("sent"), 1)
    assert post.sent == ["a:job-failed/j1"]


@pytest.mark.parametrize("can_retry", [True, False])
async def test_a_recorded_success_is_never_sent_again(post: Post, can_retry: bool) -> None:
    """A slow worker has lost its lease, another one has succeeded: its late failure changes
    nothing.
    """
    post.subscribe("a")
    await post.tell("j1")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_claim: Claim) -> Answer:
        if began.is_set():
            return Sent()
        began.set()
        await go_on.wait()
        return Failed("HTTP 500", can_retry=can_retry)

    async with post.lane(slow, receiver_slots=1):
        await began.wait()
        async with post.lane(sends):
            await post.now_due()
            await post.until(counted("sent"), 1)
            go_on.set()
            await post.until("SELECT failures FROM receiver", 1)
            await post.now_due()
            await post.tell("j1", "j2")
            await post.until(counted("sent"), 2)
    assert post.sent.count("a:job-failed/j1") == 1


async def test_a_late_failure_leaves_the_lease_of_another_worker_alone(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_claim: Claim) -> Answer:
        began.set()
        await go_on.wait()
        return Failed("HTTP 500")

    async with post.lane(slow):
        await began.wait()
        await post.pool.execute("UPDATE delivery SET lease = 'another'")
        go_on.set()
        await post.until("SELECT failures FROM receiver", 1)
    assert await post.pool.fetchval("SELECT lease FROM delivery") == "another"


async def test_a_late_success_counts_though_the_lease_was_lost(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_claim: Claim) -> Answer:
        began.set()
        await go_on.wait()
        return Sent()

    async with post.lane(slow):
        await began.wait()
        await post.pool.execute("UPDATE delivery SET lease = 'another'")
        go_on.set()
        await post.until(counted("sent"), 1)


class AwayAtFirst:
    """The pool, but once something was sent the database is away a few times."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self.failures: list[Exception] = [asyncpg.AdminShutdownError("away"), OSError("away")]

    def acquire(self) -> Any:
        if self._post.sent and self.failures:
            raise self.failures.pop()
        return self._post.pool.acquire()


async def test_a_success_is_recorded_when_the_database_is_back(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    away: Any = AwayAtFirst(post)
    async with post.lane(sends, pool=away):
        await post.until(counted("sent"), 1)
    assert not away.failures
    assert post.sent == ["a:job-failed/j1"]


async def test_a_stop_lets_a_success_be_recorded(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        @asynccontextmanager
        async def acquire(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
            if post.sent:
                asked.set()
                await go_on.wait()
            async with post.pool.acquire() as conn:
                yield conn

    slow: Any = Slow()
    async with post.lane(sends, pool=slow):
        await asked.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    assert await post.pool.fetchval(counted("sent")) == 1


async def test_a_receiver_that_is_gone_gets_nothing_until_its_subscription_changes(
    post: Post,
) -> None:
    post.subscribe("a")
    await post.tell("j1", "j2")

    async def gone(_claim: Claim) -> Answer:
        return Gone("HTTP 410")

    async with post.lane(gone, receiver_slots=1):
        await post.until(counted("given-up"), 2)
    await post.tell("j3")
    assert await post.pool.fetchval(counted("waiting")) == 0
    await post.tell("j4", version="2")
    async with post.lane(sends):
        await post.until(counted("sent"), 1)
    assert post.sent == ["a:job-failed/j4"]


async def test_hopeless_deliveries_expire_and_old_ones_are_forgotten(post: Post) -> None:
    post.subscribe("a")
    await post.tell("j1")
    await post.pool.execute("UPDATE delivery SET created_at = now() - interval '4 days'")
    async with transaction(post.pool) as conn:
        assert await cleaning.expire(conn, 259_200.0, 10) == 1
    assert await post.pool.fetchval("SELECT why FROM delivery") == "expired"
    await post.pool.execute("UPDATE event SET written_at = now() - interval '9 days'")
    async with transaction(post.pool) as conn:
        await cleaning.clean(conn, days=8, rows=10, subscriptions=[])
    counts = await post.pool.fetchrow(
        "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM delivery),"
        " (SELECT count(*) FROM receiver)"
    )
    assert tuple(counts or ()) == (0, 0, 0)


async def test_claiming_costs_what_is_due_and_not_what_waits(post: Post) -> None:
    post.subscribe("a")
    await post.tell(*(f"j{n}" for n in range(2000)))
    async with transaction(post.pool) as conn:
        await conn.execute("ANALYZE delivery")
        plan = await conn.fetch(f"EXPLAIN {CLAIM}", "webhook", [], 8, "me", 60.0)
    text = "\n".join(row[0] for row in plan)
    assert "delivery_waiting" in text
    assert "Seq Scan on delivery" not in text
