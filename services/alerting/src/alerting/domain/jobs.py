"""The events and alerts of a job: from its state messages, and from their absence.

A job is watched from its first message to its last. Messages may arrive twice, late or never: only
a higher revision counts, and the events depend on the job's state, not on the messages' order.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from muster.contracts.jobs import JobChange, JobState, JobStatus
from muster.contracts.subscriptions import AlertEvent

from alerting.domain.events import SEVERITIES, Alert, Event, JobLabels, Severity
from alerting.domain.notices import events_of
from alerting.domain.policy import Policy
from alerting.domain.quiet import HOURLY, digest_at
from alerting.domain.texts import job_data, job_end_text, job_title, stuck_text

STUCK = "JobStuck"
WAITS_LONG = "JobWaitsLong"
ENDS = {
    JobState.SUCCEEDED: JobChange.SUCCEEDED,
    JobState.STOPPED: JobChange.STOPPED,
    JobState.FAILED: JobChange.FAILED,
}
CLOSED = frozenset(ENDS)
EVENTS = {
    JobChange.RUNNING: AlertEvent.JOB_STARTED,
    JobChange.SUCCEEDED: AlertEvent.JOB_FINISHED,
    JobChange.STOPPED: AlertEvent.JOB_FINISHED,
    JobChange.FAILED: AlertEvent.JOB_FAILED,
    JobChange.RETRIED: AlertEvent.JOB_RETRIED,
}
"""The event of each change of a job's state."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One job as in its latest message.

    ``content`` shows whether a message has anything new. ``quiet_since`` is the time of the last
    new one, or of the rejection of a record about the job (``dead_letter`` names it;
    ``rejected_at`` is the newest). ``stuck_since`` is set while its alert fires. ``has_run``: a
    task of it has run. While it waits, ``waits_since`` and ``expected_start``, the first that the
    Scheduler named, are set; ``late_since`` while the alert about its long wait fires.
    """

    job: str
    quiet_since: datetime
    revision: int = 0
    content: str = ""
    name: str = ""
    user: str = ""
    virtual_cluster: str = ""
    state: JobState = JobState.UNKNOWN
    attempt: int = 0
    has_reason: bool = False
    dead_letter: str | None = None
    rejected_at: datetime | None = None
    stuck_since: datetime | None = None
    has_run: bool = False
    waits_since: datetime | None = None
    expected_start: datetime | None = None
    late_since: datetime | None = None

    @property
    def is_closed(self) -> bool:
        """The job has ended."""
        return self.state in CLOSED

    @property
    def labels(self) -> JobLabels:
        """What subscriptions filter by."""
        return JobLabels(self.user, self.virtual_cluster, self.name)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The watch to keep, the events to notify of, and the alerts that changed."""

    watch: Watch
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A rejected record about a job. Labels are empty where the record lacks them."""

    job: str
    what: str
    at: datetime
    user: str = ""
    virtual_cluster: str = ""
    name: str = ""


def received(
    watch: Watch | None, status: JobStatus, *, now: datetime, policy: Policy
) -> JobOutcome:
    """Apply the Launcher's message on a job."""
    known = watch or Watch(status.job, quiet_since=now)
    if status.revision <= known.revision or known.is_closed:
        return JobOutcome(known)
    content = _content(status)
    if content == known.content:
        return JobOutcome(replace(known, revision=status.revision))
    after = Watch(
        job=status.job,
        quiet_since=now,
        revision=status.revision,
        content=content,
        name=status.name,
        user=status.user,
        virtual_cluster=status.virtual_cluster,
        state=status.state,
        attempt=status.attempt,
        has_reason=status.reason is not None,
        dead_letter=status.dead_letter,
        rejected_at=known.rejected_at,
        has_run=known.has_run or status.launched_at is not None,
    )
    if status.state is JobState.WAITING:
        after = _waiting(known, after, status, now)
    unstuck, alerts = _unstuck(known, after, now)
    waited = _over(known, now) if after.late_since is None else ()
    ends = _preset(waited) if _is_begin_in_digest(known, now) else events_of(waited)
    events = (*unstuck, *_events_of(known, after, status, now, policy), *ends)
    return JobOutcome(after, events, (*alerts, *waited))


