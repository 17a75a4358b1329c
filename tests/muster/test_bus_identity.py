"""A service recognises another bus behind the same address, whatever its broker is."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from aiokafka.client import AIOKafkaClient
from bare_bus import a_bus
from cli.embedded.apache import ApacheKafka
from cli.embedded.process import free_port
from confluent_kafka import Producer
from muster.bus import BUS_ERRORS, Bus
from muster.bus_identity import Identity, read_identity
from muster.contracts.bus_identity import IDENTITY_TOPIC
from muster.contracts.topics import EVERY_TOPIC
from muster.errors import Transient

WAIT_S = 60
BROKERS = 3
WITHOUT_RANDOM_ADDRESSES = ("setarch", "-R")


@contextmanager
def a_broker(port: int, started_by: Sequence[str] = ()) -> Iterator[None]:
    """The embedded broker, killed without mercy at the end of the block."""
    command = [*started_by, sys.executable, "-m", "cli.embedded.broker", "--port", str(port)]
    with subprocess.Popen([*command, *EVERY_TOPIC], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready 127.0.0.1:{port}\n"
        try:
            yield
        finally:
            process.kill()


async def identity_other_than(bus: Bus, before: str | None) -> str:
    while bus.identity in (None, before):
        await asyncio.sleep(0.02)
    return str(bus.identity)


async def another_look(bus: Bus) -> None:
    bus.is_up = False
    while not bus.is_up:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("started_by", [(), WITHOUT_RANDOM_ADDRESSES])
async def test_each_broker_on_a_port_is_another_bus_and_each_is_notified_once(
    started_by: Sequence[str],
) -> None:
    port, notified = free_port(), list[str | None]()
    bus, seen = a_bus(f"127.0.0.1:{port}"), list[str]()
    bus.on_new_bus.append(lambda: notified.append(bus.identity))
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        watching = group.create_task(bus.run())
        for _ in range(BROKERS):
            with a_broker(port, started_by):
                seen.append(await identity_other_than(bus, seen[-1] if seen else None))
                await another_look(bus)
        watching.cancel()
    assert len(set(seen)) == BROKERS
    assert notified == seen[1:]
    await bus.close()


async def test_a_client_that_outlives_its_broker_reads_the_identity_of_the_next() -> None:
    port, seen = free_port(), set[str]()
    async with asyncio.timeout(WAIT_S):
        with a_broker(port):
            client = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{port}")
            await client.bootstrap()
            seen.add((await read_identity(client)).id)
        with a_broker(port):
            while len(seen) == 1:
                with suppress(*BUS_ERRORS):  # it finds its connection closed first
                    seen.add((await read_identity(client)).id)
        await client.close()


async def test_the_embedded_broker_is_there_once_its_identity_is_written() -> None:
    broker = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    (node,) = broker.list_topics(timeout=WAIT_S).brokers.values()
    client = AIOKafkaClient(bootstrap_servers=f"{node.host}:{node.port}")
    await client.bootstrap()
    for _ in range(2):  # a look makes no topic
        with pytest.raises(Transient, match="UnknownTopic"):
            await read_identity(client)
    broker.list_topics(IDENTITY_TOPIC, timeout=WAIT_S)  # this one does
    with pytest.raises(Transient, match="no record"):
        await read_identity(client)
    broker.produce(IDENTITY_TOPIC, "first", partition=0)
    broker.produce(IDENTITY_TOPIC, "second", partition=0)
    assert broker.flush(WAIT_S) == 0
    assert await read_identity(client) == Identity("first", is_embedded=True)
    await client.close()


@pytest.mark.apache
async def test_apache_kafka_is_another_bus_with_other_data_alone(
    apache_kafka: ApacheKafka,
) -> None:
    bus, notified = a_bus(apache_kafka.bootstrap), list[str | None]()
    bus.on_new_bus.append(lambda: notified.append(bus.identity))
    async with asyncio.timeout(3 * WAIT_S), asyncio.TaskGroup() as group:
        watching = group.create_task(bus.run())
        first = await identity_other_than(bus, None)
        await asyncio.to_thread(apache_kafka.kill)
        await asyncio.to_thread(apache_kafka.start)
        await another_look(bus)
        assert bus.identity == first
        await asyncio.to_thread(apache_kafka.kill)
        shutil.rmtree(apache_kafka.home / "data")
        await asyncio.to_thread(apache_kafka.start)
        second = await identity_other_than(bus, first)
        await another_look(bus)
        watching.cancel()
    assert notified == [second]
    await bus.close()
