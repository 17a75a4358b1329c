"""Alerts as Alertmanager's API takes them (``POST /api/v2/alerts``)."""

import re
from datetime import datetime, timedelta

from muster.contracts.alerts import subject_of
from pydantic import JsonValue

from alerting.domain.events import Alert
from alerting.domain.external import OWN
from alerting.domain.rendering.forms import Link

NO_LABEL = re.compile(r"[^a-zA-Z0-9_]|^(?=[0-9])")
"""What a label's name must not have, as Prometheus reads it."""
WAITS = 4
"""An alert that is not repeated for so many waits is over, as with Prometheus's own."""


def posted(alert: Alert, now: datetime, wait_s: float, link: Link) -> dict[str, JsonValue]:
    """One alert; ``wait_s``: until it is posted again. Empty labels are none to Alertmanager."""
    labels = {NO_LABEL.sub("_", name): value for name, value in alert.labels.items() if value}
    annotations = {"summary": alert.summary, "runbook_url": alert.runbook}
    page = link(subject_of(alert.labels).job)
    ends_at = alert.ends_at or now + timedelta(seconds=WAITS * wait_s)
    found: dict[str, JsonValue] = {
        "labels": {
            **labels,
            "alertname": alert.name,
            "severity": alert.severity.value,
            "source": f"{OWN}{alert.source.value}",
        },
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": alert.starts_at.isoformat(),
        "endsAt": ends_at.isoformat(),
    }
    if page is not None:
        found["generatorURL"] = page
    return found
