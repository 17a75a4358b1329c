"""What the bus promises, and what it stands on in the libraries below."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from bare_bus import a_bus, heartbeats, keys_of
from cli.embedded.broker import EmbeddedBroker
from hypothesis import given
from hypothesis import strategies as st
from muster.bus import Bus, Outgoing, partition_of
from muster.consumer import Consumer
from muster.contracts.model import Model
from muster.contracts.nodes import NodeHeartbeat
from muster.contracts.topics import DEAD_LETTER, TOPICS
from muster.readers import Follower, Reader
from muster.records import Received, headers, message_id, message_value, read_message_id

WAIT_S = 60


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


async def test_a_reader_that_is_cancelled_while_it_is_built_anew_ends(bootstrap: str) -> None:
    """What it stands on takes a cancellation for that of a task of its own."""
    bus = a_bus(bootstrap)

    class Swallows(Reader):
        reads = 0

        async def _read(self) -> None:
            self.reads += 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    reader = Swallows(bus, (), 0.01)
    task = asyncio.create_task(reader.run())
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait([task])
    assert task.cancelled()
    assert reader.reads == 1
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
            seen = {await queue.get()}
            while after not in seen:
                seen.add(await queue.get())
            assert before in seen
        for task in tasks:
            task.cancel()
    await bus.close()


@given(st.text(alphabet="abc019", min_size=1), st.integers(1, 2**53))
def test_a_message_id_names_sender_and_subject(subject: str, revision: int) -> None:
    made = message_id("rest", "job", subject, revision)
    assert read_message_id(made) == ("rest", "job", subject, revision)


@pytest.mark.parametrize("event_id", ["", "a/b", "a/b/c/d", "a/b/c/1/2", "rest/job/x/-1"])
def test_a_foreign_id_is_no_message_id(event_id: str) -> None:
    assert read_message_id(event_id) is None


def test_every_topic_has_headers_and_a_dead_letter_topic() -> None:
    for topic in TOPICS.values():
        record = Outgoing(topic.name, "k", b"{}", "i", datetime(2026, 1, 1, tzinfo=UTC).timestamp())
        made = headers(topic, record, "rest")
        assert made["ce_type"] == f"muster.{topic.name}.v1"
        assert made["ce_time"] == "2026-01-01T00:00:00Z"
        assert not topic.name.endswith(DEAD_LETTER)


def test_a_heartbeat_and_an_acknowledgement_are_small() -> None:
    beat = NodeHeartbeat(node="n" * 63, journal="0" * 26)
    assert len(beat.model_dump_json(exclude_none=True)) < 200
    assert message_value('{"a":1}', 3, 2) == '{"revision":3,"seen":2,"a":1}'


class Fickle(Reader):
    """Its client ends a task of its own at the first read."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, (), pause_s=0.0)
        self.reads = 0
        self.reads_on = asyncio.Event()

    async def _read(self) -> None:
        self.reads += 1
        if self.reads == 1:
            raise asyncio.CancelledError
        self.reads_on.set()
        await asyncio.Event().wait()


async def test_a_reader_goes_on_when_a_client_of_the_bus_cancels_a_task_of_its_own() -> None:
    reader = Fickle(a_bus("127.0.0.1:1"))
    running = asyncio.create_task(reader.run())
    async with asyncio.timeout(60):
        await reader.reads_on.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert reader.reads == 2
