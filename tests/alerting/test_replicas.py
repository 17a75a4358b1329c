"""Two replicas over one database: what one of them has sent, the other does not send."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from cli.embedded.apache import ApacheKafka
from muster.contracts.jobs import JobState
from muster.service import Runtime

JOBS = [f"j{n}" for n in range(40)]
SENT = "SELECT state, count(*) FROM delivery GROUP BY state"
SLOTS = 2
DEADLINE_S = 60.0

Replicas = Callable[[], tuple[AbstractAsyncContextManager[Runtime], ...]]


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_replica_without_a_bus_helps_to_deliver_and_doubles_nothing(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    """The embedded broker has room for one member in a group: the other has lost its bus."""
    receiver = await start_receiver(go_on=asyncio.Event())
    await cluster.subscribe(webhook_url=receiver.url)
    async with cluster.alerting():
        await cluster.until("SELECT setting FROM subscription", [("subscription/s1",)])

    def replicas() -> tuple[AbstractAsyncContextManager[Runtime], ...]:
        return (
            cluster.alerting(receiver_slots=SLOTS),
            cluster.alerting(receiver_slots=SLOTS, kafka_bootstrap="127.0.0.1:9"),
        )

    await _each_is_delivered_once(cluster, receiver, replicas)


@pytest.mark.apache
@pytest.mark.slow
async def test_two_replicas_in_one_group_deliver_each_event_once(
    apache_cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(go_on=asyncio.Event())
    cluster = apache_cluster

    def replicas() -> tuple[AbstractAsyncContextManager[Runtime], ...]:
        settings = {"receiver_slots": SLOTS, "group_session_s": 6.0}
        return cluster.alerting(**settings), cluster.alerting(**settings)

    one, other = replicas()
    async with one as first, other as second:
        await _until(lambda: first.bus.is_up and second.bus.is_up)
        await cluster.subscribe(webhook_url=receiver.url)
        await _until(lambda: _knows_one(first) and _knows_one(second))
    await _each_is_delivered_once(cluster, receiver, replicas)


async def _each_is_delivered_once(cluster: Any, receiver: Any, replicas: Replicas) -> None:
    one, other = replicas()
    async with one, other:
        for job in JOBS:
            await cluster.job(job, 1, JobState.FAILED)
        await receiver.wait_for(2 * SLOTS)  # more than one replica would have under way
        receiver.go_on.set()
        await cluster.until(SENT, [("sent", len(JOBS))])
    one, other = replicas()
    async with one, other:
        for job in [*JOBS, "last"]:
            await cluster.job(job, 1, JobState.FAILED)
        await cluster.until(SENT, [("sent", len(JOBS) + 1)])
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(ids) == len(set(ids)) == len(JOBS) + 1


def _knows_one(runtime: Runtime) -> bool:
    known = runtime.registry.get_sample_value("muster_alerting_subscriptions")
    return known == 1


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.05)


@pytest.fixture
async def apache_cluster(
    make_cluster: Callable[..., Any], apache_kafka: ApacheKafka
) -> AsyncIterator[Any]:
    """A cluster on a real Apache Kafka."""
    async with make_cluster(apache_kafka) as made:
        yield made
