"""The events of alerts that have none of their own: of nodes' health, rules and Alertmanager.
Alerts with one cause are one event, so that they are one message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from muster.contracts.alerts import subject_of
from muster.contracts.subscriptions import AlertEvent
from muster.counted import counted
from pydantic import JsonValue

from alerting.domain.actions import ABOUT_ACTIONS
from alerting.domain.events import RANKS, Alert, Event, JobLabels, Severity, Source, fingerprint
from alerting.domain.texts import cut

NAMED = 20
"""The most alerts that one message describes; the rest is counted."""
TITLE = 150
"""The most characters of a title, without the number of further alerts."""


def events_of(alerts: Iterable[Alert], truncated: int = 0) -> tuple[Event, ...]:
    """One event for those that fire and one for those that are resolved, of each cause: the same
    node or job, or what an alert names. Alerts of different jobs are apart: users get their own.
    ``truncated``: how many more alerts their source left out.
    """
    alerts = with_cause(alerts)

    def key(alert: Alert) -> tuple[str, bool, tuple[str, ...]]:
        labels = _labels(alert)
        whose = (labels.user, labels.virtual_cluster, labels.name) if labels is not None else ()
        return alert.cause or "", alert.ends_at is not None, whose

    return tuple(
        _event(name, list(same), truncated)
        for (name, *_), same in groupby(sorted(alerts, key=key), key)
    )


def with_cause(alerts: Iterable[Alert]) -> list[Alert]:
    """The same alerts, each with its cause. An end has that of its begin."""
    return [it if it.cause else replace(it, cause=_cause(it)) for it in alerts]


def incident_of(alert: Alert) -> str:
    """The same for alerts with one cause that are about the same job, or about none."""
    it = subject_of(alert.labels)
    whose = {"user": it.user, "virtualCluster": it.virtual_cluster, "job": it.job_name}
    return fingerprint(alert.cause or "", whose)


def _cause(alert: Alert) -> str:
    for label in ("node", "job"):
        if label in alert.labels:
            return f"{label}/{alert.labels[label]}"
    return f"alert/{alert.fingerprint}"


def _event(cause: str, alerts: Sequence[Alert], truncated: int) -> Event:
    alerts = sorted(alerts, key=_rank, reverse=True)
    first = alerts[0]
    is_over = first.ends_at is not None
    more = f" (and {len(alerts) - 1} more)" if alerts[1:] else ""
    lines = [_line(it) for it in alerts[:NAMED]]
    if alerts[NAMED:]:
        left = counted(len(alerts) - NAMED, "more alert")
        lines.append(f"{left}: `muster alerts` has all.")
    if truncated:
        left_out = counted(truncated, "alert")
        lines.append(f"Alertmanager left out {left_out} of this group (max_alerts).")
    ids = fingerprint("", {it.fingerprint: it.starts_at.isoformat() for it in alerts})
    name = AlertEvent.ALERT_RESOLVED if is_over else AlertEvent.ALERT_RAISED
    return Event(
        key=f"{name}/{cause}/{ids}",
        name=name,
        at=max(it.ends_at or it.starts_at for it in alerts),
        severity=Severity.INFO if is_over else first.severity,
        title=cut(("Resolved: " if is_over else "") + _said(first), TITLE) + more,
        text="\n".join(lines),
        thread=cause,
        data={
            "alert": first.fingerprint,
            "alerts": [_data(it) for it in alerts[:NAMED]],
            "count": len(alerts),
            "incident": incident_of(first),
            "truncated": truncated,
        },
        job=_labels(first),
    )


def _rank(alert: Alert) -> tuple[int, datetime, str]:
    """The same whatever order alerts come in: the first one's identity is their incident's."""
    return RANKS[alert.severity], alert.starts_at, alert.fingerprint


def _line(alert: Alert) -> str:
    runbook = f" Runbook: {alert.runbook}" if alert.runbook else ""
    return f"{alert.severity}: {_said(alert).removesuffix('.')}.{runbook}"


def _said(alert: Alert) -> str:
    """What it says; one of Alertmanager's does not always say its name."""
    is_named = alert.source is not Source.ALERTMANAGER or alert.summary.startswith(alert.name)
    return alert.summary if is_named else f"{alert.name}: {alert.summary}"


def _data(alert: Alert) -> dict[str, JsonValue]:
    return alert.notice().model_dump(mode="json", by_alias=True)


def _labels(alert: Alert) -> JobLabels | None:
    """What subscriptions filter by; None: it is about no job, user or virtual cluster. What rules
    do to jobs is for operators.
    """
    it = subject_of(alert.labels)
    if alert.name in ABOUT_ACTIONS or not (it.user or it.virtual_cluster):
        return None
    return JobLabels(it.user, it.virtual_cluster, it.job_name)
