"""A plain Kafka consumer, which knows nothing of Muster, understands its topics by the document."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from bus_logins import kafka_client
from cli.embedded.broker import EmbeddedBroker
from jsonschema import Draft202012Validator
from whole_muster import Muster, a_job

pytestmark = pytest.mark.system

DOCUMENT = Path(__file__).parents[2] / "docs" / "asyncapi.json"


def validator(document: dict[str, Any], topic: str, part: str) -> Draft202012Validator:
    """The document's schema of a topic's payload or headers."""
    (channel,) = [c for c in document["channels"].values() if c["address"] == topic]
    (message,) = channel["messages"].values()
    schema = document["components"]["messages"][message["$ref"].rsplit("/", 1)[1]][part]
    return Draft202012Validator(schema | {"components": document["components"]})


async def test_records_are_as_in_the_asyncapi_document(
    muster: Muster, fresh_broker: EmbeddedBroker
) -> None:
    name = await muster.submit(a_job("fails", "exit 3", gpus=1))
    assert await muster.end_of(name) == "FAILED"
    document = json.loads(DOCUMENT.read_text())
    topics = {"job-submitted", "placement-decided", "pod-failed", "job-updated"}
    consumer = AIOKafkaConsumer(
        *topics, **kafka_client(fresh_broker.bootstrap), auto_offset_reset="earliest"
    )
    await consumer.start()
    read: dict[str, Any] = {}
    try:
        async with asyncio.timeout(60):
            while read.keys() != topics:
                record = await consumer.getone()
                headers = {key: value.decode() for key, value in record.headers}
                value = json.loads(record.value)
                read.setdefault(record.topic, value)  # the first one: the last is about its end
                validator(document, record.topic, "payload").validate(value)
                validator(document, record.topic, "headers").validate(headers)
    finally:
        await consumer.stop()
    assert read["job-submitted"]["spec"]["taskRoles"][0]["command"] == "exit 3"
    assert read["placement-decided"]["pods"][0]["node"] == "node-1"
    assert (read["pod-failed"]["exitCode"], read["pod-failed"]["verdict"]["fault"]) == (
        3,
        "unknown",
    )
