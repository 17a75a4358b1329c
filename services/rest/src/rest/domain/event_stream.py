"""Events for outsiders: CloudEvents, who may see which, and positions as their ids."""

import json
import re
from collections.abc import Mapping
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

_POSITION = re.compile(r"([a-z-]{1,64}):(\d{1,6}):(\d{1,18})")


def format_positions(positions: Positions) -> str:
    """Positions as the id of an event: ``topic:partition:offset``, comma-separated."""
    return ",".join(f"{topic}:{part}:{at}" for (topic, part), at in sorted(positions.items()))


def parse_positions(text: str) -> Positions:
    """The positions in the id of an event. Raises Rejected where it is none."""
    found: dict[tuple[str, int], int] = {}
    for each in filter(None, text.split(",")):
        match = _POSITION.fullmatch(each.strip())
        if match is None or match[1] not in TOPICS:
            message = "Last-Event-ID is not the id of an event of this stream."
            fix = "send the id of the last event as it came, or leave the header out"
            raise Rejected("InvalidParametersError", message, (Problem("Last-Event-ID", fix),))
        found[match[1], int(match[2])] = int(match[3])
    return found


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
