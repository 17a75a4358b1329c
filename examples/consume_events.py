"""Follow Muster's events with any Kafka client; this one is aiokafka (pip install aiokafka).

python examples/consume_events.py 127.0.0.1:9092 job-updated alert-raised

The settings MUSTER_KAFKA_SECURITY_PROTOCOL, _USER, _PASSWORD and _CA_FILE are those of services.
"""

import asyncio
import json
import os
import ssl
import sys

from aiokafka import AIOKafkaConsumer

env = os.environ.get
LOG_IN = {
    "security_protocol": env("MUSTER_KAFKA_SECURITY_PROTOCOL", "PLAINTEXT"),
    "ssl_context": ssl.create_default_context(cafile=env("MUSTER_KAFKA_CA_FILE")),
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_plain_username": env("MUSTER_KAFKA_USER"),
    "sasl_plain_password": env("MUSTER_KAFKA_PASSWORD"),
}


async def main(bootstrap: str, *topics: str) -> None:
    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest", **LOG_IN
    )
    async with consumer:
        async for record in consumer:  # a CloudEvent: attributes in headers, JSON as the value
            headers = {name: value.decode() for name, value in record.headers}
            print(headers["ce_type"], headers["ce_id"], json.loads(record.value), flush=True)


asyncio.run(main(*sys.argv[1:]))
