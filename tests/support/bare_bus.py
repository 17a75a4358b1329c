"""A bus without a service: what its tests share."""

import itertools
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from bus_logins import bus_settings, kafka_client
from cli.embedded.apache import ADMINISTRATOR
from muster.bus import Bus, partition_of
from muster.contracts.nodes import NodeHeartbeat
from muster.contracts.services import SERVICE_STARTED, ServiceStarted
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry


def a_bus(
    bootstrap: str, user: str = ADMINISTRATOR, me: Service = Service.SCHEDULER, **more: Any
) -> Bus:
    settings = ServiceSettings(
        **(bus_settings(bootstrap, user) | more),
        bus_watch_s=0.1,
        bus_timeout_s=6,
        fetch_wait_busy_ms=10,
    )
    return Bus(settings, me, PlumbingMetrics(CollectorRegistry()))


async def heartbeats(bus: Bus, names: Sequence[str]) -> None:
    for name in names:
        beat = NodeHeartbeat(node=name, journal="j")
        await bus.broadcast("node-heartbeat", name, beat, event_id=f"x/{name}", at=0.0)


def keys_of(partition: int, count: int) -> list[str]:
    """Keys whose records go to one of the four partitions that each topic has here."""
    found = (f"k{n}" for n in itertools.count())
    return list(itertools.islice((k for k in found if partition_of(k, 4) == partition), count))


async def published_beat(bootstrap: str, service: str) -> int:
    """The highest beat of a service on the bus."""
    consumer = AIOKafkaConsumer(SERVICE_STARTED, **kafka_client(bootstrap), group_id=None)
    async with consumer:
        places = consumer.assignment()
        ends = await consumer.end_offsets(places)
        starts = await consumer.beginning_offsets(places)
        await consumer.seek_to_beginning(*places)
        left = sum(ends[place] - starts[place] for place in places)
        records = [
            ServiceStarted.model_validate_json((await anext(consumer)).value) for _ in range(left)
        ]
    return max((each.revision for each in records if each.service == service), default=0)


async def unread(bootstrap: str, group: str, topics: Sequence[str]) -> int:
    """How many records of these topics the group has not committed."""
    async with AIOKafkaConsumer(*topics, **kafka_client(bootstrap), group_id=None) as consumer:
        places = list(consumer.assignment())
        ends = await consumer.end_offsets(places)
        starts = await consumer.beginning_offsets(places)
    admin = AIOKafkaAdminClient(**kafka_client(bootstrap))
    await admin.start()
    try:
        done = await admin.list_consumer_group_offsets(group, partitions=places)
    finally:
        await admin.close()
    return sum(ends[place] - max(done[place].offset, starts[place]) for place in places)
