"""The AsyncAPI 3.0 document: enough for a plain Kafka consumer that knows nothing of Muster.

FastStream draws it from publishers and subscribers, which the table of topics declares. This module
adds what FastStream can't draw: headers, keys, examples, clean-up policies, tags, open enums.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from faststream.kafka import KafkaBroker
from faststream.specification import AsyncAPI
from muster.contracts.topics import TOPICS
from muster.settings import ServiceSettings
from pydantic import BaseModel, Field

from documents.schemas import PUBLISHED, Schema, definitions, published_models

DESCRIPTION = """\
Muster's services communicate through these topics only. Every record is a CloudEvent 1.0 in Kafka's
binary content mode: its attributes are the headers `ce_…`, its data is the JSON value.
`traceparent` (W3C) connects the records of one job in one trace.

A record with `revision` and `seen` is a state message: its sender's complete state of one subject.
The topic names the latest change. A message may arrive twice, late, in any order, or never. Keep
the highest `revision` of each sender and subject (`ce_id` is made from them); ignore one that is
not higher. Senders republish a message until it is acknowledged, and a job's final message some
more times.

Ignore unknown fields. Read a value that is not in an `x-known-values` list as `unknown`. Kafka's
default hash of the key (murmur2) gives the partition. A null value removes the key from a compacted
topic.
"""


def document(version: str, examples: Mapping[str, Any]) -> Schema:
    """The whole document. ``examples``: a record of each topic, by the topic's name."""
    application = AsyncAPI(
        _declared(),
        title="Muster",
        version=version,
        description=DESCRIPTION,
        license={"name": "Apache-2.0"},
    )
    drawn: Schema = application.to_specification().to_jsonable()
    channels: Schema = {}
    messages: Schema = {}
    for name, topic in PUBLISHED.items():
        title = f"{topic.senders[0]}.send.{name}"
        channel = channels[name] = drawn["channels"][title]
        del channel["servers"]  # none named: all
        channel["messages"] = {name: {"$ref": f"#/components/messages/{name}"}}
        channel["bindings"]["kafka"]["topicConfiguration"] = {
            "cleanup.policy": ["compact" if topic.is_compacted else "delete"]
        }
        event_type = {"const": topic.event_type} if name in TOPICS else {"type": "string"}
        messages[name] = {
            "name": name,
            "title": topic.model.__name__,
            "summary": topic.meaning,
            "headers": {
                "allOf": [
                    {"$ref": "#/components/schemas/CloudEventHeaders"},
                    {"type": "object", "properties": {"ce_type": event_type}},
                ]
            },
            "payload": drawn["components"]["messages"][f"{title}:Message"]["payload"],
            "bindings": {"kafka": {"key": {"type": "string", "description": topic.key}}},
            "examples": [{"payload": examples[name]}],
        }
    channels["dead-letter"]["parameters"] = {"topic": {"enum": list(TOPICS)}}
    for title, operation in drawn["operations"].items():
        service, _, name = title.split(".")
        operation["channel"] = {"$ref": f"#/channels/{name}"}
        operation["messages"] = [{"$ref": f"#/channels/{name}/messages/{name}"}]
        operation["tags"] = [{"name": service}]
    bootstrap = {"default": ServiceSettings.model_fields["kafka_bootstrap"].default}
    server = drawn["servers"]["development"] | {"variables": {"bootstrap": bootstrap}}
    schemas = definitions([*published_models(), CloudEventHeaders], "#/components/schemas/{model}")
    return drawn | {
        "servers": {"kafka": server},
        "channels": channels,
        "operations": dict(sorted(drawn["operations"].items())),
        "components": {"messages": messages, "schemas": _draft_7(schemas)},
    }


def _declared() -> KafkaBroker:
    """The publishers and subscribers of all services, titled as operations. Nothing connects."""
    broker = KafkaBroker(
        specification_url="{bootstrap}",
        description="The address is the setting MUSTER_KAFKA_BOOTSTRAP.",
    )
    for name, topic in PUBLISHED.items():
        for service in topic.senders:
            broker.publisher(
                topic.name,
                title=f"{service}.send.{name}",
                description=topic.meaning,
                schema=topic.model,
            )
        for service in topic.readers:
            broker.subscriber(topic.name, title=f"{service}.receive.{name}")
    return broker


def _draft_7(schemas: dict[str, Schema]) -> Any:
    """AsyncAPI uses JSON Schema draft 7, where a tuple's items are the list under ``items``."""
    return json.loads(json.dumps(schemas).replace('"prefixItems":', '"items":'))


class CloudEventHeaders(BaseModel):
    """CloudEvents 1.0 in Kafka's binary content mode, and W3C trace context."""

    ce_specversion: Literal["1.0"]
    ce_id: str = Field(description="Each repeat of a record has the same id.")
    ce_source: str = Field(pattern="^/muster/")
    ce_type: str = Field(description="The topic and the version of its model.")
    ce_subject: str = Field(description="The record's key.")
    ce_time: datetime
    content_type: Literal["application/json"] = Field(alias="content-type")
    traceparent: str | None = Field(
        None, pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
    )
