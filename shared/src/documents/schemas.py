"""JSON Schemas of everything that travels, as a reader sees it: what must be there, what may be.

Enums are open: a reader takes a value from the future as ``unknown``, so the schemas list the
known values beside the type instead of closing it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from muster.contracts.alerts import AlertRulesConfig, Mute
from muster.contracts.confirmations import Confirmation
from muster.contracts.node_orders import NodeOrder
from muster.contracts.scheduling import SchedulingConfig
from muster.contracts.subscriptions import Subscription
from muster.contracts.topics import TOPICS, Topic, dead_letter_topic
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KNOWN_VALUES = "x-known-values"
"""Where the values of an open enum are listed."""

PUBLISHED: Mapping[str, Topic] = {**TOPICS, "dead-letter": dead_letter_topic("{topic}")}
"""The topics by the names that they have in documents: one stands for all dead letters."""


def published_models() -> list[type[BaseModel]]:
    """The records of all topics, and the values of settings, by name."""
    models: set[type[BaseModel]] = {topic.model for topic in PUBLISHED.values()}
    models |= {AlertRulesConfig, Confirmation, Mute, NodeOrder, SchedulingConfig, Subscription}
    return sorted(models, key=lambda model: model.__name__)


def definitions(models: Iterable[type[BaseModel]], ref_template: str) -> dict[str, Schema]:
    """The schemas of models and of all that they are made of, by name."""
    _, found = models_json_schema(
        [(model, "validation") for model in models], ref_template=ref_template
    )
    return {name: _tidy(schema) for name, schema in sorted(found["$defs"].items())}


def document(model: type[BaseModel]) -> Schema:
    """The schema of one record, complete in itself."""
    parts = definitions([model], "#/$defs/{model}")
    own = parts.pop(model.__name__)
    return {"$schema": DIALECT, **own, **({"$defs": parts} if parts else {})}


def _tidy(schema: Schema) -> Schema:
    """A definition with a one-line description, open enums, and no titles made from names."""
    tidied: Schema = {"title": schema["title"]}
    if "description" in schema:
        tidied["description"] = " ".join(schema["description"].split())
    if "unknown" in schema.get("enum", ()):
        return tidied | {"type": "string", KNOWN_VALUES: schema["enum"]}
    rest = {key: value for key, value in schema.items() if key not in tidied}
    if "properties" in rest:
        rest["properties"] = {
            name: _without_title(field) for name, field in rest["properties"].items()
        }
    return tidied | rest


def _without_title(field: Schema) -> Schema:
    return {key: value for key, value in field.items() if key != "title"}
