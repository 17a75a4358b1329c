"""When two machines count as having one node name: from the Scheduler's first notice until it has
published none for some minutes.
"""

from datetime import datetime

from muster.contracts.nodes import NodeNameClashed
from muster.contracts.subscriptions import AlertEvent

from alerting.domain.events import SEVERITIES, Alert, Event, Severity
from alerting.domain.policy import Policy
from alerting.domain.repeated import Key, Notice, Repeated, RepeatedOutcome, Repeats

CLASHED = "NodeNameClash"


def key_of(notice: NodeNameClashed) -> Key:
    """The node's name and both addresses, whichever the notice names first."""
    first, second = sorted((notice.address, notice.other_address))
    return notice.node, first, second


def received(
    watch: Repeated | None, notice: NodeNameClashed, *, now: datetime, policy: Policy
) -> RepeatedOutcome:
    """Apply ``node-name-clashed``."""
    repeat = Notice(key_of(notice), notice.at, notice.since)
    after, alert = CLASHES.received(watch, repeat, now=now, policy=policy)
    if alert is None:
        return RepeatedOutcome(after)
    event = Event(
        key=f"{AlertEvent.NODE_NAME_CLASH}/{notice.node}/{notice.since.isoformat()}",
        name=AlertEvent.NODE_NAME_CLASH,
        at=notice.since,
        severity=SEVERITIES[AlertEvent.NODE_NAME_CLASH],
        title=alert.summary,
        text="The Scheduler places no pods there; running pods continue.\n"
        "Stop the agent of one machine, set another MUSTER_NODE, and start it again.",
        thread=f"node/{notice.node}",
        data=notice.model_dump(mode="json", by_alias=True) | {"alert": alert.fingerprint},
    )
    return RepeatedOutcome(after, (event,), (alert,))


def _alert(key: Key, since: datetime) -> Alert:
    node, address, other_address = key
    return Alert(
        name=CLASHED,
        severity=Severity.CRITICAL,
        summary=f"Two machines report as node {node}: {address} and {other_address}",
        labels={"node": node, "address": address, "otherAddress": other_address},
        starts_at=since,
    )


CLASHES = Repeats(_alert, lambda policy: policy.clash_over_s)
"""A node name that two machines have, or had."""
