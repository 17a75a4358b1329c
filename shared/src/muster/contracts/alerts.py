"""Alerts of other programs, as REST receives them and Alerting takes them."""

from datetime import datetime

from muster.contracts.model import Model


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
