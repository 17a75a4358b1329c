"""What the bus does not take holds up nothing that it takes, and goes out when it can."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import NotEnoughReplicasError, OutOfOrderSequenceNumber
from bare_bus import a_bus, heartbeats, keys_of
from bus_logins import kafka_client
from cli.embedded.apache import ApacheKafka
from cli.embedded.broker import EmbeddedBroker
from muster.bus import Bus, Outgoing, partition_of
from muster.contracts.topics import TOPICS
from muster.errors import Transient
from muster.readers import Follower

WAIT_S = 60


OWN = Outgoing("placement-deferred", "k", b"{}", "scheduler/gang/k/1", 0.0)
"""On a topic that this bus makes, as the Scheduler's."""


async def until_open(bus: Bus) -> None:
    """Until nothing is away any more."""
    opened = asyncio.Event()
    bus.on_open.append(lambda _channel: opened.set())
    async with asyncio.timeout(WAIT_S):
        while bus.away:
            await opened.wait()
            opened.clear()


async def opening(bus: Bus) -> None:
    """The same, where nobody runs the bus yet."""
    running = asyncio.create_task(bus.run())
    await until_open(bus)
    running.cancel()
    await asyncio.wait([running])


def a_record(key: str, value: bytes = b"{}") -> Outgoing:
    return Outgoing("job-submitted", key, value, f"rest/job/{key}/1", 0.0)


