"""Events for outsiders: CloudEvents, who may see which, and positions as their ids."""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from muster.contracts.alerts import subject_of
from muster.errors import Problem, Rejected

from rest.domain.callers import Caller

EventType = Literal["job-updated", "node-lost", "node-returned", "alert-raised", "alert-resolved"]
TOPICS: tuple[EventType, ...] = get_args(EventType)
"""The topics that outsiders may follow."""
ALERTS = frozenset({"alert-raised", "alert-resolved"})

Positions = Mapping[tuple[str, int], int]
"""The next offset of each partition of each topic."""

BUS = "bus"
_OF_TOPIC = re.compile(r"([a-z-]{1,64})=([A-Za-z0-9_-]*)")
MOST_BYTES = 9
"""Of one offset: 63 bits, 7 in a byte."""


def format_positions(bus: str, positions: Positions) -> str:
    """Positions on a bus as the id of an event: ``bus=…``, and for each topic ``topic=offsets``,
    those of all partitions in their order. As they are in each event and come back as a header,
    they are packed: 7 bits in a byte, the lowest first, and the bytes in base 64.
    """
    parts: dict[str, list[int]] = {}
    for (topic, part), at in sorted(positions.items()):
        offsets = parts.setdefault(topic, [])
        offsets += [0] * (part - len(offsets))
        offsets.append(at)
    packed = {topic: _packed(offsets) for topic, offsets in parts.items()}
    return ",".join(f"{name}={value}" for name, value in {BUS: bus, **packed}.items())


def parse_positions(text: str) -> tuple[str | None, Positions]:
    """The bus and the positions in the id of an event. An id of before has no bus. Raises Rejected
    where it is none.
    """
    bus: str | None = None
    found: dict[tuple[str, int], int] = {}
    for each in filter(None, text.split(",")):
        match = _OF_TOPIC.fullmatch(each.strip())
        if match is not None and match[1] == BUS:
            bus = match[2]
            continue
        offsets = None if match is None or match[1] not in TOPICS else _unpacked(match[2])
        if match is None or offsets is None:
            message = "Last-Event-ID is not the id of an event of this stream."
            fix = "send the id of the last event as it came, or leave the header out"
            raise Rejected("InvalidParametersError", message, (Problem("Last-Event-ID", fix),))
        found |= {(match[1], part): at for part, at in enumerate(offsets)}
    return bus, found


def _packed(offsets: Iterable[int]) -> str:
    packed = bytearray()
    for offset in offsets:
        while offset > 0x7F:
            packed.append(offset & 0x7F | 0x80)
            offset >>= 7
        packed.append(offset)
    return urlsafe_b64encode(packed).decode("ascii").rstrip("=")


def _unpacked(text: str) -> list[int] | None:
    """None: it is no such text."""
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    offsets, offset, bits = [], 0, 0
    for byte in packed:
        if bits == 7 * MOST_BYTES:
            return None
        offset |= (byte & 0x7F) << bits
        bits += 7
        if byte <= 0x7F:
            offsets.append(offset)
            offset, bits = 0, 0
    return None if bits else offsets


def cloud_event(
    topic: str, headers: Mapping[str, str], value: bytes | None, ident: str
) -> dict[str, Any] | None:
    """A record as a CloudEvent in JSON; None where its value is none of Muster's."""
    try:
        data = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    attributes = {
        name.removeprefix("ce_"): value for name, value in headers.items() if name.startswith("ce_")
    }
    required = {"specversion": "1.0", "source": "muster", "type": f"muster.{topic}.v1"}
    event = {**required, **attributes, "id": ident}
    return {**event, "datacontenttype": "application/json", "data": data}


def may_see(caller: Caller, topic: str, data: Mapping[str, Any]) -> bool:
    """Users see all jobs and nodes, as everywhere in the API, and the alerts about their own jobs
    and the virtual clusters that they own.
    """
    if caller.is_admin or topic not in ALERTS:
        return True
    labels = data.get("labels")
    if not isinstance(labels, Mapping):
        return False
    subject = subject_of(labels)
    is_own = subject.user == caller.username
    return is_own or subject.virtual_cluster in caller.owned_virtual_clusters
