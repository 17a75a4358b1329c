"""Reads topics for one outsider, from the positions where it left off, without a group.

A position is a place in a partition of one bus. Records that are older than the topic's retention,
or of an earlier bus, are gone: the stream then goes on with the oldest one, and says that there is
a gap.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from muster.bus import BUS_ERRORS
from muster.bus_identity import read_identity
from muster.errors import Transient
from muster.readers import end_in_time, received
from muster.records import Received
from muster.settings import KafkaSettings

FETCH_BYTES = 256 * 1024
WAIT_MS = 1_000
MOST_RECORDS = 100
RETRY_S = 1.0
BUS_DIGITS = 8

NOWHERE = -1
"""A position that no partition has any more."""

Positions = Mapping[tuple[str, int], int]
"""The next offset of each partition of each topic."""


Batch = Sequence[tuple[Received, Positions]]
"""Records, each with the positions after it."""


@dataclass(frozen=True, slots=True)
class RecordStream:
    """An open stream. ``bus``: a short id of the one that it reads; ``start``: where it
    begins; ``has_gap``: some records before are gone.
    """

    bus: str
    start: Positions
    has_gap: bool
    batches: AsyncIterator[Batch]


@asynccontextmanager
async def record_stream(
    settings: KafkaSettings,
    topics: Sequence[str],
    bus: str | None,
    positions: Positions,
    limit_s: float,
) -> AsyncIterator[RecordStream]:
    """The records of ``topics`` after ``positions`` of ``bus``, None where that is not known; of
    other topics those that come from now on. A partition that is new since then is read from its
    start. Raises Transient where the bus does not answer within ``limit_s``.
    """
    client = AIOKafkaClient(**settings.kafka_client())  # the consumer's waits for its fetches
    consumer = AIOKafkaConsumer(
        *topics,
        **settings.kafka_client(),
        group_id=None,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
        request_timeout_ms=int(limit_s * 1000),
    )
    try:
        try:
            async with asyncio.timeout(limit_s):
                await client.bootstrap()
                here = await _bus(client)
                await consumer.start()
                if bus not in (None, here):
                    positions = dict.fromkeys(positions, NOWHERE)
                start, has_gap = await _seek(consumer, positions)
        except BUS_ERRORS as error:
            raise Transient("The bus does not answer; try again later.") from error

        async def check() -> None:
            """Raises Transient where the bus is another one, or does not answer in time."""
            try:
                async with asyncio.timeout(limit_s):
                    now = await _bus_again(client)
            except TimeoutError as error:
                raise Transient("The bus has stopped answering.") from error
            if now != here:
                raise Transient("The bus is another one.")

        yield RecordStream(here, start, has_gap, _batches(consumer, start, check))
    finally:
        await end_in_time(consumer.stop(), limit_s)
        await end_in_time(client.close(), limit_s)


async def _bus(client: AIOKafkaClient) -> str:
    found = await read_identity(client)
    return sha256(found.id.encode()).hexdigest()[:BUS_DIGITS]


async def _bus_again(client: AIOKafkaClient) -> str:
    """The bus, once it answers."""
    while True:
        try:
            return await _bus(client)
        except BUS_ERRORS:
            await asyncio.sleep(RETRY_S)


async def _seek(consumer: AIOKafkaConsumer, positions: Positions) -> tuple[Positions, bool]:
    parts = sorted(consumer.assignment())
    first = await consumer.beginning_offsets(parts)
    end = await consumer.end_offsets(parts)
    start, has_gap = {}, False
    topics = {topic for topic, _ in positions}
    for part in parts:
        of_new = 0 if part.topic in topics else None
        wanted = positions.get((part.topic, part.partition), of_new)
        if wanted is None:
            at = end[part]
        elif first[part] <= wanted <= end[part]:
            at = wanted
        else:  # older than the retention, of another bus, or nowhere
            at, has_gap = first[part], True
        consumer.seek(part, at)
        start[part.topic, part.partition] = at
    return start, has_gap


async def _batches(
    consumer: AIOKafkaConsumer, start: Positions, check: Callable[[], Awaitable[None]]
) -> AsyncIterator[Batch]:
    """Batches of one record or more. Raises Transient where the bus goes away, or ``check`` does,
    after each fetch: a consumer goes over to another bus silently.
    """
    at = dict(start)
    while True:
        try:
            got = await consumer.getmany(timeout_ms=WAIT_MS, max_records=MOST_RECORDS)
        except KafkaError as error:
            raise Transient("The bus has stopped answering.") from error
        await check()
        records: list[tuple[Received, Positions]] = []
        for raw in sorted((it for many in got.values() for it in many), key=_time):
            record = received(raw)
            at[record.topic, record.partition] = record.offset + 1
            records.append((record, dict(at)))
        if records:
            yield records


def _time(raw: object) -> int:
    at: int = raw.timestamp  # type: ignore[attr-defined]  # aiokafka has no types
    return at
