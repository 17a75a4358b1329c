"""Acknowledgements as records: one for many subjects, to each service on the other side.

Everybody reads them all, so the record's id says who it is for: others need not parse it.
"""

from collections import defaultdict
from collections.abc import Iterable
from uuid import uuid4

from muster.bus import Outgoing
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.topics import SIDES, Kind, Service
from muster.records import Received

ACKNOWLEDGED = "revision-acknowledged"
_NAMES = frozenset(service.value for service in Service)
MOST_SUBJECTS = 500
"""In one record, which so stays far below Kafka's limit."""


def acknowledgements(
    me: Service, applied: Iterable[tuple[str, AppliedRevision]], at: float
) -> list[Outgoing]:
    """The records that say ``applied``: pairs of the key of my words about the subject, and what
    I have applied of the other side's.
    """
    groups: defaultdict[tuple[Service, str], list[AppliedRevision]] = defaultdict(list)
    for key, revision in applied:
        receiver = SIDES[Kind(revision.kind)].across(me)
        # An agent reads only the partition of its node's key; others read all.
        groups[receiver, key if receiver is Service.RUNTIME_AGENT else ""].append(revision)
    return [
        _record(me, receiver, key or some[0].subject, some, at)
        for (receiver, key), every in groups.items()
        for first in range(0, len(every), MOST_SUBJECTS)
        if (some := every[first : first + MOST_SUBJECTS])
    ]


def _record(
    me: Service, receiver: Service, key: str, applied: list[AppliedRevision], at: float
) -> Outgoing:
    notice = RevisionAcknowledged(sender=me.value, receiver=receiver.value, applied=tuple(applied))
    return Outgoing(
        ACKNOWLEDGED,
        key,
        notice.model_dump_json(exclude_defaults=True).encode(),
        f"{me.value}/{receiver.value}/acknowledged/{uuid4().hex}",
        at,
    )


def is_for_others(me: Service, record: Received) -> bool:
    """Whether the id says that it is an acknowledgement to another service."""
    if record.topic != ACKNOWLEDGED:
        return False
    receiver = record.event_id.partition("/")[2].partition("/")[0]
    return receiver != me.value and receiver in _NAMES


def heard_by(me: Service, notice: RevisionAcknowledged) -> list[AppliedRevision]:
    """What a record acknowledges of my words; nothing where it is not to me."""
    kinds = {
        kind.value
        for kind, sides in SIDES.items()
        if me in (sides.opener, sides.other) and sides.across(me).value == notice.sender
    }
    return [a for a in notice.applied if notice.receiver == me.value and a.kind in kinds]