async def test_a_producer_whose_records_are_not_taken_is_replaced(
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
    await opening(bus)
    await heartbeats(bus, ["a"])
    await bus.close()


async def test_a_bus_that_is_away_is_reported_as_away(fresh_broker: EmbeddedBroker) -> None:
    bus = a_bus(fresh_broker.bootstrap)
    await heartbeats(bus, ["a"])
    fresh_broker.kill()
    with pytest.raises(Transient, match="takes no node-heartbeat"):
        await heartbeats(bus, ["b"])
    fresh_broker.start()
    await opening(bus)
    await heartbeats(bus, ["c"])
    await bus.close()


async def test_what_comes_after_a_record_that_a_bus_did_not_take_waits_for_it(
    fresh_broker: EmbeddedBroker,
) -> None:
    bus, read = a_bus(fresh_broker.bootstrap), asyncio.Queue[str]()
    fresh_broker.kill()
    first, second = keys_of(1, 2)
    with pytest.raises(Transient):  # nobody knows its partition yet
        await heartbeats(bus, [first])
    fresh_broker.start()
    with pytest.raises(Transient):
        await heartbeats(bus, [second])
    await opening(bus)
    await heartbeats(bus, [second])
    follower = Follower(bus, ["node-heartbeat"], lambda r, _: read.put_nowait(str(r.key)))
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        reading = group.create_task(follower.run())
        assert [await read.get() for _ in range(2)] == [first, second]
        reading.cancel()
    await bus.close()


async def test_a_record_that_is_too_large_is_refused_alone(fresh_broker: EmbeddedBroker) -> None:
    bus = a_bus(fresh_broker.bootstrap)
    large = Outgoing("job-submitted", "k", b"x" * 2_000_000, "a/job/k/1", 0.0)
    small = Outgoing("job-submitted", "k", b"{}", "a/job/k/2", 0.0)
    refusals = await bus.publish([large, small])
    assert refusals[0] is not None
    assert refusals[1] is None
    await bus.close()


Break = Callable[[Callable[[], bool], pytest.MonkeyPatch], None]


def without_leader(is_away: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 1 has no leader."""
    leader = ClusterMetadata.leader_for_partition

    def led(self: ClusterMetadata, place: TopicPartition) -> Any:
        return -1 if place.partition == 1 and is_away() else leader(self, place)

    monkeypatch.setattr(ClusterMetadata, "leader_for_partition", led)


def unknown_topic(is_away: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of partition 1's keys is not there."""
    partitions = ClusterMetadata.partitions_for_topic

    def known(self: ClusterMetadata, topic: str) -> Any:
        return None if topic == "job-submitted" and is_away() else partitions(self, topic)

    monkeypatch.setattr(ClusterMetadata, "partitions_for_topic", known)


def without_answer(is_away: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 1 does not answer about its records."""
    _answering(lambda _future: None, is_away, monkeypatch)


def with_too_few_replicas(is_away: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 1 rejects all records for now."""
    _answering(lambda f: f.set_exception(NotEnoughReplicasError()), is_away, monkeypatch)


def _answering(
    answer: Callable[[Any], None], is_away: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = AIOKafkaProducer.send

    async def sending(
        self: AIOKafkaProducer, topic: str, *given: Any, key: bytes, **more: Any
    ) -> Any:
        if partition_of(key.decode(), 4) != 1 or not is_away():
            return await send(self, topic, *given, key=key, **more)
        future = asyncio.get_running_loop().create_future()
        answer(future)
        return future

    monkeypatch.setattr(AIOKafkaProducer, "send", sending)


@pytest.mark.parametrize("broken", [without_leader, without_answer, with_too_few_replicas])
async def test_a_partition_that_is_away_holds_up_no_other(
    fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, broken: Break
) -> None:
    bus, is_away = a_bus(fresh_broker.bootstrap), True
    broken(lambda: is_away, monkeypatch)
    stuck = [a_record(key, b"x" * 1000) for key in keys_of(1, 400)]
    free = [a_record(key) for key in keys_of(2, 3)]
    outcomes = await bus.publish([*stuck, *free])
    assert all(isinstance(outcome, Transient) for outcome in outcomes[:400])
    assert outcomes[400:] == [None] * 3
    assert {(channel.topic, channel.number) for channel in bus.away} == {("job-submitted", 1)}
    is_away = False
    await opening(bus)
    assert await bus.publish(stuck) == [None] * 400
    await bus.close()


async def test_a_partition_that_stays_away_keeps_no_other_from_coming_back(
    fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, is_away, tries = a_bus(fresh_broker.bootstrap), True, asyncio.Queue[object]()
    _answering(tries.put_nowait, lambda: True, monkeypatch)
    unknown_topic(lambda: is_away, monkeypatch)
    stuck = replace(a_record(*keys_of(1, 1)), topic="job-updated")
    other = a_record(*keys_of(2, 1))
    assert None not in await bus.publish([stuck, other])
    bus.settings.bus_timeout_s = 10 * WAIT_S
    opened = asyncio.Event()
    bus.on_open.append(lambda _channel: opened.set())
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        running = group.create_task(bus.run())
        for _ in range(2):  # the second try is under way, and takes its time
            await tries.get()
        is_away = False
        await opened.wait()
        assert {channel.topic for channel in bus.away} == {"job-updated"}
        running.cancel()
    await bus.close()


async def test_what_fails_beyond_expectation_while_a_channel_is_tried_is_not_hidden(
    fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, is_away = a_bus(fresh_broker.bootstrap), True
    unknown_topic(lambda: is_away, monkeypatch)
    await bus.publish([a_record("k")])
    is_away = False
    bus.on_open.append(lambda _channel: [].index(0))
    with pytest.raises(ExceptionGroup):
        async with asyncio.timeout(WAIT_S):
            await bus.run()
    await bus.close()


async def test_the_first_records_on_many_topics_at_once_are_all_taken(
    fresh_broker: EmbeddedBroker,
) -> None:
    for _ in range(5):
        bus = a_bus(fresh_broker.bootstrap)
        topics = [topic for topic in TOPICS if topic.startswith(("job", "pod"))]
        records = [replace(a_record("j"), topic=topic) for topic in topics]
        outcomes = await asyncio.gather(*(bus.publish([record]) for record in records))
        assert outcomes == [[None]] * len(topics)
        assert not bus.away
        await bus.close()


@pytest.mark.apache
async def test_a_topic_that_was_deleted_is_made_again(apache_kafka: ApacheKafka) -> None:
    bus = a_bus(apache_kafka.bootstrap)
    other = replace(OWN, topic="node-lost")
    admin = AIOKafkaAdminClient(**kafka_client(apache_kafka.bootstrap))
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as group:
        watching = group.create_task(bus.run())
        while await bus.publish([OWN, other]) != [None, None]:
            await until_open(bus)  # the topics are being made
        await admin.start()
        await admin.delete_topics([OWN.topic])
        outcomes: list[BaseException | None] = [None, None]
        while outcomes == [None, None]:
            outcomes = await bus.publish([OWN, other])
        assert isinstance(outcomes[0], Transient)
        assert outcomes[1] is None
        await until_open(bus)
        assert await bus.publish([OWN, other]) == [None, None]
        watching.cancel()
    await admin.close()
    await bus.close()


@pytest.mark.apache
async def test_a_follower_has_caught_up_where_all_records_were_deleted(
    apache_kafka: ApacheKafka,
) -> None:
    bus, read = a_bus(apache_kafka.bootstrap), list[str]()
    follower = Follower(bus, [OWN.topic], lambda r, _: read.append(str(r.key)))
    admin = AIOKafkaAdminClient(**kafka_client(apache_kafka.bootstrap))
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(bus.run())]
        while await bus.publish([OWN]) != [None]:
            await until_open(bus)  # the topic is being made
        await admin.start()
        partition = TopicPartition(OWN.topic, partition_of("k", 4))
        await admin.delete_records({partition: RecordsToDelete(before_offset=-1)})  # to the end
        tasks.append(group.create_task(follower.run()))
        await follower.caught_up.wait()
        assert read == []
        for task in tasks:
            task.cancel()
    await admin.close()
    await bus.close()


async def test_a_topic_that_is_not_there_holds_up_no_other(
    fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, is_away = a_bus(fresh_broker.bootstrap), True
    unknown_topic(lambda: is_away, monkeypatch)
    other = replace(a_record("k"), topic="job-updated")
    outcomes = await bus.publish([a_record("k"), other])
    assert isinstance(outcomes[0], Transient)
    assert outcomes[1] is None
    is_away = False
    await opening(bus)
    assert await bus.publish([a_record("k"), other]) == [None, None]
    await bus.close()
