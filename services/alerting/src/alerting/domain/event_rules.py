"""Event rules: which events count for which alert, when the alert fires, and when it is over.

A rule counts events of one kind that its condition holds for, by subject (a job, a user …). Its
alert fires once there are enough of them in its window, and is over when the window has none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from muster.contracts.alerts import subject_of
from muster.contracts.subscriptions import AlertEvent

from alerting.domain.events import Alert, Event, Severity, Source

FAILS = "RuleFails"
FLOODS = "RuleFloods"
MOST_AN_HOUR = 100
"""Alerts of one rule in an hour: more are no help, and the rule is stopped."""


class By(StrEnum):
    """What events are counted by."""

    JOB = "job"
    USER = "user"
    VIRTUAL_CLUSTER = "virtualCluster"
    NODE = "node"
    NOTHING = "nothing"


OF_JOBS = frozenset(
    {
        AlertEvent.JOB_STARTED,
        AlertEvent.JOB_FINISHED,
        AlertEvent.JOB_FAILED,
        AlertEvent.JOB_RETRIED,
        AlertEvent.JOB_STUCK,
        AlertEvent.JOB_UNSTUCK,
    }
)
"""Events that name a job, its user and its virtual cluster."""
OF_NODES = frozenset(
    {
        AlertEvent.NODE_LOST,
        AlertEvent.NODE_RETURNED,
        AlertEvent.NODE_REMOVED,
        AlertEvent.NODE_NAME_CLASH,
        AlertEvent.REMEDIATION_REQUESTED,
    }
)
"""Events that name a node."""


FIELDS = frozenset({"name", "at", "severity", "title", "text", "job", "data"})
JOB_FIELDS = frozenset({"user", "virtualCluster", "name"})
"""What conditions can read of every event, and of the job of those that name one."""


def can_count(event: AlertEvent, by: By) -> bool:
    """Whether events of this kind name what they are to be counted by."""
    return by is By.NOTHING or event in (OF_NODES if by is By.NODE else OF_JOBS)


@dataclass(frozen=True, slots=True)
class EventRule:
    """``holds`` raises ValueError where an event can't be evaluated."""

    name: str
    event: str
    severity: Severity
    holds: Callable[[Mapping[str, Any]], bool]
    count: int = 1
    window_s: float = 3600.0
    by: By = By.NOTHING
    runbook: str | None = None
    summary: str | None = None

    def alert(self, event: Mapping[str, Any], at: datetime) -> Alert:
        """The alert that an event counts for."""
        labels = {"rule": self.name} | _subject(self.by, event)
        named = ", ".join(f"{key} {value}" for key, value in labels.items() if key != "rule")
        about = subject_of(labels).job or named
        return Alert(
            name=self.name,
            severity=self.severity,
            summary=(self.summary or f"{self.name}: {event['title']}")
            + (f" ({about})" if self.summary and about else ""),
            labels=labels,
            starts_at=at,
            source=Source.RULE,
            runbook=self.runbook,
        )


PRESETS = (
    EventRule(
        name="JobRetriedOften",
        event="job-retried",
        severity=Severity.WARNING,
        holds=lambda _event: True,
        count=3,
        by=By.JOB,
        summary="A job was retried three times within an hour",
    ),
)
"""Rules that hold until an operator switches them off."""


