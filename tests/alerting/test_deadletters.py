"""Many dead letters are one alert; each names its job."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alerting.domain.deadletters import DEAD_LETTERS, job_record, received
from alerting.domain.policy import Policy
from muster.contracts.notices import DeadLetter

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy()


def a_letter(second: int = 0, **fields: Any) -> DeadLetter:
    notice = {"topic": "job-submitted", "partition": 0, "offset": 7, "key": "j1", "headers": {}}
    notice |= {"value": '{"job": "j1"}', "reader": "launcher", "reason": "no such field"}
    return DeadLetter(**{**notice, "at": NOW + timedelta(seconds=second), **fields})


def test_many_letters_are_one_alert_until_it_is_quiet() -> None:
    first = received(None, a_letter(), now=NOW, policy=POLICY)
    assert [event.name.value for event in first.events] == ["record-rejected"]
    assert "job-submitted, partition 0, offset 7" in first.events[0].text
    again = received(first.watch, a_letter(), now=NOW, policy=POLICY)
    second = received(again.watch, a_letter(5), now=NOW + timedelta(seconds=5), policy=POLICY)
    assert not again.events + again.alerts + second.events + second.alerts
    quiet_at = NOW + timedelta(seconds=5 + POLICY.dead_letters_over_s)
    early = quiet_at - timedelta(seconds=1)
    assert not DEAD_LETTERS.time_passed(second.watch, now=early, policy=POLICY).alerts
    over = DEAD_LETTERS.time_passed(second.watch, now=quiet_at, policy=POLICY)
    assert over.alerts[0].ends_at == quiet_at
    assert over.alerts[0].fingerprint == first.alerts[0].fingerprint
    assert received(over.watch, a_letter(9), now=quiet_at, policy=POLICY).events


def test_old_letters_read_anew_are_no_news() -> None:
    old = a_letter(int(-POLICY.stale_after_s) - 1)
    outcome = received(None, old, now=NOW, policy=POLICY)
    assert not outcome.events + outcome.alerts


def test_a_clock_that_ran_ahead_does_not_silence_the_letters_to_come() -> None:
    early = received(None, a_letter(86_400), now=NOW, policy=POLICY)
    quiet_at = NOW + timedelta(seconds=POLICY.dead_letters_over_s)
    over = DEAD_LETTERS.time_passed(early.watch, now=quiet_at, policy=POLICY)
    again = a_letter(int(POLICY.dead_letters_over_s) + 1)
    assert received(over.watch, again, now=again.at, policy=POLICY).events


@pytest.mark.parametrize(
    ("letter", "job"),
    [
        (a_letter(value="{"), "j1"),
        (a_letter(topic="gang-requested", key="j1-0", value="not json"), "j1"),
        (a_letter(topic="pod-requested", key="node-1", value='{"job": "j1"}'), "j1"),
        (a_letter(topic="pod-requested", key="node-1", value="["), None),
        (a_letter(topic="pod-failed", key="j1", value="7"), "j1"),
        (a_letter(topic="node-lost", key="node-1", value="{}"), None),
        (a_letter(topic="strange", key="j1"), None),
        (a_letter(key=None, value="[" * 10_000), None),
        (a_letter(value=json.dumps({"job": "j" * 1000})), None),
        (a_letter(value=json.dumps({"job": "j\x00"})), None),
        (a_letter(value=json.dumps({"job": "j\ud800"})), "j?"),
    ],
)
def test_a_dead_letter_names_its_job(letter: DeadLetter, job: str | None) -> None:
    record = job_record(letter)
    assert (record and record.job) == job
