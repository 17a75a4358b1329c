"""Alerts of Alertmanager's. It delivers at least once and repeats what fires, so a repeat changes
nothing, and what has ended stays so.
"""

from collections.abc import Collection, Iterable, Mapping

from muster.contracts.alerts import ReceivedAlert, subject_of

from alerting.domain import health
from alerting.domain.events import Alert, Severity, Source
from alerting.domain.texts import cut

SEVERITIES = {
    "critical": Severity.CRITICAL,
    "fatal": Severity.CRITICAL,
    "page": Severity.CRITICAL,
    "error": Severity.CRITICAL,
    "info": Severity.INFO,
    "none": Severity.INFO,
}
"""What rules call severities; all others are warnings."""
SUMMARY, DETAILS = 300, 400
"""The most characters that are shown of each."""
OWN = "muster/"
"""How the label `source` begins in the alerts that Muster posts to Alertmanager."""

SAME: Mapping[str, Collection[str]] = {
    "GpuXidFatal": {"GpuXid", "GpuMissing"},
    "GpusUnhealthy": health.OF_ANY_GPU,
    "GpuDriverAway": {"GpuDriverDown"},
    "GpuUncorrectedEcc": {"GpuMemoryErrors", "GpuXid"},
    "GpuRowsNotRemapped": {"GpuMemoryErrors", "GpuXid"},
    "GpuCountFell": {"GpuMissing", "GpuXid"},
    "GpuUsedByOthers": {"GpuForeignProcess"},
}
"""Rules of Prometheus, each with the alerts of a node's agent that report the same fault."""


def received(known: Alert | None, message: ReceivedAlert) -> Alert | None:
    """The alert as it is now; None where it has not changed, or is Muster's own. ``known``: the
    same one, as it was.
    """
    if message.labels.get("source", "").startswith(OWN):
        return None
    alert = Alert(
        name=message.name,
        severity=SEVERITIES.get(message.severity.lower(), Severity.WARNING),
        summary=_summary(message),
        labels=message.labels,
        starts_at=message.starts_at,
        ends_at=message.ends_at and max(message.ends_at, message.starts_at),
        source=Source.ALERTMANAGER,
        runbook=message.runbook,
        ident=message.fingerprint,
    )
    if known is None:
        return alert
    if known.ends_at is not None or alert.ends_at is None:
        return None
    return known.resolved(alert.ends_at)


def _summary(message: ReceivedAlert) -> str:
    """One line that tells it from others of its rule, whose summaries are often the same: with its
    description, or else with the labels that the summary does not name.
    """
    summary, description = (" ".join(it.split()) for it in (message.summary, message.description))
    if description == summary:
        return cut(summary, SUMMARY + DETAILS)
    begin = cut(summary.removesuffix("."), SUMMARY)
    if description:
        return f"{begin}: {cut(description, DETAILS)}"
    labels = sorted(message.labels.items())
    named = ", ".join(f"{name} {value}" for name, value in labels if value not in summary)
    return f"{begin} ({cut(' '.join(named.split()), DETAILS)})" if named else cut(summary, SUMMARY)


def replaced(known: Iterable[Alert], alert: Alert) -> tuple[Alert, ...]:
    """Earlier times of the same alert, whose ends were lost: they end where this one begins."""
    return tuple(
        it.resolved(alert.starts_at)
        for it in known
        if it.fingerprint == alert.fingerprint
        and it.ends_at is None
        and it.starts_at < alert.starts_at
    )


def is_notified(alert: Alert, of_nodes: Collection[tuple[str, str]]) -> bool:
    """Whether people are to know that an alert begins: not where one of Muster's own about the node
    has reported the fault. ``of_nodes``: these that fire, each with its node.
    """
    node = subject_of(alert.labels).node
    return not any((node, name) in of_nodes for name in SAME.get(alert.name, ()))