def found_rejected(watch: Watch | None, record: RejectedRecord, *, now: datetime) -> JobOutcome:
    """Note that a record about the job was rejected: if the job does not change, it is stuck."""
    known = watch or Watch(
        record.job,
        quiet_since=now,
        name=record.name,
        user=record.user,
        virtual_cluster=record.virtual_cluster,
    )
    if known.is_closed or (known.rejected_at is not None and record.at <= known.rejected_at):
        return JobOutcome(known)
    since = now if known.stuck_since is None else known.quiet_since
    rejected_at = min(record.at, now)
    return JobOutcome(
        replace(known, quiet_since=since, dead_letter=record.what, rejected_at=rejected_at)
    )


def due_at(watch: Watch, policy: Policy) -> datetime | None:
    """When the job is stuck or waits too long if nothing changes before; None: it may rest."""
    times = (_stuck_at(watch, policy), _late_at(watch, policy))
    return min((it for it in times if it is not None), default=None)


def _stuck_at(watch: Watch, policy: Policy) -> datetime | None:
    should_move = (
        watch.state is JobState.STOPPING
        or (watch.state is JobState.WAITING and not watch.has_reason)
        or watch.dead_letter is not None
    )
    if watch.is_closed or watch.stuck_since is not None or not should_move:
        return None
    return watch.quiet_since + timedelta(seconds=policy.stuck_after_s)


def _late_at(watch: Watch, policy: Policy) -> datetime | None:
    """Some time after its expected start; without one, after a wait that nobody would expect."""
    if watch.waits_since is None or watch.late_since is not None:
        return None
    at = watch.waits_since + timedelta(seconds=policy.long_wait_s)
    if watch.expected_start is None:
        return at
    return min(at, watch.expected_start + timedelta(seconds=policy.late_after_s))


def time_passed(watch: Watch, *, now: datetime, policy: Policy) -> JobOutcome:
    """Raise the alerts of a job that should have changed, or started, by now."""
    after, events, alerts = watch, [], []
    stuck_at, late_at = _stuck_at(watch, policy), _late_at(watch, policy)
    if stuck_at is not None and stuck_at <= now:
        after = replace(after, stuck_since=now)
        alert = _stuck_alert(watch, now)
        alerts.append(alert)
        events.append(
            Event(
                key=f"{AlertEvent.JOB_STUCK}/{watch.job}/{now.isoformat()}",
                name=AlertEvent.JOB_STUCK,
                at=now,
                severity=SEVERITIES[AlertEvent.JOB_STUCK],
                title=alert.summary,
                text=stuck_text(watch.state, watch.dead_letter, watch.quiet_since),
                thread=_thread(watch.job),
                data=_watch_data(watch, alert),
                job=watch.labels,
            )
        )
    if late_at is not None and late_at <= now:
        after = replace(after, late_since=now)
        alert = _late_alert(after, now)
        alerts.append(alert)
        events += _preset([alert])
    return JobOutcome(after, tuple(events), tuple(alerts))


def forgotten(watch: Watch, *, now: datetime) -> tuple[Alert, ...]:
    """The alerts that end with the watch of a job without messages for very long."""
    late = _over(watch, now)
    if watch.stuck_since is None:
        return late
    return (_stuck_alert(watch, watch.stuck_since).resolved(now), *late)


def _waiting(known: Watch, after: Watch, status: JobStatus, now: datetime) -> Watch:
    """A watch with how long its job waits, and until when it was expected to."""
    since = known.waits_since
    if since is None:
        is_new = known.revision == 0 and not after.has_run
        since = min(now, status.submitted_at) if is_new else now
    named = status.reason and status.reason.numbers.get("expectedStart")
    expected = known.expected_start
    if expected is None and isinstance(named, str):
        expected = _moment(named)
    late_since = known.late_since
    return replace(after, waits_since=since, expected_start=expected, late_since=late_since)


