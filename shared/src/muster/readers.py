"""Readers of the bus: the service's member of its consumer group, whose batches are handled in one
transaction each, and followers without a group for one-way words.

Offsets are committed lazily, and a bus that was thrown away is read from its start again.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

from muster import batches
from muster.bus import BUS_ERRORS, LINGER_FROM, LINGER_S, Bus
from muster.contracts.model import Model
from muster.errors import Broken
from muster.records import Received
from muster.settings import ServiceSettings

_log = structlog.get_logger()

batches.install()

HEARTBEATS = "node-heartbeat"
"""The topic whose records never hurry: they don't make a reader busy."""

QUIET_PER_WAIT = 20

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
    """Reads until cancelled; a reader that failed, or that lost its bus, is built anew.

    ``pause_s``: how long after a failure. ``restarts``: how often it was built anew. A subclass
    reads in ``_read`` until ``_rebuild`` is set.
    """

    def __init__(self, bus: Bus, pause_s: float) -> None:
        self._bus = bus
        self._pause_s = pause_s
        self.restarts = 0
        self._rebuild = asyncio.Event()
        self._waits = FetchWaits(bus.settings)
        bus.on_new_bus.append(self._rebuild.set)

    async def run(self) -> None:
        """Read until cancelled.

        Nothing is committed at its end: the offsets could be those of another bus.
        """
        while True:
            self._rebuild.clear()
            try:
                await self._read()
            except BUS_ERRORS as error:
                _log.warning("reading failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(self._pause_s)
            if _is_cancelled():  # the ends of aiokafka's clients swallow it
                raise asyncio.CancelledError
            self.restarts += 1
            self._bus.metrics.rebuilt.inc()

    @abstractmethod
    async def _read(self) -> None: ...


class Consumer(Reader):
    """The service's member of its consumer group: reads its topics in batches, in order.

    ``handle`` gets up to ``batch_records`` records and returns when they are safe; it never raises
    for what passes. ``linger_s``: how long the first record of a batch waits for company, where
    nobody waits for what comes of it. ``seat``: of a group that has one member at a time, whoever
    it is: who comes takes the place of the one before at once, even of one that was killed.
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
        super().__init__(bus, bus.settings.bus_watch_s)
        self._topics = tuple(topics)
        self._handle = handle
        self._seat = seat
        self._linger_s = linger_s
        self._last_batch = 0

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
            group_instance_id=self._seat,
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
        are_many = min(self._last_batch, len(records)) >= LINGER_FROM
        linger_s = max(LINGER_S if are_many else 0.0, self._linger_s)
        if 0 < len(records) < limit and linger_s > 0:
            await asyncio.sleep(linger_s)
            got = await consumer.getmany(timeout_ms=0, max_records=limit - len(records))
            records += [received(r) for batch in got.values() for r in batch]
        self._last_batch = len(records)
        return records


async def _commit(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.commit()
    except KafkaError as error:  # a rebalance: whoever has the partition now reads them again
        _log.debug("offsets were not committed", error=str(error))


def _is_cancelled() -> bool:
    """This task was told to end, whoever has caught that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end_in_time(ending: Awaitable[object], limit_s: float) -> None:
    """Let something end, however long it would take and whatever it meets: the caller's own error
    or cancellation goes on from here.
    """
    try:
        async with asyncio.timeout(limit_s):
            await ending
    except BUS_ERRORS as error:
        _log.warning("a reader did not end in order", error=str(error) or type(error).__name__)


class Follower(Reader):
    """Reads whole topics from their start, without a group: one-way words.

    ``on_record`` is called for each record, in order within a partition; with None for a removed
    key. ``caught_up`` is set while all that was there at the start has been read, and not while a
    reader that was built anew reads it again. ``partitions``: how many each topic has, once they
    are read.
    """

    def __init__(
        self, bus: Bus, topics: Sequence[str], on_record: OnRecord, *, from_start: bool = True
    ) -> None:
        super().__init__(bus, bus.settings.bus_watch_s)
        self._topics = tuple(topics)
        self._on_record = on_record
        self._from_start = from_start
        self.caught_up = asyncio.Event()
        self.partitions: dict[str, int] = {}

    async def _read(self) -> None:
        self.caught_up.clear()
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
    """Text that a database takes, whatever a stranger wrote."""
    return raw.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
