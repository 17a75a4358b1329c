"""Readers of the bus: the service's member of its consumer group, whose batches are handled in one
transaction each, and followers without a group for broadcast messages.

Offsets are committed lazily: what is read twice is applied once. A new bus is read from its start.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.kafka.message import FAKE_CONSUMER
from faststream.security import BaseSecurity, SASLScram512

from muster import batches
from muster.bus import BUS_ERRORS, LINGER_FROM, LINGER_S, LOG_IN, Bus, is_cancelled
from muster.contracts.acls import group_of
from muster.contracts.model import Model
from muster.contracts.services import SERVICE_STARTED
from muster.errors import Broken
from muster.records import Received
from muster.refusals import NOT_AUTHORIZED
from muster.settings import ServiceSettings

_log = structlog.get_logger()

batches.install()

BEATS = ("node-heartbeat", SERVICE_STARTED)
"""Topics whose records are not urgent: they don't make a reader busy."""

QUIET_PER_WAIT = 20
WATCH_S = 0.5

FOREVER_MS = 10**12
"""FastStream waits this long for a batch. After a wait without one it would pause for the same time
again, and leave records that arrive meanwhile.
"""

BatchHandler = Callable[[Sequence[Received]], Awaitable[None]]
OnRecord = Callable[[Received, Model | None], None]


