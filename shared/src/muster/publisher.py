"""Publishes records one by one: a record that the bus rejects, or can't take now, delays no other.

A channel that did not take a record is away: records for it get Transient at once. The publisher
retries the record that was not taken until the bus takes it; then the channel is open again. So a
partition without a leader, or a deleted topic, costs all other channels one timeout, once.

The producer is not idempotent: readers ignore a record that is published twice. Sequences that the
bus forgets, or that have a gap, would stop every channel for the fault of one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnsupportedForMessageFormatError,
)

from muster.channels import Channel, Outgoing, partition_of
from muster.contracts.topics import DEAD_LETTER, TOPICS, Topic, dead_letter_topic
from muster.errors import Transient
from muster.metrics import PlumbingMetrics
from muster.records import headers
from muster.refusals import NOT_AUTHORIZED, Refusals, RefusedError
from muster.settings import ServiceSettings

_log = structlog.get_logger()

PRODUCER_STOP_S = 2.0
NO_LEADER = -1

BUS_ERRORS = (KafkaError, OSError, TimeoutError, Transient)

REJECTIONS = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    RecordTooLargeError,
    InvalidTimestampError,
    InvalidTopicError,
    PolicyViolationError,
    UnsupportedForMessageFormatError,
    UnknownError,  # also what aiokafka makes of codes that it does not know, as INVALID_RECORD
)
"""The bus's errors about a record itself. All others are about the channel or the bus, and pass."""

Outcome = BaseException | None
"""None: the bus has the record. Transient: it can't take it now. Else: it rejects it for good."""


def topic_named(name: str) -> Topic:
    """A topic of the table, or the dead letters of one."""
    return TOPICS.get(name) or dead_letter_topic(name.removesuffix(DEAD_LETTER))


