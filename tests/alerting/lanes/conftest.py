"""A post office over a real database, for the tests of lanes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from alerting.domain.deliveries import Answer, Channel, DeliveryPolicy, Failed, Sent
from alerting.domain.deliveries import deliveries as made_from
from alerting.domain.events import Event, Severity
from alerting.lanes import Lane, LaneLimits, Sender
from alerting.metrics import AlertingMetrics
from alerting.recorder import RecordLimits
from alerting.settings import AlertingSettings
from alerting.store.deliveries import Claim, Listed, add_deliveries
from alerting.subscriptions import Entry, Subscriptions
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import SUBSCRIPTION_SETTING, AlertEvent, Subscription
from muster.db import open_pool, transaction
from muster.records import Received
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 60.0
POLICY = DeliveryPolicy(pause_failures=1000)
LIMITS = LaneLimits(
    slots=8,
    receiver_slots=2,
    poll_s=0.02,
    lease_s=60.0,
    run_s=30.0,
    stop_s=10.0,
    record=RecordLimits(8, 0.01, 0.05, POLICY),
)
Behaviour = Callable[[Claim], Awaitable[Answer]]


@dataclass
class Post:
    """A post office: subscriptions, their deliveries in the database, and lanes that deliver."""

    pool: asyncpg.Pool
    metrics: AlertingMetrics = field(default_factory=lambda: AlertingMetrics(CollectorRegistry()))
    sent: list[str] = field(default_factory=list)
    limits: LaneLimits = LIMITS

    def __post_init__(self) -> None:
        self.subscriptions = Subscriptions(SecretStr("key"), self.metrics)
        self.by_id: dict[str, Subscription] = {}

    def subscribe(self, *ids: str, owner: str = "") -> None:
        """Of one owner, or each of an owner of its own."""
        for ident in ids:
            self.by_id[ident] = Subscription(
                id=ident,
                owner=owner or f"owner-of-{ident}",
                events=(AlertEvent.JOB_FAILED,),
                webhook_url="http://x/",
            )
            value = self.by_id[ident].model_dump(mode="json", by_alias=True)
            setting = f"{SUBSCRIPTION_SETTING}{ident}"
            self.subscriptions.learn(SettingChanged(setting=setting, revision=1, value=value))

    def forget(self, ident: str) -> None:
        """The lanes know no such subscription any more."""
        record = Received("receivers-changed", 0, 0, f"{SUBSCRIPTION_SETTING}{ident}", {}, None)
        self.subscriptions.on_record(record, None)

    async def notify(self, *jobs: str, version: str = "1") -> None:
        """Each of these jobs has failed."""
        events = [
            Event(f"job-failed/{job}", AlertEvent.JOB_FAILED, NOW, Severity.INFO, "t", "x", job, {})
            for job in jobs
        ]
        wanted = [it for e in events for it in made_from(self.by_id.values(), e, now=NOW)]
        listed = {it.id: Listed(it.owner, version) for it in self.by_id.values()}
        async with transaction(self.pool) as conn:
            await add_deliveries(conn, [(event, None) for event in events], wanted, listed)

    @asynccontextmanager
    async def lane(
        self,
        behave: Behaviour,
        *,
        pool: asyncpg.Pool | None = None,
        policy: DeliveryPolicy = POLICY,
        **limits: Any,
    ) -> AsyncIterator[Lane]:
        async def send(_entry: Entry, claim: Claim) -> Answer:
            answer = await behave(claim)
            if isinstance(answer, Sent):
                self.sent.append(f"{claim.subscription}:{claim.event_key}")
            return answer

        kept = replace(self.limits, record=RecordLimits(8, 0.01, 0.05, policy), **limits)
        sender = Sender(Channel.WEBHOOK, send)
        lane = Lane(sender, pool or self.pool, self.subscriptions, kept, self.metrics)
        task = asyncio.create_task(lane.run())
        try:
            yield lane
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def sends(self, _claim: Claim) -> Answer:
        return Sent()

    async def fails(self, _claim: Claim) -> Answer:
        return Failed("HTTP 500", retry_after_s=3600.0)  # `now_due` brings the next one

    def counted(self, state: str) -> str:
        """The question how many deliveries are in a state."""
        return f"SELECT count(*) FROM delivery WHERE state = '{state}'"

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
    """A post office without subscriptions."""
    settings = AlertingSettings(database_url=SecretStr(database_url), database_connections=5)
    pool = await open_pool(settings, "alerting")
    yield Post(pool)
    await pool.close()
