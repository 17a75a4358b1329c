"""All that a Muster has written, as texts in which a secret can be searched for."""

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from bus_logins import kafka_client
from muster.contracts.topics import EVERY_TOPIC, Service
from whole_muster import Muster


async def everything_on_the_bus(bootstrap: str) -> bytes:
    """All records that all topics have now, keys and headers too, as one text."""
    consumer = AIOKafkaConsumer(
        *EVERY_TOPIC, **kafka_client(bootstrap), auto_offset_reset="earliest"
    )
    await consumer.start()
    text = b""
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        unread = {partition for partition, end in ends.items() if end > 0}
        async with asyncio.timeout(60):
            while unread:
                for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                    for record in records:
                        headers = repr(record.headers).encode()
                        text += (record.key or b"") + (record.value or b"") + headers
                    if records[-1].offset + 1 >= ends[partition]:
                        unread.discard(partition)
    finally:
        await consumer.stop()
    return text


async def everything_in_the_database(muster: Muster) -> str:
    """Every row of every table, as one text."""
    pool = muster.runtimes[Service.REST].pool
    tables = await pool.fetch(
        "SELECT table_schema AS s, table_name AS t FROM information_schema.tables"
        " WHERE table_type = 'BASE TABLE'"
        " AND table_schema NOT IN ('pg_catalog', 'information_schema')"
    )
    text = ""
    for table in tables:
        rows = await pool.fetch(
            f'SELECT row_to_json(x)::text AS r FROM "{table["s"]}"."{table["t"]}" x'
        )
        text += "\n".join(row["r"] for row in rows)
    return text


def files_below(folder: Path) -> str:
    """The contents of all files, as one text."""
    return "".join(
        path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()
    )
