"""Acknowledgements, dead letters, settings and alerts."""

from datetime import datetime
from typing import Any

from muster.contracts.model import Model


class RevisionAcknowledged(Model):
    """Your ``revision`` of this subject is applied; never answered. Under 200 bytes.

    ``sender`` is who acknowledges, and ``spoken`` its own revision of the subject; ``dead`` says
    that the revision could not be handled and was
    skipped.
    """

    kind: str
    subject: str
    sender: str
    revision: int
    spoken: int
    dead: bool = False


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


class SettingChanged(Model):
    """One setting as it is now; the record is null when it was removed. Never holds a secret."""

    setting: str
    revision: int
    value: dict[str, Any]


class AlertNotice(Model):
    """An alert that is firing or has been resolved."""

    alert: str
    name: str
    severity: str
    summary: str
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime | None = None
