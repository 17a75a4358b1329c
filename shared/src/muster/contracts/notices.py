"""Acknowledgements, dead letters, settings and alerts."""

from datetime import datetime
from typing import Any

from muster.contracts.model import Model, Revision


class AppliedRevision(Model):
    """``revision`` of the receiver's messages on this subject is applied.

    ``senderRevision`` is the acknowledging side's own revision. ``isRejected``: that side could not
    handle the message and skipped it.
    """

    kind: str
    subject: str
    revision: Revision
    sender_revision: Revision
    is_rejected: bool = False


class RevisionAcknowledged(Model):
    """What ``sender`` has applied of ``receiver``'s messages, on up to 500 subjects. Nobody answers
    it. ``journal``: of the agent that is one of the two, so that no other agent takes its place.
    """

    sender: str
    receiver: str
    journal: str | None = None
    applied: tuple[AppliedRevision, ...]


class DeadLetter(Model):
    """A record that can't be read or handled. ``value`` is its text, cut at 16 KiB."""

    topic: str
    partition: int
    offset: int
    key: str | None = None
    headers: dict[str, str]
    value: str
    reader: str
    reason: str
    at: datetime


class AccountingDrifted(Model):
    """The Scheduler's audit finds that its accounting of a gang differs from the gang's placements.
    Repeated with every audit, each minute, while they differ.
    """

    gang: str
    drifts: tuple[str, ...]
    since: datetime
    at: datetime


class SettingChanged(Model):
    """One setting as it is now; the record is null when it was removed. Never holds a secret."""

    setting: str
    revision: Revision
    value: dict[str, Any]


REDRIVE_SETTING = "exchange/redrive"
RESYNC_SETTING = "exchange/resync"
"""Settings by which agents, which have no database, redrive or resync: each higher revision counts
once.
"""


class AlertNotice(Model):
    """An alert that is firing or has been resolved. ``source``: who found its condition, as
    ``alerting`` or ``alertmanager``. ``runbook``: where it says what to do.
    """

    alert: str
    name: str
    severity: str
    summary: str
    labels: dict[str, str]
    source: str = "alerting"
    runbook: str | None = None
    starts_at: datetime
    ends_at: datetime | None = None
