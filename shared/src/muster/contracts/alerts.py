"""Alerts of other programs, which REST receives and Alerting takes; and actions on alerts, which
Alerting wants and REST carries out.
"""

from datetime import datetime
from typing import Any

from pydantic import Field

from muster.contracts.model import Model, OpenEnum


class ReceivedAlert(Model):
    """An alert of Alertmanager's; ``fingerprint`` and ``starts_at`` identify it. It fires while
    ``ends_at`` is None.
    """

    fingerprint: str
    name: str
    severity: str
    summary: str
    description: str = ""
    runbook: str | None = None
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime | None = None


class AlertsReceived(Model):
    """One request of Alertmanager's: the alerts of one of its groups."""

    group: str
    alerts: tuple[ReceivedAlert, ...]
    at: datetime


ALERT_RULES_SETTING = "alert-rules"
"""The setting with operators' rules and actions; null: none are set."""


class AlertRulesConfig(Model):
    """What operators set of actions on alerts. ``content`` is what Alerting has checked.
    ``version``: its number. ``by``: its author.
    """

    version: int = Field(ge=1, le=2**62)
    content: dict[str, Any]
    by: str
    at: datetime


class Do(OpenEnum):
    """What an action does. TAG_JOB: the job gets the rule's name as a tag. UNDO: it takes back
    what an earlier action has done.
    """

    CORDON = "cordon"
    DRAIN = "drain"
    STOP_JOB = "stop-job"
    TAG_JOB = "tag-job"
    UNDO = "undo"
    UNKNOWN = "unknown"


class ActionRequested(Model):
    """Alerting wants this done because an alert fires, or, with ``do`` UNDO, is over. ``target``:
    a node, or a job as ``user~name``. ``rule``: the operator's, which wants it. In a dry run REST
    only writes the audit log. Repeated until it is answered.
    """

    action: str
    do: Do
    target: str
    rule: str
    alert: str
    summary: str
    is_dry_run: bool = False
    at: datetime


class Outcome(OpenEnum):
    """What became of an action."""

    DONE = "done"
    DRY_RUN = "dry-run"
    REFUSED = "refused"
    UNDONE = "undone"
    UNKNOWN = "unknown"


class ActionAnswered(Model):
    """What became of an action, and why. ``by``: who took it back, where it is undone."""

    action: str
    outcome: Outcome
    reason: str
    by: str | None = None
    at: datetime


MUTE_SETTING = "mute/"
"""The prefix of settings whose values are mutes; the mute's id follows."""


class Mute(Model):
    """No messages about an alert (its name or identity, or an event's name), or about a job
    (``user~name``), until a time. ``owner``: whose subscriptions are silent; None: everybody's.
    """

    id: str = Field(min_length=1, max_length=64)
    owner: str | None = None
    alert: str | None = None
    job: str | None = None
    until: datetime
    by: str
    comment: str = ""
