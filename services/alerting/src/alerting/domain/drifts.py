"""When the Scheduler's books count as wrong: from the first word of its self-audit about a gang
until it has said nothing more of it for some minutes.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from muster.contracts.notices import BooksDrifted
from muster.contracts.subscriptions import AlertEvent

from alerting.domain.events import Alert, Event, Severity
from alerting.domain.policy import Policy

DRIFTED = "BooksDrifted"

NOBODY = "-"
"""In the place of the gang, where the Scheduler can't name one."""


@dataclass(frozen=True, slots=True)
class DriftWatch:
    """A gang of which the books are, or were, wrong. Its alert fires while ``since`` is there.
    ``newest_at``: of the newest word.
    """

    gang: str
    newest_at: datetime
    heard_at: datetime
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class DriftOutcome:
    """The watch to keep, what to tell, and the alerts that changed."""

    watch: DriftWatch
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()


def heard(
    watch: DriftWatch | None, word: BooksDrifted, *, now: datetime, policy: Policy
) -> DriftOutcome:
    """Apply ``books-drifted``; it is repeated while the books are wrong, and told once."""
    if watch is not None and word.at <= watch.newest_at:
        return DriftOutcome(watch)
    newest_at = min(word.at, now)  # a clock that ran ahead must not silence the words to come
    if watch is not None and watch.since is not None:
        return DriftOutcome(replace(watch, newest_at=newest_at, heard_at=now))
    if not policy.is_news(word.at, now):
        return DriftOutcome(DriftWatch(word.gang, newest_at, now))
    after = DriftWatch(word.gang, newest_at, now, since=word.since)
    alert = _alert(word.gang, word.since)
    event = Event(
        key=f"{AlertEvent.BOOKS_DRIFTED}/{word.gang}/{word.since.isoformat()}",
        name=AlertEvent.BOOKS_DRIFTED,
        at=word.since,
        severity=Severity.CRITICAL,
        title=alert.summary,
        text="\n".join(word.drifts) + "\nSave `muster export … --since 2h`, restart the leading"
        " Scheduler, which makes its books anew from the placements, and report it.",
        thread=f"books/{word.gang}",
        data=word.model_dump(mode="json", by_alias=True) | {"alert": alert.fingerprint},
    )
    return DriftOutcome(after, (event,), (alert,))


def due_at(watch: DriftWatch, policy: Policy) -> datetime | None:
    """When the books are right again if no other word comes before."""
    if watch.since is None:
        return None
    return watch.heard_at + timedelta(seconds=policy.drift_quiet_s)


def time_passed(watch: DriftWatch, *, now: datetime, policy: Policy) -> DriftOutcome:
    """Resolve the alert of a gang of which nothing more is said."""
    due = due_at(watch, policy)
    if watch.since is None or due is None or due > now:
        return DriftOutcome(watch)
    alert = _alert(watch.gang, watch.since).resolved(now)
    return DriftOutcome(replace(watch, since=None), (), (alert,))


def _alert(gang: str, since: datetime) -> Alert:
    return Alert(
        name=DRIFTED,
        severity=Severity.CRITICAL,
        summary="The Scheduler's books are wrong"
        if gang == NOBODY
        else f"The Scheduler's books of the gang {gang} are wrong",
        labels={"gang": gang},
        starts_at=since,
    )
