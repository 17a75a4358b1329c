"""Foreign records on the bus, and clocks that go back, end no service and stop no message."""

import asyncio
import json

import asyncpg
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from confluent_kafka import Producer
from muster.contracts.topics import Kind, Service
from muster.decisions import Publish
from muster.service import Runtime
from muster.subjects import publish_all
from toy_services import answers, both, eventually, request, submit, unsettled

BATCHES, BATCH, LONG = 15, 20, 160_000
"""300 messages of 160 kB: 48 MB, two thirds of them measured."""

WAIT_S = 60
LONG_WAIT_S = 240
"""Until all those messages arrived, on a starved machine."""

ODD_RECORDS: list[tuple[bytes, bytes, list[tuple[str, bytes | None]]]] = [
    (b"\xff{", b"nul\0key", []),
    (b'{"job": 7}', b"x", [("ce_id", b"rest/job/nul\0name/1")]),
    (b'{"job": 7}', b"x", [("ce_id", b"rest/job/odd/" + b"9" * 40)]),
    (b'{"job": 7}', b"x", [("ce_id", "rest/job/odd/²".encode()), ("traceparent", b"\0\xff")]),
    (b'{"job": 7}', b"x", [("ce_id", b"rest/job/" + b"long" * 2000 + b"/1")]),
    (b"", b"", []),
    (b"", b"k", [("ce_id", None), ("x", b"")]),
    (b"a", b"k", [("ce_id", b"twice")]),
    (b"b", b"k", [("ce_id", b"twice")]),
    (b"", b"k" * 300_000, [("traceparent", b"\x01" * 100_000), ("ce_id", b"i" * 400_000)]),
]


def odd_messages() -> list[bytes]:
    """Messages with a name or a revision that no database takes."""
    good = json.loads(request("j", "n").model_dump_json(by_alias=True))
    odd: list[dict[str, object]] = [
        {"job": "nul\0"},
        {"job": "long" * 2000},
        {"job": ""},
        {"revision": 2**70},
        {"revision": -1},
        {"seen": 2**63},
    ]
    return [json.dumps(good | {"revision": 1} | changes).encode() for changes in odd]