class FetchWaits:
    """How long a fetch waits at the broker: short while records flow, longer and longer when idle.

    A twentieth of the time since the last record, between the two settings.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._last = 0.0

    def adapt(self, consumer: AIOKafkaConsumer, got_records: bool) -> None:
        now = time.monotonic()
        if got_records:
            self._last = now
        quiet_ms = (now - self._last) * 1000
        least, most = self._settings.fetch_wait_busy_ms, self._settings.fetch_wait_idle_ms
        wait = min(max(int(quiet_ms / QUIET_PER_WAIT), least), most)
        # aiokafka has no public way to change it; tests/muster/test_bus.py guards the name.
        consumer._fetcher._fetch_max_wait_ms = wait


class Reader(ABC):
    """Reads until cancelled. A reader whose bus failed, or is another one, is rebuilt.

    ``pause_s``: the wait after a failure; while the bus refuses the log-in, only the bus's watch
    tries it. ``restarts``: how often it was rebuilt. A subclass reads in ``_read`` until
    ``_rebuild`` is set.
    """

    def __init__(self, bus: Bus, topics: Sequence[str], pause_s: float) -> None:
        self._bus = bus
        self._topics = tuple(topics)
        self._pause_s = pause_s
        self.restarts = 0
        self._rebuild = asyncio.Event()
        self._waits = FetchWaits(bus.settings)
        self._what = f"read {', '.join(topics)}"
        self._complaint: str | None = None
        bus.on_new_bus.append(self._rebuild.set)

    async def run(self) -> None:
        """Read until cancelled.

        Nothing is committed at its end: the offsets could be those of another bus.
        """
        while True:
            self._rebuild.clear()
            try:
                await self._read()
            # aiokafka's clients swallow this task's cancellation as they end, and raise the one of
            # a task of theirs.
            except (*BUS_ERRORS, asyncio.CancelledError) as error:
                if not is_cancelled():
                    reason = str(error) or type(error).__name__
                    if isinstance(error, NOT_AUTHORIZED):
                        self._bus.refusals.note(self._what, reason)
                    elif reason != self._complaint:
                        _log.warning("reading failed", error=reason)
                    self._complaint = reason
                    await self._pause()
            if is_cancelled():
                raise asyncio.CancelledError
            self.restarts += 1
            self._bus.metrics.rebuilt.inc()

    @abstractmethod
    async def _read(self) -> None: ...

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s)
        while LOG_IN in self._bus.refusals.reasons:
            await asyncio.sleep(self._pause_s)

    def _note_allowed(self) -> None:
        """The bus has answered a fetch."""
        self._complaint = None
        if self._what in self._bus.refusals.reasons:
            self._bus.refusals.note(self._what, None)


class Consumer(Reader):
    """The service's member of its consumer group: FastStream's batch subscriber over its topics.

    ``handle`` gets up to ``batch_records`` records and returns when they are safe; it never raises
    for transient failures. ``linger_s``: how long the first record of a batch waits for more, where
    no user waits for the result. ``seat``: for a group with one member at a time: a new member
    replaces the one before at once, even one that was killed.
    """

    COMMIT_EVERY_S = 1.0

    def __init__(
        self,
        bus: Bus,
        topics: Sequence[str],
        handle: BatchHandler,
        linger_s: float = 0.0,
        seat: str | None = None,
    ) -> None:
        super().__init__(bus, topics, bus.settings.bus_watch_s)
        self._handle = handle
        self._seat = seat
        self._linger_s = linger_s

    async def _read(self) -> None:
        settings = self._bus.settings
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        broker = KafkaBroker(
            settings.kafka_bootstrap,
            security=_security(settings),
            client_id=f"muster-{self._bus.me.value}",
            allow_auto_create_topics=False,
            consumer_only=True,
            apply_types=False,
            graceful_timeout=None,  # a batch that is cut off is read again
            logger=_Failures(failed),
        )
        subscriber = broker.subscriber(
            *self._topics,
            batch=True,
            max_records=settings.batch_records,
            batch_timeout_ms=FOREVER_MS,
            parser=_unparsed,
            decoder=_undecoded,
            group_id=group_of(self._bus.me),
            group_instance_id=self._seat,
            ack_policy=AckPolicy.MANUAL,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=settings.fetch_wait_busy_ms,
            session_timeout_ms=int(settings.group_session_s * 1000),
            heartbeat_interval_ms=int(settings.group_session_s * 1000 / 3),
            # A database that is away for long must not cost the membership.
            max_poll_interval_ms=24 * 3600 * 1000,
        )
        reading = _Reading(self._handle, settings.batch_records, self._linger_s, failed)
        subscriber(reading.on_batch)
        try:
            async with asyncio.timeout(settings.bus_timeout_s):
                await broker.start()
            assert subscriber.consumer is not None
            reading.consumer = subscriber.consumer
            await self._watch(reading)
        finally:
            failed.cancel()
            await end_in_time(broker.stop(), settings.shutdown_s)

    async def _watch(self, reading: "_Reading") -> None:
        """Until the bus is another one, or reading failed, which raises: commit offsets, and fetch
        rarely while nothing comes.
        """
        committed = time.monotonic()
        while not self._rebuild.is_set():
            done, _ = await asyncio.wait({reading.failed}, timeout=WATCH_S)
            if done:
                reading.failed.result()
            self._note_allowed()
            self._waits.adapt(reading.consumer, reading.take_activity())
            if time.monotonic() - committed >= self.COMMIT_EVERY_S:
                committed = time.monotonic()
                await _commit(reading.consumer, reading.take_offsets())


class _Reading:
    """What FastStream's subscriber calls with each batch. ``failed``: reading can't go on."""

    consumer: AIOKafkaConsumer

    def __init__(
        self, handle: BatchHandler, limit: int, linger_s: float, failed: asyncio.Future[None]
    ) -> None:
        self._handle = handle
        self._limit = limit
        self._linger_s = linger_s
        self.failed = failed
        self._last_batch = 0
        self._is_active = False
        self._offsets: dict[TopicPartition, int] = {}

    async def on_batch(self, batch: tuple[ConsumerRecord, ...]) -> None:
        """Handle a batch. FastStream would go on with the next one after an error."""
        if self.failed.done():
            return
        self._is_active = True
        try:
            records = await self._with_company(batch)
            await self._handle([received(record) for record in records])
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            return
        for record in records:
            self._offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def _with_company(self, batch: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """The batch; under load with what comes a moment later."""
        records = list(batch)
        are_many = min(self._last_batch, len(records)) >= LINGER_FROM
        linger_s = max(LINGER_S if are_many else 0.0, self._linger_s)
        if len(records) < self._limit and linger_s > 0:
            await asyncio.sleep(linger_s)
            await self._gather(records)
        self._last_batch = len(records)
        return records

    async def _gather(self, records: list[ConsumerRecord]) -> None:
        """Add what has come, in as many fetches as it takes: the embedded broker answers each with
        one batch of a producer's.
        """
        timeout_ms, room = 0, self._limit - len(records)
        while room > 0:
            got = await self.consumer.getmany(timeout_ms=timeout_ms, max_records=room)
            more = [record for batch in got.values() for record in batch]
            records += more
            if len(more) < LINGER_FROM:
                break
            timeout_ms, room = int(LINGER_S * 1000), room - len(more)

    def take_activity(self) -> bool:
        """Whether there was a batch since the last call."""
        was_active, self._is_active = self._is_active, False
        return was_active

    def take_offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of which records were handled since the last call."""
        offsets, self._offsets = self._offsets, {}
        return offsets