def _moment(text: str) -> datetime | None:
    """A time of the Scheduler's; None where it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _over(watch: Watch, now: datetime) -> tuple[Alert, ...]:
    """The end of a long wait."""
    if watch.late_since is None:
        return ()
    return (_late_alert(watch, watch.late_since).resolved(now),)


def _preset(alerts: Iterable[Alert]) -> tuple[Event, ...]:
    """Events that the job's user gets without asking."""
    return tuple(replace(it, is_preset=True) for it in events_of(alerts))


def _is_begin_in_digest(watch: Watch, now: datetime) -> bool:
    """An end is in the digest of its begin, or makes no mail."""
    since = watch.late_since
    return since is not None and digest_at(HOURLY, since) == digest_at(HOURLY, now)


def _late_alert(watch: Watch, starts_at: datetime) -> Alert:
    title = job_title(watch.user, watch.name, watch.job)
    since = watch.waits_since or starts_at
    return Alert(
        name=WAITS_LONG,
        severity=Severity.INFO,
        summary=f"{title} waits longer than expected, since {since:%Y-%m-%d %H:%M} UTC",
        labels=_alert_labels(watch),
        starts_at=starts_at,
        cause=_thread(watch.job),
    )


def _unstuck(
    known: Watch, after: Watch, now: datetime
) -> tuple[tuple[Event, ...], tuple[Alert, ...]]:
    if known.stuck_since is None:
        return (), ()
    alert = _stuck_alert(known, known.stuck_since).resolved(now)
    title = f"{job_title(known.user, known.name, known.job)} makes progress again"
    event = Event(
        key=f"{AlertEvent.JOB_UNSTUCK}/{known.job}/{known.stuck_since.isoformat()}",
        name=AlertEvent.JOB_UNSTUCK,
        at=now,
        severity=Severity.INFO,
        title=title,
        text=f"It is {after.state} now.",
        thread=_thread(known.job),
        data=_watch_data(after, alert),
        job=after.labels,
    )
    return (event,), (alert,)


def _events_of(
    known: Watch, after: Watch, status: JobStatus, now: datetime, policy: Policy
) -> tuple[Event, ...]:
    title = job_title(status.user, status.name, status.job)
    found: list[Event] = []

    def note(change: JobChange, title: str, at: datetime, number: str = "") -> None:
        name = EVENTS[change]
        if policy.is_news(at, now):
            event = Event(
                key=f"{name}/{status.job}{number}",
                name=name,
                at=at,
                severity=SEVERITIES[name],
                title=title,
                text=job_end_text(status),
                thread=_thread(status.job),
                data=job_data(status),
                job=after.labels,
                is_asked=change in status.notify,
            )
            found.append(event)

    if after.has_run and not known.has_run:
        note(JobChange.RUNNING, f"{title} runs", status.launched_at or now)
    if after.is_closed:
        note(ENDS[after.state], f"{title} {status.state}", status.completed_at or now)
    elif after.attempt > known.attempt:
        note(JobChange.RETRIED, f"{title} is tried again", now, f"/{status.attempt}")
    return tuple(found)


def _stuck_alert(watch: Watch, starts_at: datetime) -> Alert:
    title = job_title(watch.user, watch.name, watch.job)
    return Alert(
        name=STUCK,
        severity=Severity.WARNING,
        summary=f"{title} is stuck",
        labels=_alert_labels(watch),
        starts_at=starts_at,
    )


def _alert_labels(watch: Watch) -> dict[str, str]:
    """Actions need the user and the name."""
    return {
        "job": watch.job,
        "user": watch.user,
        "virtualCluster": watch.virtual_cluster,
        "jobName": watch.name,
    }


def _watch_data(watch: Watch, alert: Alert) -> dict[str, str | int | None]:
    return {
        "job": watch.job,
        "name": watch.name,
        "user": watch.user,
        "virtualCluster": watch.virtual_cluster,
        "state": watch.state,
        "attempt": watch.attempt,
        "deadLetter": watch.dead_letter,
        "quietSince": watch.quiet_since.isoformat(),
        "alert": alert.fingerprint,
        "startsAt": alert.starts_at.isoformat(),
        "endsAt": alert.ends_at.isoformat() if alert.ends_at else None,
    }


def _content(status: JobStatus) -> str:
    text = status.model_dump_json(exclude={"revision", "seen"})
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _thread(job: str) -> str:
    return f"job/{job}"
