"""The values of decisions: events for notifications, and alerts that fire and are resolved. Repeats
of both are recognised: an event by its key, an alert by its fingerprint and start.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from muster.contracts.notices import AlertNotice
from muster.contracts.subscriptions import EVENT_SEVERITIES, AlertEvent
from pydantic import JsonValue


class Severity(StrEnum):
    """How much it matters to operators."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


RANKS = {severity: rank for rank, severity in enumerate(Severity)}
"""The more it matters, the higher."""
SEVERITIES = {name: Severity(severity) for name, severity in EVENT_SEVERITIES.items()}
"""Of events that always have the same; the end of an alert counts as much as the alert."""


BEGINS = frozenset({AlertEvent.JOB_STUCK, AlertEvent.NODE_LOST, AlertEvent.ALERT_RAISED})
"""Events that begin an alert whose end is an event too."""
ENDS = frozenset(
    {
        AlertEvent.JOB_UNSTUCK,
        AlertEvent.NODE_RETURNED,
        AlertEvent.NODE_REMOVED,
        AlertEvent.ALERT_RESOLVED,
    }
)
"""Events that end the alert that an earlier event began."""


class Source(StrEnum):
    """Who found the condition of an alert: Alerting in what services publish, a node's agent, an
    event rule, or Alertmanager.
    """

    ALERTING = "alerting"
    NODE = "node"
    RULE = "rule"
    ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, slots=True)
class JobLabels:
    """What subscriptions filter by."""

    user: str
    virtual_cluster: str
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something to notify people of, once.

    ``key`` is the same for every repeat of the event. ``thread`` groups messages about one thing (a
    job, a node). ``data`` is the body of a webhook, in JSON names. ``is_asked``: the job's
    file asks to notify its user of it. ``is_preset``: the job's user gets it without asking, at the
    confirmed address of their account. ``rest``: the most severe alert that fires still of those
    with the cause of the ended ones.
    """

    key: str
    name: AlertEvent
    at: datetime
    severity: Severity
    title: str
    text: str
    thread: str
    data: Mapping[str, JsonValue]
    job: JobLabels | None = None
    is_asked: bool = False
    is_preset: bool = False
    rest: Severity | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition that holds from ``starts_at`` until ``ends_at``; firing while that is None.

    ``ident``: the fingerprint that its source gave it, where that is another program's. ``cause``:
    what it came of, where its begin was notified together with others of this cause.
    """

    name: str
    severity: Severity
    summary: str
    labels: Mapping[str, str]
    starts_at: datetime
    ends_at: datetime | None = None
    source: Source = Source.ALERTING
    runbook: str | None = None
    ident: str | None = None
    cause: str | None = None

    @property
    def fingerprint(self) -> str:
        """The same for every time that the same condition holds for the same labels."""
        return self.ident or fingerprint(self.name, self.labels)

    def resolved(self, at: datetime) -> "Alert":
        """The same alert, over."""
        return replace(self, ends_at=at)

    def notice(self) -> AlertNotice:
        """The record that listeners read."""
        return AlertNotice(
            alert=self.fingerprint,
            name=self.name,
            severity=self.severity,
            summary=self.summary,
            labels=dict(self.labels),
            source=self.source,
            runbook=self.runbook,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )


def fingerprint(name: str, labels: Mapping[str, str]) -> str:
    """16 hex digits from a name and labels, whatever their order."""
    parts = [name, *(part for label in sorted(labels.items()) for part in label)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