async def test_odd_records_become_dead_letters_and_end_nobody(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        producer = AIOKafkaProducer(bootstrap_servers=fresh_broker.bootstrap)
        await producer.start()
        for value, key, headers in ODD_RECORDS:
            await producer.send_and_wait("job-submitted", value, key=key, headers=headers)
        for value in odd_messages():
            await producer.send_and_wait("job-submitted", value, key=b"k")
        acknowledged = {"sender": "rest", "receiver": "launcher"}
        for applied in (
            {"kind": "job", "subject": "nul\0", "revision": 1, "senderRevision": 1},
            {"kind": "no such kind", "subject": "j", "revision": 1, "senderRevision": 1},
            {"kind": "job", "subject": "j", "revision": 2**70, "senderRevision": 1},
        ):
            value = json.dumps(acknowledged | {"applied": [applied]}).encode()
            await producer.send_and_wait("revision-acknowledged", value, key=b"k")
        await producer.stop()
        await submit(rest, "j", "after")
        await eventually(lambda: answers(rest), {"j": "AFTER"})
        await eventually(lambda: unsettled(rest, launcher), 0)

        async def rejected() -> float | None:
            return launcher.registry.get_sample_value(
                "muster_dead_letters_total", {"topic": "job-submitted"}
            )

        await eventually(rejected, float(len(ODD_RECORDS) + len(odd_messages())))
        letters = await dead_letters_on(fresh_broker, len(ODD_RECORDS) + len(odd_messages()))
        assert {letter["value"] for letter in letters} >= {"a", "b"}, "one took another's place"


async def dead_letters_on(broker: EmbeddedBroker, count: int) -> list[dict[str, object]]:
    """The first so many dead letters of submissions."""
    consumer = AIOKafkaConsumer(
        "job-submitted.dead-letter",
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async with asyncio.timeout(WAIT_S):
            return [json.loads((await consumer.getone()).value) for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_records_that_others_compress_are_read(
    codec: str, database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        message = request("j", "n" * 1000).model_dump_json().encode()
        producer = Producer(
            {"bootstrap.servers": fresh_broker.bootstrap, "compression.type": codec}
        )
        producer.produce("job-submitted", message.replace(b'"revision":0', b'"revision":1'), b"j")
        assert await asyncio.to_thread(producer.flush, WAIT_S) == 0

        async def answered() -> bool:
            return "j" in await answers(rest)

        await eventually(answered, True)


async def test_a_message_that_waits_for_a_clock_that_went_back_is_published_soon(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await submit(rest, "j", "patient")
        await eventually(lambda: unsettled(rest, launcher), 0)
        # As the rows look when the database's clock goes back by an hour amid an exchange.
        await rest.pool.execute(
            "UPDATE subject SET acknowledged = 0, repeat_at = now() + interval '1 hour'"
        )
        await launcher.pool.execute("UPDATE subject SET answer_at = now() + interval '1 hour'")
        await eventually(lambda: unsettled(rest, launcher), 0)


@pytest.mark.timeout(600)
async def test_memory_stays_bounded_while_the_bus_is_away(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    """The messages of an hour at some a second: they wait in rows, not in memory."""
    process = psutil.Process()
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await submit(rest, "first", "first")
        await eventually(lambda: answers(rest), {"first": "FIRST"})
        fresh_broker.kill()
        await write(rest, 0, BATCHES // 3)  # buffers and pools have their size then
        before = process.memory_info().rss
        await write(rest, BATCHES // 3, BATCHES)
        grown = process.memory_info().rss - before
        assert grown < BATCHES * BATCH * LONG / 4, f"{grown / 2**20:.0f} MiB more"
        fresh_broker.start()

        async def left() -> object:
            return await rest.pool.fetchval(
                "SELECT count(*) FROM subject WHERE repeat_at IS NOT NULL"
            )

        await eventually(left, 0, LONG_WAIT_S)


@pytest.mark.timeout(600)
async def test_memory_stays_bounded_while_the_database_is_away(
    database_url: str, postgres_server: EmbeddedPostgres, fresh_broker: EmbeddedBroker
) -> None:
    """Others go on publishing: their messages wait on the bus, not in memory."""
    process, name = psutil.Process(), database_url.rpartition("/")[2]
    async with (
        both(database_url, fresh_broker.bootstrap) as (rest, launcher),
        asyncpg.create_pool(postgres_server.dsn, min_size=1) as admin,
    ):
        await submit(rest, "first", "first")
        await eventually(lambda: answers(rest), {"first": "FIRST"})
        await admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
        )
        await publish_elsewhere(fresh_broker.bootstrap, 0, BATCHES // 3)
        before = process.memory_info().rss
        await publish_elsewhere(fresh_broker.bootstrap, BATCHES // 3, BATCHES)
        grown = process.memory_info().rss - before
        assert grown < BATCHES * BATCH * LONG / 4, f"{grown / 2**20:.0f} MiB more"
        await admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")

        async def last() -> object:
            return await launcher.pool.fetchval(
                "SELECT text FROM toy WHERE job = $1", f"j{BATCHES - 1}-{BATCH - 1}"
            )

        await eventually(last, "x" * LONG, LONG_WAIT_S)


async def publish_elsewhere(bootstrap: str, first: int, last: int) -> None:
    """Batches of large messages by another producer; none of it stays here."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for batch in range(first, last):
        names = [f"j{batch}-{n}" for n in range(BATCH)]
        for job in names:
            message = request(job, "x" * LONG).model_copy(update={"revision": 1})
            value = message.model_dump_json(by_alias=True).encode()
            await producer.send("job-submitted", value, key=job.encode())
        await producer.flush()
    await producer.stop()


async def write(rest: Runtime, first: int, last: int) -> None:
    """Batches of large messages."""
    for batch in range(first, last):
        async with rest.relay.transaction() as opened:
            names = [f"j{batch}-{n}" for n in range(BATCH)]
            message = "x" * LONG
            jobs = [Publish(Kind.JOB, n, "job-submitted", n, request(n, message)) for n in names]
            await publish_all(opened, Service.REST, jobs)
