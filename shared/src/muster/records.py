"""A record on the bus: CloudEvents 1.0 headers (Kafka binding, binary mode) and a JSON value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from muster.channels import Outgoing
from muster.contracts.model import Model, StateMessage
from muster.contracts.topics import TOPICS, Kind, Topic
from muster.errors import Broken
from muster.ids import is_name

CONTENT_TYPE = "application/json"
REVISION_DIGITS = 18
EVENT_ID_CHARACTERS = 512
TRACEPARENT_CHARACTERS = 55
"""Headers of foreign records are stored and passed on only up to these lengths."""


@dataclass(frozen=True, slots=True)
class Received:
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    key: str | None
    headers: Mapping[str, str]
    value: bytes | None

    @property
    def event_id(self) -> str:
        """The CloudEvents id; for foreign records their place in the log."""
        named = self.headers.get("ce_id", "")
        is_usable = 0 < len(named) <= EVENT_ID_CHARACTERS
        return named if is_usable else f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def published_at(self) -> float | None:
        """The CloudEvents time, as Unix time; None where there is no usable one."""
        try:
            return datetime.fromisoformat(self.headers["ce_time"]).timestamp()
        except (KeyError, ValueError, OverflowError, OSError):
            return None

    @property
    def traceparent(self) -> str | None:
        named = self.headers.get("traceparent", "")
        return named if 0 < len(named) <= TRACEPARENT_CHARACTERS else None

    @property
    def node(self) -> str | None:
        """The node that the value names, also one that is no record of Muster's otherwise."""
        return self._name("node")

    @property
    def journal(self) -> str | None:
        """The journal that the value names."""
        return self._name("journal")

    @property
    def seen(self) -> int:
        """The ``seen`` in the value; 0 where there is none."""
        named = self._field("seen")
        return named if type(named) is int and 0 < named < 10**REVISION_DIGITS else 0

    def _name(self, field: str) -> str | None:
        named = self._field(field)
        is_usable = isinstance(named, str) and named.isprintable() and is_name(named)
        return str(named) if is_usable else None

    def _field(self, name: str) -> object:
        try:
            value = json.loads(self.value or b"")
        except (ValueError, RecursionError):
            return None
        return value.get(name) if isinstance(value, dict) else None

    def model(self) -> Model:
        """The value, checked. Raises Broken where it can't be read."""
        topic = TOPICS.get(self.topic)
        if topic is None:
            raise Broken(f"{self.topic} is no topic of Muster")
        try:
            return topic.model.model_validate_json(self.value or b"")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise Broken(f"{place or 'value'}: {first['msg']}") from None


def message_id(sender: str, kind: str, subject: str, revision: int) -> str:
    """The id of a state message's event: listeners recognise repeats by it."""
    return f"{sender}/{kind}/{subject}/{revision}"


def read_message_id(event_id: str) -> tuple[str, str, str, int] | None:
    """Sender, kind, subject and revision in the id of a state message's event; None where it is
    none.
    """
    parts = event_id.split("/")
    if len(parts) != 4 or not parts[3].isdecimal() or len(parts[3]) > REVISION_DIGITS:
        return None
    if not is_name(parts[2]):
        return None
    return parts[0], parts[1], parts[2], int(parts[3])


def subject_of(kind: Kind, message: StateMessage) -> str:
    """The subject of a state message."""
    return str(getattr(message, kind.value))


def headers(topic: Topic, record: Outgoing, source: str) -> dict[str, str]:
    """The headers of a record to be published."""
    made = {
        "ce_specversion": "1.0",
        "ce_id": record.event_id,
        "ce_source": f"/muster/{source}",
        "ce_type": topic.event_type,
        "ce_subject": record.key,
        "ce_time": datetime.fromtimestamp(record.at, UTC).isoformat().replace("+00:00", "Z"),
        "content-type": CONTENT_TYPE,
    }
    if record.traceparent:
        made["traceparent"] = record.traceparent
    return made


def message_body(message: StateMessage) -> str:
    """A message as JSON without its revision and seen, which are set when it is published."""
    return message.model_dump_json(exclude={"revision", "seen"}, exclude_none=True)


def message_value(body: str, revision: int, seen: int) -> str:
    """The JSON of a message with its revision and seen."""
    return f'{{"revision":{revision},"seen":{seen},{body[1:]}'
