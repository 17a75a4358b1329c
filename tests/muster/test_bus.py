"""What the bus promises, and what it stands on in the libraries below."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import NotEnoughReplicasError, OutOfOrderSequenceNumber
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from cli.embedded.apache import ApacheKafka
from cli.embedded.broker import EmbeddedBroker
from hypothesis import given
from hypothesis import strategies as st
from muster.bus import Bus, Outgoing, partition_of
from muster.contracts.model import Model
from muster.contracts.nodes import NodeHeartbeat
from muster.contracts.topics import DEAD_LETTER, TOPICS, Service
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from muster.readers import Consumer, Follower
from muster.records import Received, headers, read_word_id, said, word_id
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry

WAIT_S = 60


def a_bus(bootstrap: str) -> Bus:
    settings = ServiceSettings(
        kafka_bootstrap=bootstrap, bus_watch_s=0.1, bus_timeout_s=2, fetch_wait_busy_ms=10
    )
    return Bus(settings, Service.SCHEDULER, PlumbingMetrics(CollectorRegistry()))


async def heartbeats(bus: Bus, names: Sequence[str]) -> None:
    for name in names:
        beat = NodeHeartbeat(node=name, journal="j")
        await bus.say("node-heartbeat", name, beat, event_id=f"x/{name}", at=0.0)


async def until_open(bus: Bus) -> None:
    """Until nothing is away any more."""
    opened = asyncio.Event()
    bus.on_open.append(opened.set)
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


def keys_of(partition: int, count: int) -> list[str]:
    """Keys whose records go to one of the four partitions that each topic has here."""
    found = (f"k{n}" for n in itertools.count())
    return list(itertools.islice((k for k in found if partition_of(k, 4) == partition), count))


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


async def test_a_follower_has_not_caught_up_while_it_reads_again(bootstrap: str) -> None:
    bus, seen = a_bus(bootstrap), asyncio.Queue[bool]()

    def on_record(record: Received, _model: Model | None) -> None:
        if record.key == "read-twice":
            seen.put_nowait(follower.caught_up.is_set())

    await heartbeats(bus, ["read-twice"])
    follower = Follower(bus, ["node-heartbeat"], on_record)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(follower.run())
        assert not await seen.get()
        await follower.caught_up.wait()
        for hook in bus.on_new_bus:
            hook()
        assert not await seen.get()
        await follower.caught_up.wait()
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


async def give_raw(bootstrap: str, topic: str, header: bytes) -> None:
    """A record whose header has any bytes for its name: no library would write it."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=9999,
    )  # fmt: skip
    builder.append(0, 1, b"odd", b"{}", [("?" * len(header), b"v")])
    batch = builder.build().replace(b"?" * len(header), header)
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4, "big")
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    request = ProduceRequest(
        required_acks=1, timeout=1000, topics=[(topic, [(0, bytes(batch))])], transactional_id=None
    )
    answer = await client.send(client.get_random_node(), request)
    assert [error for _, ((_, error, *_),) in answer.topics] == [0]
    await client.close()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\0", b"\xed\xa0\x80"])
async def test_a_header_whose_name_is_no_text_ends_no_reader(
    fresh_broker: EmbeddedBroker, name: bytes
) -> None:
    bus, read = a_bus(fresh_broker.bootstrap), asyncio.Queue[str]()
    before, after = (key for key in keys_of(0, 2))
    await heartbeats(bus, [before])
    await give_raw(fresh_broker.bootstrap, "node-heartbeat", name)
    await heartbeats(bus, [after])
    grouped = asyncio.Queue[str]()

    async def handle(records: Sequence[Received]) -> None:
        for record in records:
            grouped.put_nowait(str(record.key))

    follower = Follower(bus, ["node-heartbeat"], lambda r, _: read.put_nowait(str(r.key)))
    consumer = Consumer(bus, ["node-heartbeat"], handle)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(follower.run()), group.create_task(consumer.run())]
        for queue in (read, grouped):
            heard = {await queue.get()}
            while after not in heard:
                heard.add(await queue.get())
            assert before in heard
        for task in tasks:
            task.cancel()
    await bus.close()


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


async def test_a_bus_that_is_away_is_said_to_be_away(fresh_broker: EmbeddedBroker) -> None:
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
    """Partition 1 says nothing about its records."""
    _answering(lambda _future: None, is_away, monkeypatch)


def with_too_few_replicas(is_away: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 1 takes nothing for now, and says so."""
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
    bus.on_open.append(opened.set)
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
    bus.on_open.append(lambda: [].index(0))
    with pytest.raises(ExceptionGroup):
        async with asyncio.timeout(WAIT_S):
            await bus.run()
    await bus.close()


async def test_the_first_words_on_many_topics_at_once_are_all_taken(
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
    other = Outgoing("job-updated", "k", b"{}", "launcher/job/k/1", 0.0)
    admin = AIOKafkaAdminClient(bootstrap_servers=apache_kafka.bootstrap)
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as group:
        watching = group.create_task(bus.run())
        while await bus.publish([a_record("k"), other]) != [None, None]:
            await until_open(bus)  # the topics are being made
        await admin.start()
        await admin.delete_topics(["job-submitted"])
        outcomes: list[BaseException | None] = [None, None]
        while outcomes == [None, None]:
            outcomes = await bus.publish([a_record("k"), other])
        assert isinstance(outcomes[0], Transient)
        assert outcomes[1] is None
        await until_open(bus)
        assert await bus.publish([a_record("k"), other]) == [None, None]
        watching.cancel()
    await admin.close()
    await bus.close()


async def test_a_topic_that_is_not_there_holds_up_no_other(
    fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, is_away = a_bus(fresh_broker.bootstrap), True
    unknown_topic(lambda: is_away, monkeypatch)
    other = Outgoing("job-updated", "k", b"{}", "launcher/job/k/1", 0.0)
    outcomes = await bus.publish([a_record("k"), other])
    assert isinstance(outcomes[0], Transient)
    assert outcomes[1] is None
    is_away = False
    await opening(bus)
    assert await bus.publish([a_record("k"), other]) == [None, None]
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
