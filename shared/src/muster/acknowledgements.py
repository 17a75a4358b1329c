"""Acknowledgements as records: one for many subjects, to each service on the other side.

Every service reads them all. The record's id names its addressee, so that others need not parse it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from muster.channels import Outgoing
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.topics import SIDES, Kind, Service
from muster.records import Received

ACKNOWLEDGED = "revision-acknowledged"
ACKNOWLEDGED_BY_AGENTS = "pod-acknowledged"
_NAMES = frozenset(service.value for service in Service)
MOST_SUBJECTS = 500
"""In one record, which so stays far below Kafka's limit."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """``applied`` for the side that reads under ``key``; of a pod, for the agent with this
    ``journal``.
    """

    key: str
    journal: str | None
    applied: AppliedRevision


def acknowledgements(me: Service, due: Iterable[Acknowledgement], at: float) -> list[Outgoing]:
    """The records with the acknowledgements that are due: up to ``MOST_SUBJECTS`` in each."""
    groups: defaultdict[tuple[Service, str, str | None], list[AppliedRevision]] = defaultdict(list)
    for each in due:
        receiver = SIDES[Kind(each.applied.kind)].across(me)
        # An agent reads only the partition of its node's key; others read all.
        key = each.key if receiver is Service.RUNTIME_AGENT else ""
        groups[receiver, key, each.journal].append(each.applied)
    records, topic = [], _topic_of(me.value)
    for (receiver, key, journal), every in groups.items():
        for first in range(0, len(every), MOST_SUBJECTS):
            some = tuple(every[first : first + MOST_SUBJECTS])
            notice = RevisionAcknowledged(
                sender=me.value, receiver=receiver.value, journal=journal, applied=some
            )
            value = notice.model_dump_json(exclude_defaults=True).encode()
            event_id = f"{me.value}/{receiver.value}/acknowledged/{uuid4().hex}"
            records.append(Outgoing(topic, key or some[0].subject, value, event_id, at))
    return records


def _topic_of(sender: str) -> str:
    return ACKNOWLEDGED_BY_AGENTS if sender == Service.RUNTIME_AGENT else ACKNOWLEDGED


def is_for_others(me: Service, record: Received) -> bool:
    """Whether the id marks an acknowledgement to another service."""
    if record.topic != ACKNOWLEDGED:
        return False
    receiver = record.event_id.partition("/")[2].partition("/")[0]
    return receiver != me.value and receiver in _NAMES


def addressed_to(me: Service, notice: RevisionAcknowledged, topic: str) -> list[AppliedRevision]:
    """What a record acknowledges of my messages; nothing where it is not to me, or its sender may
    not write to this topic.
    """
    if notice.receiver != me.value or topic != _topic_of(notice.sender):
        return []
    kinds = {
        kind.value
        for kind, sides in SIDES.items()
        if me in (sides.opener, sides.other) and sides.across(me).value == notice.sender
    }
    return [each for each in notice.applied if each.kind in kinds]
