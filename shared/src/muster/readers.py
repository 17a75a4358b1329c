"""Readers of the bus, and followers, which read broadcast messages without a group.

A reader is rebuilt where its bus failed or is another one. A new bus is read from its start.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from muster import batches
from muster.bus import BUS_ERRORS, LOG_IN, Bus, is_cancelled
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