class Publisher:
    """The producer, and which channels are away, until ``run`` finds them open.

    ``on_open`` hooks get a channel that takes records again. ``lacks_topics``: a topic is
    missing; the code that creates it resets the mark.
    """

    def __init__(
        self, settings: ServiceSettings, name: str, metrics: PlumbingMetrics, refusals: Refusals
    ) -> None:
        self._settings = settings
        self._name = name
        self._metrics = metrics
        self._refusals = refusals
        self.on_open: list[Callable[[Channel], None]] = []
        self.lacks_topics = False
        self._away: dict[Channel, Outgoing] = {}
        self._producer: AIOKafkaProducer | None = None
        self._producer_lock = asyncio.Lock()
        self._failed_at = float("-inf")
        self._taken_at = 0.0

    @property
    def away(self) -> Collection[Channel]:
        """The channels that take no records now."""
        return self._away.keys()

    async def publish(self, records: Sequence[Outgoing]) -> list[Outcome]:
        """Publish records; the outcome of each. Those of one channel keep their order.

        The channels of all whose outcome is Transient are ``away`` then.
        """
        channels, outcomes = await self._give(records, self._away)
        for record, channel, outcome in zip(records, channels, outcomes, strict=True):
            if isinstance(outcome, Transient) and channel not in self._away:
                _log.warning(
                    "the bus accepts no records", channel=str(channel), reason=str(outcome)
                )
                self._away[channel] = record
            elif outcome is not None and not isinstance(outcome, Transient):
                why = f"{type(outcome).__name__}: {outcome}"
                _log.error("the bus rejects a record", topic=record.topic, key=record.key, why=why)
                self._metrics.rejected.labels(record.topic).inc()
        self._metrics.channels_unavailable.set(len(self._away))
        return outcomes

    async def run(self) -> None:
        """Try the record that a channel did not take until it takes it; until cancelled."""
        tries: dict[Channel, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._settings.bus_watch_s)
                tries = {channel: task for channel, task in tries.items() if not task.done()}
                for channel, record in self._away.items():
                    if channel not in tries:
                        tries[channel] = group.create_task(self._try(channel, record))

    async def close(self) -> None:
        """Close the producer, and forget what was away."""
        self._away.clear()
        await self._drop_producer(self._producer)
        self._failed_at = float("-inf")

    async def _try(self, away: Channel, record: Outgoing) -> None:
        await self._look_again()
        (channel,), (outcome,) = await self._give([record], away=())
        self._away.pop(away, None)
        if isinstance(outcome, Transient):  # perhaps by another channel than before
            self._away.setdefault(channel, record)
        self._metrics.channels_unavailable.set(len(self._away))
        if away not in self._away:
            _log.info("the bus accepts records again", channel=str(away))
            for hook in self.on_open:
                hook(away)

    async def _look_again(self) -> None:
        """Where the channels are now."""
        try:
            async with asyncio.timeout(self._settings.bus_timeout_s):
                if self._producer is not None:
                    await self._producer.client.force_metadata_update()
        except BUS_ERRORS as error:
            _log.debug("the bus does not answer with its partitions", error=str(error))

    async def _give(
        self, records: Sequence[Outgoing], away: Collection[Channel]
    ) -> tuple[list[Channel], list[Outcome]]:
        """The channel of each record, and its outcome. Those ``away`` are not tried."""
        began = monotonic()
        channels = [Channel(record.topic) for record in records]
        sent: dict[int, asyncio.Future[Any]] = {}
        reason = "its channel is unavailable"
        if all(channel in away for channel in channels):
            return channels, [Transient(reason) for _ in records]
        producer = None
        try:
            async with asyncio.timeout(self._settings.bus_timeout_s):
                producer = await self._open_producer()
                channels = await self._channels_of(producer, records, away)
                ways: defaultdict[Channel, list[int]] = defaultdict(list)
                for n, channel in enumerate(channels):
                    if channel not in away:
                        ways[channel].append(n)
                every = (
                    self._send_way(producer, channel, records, way, sent)
                    for channel, way in ways.items()
                )
                await asyncio.gather(*every)
                await asyncio.gather(*sent.values(), return_exceptions=True)
        except BUS_ERRORS as error:
            reason = str(error) or type(error).__name__
        outcomes = [_outcome(sent.get(n), reason) for n in range(len(records))]
        self._count(records, outcomes)
        if self._taken_at < began and any(isinstance(outcomes[n], Transient) for n in sent):
            await self._drop_producer(producer)
        return channels, outcomes

    def _count(self, records: Sequence[Outgoing], outcomes: Sequence[Outcome]) -> None:
        for record, outcome in zip(records, outcomes, strict=True):
            if outcome is None:
                self._taken_at = monotonic()
                self._metrics.published.labels(record.topic).inc()
                self._refusals.note(f"publish {record.topic}", None)
            elif isinstance(outcome, RefusedError):
                self._refusals.note(f"publish {record.topic}", str(outcome))

    async def _channels_of(
        self,
        producer: AIOKafkaProducer,
        records: Sequence[Outgoing],
        away: Collection[Channel],
    ) -> list[Channel]:
        """The channel of each record; the whole topic also where that is ``away``."""
        cluster = producer.client.cluster
        topics = {r.topic for r in records if Channel(r.topic) not in away}
        unknown = [topic for topic in topics if cluster.partitions_for_topic(topic) is None]
        await asyncio.gather(*(producer.client.add_topic(topic) for topic in unknown))
        if any(cluster.partitions_for_topic(topic) is None for topic in unknown):
            # Another look may have been under way, which did not ask for these topics yet.
            await producer.client.force_metadata_update()
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        allowed = counts.keys() - cluster.unauthorized_topics
        self.lacks_topics = self.lacks_topics or not all(counts[topic] for topic in allowed)
        return [
            Channel(r.topic, count, partition_of(r.key, count))
            if (count := counts.get(r.topic))
            else Channel(r.topic)
            for r in records
        ]

    async def _send_way(
        self,
        producer: AIOKafkaProducer,
        channel: Channel,
        records: Sequence[Outgoing],
        way: Sequence[int],
        sent: dict[int, asyncio.Future[Any]],
    ) -> None:
        """Hand over the records of one channel, in order, as far as it goes."""
        place = TopicPartition(channel.topic, channel.number)
        if channel.topic in producer.client.cluster.unauthorized_topics:
            sent[way[0]] = _failed(TopicAuthorizationFailedError(channel.topic))
            return
        for n in way:
            # Without a leader the producer would ask for it all the while, and wait.
            if producer.client.cluster.leader_for_partition(place) in (None, NO_LEADER):
                return
            sent[n] = await self._send(producer, records[n])
            if sent[n].done() and not isinstance(sent[n].exception(), REJECTIONS):
                return

    async def _send(self, producer: AIOKafkaProducer, record: Outgoing) -> asyncio.Future[Any]:
        """Pass a record to the producer; the future has its outcome."""
        made = headers(topic_named(record.topic), record, self._name)
        try:
            sent: asyncio.Future[Any] = await producer.send(
                record.topic,
                record.value,
                key=record.key.encode(),
                headers=[(name, value.encode()) for name, value in made.items()],
            )
        except KafkaError as error:
            sent = _failed(error)
        return sent

    async def _open_producer(self) -> AIOKafkaProducer:
        async with self._producer_lock:
            if self._producer is None:
                # Each of many records would try it otherwise.
                if monotonic() - self._failed_at < self._settings.bus_watch_s / 2:
                    raise Transient("it was unavailable a moment ago")
                producer = AIOKafkaProducer(
                    **self._settings.kafka_client(),
                    client_id=f"muster-{self._name}",
                    acks="all",
                    partitioner=_partition,
                    request_timeout_ms=int(self._settings.bus_timeout_s * 1000),
                )
                try:
                    await producer.start()
                except BaseException:
                    self._failed_at = monotonic()
                    self._metrics.retries.labels("publish").inc()
                    await _stop(producer)
                    raise
                self._producer = producer
            return self._producer

    async def _drop_producer(self, producer: AIOKafkaProducer | None) -> None:
        """A new one finds its way from the bootstrap address; one that is new already stays."""
        if producer is not None and producer is self._producer:
            self._producer = None
            await _stop(producer)


async def _stop(producer: AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(PRODUCER_STOP_S):
            await producer.stop()
    except BUS_ERRORS:  # it still holds records that the bus does not take
        await producer.client.close()


def _failed(error: KafkaError) -> asyncio.Future[Any]:
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed


def _partition(key: bytes, every: Sequence[int], _available: Sequence[int]) -> int:
    """The partition that the producer itself would choose, at a lower cost."""
    return every[partition_of(key.decode(), len(every))]


def _outcome(sent: asyncio.Future[Any] | None, reason: str) -> Outcome:
    if sent is None:
        return Transient(reason)
    if not sent.done() or sent.cancelled():
        sent.cancel()
        return Transient(f"not published in time: {reason}")
    error = sent.exception()
    if error is None or isinstance(error, REJECTIONS):
        return error
    kind = RefusedError if isinstance(error, NOT_AUTHORIZED) else Transient
    return kind(str(error) or type(error).__name__)
