"""The Launcher as a service: its messages over a Kafka-protocol broker, its database, its end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from bus_logins import bus_settings
from cli.embedded.broker import EmbeddedBroker
from launcher.app import build
from launcher.settings import LauncherSettings
from launcher_peers import FakeAgents, FakeScheduler
from muster.contracts.gangs import GangDecision, GangRequest
from muster.contracts.jobs import JobRequest, JobState, JobStatus
from muster.contracts.model import StateMessage
from muster.contracts.pods import PodRequest, PodState, PodStatus
from muster.contracts.topics import TOPICS, Kind, Service, message_topics
from muster.service import Runtime, running
from prometheus_client import generate_latest

MakeRequest = Callable[..., JobRequest]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

WAIT_S = 60
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEW = {"submitted_at": datetime.fromtimestamp(time.time(), UTC)}
"""An old submission is rejected."""
PUBLISHED = [name for kind in Kind for name in message_topics(kind, Service.LAUNCHER)]


class Others:
    """REST, Scheduler and agents on the bus: they answer each message at once."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.producer = producer
        self.scheduler = FakeScheduler()
        self.agents = FakeAgents()
        self.statuses: dict[str, JobStatus] = {}

    async def submit(self, request: JobRequest) -> None:
        await self._publish("job-submitted", request.job, request)

    async def answer(self, message: StateMessage) -> None:
        match message:
            case GangRequest():
                self.scheduler.receive(message)
                for gang in self.scheduler.waiting():
                    self.scheduler.place(gang, "n1")
                decision = self.scheduler.decisions[message.gang]
                await self._publish("placement-decided", message.gang, decision)
            case PodRequest():
                await self._run(message)
            case JobStatus():
                known = self.statuses.get(message.job)
                if known is None or known.revision < message.revision:
                    self.statuses[message.job] = message

    async def _run(self, message: PodRequest) -> None:
        self.agents.receive(message, NOW)
        if self.agents.statuses[message.pod].state is PodState.ACCEPTED:
            await self._publish("pod-started", message.job, self.agents.start(message.pod, NOW))
            await self._publish("pod-succeeded", message.job, self.agents.end(message.pod, NOW))

    async def _publish(self, topic: str, key: str, message: StateMessage) -> None:
        assert isinstance(message, JobRequest | GangDecision | PodStatus)
        value = message.model_dump_json().encode()
        await self.producer.send_and_wait(topic, value, key=key.encode())


@asynccontextmanager
async def service(database_url: str, bootstrap: str) -> AsyncIterator[Runtime]:
    settings = LauncherSettings.model_validate(
        {
            "database_url": database_url,
            **bus_settings(bootstrap),
            "fetch_wait_idle_ms": 10,
            "bus_watch_s": 0.1,
        }
    )
    async with running(Service.LAUNCHER, settings, 0, build) as runtime:
        yield runtime


async def until_all(others: Others, consumer: AIOKafkaConsumer, jobs: int, state: JobState) -> None:
    """Answer the Launcher's messages until this number of jobs has the state."""
    async with asyncio.timeout(WAIT_S):
        while sum(s.state is state for s in others.statuses.values()) < jobs:
            record = await consumer.getone()
            message = TOPICS[record.topic].model.model_validate_json(record.value)
            assert isinstance(message, StateMessage)
            await others.answer(message)


async def test_jobs_run_to_their_end_over_the_bus(
    database_url: str, fresh_broker: EmbeddedBroker, make_request: MakeRequest
) -> None:
    bootstrap = fresh_broker.bootstrap
    consumer = AIOKafkaConsumer(
        *PUBLISHED, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=10
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await consumer.start()
    await producer.start()
    try:
        async with service(database_url, bootstrap) as runtime:
            others = Others(producer)
            for n in range(10):
                await others.submit(
                    make_request(f"job{n}", {"worker": n % 3 + 1}).model_copy(update=NEW)
                )
            await until_all(others, consumer, 10, JobState.SUCCEEDED)
            async with asyncio.timeout(WAIT_S):
                while await runtime.is_ready() != {
                    "bus": True,
                    "bus_rights": True,
                    "database": True,
                }:
                    await asyncio.sleep(0.02)
            metrics = generate_latest(runtime.registry).decode()
        async with service(database_url, bootstrap):  # a second start has nothing to fix
            await others.submit(make_request("job10").model_copy(update=NEW))
            await until_all(others, consumer, 11, JobState.SUCCEEDED)
    finally:
        await consumer.stop()
        await producer.stop()
    assert 'muster_jobs_ended_total{state="SUCCEEDED"} 10.0' in metrics
    assert {s.attempt for s in others.statuses.values()} == {0}
