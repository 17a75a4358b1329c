"""The AsyncAPI 3.0 document, made from the table of topics: enough for a plain Kafka consumer that
knows nothing of Muster.
"""

from collections.abc import Mapping
from typing import Any

from muster.contracts.topics import DEAD_LETTER, SIDES, TOPICS, Service, Topic, dead_letter_topic
from muster.records import CONTENT_TYPE
from muster.schemas import Schema, definitions, published_models

LISTENERS: Mapping[str, tuple[Service, ...]] = {
    "job-updated": (Service.ALERTING,),
    "node-reported": (Service.SCHEDULER, Service.REST, Service.ALERTING),
    "node-heartbeat": (Service.SCHEDULER,),
    "node-lost": (Service.ALERTING, Service.REST),
    "books-drifted": (Service.ALERTING,),
    "node-returned": (Service.ALERTING, Service.REST, Service.RUNTIME_AGENT),
    "settings-changed": (
        Service.ALERTING,
        Service.RUNTIME_AGENT,
        Service.SCHEDULER,
        Service.REST,
    ),
}
"""Who reads a topic beside the other side of its exchange."""

BOTH_SIDES = (Service.REST, Service.LAUNCHER, Service.SCHEDULER, Service.RUNTIME_AGENT)
"""Who sends and reads acknowledgements."""

_KAFKA = "0.5.0"
"""Version of AsyncAPI's Kafka bindings."""

DESCRIPTION = """\
Muster's services meet on these topics and nowhere else. Every record is a CloudEvent 1.0 in Kafka's
binary content mode: its attributes are the headers `ce_…`, its data is the JSON value.
`traceparent` (W3C) ties the records of one job into one trace.

A word (a record with a `revision`) is its sender's whole word about one subject; the topic only
says what has just changed. It may come twice, late, in any order, or not at all: keep the highest
`revision` for each sender and subject (`ce_id` is made from them), and ignore what is not higher.
Senders repeat what is not acknowledged, and a job's final word some more times.

Ignore fields that you don't know; take an unknown value of an `x-known-values` list as `unknown`.
Keys are partitioned by Kafka's default hash (murmur2). A null value removes a key of a state topic.
"""


def document(version: str, examples: Mapping[str, Any]) -> Schema:
    """The whole document. ``examples``: a record of each topic, by the topic's name."""
    dead = dead_letter_topic(DEAD_LETTER)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Muster",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "The address is the setting MUSTER_KAFKA_BOOTSTRAP.",
                "variables": {"bootstrap": {"default": "127.0.0.1:9092"}},
            }
        },
        "channels": {t.name: _channel(t) for t in TOPICS.values()} | {"dead-letter": _dead()},
        "operations": _operations(),
        "components": {
            "messages": {t.name: _message(t, examples.get(t.name)) for t in TOPICS.values()}
            | {"dead-letter": _message(dead, examples.get("dead-letter"), "dead-letter")},
            "schemas": {"CloudEventHeaders": _HEADERS}
            | {
                name: _for_asyncapi(schema)
                for name, schema in definitions(
                    published_models(), "#/components/schemas/{model}"
                ).items()
            },
        },
    }


def readers(topic: Topic) -> tuple[Service, ...]:
    """The services that read a topic."""
    if topic.name == "revision-acknowledged":
        return BOTH_SIDES
    other: tuple[Service, ...] = ()
    if topic.kind is not None and topic.sender is not None:
        other = (SIDES[topic.kind].across(topic.sender),)
    return (*other, *LISTENERS.get(topic.name, ()))


def _channel(topic: Topic) -> Schema:
    kept = "compact" if topic.state else "delete"
    return {
        "address": topic.name,
        "description": topic.says,
        "messages": {topic.name: {"$ref": f"#/components/messages/{topic.name}"}},
        "bindings": {
            "kafka": {
                "topicConfiguration": {"cleanup.policy": [kept]},
                "bindingVersion": _KAFKA,
            }
        },
    }


def _dead() -> Schema:
    return {
        "address": "{topic}" + DEAD_LETTER,
        "description": "Records that could not be read or handled, with the reason.",
        "parameters": {"topic": {"enum": list(TOPICS), "description": "Where the record was."}},
        "messages": {"dead-letter": {"$ref": "#/components/messages/dead-letter"}},
    }


def _message(topic: Topic, example: Any, name: str | None = None) -> Schema:
    own = name or topic.name
    kind = {"type": "string"} if name else {"const": topic.event_type}
    made: Schema = {
        "name": own,
        "title": topic.model.__name__,
        "summary": topic.says if name is None else "A record could not be read or handled.",
        "contentType": CONTENT_TYPE,
        "headers": {
            "allOf": [
                {"$ref": "#/components/schemas/CloudEventHeaders"},
                {"type": "object", "properties": {"ce_type": kind}},
            ]
        },
        "payload": {"$ref": f"#/components/schemas/{topic.model.__name__}"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": f"The key: {topic.key}."},
                "bindingVersion": _KAFKA,
            }
        },
    }
    if example is not None:
        made["examples"] = [{"name": own, "payload": example}]
    return made


def _operations() -> Schema:
    operations: Schema = {}
    for topic in TOPICS.values():
        senders = (topic.sender,) if topic.sender is not None else BOTH_SIDES
        for service in senders:
            operations[f"{service}.send.{topic.name}"] = _operation(service, "send", topic.name)
        for service in readers(topic):
            name = f"{service}.receive.{topic.name}"
            operations[name] = _operation(service, "receive", topic.name)
    for service in Service:
        operations[f"{service}.send.dead-letter"] = _operation(service, "send", "dead-letter")
    name = f"{Service.ALERTING}.receive.dead-letter"
    operations[name] = _operation(Service.ALERTING, "receive", "dead-letter")
    return dict(sorted(operations.items()))


def _operation(service: Service, action: str, channel: str) -> Schema:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "tags": [{"name": service.value}],
        "messages": [{"$ref": f"#/channels/{channel}/messages/{channel}"}],
    }


def _for_asyncapi(schema: Any) -> Any:
    """A schema as AsyncAPI's Schema Object (JSON Schema draft 7) has it: a tuple's items are the
    list under ``items``.
    """
    if isinstance(schema, list):
        return [_for_asyncapi(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        "items" if key == "prefixItems" else key: _for_asyncapi(value)
        for key, value in schema.items()
    }


_HEADERS: Schema = {
    "title": "CloudEventHeaders",
    "description": "CloudEvents 1.0 in Kafka's binary content mode, and W3C trace context.",
    "type": "object",
    "properties": {
        "ce_specversion": {"const": "1.0"},
        "ce_id": {
            "type": "string",
            "description": "The same whenever the same record is said again.",
        },
        "ce_source": {"type": "string", "pattern": "^/muster/"},
        "ce_type": {"type": "string", "description": "Topic and version of its model."},
        "ce_subject": {"type": "string", "description": "The record's key."},
        "ce_time": {"type": "string", "format": "date-time"},
        "content-type": {"const": CONTENT_TYPE},
        "traceparent": {
            "type": "string",
            "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
        },
    },
    "required": [
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_subject",
        "ce_time",
        "content-type",
    ],
}
