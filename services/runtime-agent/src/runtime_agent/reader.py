"""Reads this node's records: one partition of two topics, without a group.

Only the partition of the node's key is read; when the number of partitions changes, the old and the
new one are read for a day. The journal keeps the offset, in the same transaction as the records'
effects. Without a usable offset reading begins at the end: senders republish what was missed. No
pod is launched until the records from before the start are read (`caught_up`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from muster.bus import Bus, partition_of
from muster.errors import Transient
from muster.readers import Reader, end_in_time, received
from muster.records import Received

from runtime_agent.settings import AgentSettings
from runtime_agent.store import Journal, Partitions, Position

TOPICS = ("pod-requested", "revision-acknowledged")
POLL_MS = 200
NAME_POLL_S = 0.02
SAVE_POSITION_S = 5.0
"""Places behind records of other nodes are written this often."""

_log = structlog.get_logger()

OnBatch = Callable[[Sequence[Received], Sequence[Position]], None]


class PartitionReader(Reader):
    """`on_batch` gets this node's records and the places behind them; it may raise sqlite3.Error,
    and is then called again with the same until the disk takes it. `has_begun` is set once no later
    record can be missed. `caught_up` is set once all records from before the start are read, and
    reset while a rebuilt reader reads what it missed: until then the request that revokes another
    one may be unread. Nor is it set before `recovered`: what the journal does not know may hold
    what a request gives to another pod.
    """

    def __init__(
        self,
        bus: Bus,
        settings: AgentSettings,
        journal: Journal,
        on_batch: OnBatch,
        recovered: asyncio.Event,
    ) -> None:
        super().__init__(bus, TOPICS, settings.retry_s)
        self._settings = settings
        self._on_batch = on_batch
        self._journal = journal
        self._recovered = recovered
        self._positions = {(p.topic, p.number): p for p in journal.positions()}
        self._partitions = journal.partitions()
        self._saved_s = 0.0
        self._ends: Mapping[TopicPartition, int] = {}
        self.has_begun = asyncio.Event()
        self.caught_up = asyncio.Event()

    async def _read(self) -> None:
        while (bus := self._bus.identity) is None:
            await asyncio.sleep(NAME_POLL_S)
        consumer = AIOKafkaConsumer(
            *TOPICS,
            **self._settings.kafka_client(),
            client_id=f"muster-agent-{self._settings.node}",
            group_id=None,
            metadata_max_age_ms=int(self._settings.partitions_look_s * 1000),
            auto_offset_reset="earliest",
            fetch_max_wait_ms=self._settings.fetch_wait_busy_ms,
        )
        try:
            async with asyncio.timeout(self._settings.bus_timeout_s):
                await consumer.start()
                partitions = await self._assignment(consumer, bus)
                consumer.unsubscribe()
                consumer.assign(partitions)
                await self._seek(consumer, partitions, bus)
            await self._hand_over(())
            self.has_begun.set()
            self._note_read()
            await self._follow(consumer, bus)
        finally:
            await end_in_time(consumer.stop(), self._settings.shutdown_s)

    async def _assignment(self, consumer: AIOKafkaConsumer, bus: str) -> list[TopicPartition]:
        """The node's own, and those that were its own less than a day ago."""
        found = []
        known = {}
        for topic in TOPICS:
            count = len(consumer.partitions_for_topic(topic) or ())
            if count == 0:
                raise Transient(f"the bus does not know the topic {topic} yet")
            known[topic] = partitions_now(
                self._partitions.get(topic), bus, count, self._settings, time.time()
            )
            own = partition_of(self._settings.node, count)
            found += [TopicPartition(topic, n) for n in sorted({own, *known[topic].retired})]
        if known != self._partitions:
            _log.info("partitions", counts={topic: each.count for topic, each in known.items()})
            await self._until_written(lambda: self._journal.keep_partitions(known))
        self._partitions = known
        return found

    async def _seek(
        self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition], bus: str
    ) -> None:
        begins = await consumer.beginning_offsets(partitions)
        ends = await self._note_ends(consumer, partitions)
        for partition in partitions:
            key = (partition.topic, partition.partition)
            place = self._positions.get(key)
            first = _start(place, bus, begins[partition], ends[partition])
            consumer.seek(partition, first)
            self._positions[key] = Position(*key, bus, first)

    async def _note_ends(
        self, consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """From now on there is more to read, up to these ends."""
        self._ends = await consumer.end_offsets(partitions)
        self.caught_up.clear()
        return self._ends

    async def _follow(self, consumer: AIOKafkaConsumer, bus: str) -> None:
        looked = time.monotonic()
        while not self._rebuild.is_set():
            got = await consumer.getmany(
                timeout_ms=POLL_MS, max_records=self._settings.batch_records
            )
            self._note_allowed()
            records = [received(record) for batch in got.values() for record in batch]
            own = [record for record in records if record.key == self._settings.node]
            self._waits.adapt(consumer, bool(own))
            for record in own:
                self._bus.metrics.received.labels(record.topic).inc()
            if any(batch[0].offset < self._next(partition) for partition, batch in got.items()):
                # Another bus, before it is known as one, or one that has lost records.
                await self._note_ends(consumer, consumer.assignment())
            for partition, batch in got.items():
                place = Position(
                    partition.topic, partition.partition, bus, int(batch[-1].offset) + 1
                )
                self._positions[(place.topic, place.number)] = place
            if own or (got and time.monotonic() - self._saved_s > SAVE_POSITION_S):
                await self._hand_over(own)
            self._note_read()
            if time.monotonic() - looked > self._settings.partitions_look_s:
                looked = time.monotonic()
                if any(
                    len(consumer.partitions_for_topic(topic) or ()) != each.count
                    for topic, each in self._partitions.items()
                ):
                    return

    def _note_read(self) -> None:
        """To be called when all that was read has been handed over."""
        if self._recovered.is_set() and all(
            self._next(partition) >= end for partition, end in self._ends.items()
        ):
            self.caught_up.set()

    def _next(self, partition: TopicPartition) -> int:
        return self._positions[partition.topic, partition.partition].next

    async def _hand_over(self, records: Sequence[Received]) -> None:
        positions = tuple(self._positions.values())
        await self._until_written(lambda: self._on_batch(records, positions))
        self._saved_s = time.monotonic()

    async def _until_written(self, write: Callable[[], None]) -> None:
        """Until the disk takes it; meanwhile nothing more is read."""
        while True:
            try:
                write()
            except sqlite3.Error as error:
                self._bus.metrics.retries.labels("journal").inc()
                _log.error("the journal can't be written; trying again", error=str(error))
                await asyncio.sleep(self._settings.retry_s)
            else:
                return


def partitions_now(
    before: Partitions | None, bus: str, count: int, settings: AgentSettings, now_s: float
) -> Partitions:
    """What is to be known of a topic that has `count` partitions now. `now_s`: Unix time.

    A bus of another name holds nothing that was written for an older number.
    """
    if before is None or before.bus != bus:
        return Partitions(bus, count)
    retired = dict(before.retired)
    if before.count != count:
        retired[partition_of(settings.node, before.count)] = now_s + settings.old_partition_s
    own = partition_of(settings.node, count)
    retired = {
        number: until
        for number, until in retired.items()
        if until > now_s and number != own and number < count
    }
    return Partitions(bus, count, retired)


def _start(place: Position | None, bus: str, begin: int, end: int) -> int:
    """Where to begin. A bus of another name is read whole, for all of it is new."""
    if place is None:
        return end
    if place.bus != bus:
        return begin
    return place.next if begin <= place.next <= end else end
