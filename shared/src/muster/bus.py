"""The bus: Kafka as Muster uses it. Here the producer, and the watch over the bus's identity.

No record is trusted to arrive and none is handled twice (the exchange sees to both), so a bus that
was thrown away costs delay only.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnsupportedForMessageFormatError,
)
from aiokafka.partitioner import murmur2
from aiokafka.protocol.metadata import MetadataRequest

from muster.contracts.model import Model
from muster.contracts.topics import (
    DEAD_LETTER,
    EVERY_TOPIC,
    TOPICS,
    Service,
    Topic,
    dead_letter_topic,
)
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from muster.records import headers
from muster.settings import ServiceSettings
from muster.telemetry import current_traceparent

_log = structlog.get_logger()

PRODUCER_STOP_S = 2.0

LINGER_FROM = 8
LINGER_S = 0.015
"""Where batches have this many records there will be more in a moment: fewer, larger
transactions.
"""

BUS_ERRORS = (KafkaError, OSError, TimeoutError, Transient)

REFUSALS = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    RecordTooLargeError,
    InvalidTimestampError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    UnsupportedForMessageFormatError,
    UnknownError,  # also what aiokafka makes of codes that it does not know, as INVALID_RECORD
)
"""What the bus says of a record. All else is about the bus or the producer, and passes with a new
one: a broker that forgot the producer's sequence refuses no record.
"""


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
            outcomes = [_outcome(result) for result in results]
        except BUS_ERRORS as error:
            await self._drop_producer()
            reason = str(error) or type(error).__name__
            raise Transient(f"the bus takes no records: {reason}") from error
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
    """None: taken. Raises Transient for what passes: then the whole batch is kept."""
    if not isinstance(result, BaseException):
        return None
    if isinstance(result, REFUSALS):
        return cast(BaseException, result)
    raise Transient(str(result) or type(result).__name__) from result
