"""Rejected records: one alert for each reader and topic, for any number of them; and the job that a
rejected record is about.
"""

import json
from datetime import datetime

from muster.contracts.notices import DeadLetter
from muster.contracts.subscriptions import AlertEvent
from muster.contracts.topics import TOPICS, Kind
from muster.ids import is_name, job_of

from alerting.domain.events import SEVERITIES, Alert, Event, Severity
from alerting.domain.jobs import RejectedRecord
from alerting.domain.policy import Policy
from alerting.domain.repeated import Key, Notice, Repeated, RepeatedOutcome, Repeats

RECORDS_REJECTED = "RecordsRejected"


def received(
    watch: Repeated | None, letter: DeadLetter, *, now: datetime, policy: Policy
) -> RepeatedOutcome:
    """Apply a dead letter."""
    notice = Notice((letter.reader, letter.topic), letter.at, now)
    after, alert = DEAD_LETTERS.received(watch, notice, now=now, policy=policy)
    if alert is None:
        return RepeatedOutcome(after)
    place = f"{letter.topic}, partition {letter.partition}, offset {letter.offset}"
    event = Event(
        key=f"{AlertEvent.RECORD_REJECTED}/{letter.reader}/{letter.topic}/{letter.at.isoformat()}",
        name=AlertEvent.RECORD_REJECTED,
        at=letter.at,
        severity=SEVERITIES[AlertEvent.RECORD_REJECTED],
        title=alert.summary,
        text=f"{place}: {letter.reason}\nFix the cause, then run `muster events redrive`.",
        thread=f"dead-letters/{letter.reader}/{letter.topic}",
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
    return RepeatedOutcome(after, (event,), (alert,))


def job_record(letter: DeadLetter) -> RejectedRecord | None:
    """The job that a dead letter is about; None where it is about none, or names none."""
    fields = _fields(letter.value)
    topic = TOPICS.get(letter.topic)
    if topic is None or topic.kind is None:
        return None
    job = fields.get("job", "")
    if not job and letter.key:
        if topic.kind is Kind.JOB or topic.key == "job":
            job = letter.key
        elif topic.kind is Kind.GANG:
            job = job_of(letter.key)
    if not job or not is_name(job):
        return None
    return RejectedRecord(
        job=job,
        what=f"{letter.reader} on {letter.topic}: {letter.reason}"[:500],
        at=letter.at,
        user=fields.get("user", ""),
        virtual_cluster=fields.get("virtualCluster", ""),
        name=fields.get("name", "") if topic.kind is not Kind.POD else "",
    )


def _fields(value: str) -> dict[str, str]:
    """The text fields of a record that may be no JSON, or cut."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    texts = {key: text for key, text in fields.items() if isinstance(text, str)}
    # JSON may name half a character, which no other encoding has.
    return {key: text.encode(errors="replace").decode() for key, text in texts.items()}


def _alert(key: Key, starts_at: datetime) -> Alert:
    reader, topic = key
    return Alert(
        name=RECORDS_REJECTED,
        severity=Severity.CRITICAL,
        summary=f"{reader} rejected records of {topic}",
        labels={"reader": reader, "topic": topic},
        starts_at=starts_at,
    )


DEAD_LETTERS = Repeats(_alert, lambda policy: policy.dead_letters_over_s)
"""The dead letters of one reader of one topic."""
