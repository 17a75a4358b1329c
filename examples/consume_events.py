"""Follow Muster's events with any Kafka client; this one is aiokafka (pip install aiokafka).

python examples/consume_events.py 127.0.0.1:9092 job-updated alert-raised
"""

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer


async def main(bootstrap: str, *topics: str) -> None:
    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest"
    )
    async with consumer:
        async for record in consumer:  # a CloudEvent: attributes in headers, JSON as the value
            headers = {name: value.decode() for name, value in record.headers}
            print(headers["ce_type"], headers["ce_id"], json.loads(record.value), flush=True)


asyncio.run(main(*sys.argv[1:]))
