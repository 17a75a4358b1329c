"""Records that could not be handled: one alert for each reader and topic, however many there are;
and which job a dead record is about.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from muster.contracts.notices import DeadLetter
from muster.contracts.subscriptions import AlertEvent
from muster.contracts.topics import TOPICS, Kind
from muster.ids import is_name, job_of

from alerting.domain.events import Alert, Event, Severity
from alerting.domain.jobs import DeadRecord
from alerting.domain.policy import Policy

DEAD = "RecordsDead"


@dataclass(frozen=True, slots=True)
class Pile:
    """The dead letters of one reader of one topic. Its alert fires while ``since`` is there."""

    reader: str
    topic: str
    newest_at: datetime
    heard_at: datetime
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class PileOutcome:
    """The pile to keep, what to tell, and the alerts that changed."""

    pile: Pile
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()


def heard(pile: Pile | None, letter: DeadLetter, *, now: datetime, policy: Policy) -> PileOutcome:
    """Apply a dead letter; one that is not newer than the last was heard before."""
    if pile is not None and letter.at <= pile.newest_at:
        return PileOutcome(pile)
    newest_at = min(letter.at, now)  # a clock that ran ahead must not silence the letters to come
    if pile is not None and pile.since is not None:
        return PileOutcome(replace(pile, newest_at=newest_at, heard_at=now))
    if not policy.is_news(letter.at, now):
        return PileOutcome(Pile(letter.reader, letter.topic, newest_at, now))
    after = Pile(letter.reader, letter.topic, newest_at, now, since=now)
    alert = _alert(after, now)
    place = f"{letter.topic}, partition {letter.partition}, offset {letter.offset}"
    event = Event(
        key=f"{AlertEvent.RECORD_DEAD}/{letter.reader}/{letter.topic}/{letter.at.isoformat()}",
        name=AlertEvent.RECORD_DEAD,
        at=letter.at,
        severity=Severity.CRITICAL,
        title=alert.summary,
        text=f"{place}: {letter.reason}\n"
        "Mend the cause, then `muster events redrive` brings the record back.",
        thread=f"dead/{letter.reader}/{letter.topic}",
        data={
            "reader": letter.reader,
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "key": letter.key,
            "reason": letter.reason,
            "alert": alert.fingerprint,
        },
    )
    return PileOutcome(after, (event,), (alert,))


def due_at(pile: Pile, policy: Policy) -> datetime | None:
    """When the pile is quiet if no other letter comes before."""
    if pile.since is None:
        return None
    return pile.heard_at + timedelta(seconds=policy.dead_quiet_s)


def time_passed(pile: Pile, *, now: datetime, policy: Policy) -> PileOutcome:
    """Resolve the alert of a pile that has been quiet."""
    due = due_at(pile, policy)
    if pile.since is None or due is None or due > now:
        return PileOutcome(pile)
    return PileOutcome(replace(pile, since=None), (), (_alert(pile, pile.since).resolved(now),))


def job_record(letter: DeadLetter) -> DeadRecord | None:
    """What a dead letter says about a job; None where it is about none, or does not say which."""
    said = _fields(letter.value)
    topic = TOPICS.get(letter.topic)
    if topic is None or topic.kind is None:
        return None
    job = said.get("job", "")
    if not job and letter.key:
        if topic.kind is Kind.JOB or topic.key == "job":
            job = letter.key
        elif topic.kind is Kind.GANG:
            job = job_of(letter.key)
    if not job or not is_name(job):
        return None
    return DeadRecord(
        job=job,
        what=f"{letter.reader} on {letter.topic}: {letter.reason}"[:500],
        at=letter.at,
        user=said.get("user", ""),
        virtual_cluster=said.get("virtualCluster", ""),
        name=said.get("name", "") if topic.kind is not Kind.POD else "",
    )


def _fields(value: str) -> dict[str, str]:
    """The text fields of a record that may be no JSON, or cut."""
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    texts = {key: text for key, text in said.items() if isinstance(text, str)}
    # JSON may name half a character, which no other encoding has.
    return {key: text.encode(errors="replace").decode() for key, text in texts.items()}


def _alert(pile: Pile, starts_at: datetime) -> Alert:
    return Alert(
        name=DEAD,
        severity=Severity.CRITICAL,
        summary=f"Records of {pile.topic} could not be handled by {pile.reader}",
        labels={"reader": pile.reader, "topic": pile.topic},
        starts_at=starts_at,
    )
