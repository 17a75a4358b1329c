"""Reads topics for one outsider, from the positions where it left off, without a group.

A position is a place in a partition. Records that are older than the topic's retention are gone:
the stream then goes on with the oldest one, and says that there is a gap.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from muster.bus import BUS_ERRORS
from muster.errors import Transient
from muster.readers import end_in_time, received
from muster.records import Received
from muster.settings import KafkaSettings

FETCH_BYTES = 256 * 1024
WAIT_MS = 1_000
MOST_RECORDS = 100

Positions = Mapping[tuple[str, int], int]
"""The next offset of each partition of each topic."""


Batch = Sequence[tuple[Received, Positions]]
"""Records, each with the positions after it."""


@dataclass(frozen=True, slots=True)
class RecordStream:
    """An open stream. ``start``: where it begins; ``has_gap``: some records before are gone."""

    start: Positions
    has_gap: bool
    batches: AsyncIterator[Batch]


@asynccontextmanager
async def record_stream(
    settings: KafkaSettings, topics: Sequence[str], positions: Positions, limit_s: float
) -> AsyncIterator[RecordStream]:
    """The records of ``topics`` after ``positions``; of other topics those that come from now on. A
    partition that is new since then is read from its start. Raises Transient where the bus does not
    answer within ``limit_s``.
    """
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
                await consumer.start()
                start, has_gap = await _seek(consumer, positions)
        except BUS_ERRORS as error:
            raise Transient("The bus does not answer; try again later.") from error
        yield RecordStream(start, has_gap, _batches(consumer, start))
    finally:
        await end_in_time(consumer.stop(), limit_s)


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
        else:  # older than the retention, or of another bus
            at, has_gap = first[part], True
        consumer.seek(part, at)
        start[part.topic, part.partition] = at
    return start, has_gap


async def _batches(consumer: AIOKafkaConsumer, start: Positions) -> AsyncIterator[Batch]:
    """Batches of one record or more. Raises Transient where the bus goes away."""
    at = dict(start)
    while True:
        try:
            got = await consumer.getmany(timeout_ms=WAIT_MS, max_records=MOST_RECORDS)
        except KafkaError as error:
            raise Transient("The bus has stopped answering.") from error
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
