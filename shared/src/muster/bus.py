"""The bus: Kafka as Muster uses it.

One consumer group per service, whose batches are handled in one transaction each; readers without a
group for one-way words; a producer. No record is trusted to arrive and none is handled twice (the
exchange sees to both), so offsets are committed lazily and a bus that was thrown away is read
from its start again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAlreadyExistsError
from aiokafka.partitioner import murmur2
from aiokafka.protocol.metadata import MetadataRequest
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

from muster.contracts.model import Model
from muster.contracts.topics import (
    DEAD_LETTER,
    EVERY_TOPIC,
    TOPICS,
    Service,
    Topic,
    dead_letter_topic,
)
from muster.errors import Broken, Transient
from muster.metrics import PlumbingMetrics
from muster.records import Received, headers
from muster.settings import ServiceSettings
from muster.telemetry import current_traceparent

_log = structlog.get_logger()

HEARTBEATS = "node-heartbeat"
"""The topic whose records never hurry: they don't make a reader busy."""

PRODUCER_STOP_S = 2.0

LINGER_FROM = 8
LINGER_S = 0.015
"""Where batches have this many records there will be more in a moment: fewer, larger
transactions.
"""

BUS_ERRORS = (KafkaError, OSError, TimeoutError, Transient)

BatchHandler = Callable[[Sequence[Received]], Awaitable[None]]
OnRecord = Callable[[Received, Model | None], None]


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key: Kafka's own hash (murmur2), so that plain producers agree."""
    return int(murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def topic_named(name: str) -> Topic:
    """A topic of the table, or the dead letters of one."""
    return TOPICS.get(name) or dead_letter_topic(name.removesuffix(DEAD_LETTER))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to publish; ``value`` None removes a key of a state topic."""

    topic: str
    key: str
    value: bytes | None
    event_id: str
    at: float
    traceparent: str | None = None


class Bus:
    """The producer, and the watch over the bus's identity.

    ``on_new_bus`` hooks are called when the bus answers under another cluster id than before: its
    records are gone.
    """

    def __init__(self, settings: ServiceSettings, me: Service, metrics: PlumbingMetrics) -> None:
        self.settings = settings
        self.me = me
        self.metrics = metrics
        self.cluster_id: str | None = None
        self.is_up = False
        self._complained = False
        self.on_new_bus: list[Callable[[], None]] = []
        self._producer: AIOKafkaProducer | None = None
        self._producer_lock = asyncio.Lock()
        self._partitions: dict[str, int] = {}

    async def run(self) -> None:
        """Watch the bus until cancelled."""
        client: AIOKafkaClient | None = None
        try:
            while True:
                try:
                    if client is None:
                        client = AIOKafkaClient(bootstrap_servers=self.settings.kafka_bootstrap)
                        await client.bootstrap()
                        await self._make_topics(client)
                    async with asyncio.timeout(self.settings.bus_timeout_s):
                        await self._look(client)
                except BUS_ERRORS as error:
                    self._note(False, error)
                    if client is not None:
                        await client.close()
                    client = None
                await asyncio.sleep(self.settings.bus_watch_s)
        finally:
            if client is not None:
                await client.close()

    async def close(self) -> None:
        """Close the producer; nothing is published after this."""
        await self._drop_producer()

    async def _look(self, client: AIOKafkaClient) -> None:
        answer = await client.send(client.get_random_node(), MetadataRequest([]))
        self._note(True, None)
        before, self.cluster_id = self.cluster_id, str(answer.cluster_id)
        if before not in (None, self.cluster_id):
            _log.warning("the bus is another one", before=before, now=self.cluster_id)
            await self._make_topics(client)
            for hook in self.on_new_bus:
                hook()

    def _note(self, is_up: bool, error: BaseException | None) -> None:
        if error is not None and (self.is_up or not self._complained):
            _log.warning("the bus does not answer", error=str(error) or type(error).__name__)
            self._complained = True
        elif is_up and not self.is_up:
            _log.info("the bus answers", bootstrap=self.settings.kafka_bootstrap)
            self._complained = False
        self.is_up = is_up
        self.metrics.bus_up.set(is_up)

    async def _make_topics(self, client: AIOKafkaClient) -> None:
        """Make the topics that are missing. The embedded broker comes with all of them."""
        known = (await client.fetch_all_metadata()).topics()
        missing = [name for name in EVERY_TOPIC if name not in known]
        if not missing:
            return
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.kafka_bootstrap)
        await admin.start()
        try:
            await admin.create_topics([self._new_topic(name) for name in missing])
        except TopicAlreadyExistsError:
            pass  # another service was quicker
        except AttributeError as error:  # what aiokafka raises where there is no controller
            raise Transient(f"the bus has no controller to make {missing} with") from error
        finally:
            await admin.close()
        _log.info("made topics", topics=missing)

    def _new_topic(self, name: str) -> NewTopic:
        is_state = name in TOPICS and TOPICS[name].state
        return NewTopic(
            name,
            self.settings.topic_partitions,
            self.settings.topic_replication,
            topic_configs={"cleanup.policy": "compact" if is_state else "delete"},
        )

    async def publish(self, records: Sequence[Outgoing]) -> list[BaseException | None]:
        """Give records to the bus; for each, None when it was taken, else why it was refused.

        Raises Transient where the bus is away: then none counts as taken.
        """
        try:
            async with asyncio.timeout(self.settings.bus_timeout_s):
                producer = await self._open_producer()
                sent = [await self._send(producer, record) for record in records]
                results = await asyncio.gather(*sent, return_exceptions=True)
        except BUS_ERRORS as error:
            await self._drop_producer()
            raise Transient(f"the bus takes no records: {error or type(error).__name__}") from error
        outcomes = [_outcome(result) for result in results]
        for record, outcome in zip(records, outcomes, strict=True):
            if outcome is None:
                self.metrics.published.labels(record.topic).inc()
        return outcomes

    async def say(
        self, topic: str, key: str, model: Model | None, *, event_id: str, at: float
    ) -> None:
        """Publish a one-way word at once. Raises Transient where the bus is away."""
        value = None if model is None else model.model_dump_json(exclude_none=True).encode()
        record = Outgoing(topic, key, value, event_id, at, current_traceparent())
        (refusal,) = await self.publish([record])
        if refusal is not None:
            raise Transient(f"{topic} was refused: {refusal}") from refusal

    async def _send(self, producer: AIOKafkaProducer, record: Outgoing) -> "asyncio.Future[object]":
        """Hand a record to the producer; the future tells what became of it."""
        made = headers(
            topic_named(record.topic),
            event_id=record.event_id,
            source=self.me.value,
            key=record.key,
            at=datetime.fromtimestamp(record.at, UTC),
            traceparent=record.traceparent,
        )
        try:
            sent: asyncio.Future[object] = await producer.send(
                record.topic,
                record.value,
                key=record.key.encode(),
                headers=[(name, value.encode()) for name, value in made.items()],
            )
        except MessageSizeTooLargeError as error:
            sent = asyncio.get_running_loop().create_future()
            sent.set_exception(error)
        return sent

    async def _open_producer(self) -> AIOKafkaProducer:
        async with self._producer_lock:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=self.settings.kafka_bootstrap,
                    client_id=f"muster-{self.me.value}",
                    acks="all",
                    enable_idempotence=True,
                    request_timeout_ms=int(self.settings.bus_timeout_s * 1000),
                )
                self._producer = producer  # so that it is dropped where its start fails
                await producer.start()
            return self._producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                async with asyncio.timeout(PRODUCER_STOP_S):
                    await producer.stop()
            except BUS_ERRORS:  # it still holds records that the bus does not take
                await producer.client.close()


def _outcome(result: object) -> BaseException | None:
    """None: taken. An error that passes is raised: then the whole batch is kept."""
    if not isinstance(result, BaseException):
        return None
    if isinstance(result, KafkaError) and not getattr(result, "retriable", False):
        return cast(BaseException, result)
    raise Transient(f"the bus takes no records: {result}") from result


class FetchWaits:
    """How long a fetch waits at the broker: short while records flow, longer when idle."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._last = 0.0

    def adapt(self, consumer: AIOKafkaConsumer, got_records: bool) -> None:
        now = time.monotonic()
        if got_records:
            self._last = now
        is_busy = now - self._last < self._settings.fetch_idle_after_s
        wait = self._settings.fetch_wait_busy_ms if is_busy else self._settings.fetch_wait_idle_ms
        # aiokafka has no public way to change it; tests/muster/test_bus.py guards the name.
        consumer._fetcher._fetch_max_wait_ms = wait


class Consumer:
    """The service's member of its consumer group: reads its topics in batches, in order.

    ``handle`` gets up to ``batch_records`` records and returns when they are safe; it never raises
    for what passes.
    """

    COMMIT_EVERY_S = 1.0

    def __init__(self, bus: Bus, topics: Sequence[str], handle: BatchHandler) -> None:
        self._bus = bus
        self._topics = tuple(topics)
        self._handle = handle
        self._last_batch = 0
        self._rebuild = asyncio.Event()
        self._waits = FetchWaits(bus.settings)
        bus.on_new_bus.append(self._rebuild.set)

    async def run(self) -> None:
        """Read until cancelled; a reader that failed, or that lost its bus, is built anew.

        Nothing is committed at its end: the offsets could be those of another bus.
        """
        while True:
            self._rebuild.clear()
            try:
                await self._read()
            except BUS_ERRORS as error:
                _log.warning("reading failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(self._bus.settings.bus_watch_s)
            self._bus.metrics.rebuilt.inc()

    async def _read(self) -> None:
        settings = self._bus.settings
        broker = KafkaBroker(
            settings.kafka_bootstrap,
            client_id=f"muster-{self._bus.me.value}",
            allow_auto_create_topics=False,
            consumer_only=True,
            logger=None,
        )
        subscriber = broker.subscriber(
            *self._topics,
            group_id=f"muster-{self._bus.me.value}",
            ack_policy=AckPolicy.MANUAL,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=settings.fetch_wait_busy_ms,
            session_timeout_ms=int(settings.group_session_s * 1000),
            heartbeat_interval_ms=int(settings.group_session_s * 1000 / 3),
            # A database that is away for long must not cost the membership.
            max_poll_interval_ms=24 * 3600 * 1000,
        )
        try:
            async with asyncio.timeout(settings.bus_timeout_s):
                await broker.start()
            consumer = subscriber.consumer
            assert consumer is not None
            await self._drain(consumer)
        finally:
            await end_in_time(broker.stop(), settings.shutdown_s)

    async def _drain(self, consumer: AIOKafkaConsumer) -> None:
        committed = time.monotonic()
        uncommitted = False
        while not self._rebuild.is_set():
            records = await self._batch(consumer)
            self._waits.adapt(consumer, bool(records))
            if records:
                await self._handle(records)
                uncommitted = True
            if uncommitted and time.monotonic() - committed > self.COMMIT_EVERY_S:
                await _commit(consumer)
                committed, uncommitted = time.monotonic(), False

    async def _batch(self, consumer: AIOKafkaConsumer) -> list[Received]:
        """The next records; under load a little more than what is there at once."""
        limit = self._bus.settings.batch_records
        got = await consumer.getmany(timeout_ms=200, max_records=limit)
        records = [received(r) for batch in got.values() for r in batch]
        if self._last_batch >= LINGER_FROM and LINGER_FROM <= len(records) < limit:
            await asyncio.sleep(LINGER_S)
            got = await consumer.getmany(timeout_ms=0, max_records=limit - len(records))
            records += [received(r) for batch in got.values() for r in batch]
        self._last_batch = len(records)
        return records


async def _commit(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.commit()
    except KafkaError as error:  # a rebalance: whoever has the partition now reads them again
        _log.debug("offsets were not committed", error=str(error))


async def end_in_time(ending: Awaitable[object], limit_s: float) -> None:
    """Let something end, however long it would take and whatever it meets: the caller's own error
    or cancellation goes on from here.
    """
    try:
        async with asyncio.timeout(limit_s):
            await ending
    except BUS_ERRORS as error:
        _log.warning("a reader did not end in order", error=str(error) or type(error).__name__)


class Follower:
    """Reads whole topics from their start, without a group: one-way words.

    ``on_record`` is called for each record, in order within a partition; with None for a removed
    key. ``caught_up`` is set when all that was there at the start has been read. ``partitions``:
    how
    many each topic has, once they are read.
    """

    def __init__(
        self, bus: Bus, topics: Sequence[str], on_record: OnRecord, *, from_start: bool = True
    ) -> None:
        self._bus = bus
        self._topics = tuple(topics)
        self._on_record = on_record
        self._from_start = from_start
        self._rebuild = asyncio.Event()
        self._waits = FetchWaits(bus.settings)
        self.caught_up = asyncio.Event()
        self.restarts = 0
        self.partitions: dict[str, int] = {}
        bus.on_new_bus.append(self._rebuild.set)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._rebuild.clear()
            try:
                await self._read()
            except BUS_ERRORS as error:
                _log.warning("following failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(self._bus.settings.bus_watch_s)
            self.restarts += 1
            self._bus.metrics.rebuilt.inc()

    async def _read(self) -> None:
        settings = self._bus.settings
        consumer = AIOKafkaConsumer(
            *self._topics,
            bootstrap_servers=settings.kafka_bootstrap,
            client_id=f"muster-{self._bus.me.value}",
            group_id=None,
            auto_offset_reset="earliest" if self._from_start else "latest",
            fetch_max_wait_ms=settings.fetch_wait_busy_ms,
        )
        try:
            async with asyncio.timeout(settings.bus_timeout_s):
                await consumer.start()
                ends = await consumer.end_offsets(consumer.assignment())
            self.partitions = dict(Counter(partition.topic for partition in ends))
            await self._follow(consumer, ends)
        finally:
            await end_in_time(consumer.stop(), settings.shutdown_s)

    async def _follow(self, consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> None:
        behind = {p for p, end in ends.items() if end > 0} if self._from_start else set()
        while not self._rebuild.is_set():
            if not behind:
                self.caught_up.set()
            got = await consumer.getmany(timeout_ms=200, max_records=500)
            self._waits.adapt(consumer, any(p.topic != HEARTBEATS for p in got))
            for partition, batch in got.items():
                for record in batch:
                    self._take(received(record))
                if batch[-1].offset + 1 >= ends.get(partition, 0):
                    behind.discard(partition)

    def _take(self, record: Received) -> None:
        self._bus.metrics.received.labels(record.topic).inc()
        try:
            model = None if record.value is None else record.model()
        except Broken as error:
            self._bus.metrics.dead.labels(record.topic).inc()
            _log.warning("a record can't be read", topic=record.topic, reason=str(error))
            return
        self._on_record(record, model)


def received(record: object) -> Received:
    """A record of aiokafka's as Muster's."""
    raw = record  # aiokafka.ConsumerRecord, which has no types
    return Received(
        topic=raw.topic,  # type: ignore[attr-defined]
        partition=raw.partition,  # type: ignore[attr-defined]
        offset=raw.offset,  # type: ignore[attr-defined]
        key=None if raw.key is None else raw.key.decode(errors="replace"),  # type: ignore[attr-defined]
        headers={k: v.decode(errors="replace") for k, v in raw.headers},  # type: ignore[attr-defined]
        value=raw.value,  # type: ignore[attr-defined]
    )
