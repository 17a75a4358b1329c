"""When the Scheduler's accounting counts as wrong: from the first message of its audit about a gang
until it has published none for some minutes.
"""

from datetime import datetime

from muster.contracts.notices import AccountingDrifted
from muster.contracts.subscriptions import AlertEvent

from alerting.domain.events import SEVERITIES, Alert, Event, Severity
from alerting.domain.policy import Policy
from alerting.domain.repeated import Key, Notice, Repeated, RepeatedOutcome, Repeats

DRIFTED = "AccountingDrifted"

NOBODY = "-"
"""In the place of the gang, where the Scheduler can't name one."""


def received(
    watch: Repeated | None, message: AccountingDrifted, *, now: datetime, policy: Policy
) -> RepeatedOutcome:
    """Apply ``accounting-drifted``."""
    notice = Notice((message.gang,), message.at, message.since)
    after, alert = DRIFTS.received(watch, notice, now=now, policy=policy)
    if alert is None:
        return RepeatedOutcome(after)
    event = Event(
        key=f"{AlertEvent.ACCOUNTING_DRIFTED}/{message.gang}/{message.since.isoformat()}",
        name=AlertEvent.ACCOUNTING_DRIFTED,
        at=message.since,
        severity=SEVERITIES[AlertEvent.ACCOUNTING_DRIFTED],
        title=alert.summary,
        text="\n".join(message.drifts) + "\nSave `muster export … --since 2h`, restart the leading"
        " Scheduler, which rebuilds its accounting from the placements, and report the bug.",
        thread=f"accounting/{message.gang}",
        data=message.model_dump(mode="json", by_alias=True) | {"alert": alert.fingerprint},
    )
    return RepeatedOutcome(after, (event,), (alert,))


def _alert(key: Key, since: datetime) -> Alert:
    (gang,) = key
    return Alert(
        name=DRIFTED,
        severity=Severity.CRITICAL,
        summary="The Scheduler's accounting is wrong"
        if gang == NOBODY
        else f"The Scheduler's accounting of gang {gang} is wrong",
        labels={"gang": gang},
        starts_at=since,
    )


DRIFTS = Repeats(_alert, lambda policy: policy.drift_over_s)
"""A gang with accounting that is, or was, wrong."""