@dataclass(frozen=True, slots=True)
class Match:
    """An event counts for an alert: ``count`` of them within ``window_s`` make it fire."""

    alert: Alert
    event_key: str
    count: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What a rule would have done: the events that it counted, the alerts that it would have made
    in all and at most in one hour, and the events that it could not evaluate.
    """

    rule: str
    events: int
    fired: int
    most_in_an_hour: int
    failed: int
    failure: str | None


def shown(event: Event) -> dict[str, Any]:
    """An event as conditions see it. Data has no null values: `has(event.data.verdict)` asks."""
    job = event.job
    about = (
        {}
        if job is None
        else {"user": job.user, "virtualCluster": job.virtual_cluster, "name": job.name}
    )
    return {
        "name": event.name.value,
        "at": event.at.isoformat(),
        "severity": event.severity.value,
        "title": event.title,
        "text": event.text,
        "job": about,
        "data": _without_nulls(dict(event.data)),
    }


def matches(
    rules: Iterable[EventRule], events: Iterable[tuple[str, Mapping[str, Any]]], now: datetime
) -> tuple[Match, ...]:
    """What new events, each with its key, count for. A rule that fails is an alert itself."""
    found = []
    by_event: dict[str, list[EventRule]] = {}
    for rule in rules:
        by_event.setdefault(rule.event, []).append(rule)
    for key, event in events:
        for rule in by_event.get(event["name"], ()):
            try:
                if rule.holds(event):
                    alert = rule.alert(event, now)
                    found.append(Match(alert, key, rule.count, rule.window_s))
            except ValueError as error:
                found.append(Match(_failing(rule, str(error), now), key, 1, rule.window_s))
    return tuple(found)


def flooding(rule: str, now: datetime) -> Alert:
    """In place of alerts of a rule that makes too many."""
    return Alert(
        name=FLOODS,
        severity=Severity.WARNING,
        summary=f"Rule {rule} made {MOST_AN_HOUR} alerts within an hour and is stopped: narrow it",
        labels={"rule": rule},
        starts_at=now,
        source=Source.RULE,
    )


def with_reason(over: Iterable[Alert], rules: Sequence[str] | None) -> list[Alert]:
    """Alerts that end; the summary of one whose rule is none of these says so. ``rules``: None
    where they are not known.
    """
    return [
        it
        if rules is None or it.labels["rule"] in rules
        else replace(it, summary=f"{it.summary} (its rule is removed)")
        for it in over
    ]


def tried(rule: EventRule, events: Sequence[tuple[datetime, Mapping[str, Any]]]) -> Trial:
    """What a rule would have done with these events, oldest first."""
    times: dict[str, list[datetime]] = {}
    starts: list[datetime] = []
    counted, failures = 0, []
    for at, event in events:
        try:
            if event["name"] != rule.event or not rule.holds(event):
                continue
        except ValueError as error:
            failures.append(str(error))
            continue
        counted += 1
        window = timedelta(seconds=rule.window_s)
        known = times.setdefault(rule.alert(event, at).fingerprint, [])
        recent = [it for it in known if it > at - window]
        is_firing = bool(recent) and len(recent) >= rule.count
        if not is_firing and len(recent) + 1 >= rule.count:
            starts.append(at)
        known[:] = [*recent, at]
    return Trial(
        rule=rule.name,
        events=counted,
        fired=len(starts),
        most_in_an_hour=_most_in_an_hour(starts),
        failed=len(failures),
        failure=failures[0] if failures else None,
    )


def _most_in_an_hour(starts: Sequence[datetime]) -> int:
    most, first = 0, 0
    for last, at in enumerate(starts):
        while starts[first] <= at - timedelta(hours=1):
            first += 1
        most = max(most, last - first + 1)
    return most


def _failing(rule: EventRule, why: str, now: datetime) -> Alert:
    return Alert(
        name=FAILS,
        severity=Severity.WARNING,
        summary=f"Rule {rule.name} can't evaluate an event {rule.event}: {why}",
        labels={"rule": rule.name},
        starts_at=now,
        source=Source.RULE,
    )


def _subject(by: By, event: Mapping[str, Any]) -> dict[str, str]:
    """The labels of what is counted by; those of a job name its user too."""
    job, data = event["job"], event["data"]
    found: dict[str, Any] = {}
    match by:
        case By.JOB:
            found = {"job": data.get("job")}
            found |= {"user": job.get("user"), "virtualCluster": job.get("virtualCluster")}
            found |= {"jobName": job.get("name")}
        case By.USER:
            found = {"user": job.get("user")}
        case By.VIRTUAL_CLUSTER:
            found = {"virtualCluster": job.get("virtualCluster")}
        case By.NODE:
            found = {"node": data.get("node")}
        case By.NOTHING:
            pass
    return {key: str(value) for key, value in found.items() if value}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
