"""A job's events depend on its states, not on how often Alerting receives a message."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alerting.domain.actions import target_of
from alerting.domain.events import Alert, Event
from alerting.domain.jobs import (
    JobOutcome,
    RejectedRecord,
    Watch,
    due_at,
    found_rejected,
    received,
    time_passed,
)
from alerting.domain.messages import digest_message, message_of
from alerting.domain.policy import Policy
from hypothesis import given
from hypothesis import strategies as st
from muster.contracts.alerts import Do
from muster.contracts.jobs import JobState, JobStatus
from muster.contracts.model import Reason

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy()
STUCK = timedelta(seconds=POLICY.stuck_after_s)


def a_status(revision: int, state: JobState = JobState.RUNNING, **fields: Any) -> JobStatus:
    notice = {
        "job": "j1",
        "name": "train",
        "user": "ada",
        "virtual_cluster": "default",
        "submitted_at": NOW,
    }
    return JobStatus(**{**notice, "revision": revision, "state": state, **fields})


def after(
    *messages: JobStatus, now: datetime = NOW, policy: Policy = POLICY
) -> tuple[Watch, list[Event], list[Alert]]:
    watch: Watch | None = None
    events: list[Event] = []
    alerts: list[Alert] = []
    for message in messages:
        outcome = received(watch, message, now=now, policy=policy)
        watch = outcome.watch
        events += outcome.events
        alerts += outcome.alerts
    assert watch is not None
    return watch, events, alerts


def names(events: list[Event]) -> list[str]:
    return [event.name.value for event in events]


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (JobState.SUCCEEDED, "job-finished"),
        (JobState.STOPPED, "job-finished"),
        (JobState.FAILED, "job-failed"),
    ],
)
def test_the_end_of_a_job_is_one_event(state: JobState, name: str) -> None:
    last = a_status(3, state, completed_at=NOW)
    _, events, alerts = after(a_status(1), a_status(2), last, last, last)
    assert names(events) == [name]
    assert not alerts


def test_the_first_run_of_a_job_is_one_event_also_if_it_has_ended_meanwhile() -> None:
    ran: dict[str, Any] = {"launched_at": NOW, "notify": ("running",)}
    why = "Preempted (code -1003): its node is bad"
    again = a_status(4, attempt=1, launched_at=NOW, notify=("retried",))
    waits, runs = a_status(1, JobState.WAITING), a_status(2, **ran)
    begun = a_status(3, JobState.WAITING, attempt=1, ended=why, **ran)
    _, events, _ = after(waits, runs, begun, again)
    assert names(events) == ["job-started", "job-retried"]
    assert f"The attempt before: {why}" in events[1].text
    _, events, _ = after(waits, a_status(2, JobState.FAILED, completed_at=NOW, **ran))
    assert [(it.name.value, it.is_asked) for it in events] == [
        ("job-started", True),
        ("job-failed", False),
    ]


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.STOPPED, JobState.FAILED])
def test_a_job_file_asks_for_each_end_by_itself(state: JobState) -> None:
    for change in ("succeeded", "stopped", "failed"):
        _, (event,), _ = after(a_status(1, state, completed_at=NOW, notify=(change,)))
        assert event.is_asked == (change == state.value.lower())


def test_a_job_whose_first_message_is_its_end_is_an_event() -> None:
    _, events, _ = after(a_status(7, JobState.FAILED, completed_at=NOW))
    assert names(events) == ["job-failed"]


def test_a_final_state_never_moves() -> None:
    watch, events, _ = after(a_status(1, JobState.FAILED, completed_at=NOW), a_status(2))
    assert watch.state is JobState.FAILED
    assert len(events) == 1


def test_a_late_message_changes_nothing() -> None:
    newest = a_status(3, JobState.STOPPING)
    late = [a_status(2), a_status(1, JobState.WAITING, attempt=1)]
    assert after(newest, *late) == after(newest)


def test_an_old_end_is_no_news() -> None:
    long_ago = NOW - timedelta(seconds=POLICY.stale_after_s + 1)
    watch, events, _ = after(a_status(3, JobState.FAILED, completed_at=long_ago))
    assert watch.is_closed
    assert not events


def test_each_retry_is_an_event_with_its_attempt() -> None:
    messages = [a_status(1), a_status(2, attempt=1), a_status(3, attempt=1, retry_at=NOW)]
    _, events, _ = after(*messages, a_status(4, attempt=2))
    assert [event.key for event in events] == ["job-retried/j1/1", "job-retried/j1/2"]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_any_order_and_repeats_end_the_same(order: list[int]) -> None:
    messages = [
        a_status(1, JobState.WAITING),
        a_status(2, JobState.WAITING, reason=Reason(code="quota", text="full")),
        a_status(3),
        a_status(4, JobState.STOPPING),
        a_status(5, JobState.STOPPED, completed_at=NOW),
    ]
    watch, events, alerts = after(*(messages[i] for i in [*order, 4]))
    assert watch == after(*messages)[0]
    assert names(events) == ["job-finished"]
    assert not alerts


@pytest.mark.parametrize(
    ("message", "is_due"),
    [
        (a_status(1, JobState.WAITING), True),
        (a_status(1, JobState.WAITING, reason=Reason(code="quota", text="full")), False),
        (a_status(1, JobState.STOPPING), True),
        (a_status(1, JobState.RUNNING), False),
        (a_status(1, JobState.RUNNING, dead_letter="agent on pod-requested"), True),
        (a_status(1, JobState.SUCCEEDED, dead_letter="rest on job-updated"), False),
        (a_status(1, JobState.UNKNOWN), False),
    ],
)
def test_a_job_is_stuck_where_it_should_move(message: JobStatus, is_due: bool) -> None:
    watch, _, _ = after(message)
    assert (due_at(watch, POLICY) == NOW + STUCK) == is_due
    assert not time_passed(watch, now=NOW + STUCK - timedelta(seconds=1), policy=POLICY).alerts
    raised = time_passed(watch, now=NOW + STUCK, policy=POLICY)
    assert names(list(raised.events)) == (["job-stuck"] if is_due else [])
    assert bool(raised.alerts) == is_due


def stuck() -> tuple[Watch, JobOutcome]:
    watch, _, _ = after(a_status(1, JobState.STOPPING))
    outcome = time_passed(watch, now=NOW + STUCK, policy=POLICY)
    return outcome.watch, outcome


def test_a_stuck_job_is_one_event_until_it_moves() -> None:
    watch, _ = stuck()
    assert due_at(watch, POLICY) is None
    assert time_passed(watch, now=NOW + 10 * STUCK, policy=POLICY) == JobOutcome(watch)


def test_the_alert_of_a_stuck_job_names_the_target_of_an_action() -> None:
    _, raised = stuck()
    (alert,) = raised.alerts
    assert target_of(Do.STOP_JOB, alert) == "ada~train"


def test_a_stuck_job_that_moves_is_resolved() -> None:
    watch, raised = stuck()
    later = NOW + 2 * STUCK
    outcome = received(
        watch, a_status(2, JobState.STOPPED, completed_at=later), now=later, policy=POLICY
    )
    assert names(list(outcome.events)) == ["job-unstuck", "job-finished"]
    (resolved,) = outcome.alerts
    assert resolved.ends_at == later
    assert resolved.fingerprint == raised.alerts[0].fingerprint
    assert resolved.starts_at == raised.alerts[0].starts_at


def test_a_message_without_news_is_no_change() -> None:
    watch, _ = stuck()
    outcome = received(
        watch, a_status(9, JobState.STOPPING, seen=4), now=NOW + STUCK, policy=POLICY
    )
    assert outcome == JobOutcome(replace(watch, revision=9))


def test_a_dead_record_makes_an_unchanging_job_stuck() -> None:
    running, _, _ = after(a_status(1))
    rejected = RejectedRecord("j1", "launcher on pod-started: bad", at=NOW)
    later = NOW + timedelta(hours=2)
    watch = found_rejected(running, rejected, now=later).watch
    assert due_at(watch, POLICY) == later + STUCK
    assert (
        found_rejected(watch, rejected, now=later + STUCK).watch == watch
    )  # the same letter again
    moved = received(watch, a_status(2, attempt=1), now=later, policy=POLICY).watch
    assert due_at(moved, POLICY) is None


def test_a_job_whose_first_record_is_dead_is_stuck_too() -> None:
    rejected = RejectedRecord(
        "j2", "launcher on job-submitted: bad", at=NOW, user="ada", name="train"
    )
    watch = found_rejected(None, rejected, now=NOW).watch
    outcome = time_passed(watch, now=NOW + STUCK, policy=POLICY)
    (event,) = outcome.events
    assert event.job is not None
    assert event.job.user == "ada"
    assert "job-submitted" in event.text


def waits(revision: int, expected: str | None = None) -> JobStatus:
    numbers: dict[str, Any] = {} if expected is None else {"expectedStart": expected}
    reason = Reason(code="quota", text="It waits.", numbers=numbers)
    return a_status(revision, JobState.WAITING, reason=reason)


def test_a_job_that_waits_longer_than_expected_is_one_alert_until_it_runs() -> None:
    """The first expectation counts: a later one is what the user hears of."""
    watch, events, _ = after(
        waits(1), waits(2, "2026-01-01T13:00:00Z"), waits(3, "2026-01-02T09:00:00Z")
    )
    late = NOW + timedelta(hours=1, seconds=POLICY.late_after_s)
    assert (events, due_at(watch, POLICY)) == ([], late)
    before = late - timedelta(seconds=1)
    assert not time_passed(watch, now=before, policy=POLICY).alerts
    passed = time_passed(watch, now=late, policy=POLICY)
    (alert,), (event,) = passed.alerts, passed.events
    assert alert.name == "JobWaitsLong"
    assert (event.name, event.job, event.thread) == ("alert-raised", watch.labels, "job/j1")
    assert (event.is_preset, event.severity) == (True, "info"), "it is for the job's user"
    assert due_at(passed.watch, POLICY) is None
    goes_on = received(passed.watch, waits(4), now=late, policy=POLICY)
    assert (goes_on.alerts, goes_on.watch.late_since) == ((), late)
    runs = received(goes_on.watch, a_status(5, launched_at=late), now=late, policy=POLICY)
    assert [it.name for it in runs.events] == ["job-started", "alert-resolved"]
    (over,) = runs.alerts
    assert (over.fingerprint, over.ends_at) == (alert.fingerprint, late)
    assert due_at(runs.watch, POLICY) is None


@pytest.mark.parametrize(
    ("minutes", "shown"),
    [
        (5, "began 2026-01-01 13:10 UTC, ended 2026-01-01 13:15 UTC, info: Job ada~train waits"),
        (50, None),  # the digest of its begin was sent
    ],
)
def test_the_end_of_a_long_wait_is_mailed_only_with_its_begin(
    minutes: int, shown: str | None
) -> None:
    """A user gets no further mail that a job waits no longer."""
    watch, _, _ = after(waits(1, "2026-01-01T13:00:00Z"))
    late = NOW + timedelta(hours=1, minutes=10)
    passed = time_passed(watch, now=late, policy=POLICY)
    now = late + timedelta(minutes=minutes)
    runs = received(passed.watch, a_status(2, launched_at=now), now=now, policy=POLICY)
    events = [it for it in (*passed.events, *runs.events) if it.is_preset]
    assert len(events) == (1 if shown is None else 2)
    if shown is not None:
        mail = digest_message("d/1", "account/ada", [message_of(it) for it in events], now)
        assert shown in mail.text
        assert "Resolved" not in mail.text


def test_a_wait_without_an_expected_start_is_long_after_a_day() -> None:
    day = timedelta(seconds=POLICY.long_wait_s)
    watch, _, _ = after(waits(1), waits(2, "no time"), now=NOW + timedelta(hours=2))
    assert due_at(watch, POLICY) == NOW + day, "counts from the submission"
    later = NOW + timedelta(hours=3)
    ran, _, _ = after(waits(1), a_status(2, launched_at=NOW), waits(3), now=later)
    assert due_at(ran, POLICY) == later + day, "each wait counts by itself"
