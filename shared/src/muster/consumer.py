"""The service's member of its consumer group, whose batches are handled in one transaction each.

Offsets are committed lazily: what is read twice is applied once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.kafka.message import FAKE_CONSUMER
from faststream.security import BaseSecurity, SASLScram512

from muster.bus import LINGER_FROM, LINGER_S, Bus
from muster.contracts.acls import group_of
from muster.readers import Reader, end_in_time, received
from muster.records import Received
from muster.settings import ServiceSettings

_log = structlog.get_logger()

WATCH_S = 0.5

FOREVER_MS = 10**12
"""FastStream waits this long for a batch. After a wait without one it would pause for the same time
again, and leave records that arrive meanwhile.
"""

BatchHandler = Callable[[Sequence[Received]], Awaitable[None]]


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
