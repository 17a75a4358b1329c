"""What the bus promises, and what it stands on in the libraries below."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import OutOfOrderSequenceNumber
from cli.embedded.broker import EmbeddedBroker
from hypothesis import given
from hypothesis import strategies as st
from muster.bus import Bus, Outgoing, partition_of
from muster.contracts.model import Model
from muster.contracts.nodes import NodeHeartbeat
from muster.contracts.topics import DEAD_LETTER, TOPICS, Service
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from muster.readers import Follower
from muster.records import Received, headers, read_word_id, said, word_id
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry

WAIT_S = 20


def a_bus(bootstrap: str) -> Bus:
    settings = ServiceSettings(
        kafka_bootstrap=bootstrap, bus_watch_s=0.1, bus_timeout_s=2, fetch_wait_busy_ms=10
    )
    return Bus(settings, Service.SCHEDULER, PlumbingMetrics(CollectorRegistry()))


async def heartbeats(bus: Bus, names: Sequence[str]) -> None:
    for name in names:
        beat = NodeHeartbeat(node=name, journal="j")
        await bus.say("node-heartbeat", name, beat, event_id=f"x/{name}", at=0.0)


async def test_plain_producers_and_muster_agree_on_partitions(
    fresh_broker: EmbeddedBroker,
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=fresh_broker.bootstrap)
    await producer.start()
    try:
        count = len(await producer.partitions_for("pod-requested"))
        for key in ("node-1", "a", "ü", "n" * 200):
            sent = await producer.send_and_wait("pod-requested", b"{}", key=key.encode())
            assert sent.partition == partition_of(key, count)
    finally:
        await producer.stop()


async def test_the_wait_of_a_fetch_can_be_changed_while_a_consumer_runs(
    fresh_broker: EmbeddedBroker,
) -> None:
    consumer = AIOKafkaConsumer("node-lost", bootstrap_servers=fresh_broker.bootstrap)
    await consumer.start()
    try:
        assert consumer._fetcher._fetch_max_wait_ms == 500
    finally:
        await consumer.stop()


async def test_a_follower_reads_from_the_start_and_again_on_another_bus(
    fresh_broker: EmbeddedBroker,
) -> None:
    bus, read = a_bus(fresh_broker.bootstrap), asyncio.Queue[str]()

    def on_record(_record: Received, model: Model | None) -> None:
        assert isinstance(model, NodeHeartbeat)
        read.put_nowait(model.node)

    await heartbeats(bus, ["a", "b"])
    follower = Follower(bus, ["node-heartbeat"], on_record)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(bus.run()), group.create_task(follower.run())]
        assert {await read.get(), await read.get()} == {"a", "b"}
        await follower.caught_up.wait()
        fresh_broker.kill()
        fresh_broker.start()
        while follower.restarts == 0:
            await asyncio.sleep(0.02)
        await heartbeats(bus, ["c"])
        assert await read.get() == "c"
        for task in tasks:
            task.cancel()
    await bus.close()


async def test_a_record_that_its_reader_cannot_take_ends_no_follower(
    fresh_broker: EmbeddedBroker,
) -> None:
    bus, read = a_bus(fresh_broker.bootstrap), asyncio.Queue[str]()

    def on_record(record: Received, _model: Model | None) -> None:
        if record.key == "odd":
            raise ValueError("odd")
        read.put_nowait(str(record.key))

    await heartbeats(bus, ["odd", "good"])
    follower = Follower(bus, ["node-heartbeat"], on_record)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(follower.run())
        assert await read.get() == "good"
        task.cancel()
    await bus.close()


async def test_a_producer_that_the_bus_forgot_refuses_no_record(
    fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, send, used = a_bus(fresh_broker.bootstrap), AIOKafkaProducer.send, list[AIOKafkaProducer]()

    async def forgotten(self: AIOKafkaProducer, *given: Any, **named: Any) -> Any:
        used.append(self)
        if len(set(used)) > 1:
            return await send(self, *given, **named)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(OutOfOrderSequenceNumber())
        return failed

    monkeypatch.setattr(AIOKafkaProducer, "send", forgotten)
    with pytest.raises(Transient):
        await heartbeats(bus, ["a"])
    await heartbeats(bus, ["a"])
    await bus.close()


async def test_a_bus_that_is_away_is_said_to_be_away(fresh_broker: EmbeddedBroker) -> None:
    bus = a_bus(fresh_broker.bootstrap)
    await heartbeats(bus, ["a"])
    fresh_broker.kill()
    with pytest.raises(Transient, match="takes no records"):
        await heartbeats(bus, ["b"])
    fresh_broker.start()
    await heartbeats(bus, ["c"])
    await bus.close()


async def test_a_record_that_is_too_large_is_refused_alone(fresh_broker: EmbeddedBroker) -> None:
    bus = a_bus(fresh_broker.bootstrap)
    large = Outgoing("job-submitted", "k", b"x" * 2_000_000, "a/job/k/1", 0.0)
    small = Outgoing("job-submitted", "k", b"{}", "a/job/k/2", 0.0)
    refusals = await bus.publish([large, small])
    assert refusals[0] is not None
    assert refusals[1] is None
    await bus.close()


@given(st.text(alphabet="abc019", min_size=1), st.integers(1, 2**53))
def test_a_word_id_says_whose_word_it_is(subject: str, revision: int) -> None:
    made = word_id("rest", "job", subject, revision)
    assert read_word_id(made) == ("rest", "job", subject, revision)


@pytest.mark.parametrize("stranger", ["", "a/b", "a/b/c/d", "a/b/c/1/2", "rest/job/x/-1"])
def test_a_strangers_id_is_none_of_ours(stranger: str) -> None:
    assert read_word_id(stranger) is None


def test_every_topic_has_headers_and_a_dead_letter_topic() -> None:
    for topic in TOPICS.values():
        made = headers(
            topic,
            event_id="i",
            source="rest",
            key="k",
            at=datetime(2026, 1, 1, tzinfo=UTC),
            traceparent=None,
        )
        assert made["ce_type"] == f"muster.{topic.name}.v1"
        assert made["ce_time"] == "2026-01-01T00:00:00Z"
        assert not topic.name.endswith(DEAD_LETTER)


def test_a_heartbeat_and_an_acknowledgement_are_small() -> None:
    beat = NodeHeartbeat(node="n" * 63, journal="0" * 26)
    assert len(beat.model_dump_json(exclude_none=True)) < 200
    assert said('{"a":1}', 3, 2) == '{"revision":3,"seen":2,"a":1}'
