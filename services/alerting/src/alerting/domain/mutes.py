"""Which messages are held back: those about a muted alert or job, until the mute's time."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from muster.contracts.alerts import Mute
from muster.contracts.subscriptions import AlertEvent, ReceiverKind, Subscription

from alerting.domain.events import ENDS, Event


def is_muted(
    event: Event,
    asking: Subscription,
    mutes: Iterable[Mute],
    names: Mapping[str, str],
    *,
    now: datetime,
) -> bool:
    """Whether an event is not for a subscription now. ``names``: of alerts, by identity.

    An event of several alerts is muted only if each of them is. What a script waits for is no news
    of its alert. An end closes the incident that was opened before the mute.
    """
    standing = [it for it in mutes if it.until > now and it.owner in (None, asking.owner)]
    if not standing or (asking.kind is ReceiverKind.PAGERDUTY and event.name in ENDS):
        return False
    job = event.job
    jobs = {it.job for it in standing if it.job is not None}
    if job is not None and f"{job.user}~{job.name}" in jobs:
        return True
    muted = {it.alert for it in standing if it.alert is not None}
    if event.name.value in muted:
        return True
    if event.name is AlertEvent.REMEDIATION_REQUESTED:
        return False
    alerts = _alerts(event, names)
    return bool(alerts) and all(it & muted for it in alerts)


def _alerts(event: Event, names: Mapping[str, str]) -> list[set[str]]:
    """What each alert of an event can be called."""
    listed = event.data.get("alerts")
    if isinstance(listed, list):
        found = [it for it in listed if isinstance(it, dict)]
        return [{str(it.get("alert")), str(it.get("name"))} for it in found]
    alert = event.data.get("alert")
    return [{alert, names.get(alert, alert)}] if isinstance(alert, str) else []
