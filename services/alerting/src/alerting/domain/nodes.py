"""When a node counts as lost, from messages that may come late, twice or in any order.

Each loss and each return has the lease number that the Scheduler gave it, and a time. A return
ends the loss of a lower lease, and of its own where it was later. So does the node's removal: a
tombstone in place of its report.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from muster.contracts.nodes import NodeLost, NodeReturned
from muster.contracts.subscriptions import AlertEvent

from alerting.domain.events import SEVERITIES, Alert, Event, Severity
from alerting.domain.policy import Policy

LOST = "NodeLost"


@dataclass(frozen=True, slots=True)
class Loss:
    """A published loss. ``received_at``: of its latest repeat."""

    lease: int
    since: datetime
    received_at: datetime


@dataclass(frozen=True, slots=True)
class Return:
    """The newest published return."""

    lease: int
    at: datetime


@dataclass(frozen=True, slots=True)
class NodeWatch:
    """A node as in its latest messages: its alert fires while ``loss`` is there."""

    node: str
    loss: Loss | None = None
    ended: Return | None = None


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The watch to keep, the events to notify of, and the alerts that changed."""

    watch: NodeWatch
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()


def lost(
    watch: NodeWatch | None, message: NodeLost, *, now: datetime, policy: Policy
) -> NodeOutcome:
    """Apply ``node-lost``; it is repeated while the node is lost, and notified once."""
    known = watch or NodeWatch(message.node)
    if _is_over(message.lease, message.since, known.ended):
        return NodeOutcome(known)
    loss = Loss(message.lease, message.since, now)
    if known.loss is not None:
        newest = max((known.loss, loss), key=lambda it: (it.lease, it.since))
        after = replace(known, loss=replace(newest, received_at=now))
        return NodeOutcome(after, (), _replaced(message.node, known.loss, newest))
    after = replace(known, loss=loss)
    alert = _alert(message.node, loss)
    if not policy.is_news(message.since, now):
        return NodeOutcome(after, (), (alert,))
    pods = ", ".join(message.pods[:20]) + (" …" if len(message.pods) > 20 else "")
    event = Event(
        key=f"{AlertEvent.NODE_LOST}/{message.node}/{message.lease}/{message.since.isoformat()}",
        name=AlertEvent.NODE_LOST,
        at=message.since,
        severity=SEVERITIES[AlertEvent.NODE_LOST],
        title=alert.summary,
        text=f"Its agent has been silent for {message.silent_s:.0f} s."
        + (f"\nIts pods are lost and their jobs are tried elsewhere: {pods}" if pods else ""),
        thread=f"node/{message.node}",
        data=message.model_dump(mode="json", by_alias=True) | {"alert": alert.fingerprint},
    )
    return NodeOutcome(after, (event,), (alert,))


def returned(
    watch: NodeWatch | None, message: NodeReturned, *, now: datetime, policy: Policy
) -> NodeOutcome:
    """Apply ``node-returned``: resolves the loss that it ends."""
    known = watch or NodeWatch(message.node)
    newest = Return(message.lease, message.at)
    if known.ended is not None:
        newest = max((known.ended, newest), key=lambda it: (it.lease, it.at))
    after = replace(known, ended=newest)
    if known.loss is None or not _is_over(known.loss.lease, known.loss.since, newest):
        return NodeOutcome(after)
    after = replace(after, loss=None)
    alert = _alert(message.node, known.loss).resolved(message.at)
    if not policy.is_news(message.at, now):
        return NodeOutcome(after, (), (alert,))
    event = Event(
        key=f"{AlertEvent.NODE_RETURNED}/{message.node}/{message.lease}/{message.at.isoformat()}",
        name=AlertEvent.NODE_RETURNED,
        at=message.at,
        severity=Severity.INFO,
        title=f"Node {message.node} is back",
        text=f"It was lost since {known.loss.since.isoformat(timespec='seconds')}.",
        thread=f"node/{message.node}",
        data=message.model_dump(mode="json", by_alias=True) | {"alert": alert.fingerprint},
    )
    return NodeOutcome(after, (event,), (alert,))


def due_at(watch: NodeWatch, policy: Policy) -> datetime | None:
    """When a loss that is no longer republished is forgotten."""
    if watch.loss is None:
        return None
    return watch.loss.received_at + timedelta(seconds=policy.lost_forget_s)


def removed(watch: NodeWatch, *, now: datetime) -> NodeOutcome:
    """Resolve the alert of a node that was removed for good; a repeat of its loss is late."""
    if watch.loss is None:
        return NodeOutcome(watch)
    ended = Return(watch.loss.lease, max(now, watch.loss.since))
    after = replace(watch, loss=None, ended=ended)
    return _gone(watch.loss, after, "It is no longer part of the cluster.", now)


def time_passed(watch: NodeWatch, *, now: datetime, policy: Policy) -> NodeOutcome:
    """Resolve the alert of a lost node that the Scheduler no longer republishes."""
    due = due_at(watch, policy)
    if watch.loss is None or due is None or due > now:
        return NodeOutcome(watch)
    silent_h = policy.lost_forget_s / 3600
    text = f"The Scheduler has not named it for {silent_h:g} hours; Alerting forgets the node."
    return _gone(watch.loss, replace(watch, loss=None), text, now)


def _gone(loss: Loss, after: NodeWatch, text: str, now: datetime) -> NodeOutcome:
    alert = _alert(after.node, loss).resolved(now)
    event = Event(
        key=f"{AlertEvent.NODE_REMOVED}/{after.node}/{loss.lease}/{loss.since.isoformat()}",
        name=AlertEvent.NODE_REMOVED,
        at=now,
        severity=Severity.INFO,
        title=f"Node {after.node} was removed",
        text=text,
        thread=f"node/{after.node}",
        data={"node": after.node, "lease": loss.lease, "alert": alert.fingerprint},
    )
    return NodeOutcome(after, (event,), (alert,))


def _replaced(node: str, before: Loss, newest: Loss) -> tuple[Alert, ...]:
    """Of a node that is lost again, and whose return is late: people know that it is lost."""
    if newest.since == before.since:
        return ()
    ended = _alert(node, before).resolved(max(before.since, newest.since))
    return ended, _alert(node, newest)


def _is_over(lease: int, since: datetime, ended: Return | None) -> bool:
    return ended is not None and (
        ended.lease > lease or (ended.lease == lease and ended.at >= since)
    )


def _alert(node: str, loss: Loss) -> Alert:
    return Alert(
        name=LOST,
        severity=Severity.CRITICAL,
        summary=f"Node {node} is lost",
        labels={"node": node},
        starts_at=loss.since,
    )