class _Failures:
    """FastStream's logger: it logs that reading failed, where we must know."""

    def __init__(self, failed: asyncio.Future[None]) -> None:
        self._failed = failed

    def log(
        self,
        _level: int,
        message: object,
        /,
        *,
        exc_info: object = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a line of FastStream's log."""
        if isinstance(exc_info, Exception) and not self._failed.done():
            self._failed.set_exception(exc_info)


def _security(settings: ServiceSettings) -> BaseSecurity:
    """The options of a client as FastStream takes them."""
    options = settings.kafka_client()
    tls = options.get("ssl_context")
    if "sasl_mechanism" not in options:
        return BaseSecurity(tls)
    user, password = options["sasl_plain_username"], options["sasl_plain_password"]
    return SASLScram512(user, password, tls)


async def _unparsed(batch: tuple[ConsumerRecord, ...]) -> KafkaMessage:
    """The batch as FastStream's message. Its own parser fails where a header is not UTF-8."""
    return KafkaMessage(raw_message=batch, body=b"", consumer=FAKE_CONSUMER)


async def _undecoded(message: KafkaMessage) -> object:
    return message.raw_message


async def _commit(consumer: AIOKafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
    if not offsets:
        return
    try:
        await consumer.commit(offsets)
    except KafkaError as error:  # a rebalance: the partition's new member reads them again
        _log.debug("offsets were not committed", error=str(error))


async def end_in_time(ending: Awaitable[object], limit_s: float) -> None:
    """Wait for an end within a bound and ignore its failure: the caller's own error or cancellation
    continues.
    """
    try:
        async with asyncio.timeout(limit_s):
            await ending
    except BUS_ERRORS as error:
        _log.warning("a reader did not end in order", error=str(error) or type(error).__name__)


class Follower(Reader):
    """Reads whole topics from their start, without a group: broadcast messages.

    ``on_record`` is called for each record, in order within a partition; with None for a removed
    key. ``caught_up`` is set once all records from before the start are read, and reset while a
    rebuilt reader reads them again. ``partitions``: how many each topic has, once they are read.
    """

    def __init__(
        self, bus: Bus, topics: Sequence[str], on_record: OnRecord, *, from_start: bool = True
    ) -> None:
        super().__init__(bus, topics, bus.settings.bus_watch_s)
        self._on_record = on_record
        self._from_start = from_start
        self.caught_up = asyncio.Event()
        self.partitions: dict[str, int] = {}

    async def _read(self) -> None:
        self.caught_up.clear()
        settings = self._bus.settings
        consumer = AIOKafkaConsumer(
            *self._topics,
            **settings.kafka_client(),
            client_id=f"muster-{self._bus.name}",
            group_id=None,
            auto_offset_reset="earliest" if self._from_start else "latest",
            fetch_max_wait_ms=settings.fetch_wait_busy_ms,
        )
        try:
            async with asyncio.timeout(settings.bus_timeout_s):
                await consumer.start()
                partitions = consumer.assignment()
                starts = await consumer.beginning_offsets(partitions)
                ends = await consumer.end_offsets(partitions)
            await self._follow(consumer, {p: end for p, end in ends.items() if end > starts[p]})
        finally:
            await end_in_time(consumer.stop(), settings.shutdown_s)

    async def _follow(self, consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> None:
        behind = set(ends) if self._from_start else set()
        while not self._rebuild.is_set():
            if not behind:
                self.caught_up.set()
            for topic in self._topics:  # they may get more
                self.partitions[topic] = len(consumer.partitions_for_topic(topic) or ())
            got = await consumer.getmany(timeout_ms=200, max_records=500)
            self._note_allowed()
            self._waits.adapt(consumer, any(p.topic not in BEATS for p in got))
            for batch in got.values():
                for record in batch:
                    self._take(received(record))
            # Not the last record's offset: the end may be no record that anybody gets.
            for partition in tuple(behind):
                if await consumer.position(partition) >= ends[partition]:
                    behind.discard(partition)

    def _take(self, record: Received) -> None:
        self._bus.metrics.received.labels(record.topic).inc()
        try:
            model = None if record.value is None else record.model()
        except Broken as error:
            self._bus.metrics.dead.labels(record.topic).inc()
            _log.warning("a record can't be read", topic=record.topic, reason=str(error))
            return
        try:
            self._on_record(record, model)
        except Exception:  # else it would end the service, at each start anew
            self._bus.metrics.dead.labels(record.topic).inc()
            _log.exception("a record can't be handled", topic=record.topic, key=record.key)


def received(record: object) -> Received:
    """A record of aiokafka's as Muster's."""
    raw = record  # aiokafka.ConsumerRecord, which has no types
    return Received(
        topic=raw.topic,  # type: ignore[attr-defined]
        partition=raw.partition,  # type: ignore[attr-defined]
        offset=raw.offset,  # type: ignore[attr-defined]
        key=None if raw.key is None else _text(raw.key),  # type: ignore[attr-defined]
        headers={k: _text(v or b"") for k, v in raw.headers},  # type: ignore[attr-defined]
        value=raw.value,  # type: ignore[attr-defined]
    )


def _text(raw: bytes) -> str:
    """Text that a database accepts, also of a foreign record."""
    return raw.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
