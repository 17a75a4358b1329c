"""When an attempt is over and how, and what is tried again."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from launcher.domain.states import JobPhase, TaskPhase
from launcher_peers import failure, never_ran
from muster.contracts.jobs import JobState, TaskState
from muster.contracts.verdicts import Behavior, Fault, Verdict
from runtime_agent.domain.ending import Ending, Loss, Oom
from runtime_agent.domain.verdict import judge

Story = Any
Tell = Callable[..., Story]

START = datetime(2026, 1, 1, tzinfo=UTC)
USER_FAILURE = failure(Behavior.UNKNOWN)
SYNTAX_ERROR = failure(Behavior.PERMANENT)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def test_one_failure_ends_the_attempt_and_the_others_are_stopped(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-1-0", USER_FAILURE)
    assert told.phase() is JobPhase.COMPLETING
    stop = told.stops()["j1-0-worker-0-0"].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == ("completed", 30)
    told.end_stopped()
    final = told.status()
    assert final.state is JobState.FAILED
    assert final.verdict == USER_FAILURE
    assert final.trigger is not None
    assert (final.trigger.role, final.trigger.index) == ("worker", 1)
    first = final.task_roles[0].tasks[0]
    assert (first.state, first.verdict and first.verdict.code) == (TaskState.STOPPED, -220)


def test_a_task_that_failed_before_its_stop_came_is_shown_as_it_was(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-1-0", USER_FAILURE)
    told.end("0-worker-0-0", SYNTAX_ERROR)
    final = told.status()
    assert [t.verdict for t in final.task_roles[0].tasks] == [SYNTAX_ERROR, USER_FAILURE]
    assert [t.state for t in final.task_roles[0].tasks] == [TaskState.FAILED] * 2
    assert final.verdict == USER_FAILURE


def test_a_failure_under_preemption_is_the_preemptions(story: Tell) -> None:
    told = story({"worker": 2}).place().start().preempt()
    told.end("0-worker-1-0", USER_FAILURE).end_stopped()
    assert told.phase() is JobPhase.BACKOFF
    assert told.job.job.accountable == 0


def test_enough_successes_end_the_attempt_well_whatever_else_runs(story: Tell) -> None:
    told = story({"worker": 3}, role={"min_succeeded_instances": 2}).place().start()
    told.end("0-worker-0-0").end("0-worker-2-0").end_stopped()
    assert told.status().state is JobState.SUCCEEDED


def test_failures_below_the_bound_are_borne(story: Tell) -> None:
    told = story({"worker": 3}, role={"min_failed_instances": 2}).place().start()
    told.end("0-worker-0-0", USER_FAILURE).end("0-worker-1-0")
    assert told.phase() is JobPhase.RUNNING
    assert told.end("0-worker-2-0").status().state is JobState.SUCCEEDED


def test_a_bound_of_minus_one_never_ends_the_attempt(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place().start()
    told.end("0-worker-0-0", USER_FAILURE).end("0-worker-1-0", USER_FAILURE)
    assert told.status().state is JobState.SUCCEEDED


def test_nothing_succeeds_by_losing_every_task(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place().start().lose("n1")
    assert told.phase() is JobPhase.BACKOFF


def test_nothing_succeeds_by_being_refused(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}, gang=False)
    for gang in list(told.scheduler.waiting()):
        told.tell(told.scheduler.refuse(gang))
    assert told.status().state is JobState.FAILED


def test_no_gang_runs_without_the_pod_that_was_lost_before_it_ran(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1})
    told.scheduler.place("j1-0", "n1", 1)
    told.scheduler.place("j1-0", "n2")
    told.lose("n1")
    assert told.runs() == []
    assert told.stops() == {}
    assert told.phase() is JobPhase.BACKOFF


def test_no_gang_goes_on_without_the_pod_that_its_agent_refused(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place()
    told.tell(told.agents.start("j1-0-worker-0-0", told.now))
    told.end("0-worker-1-0", WITHDRAWN).end_stopped()
    assert told.phase() is JobPhase.BACKOFF
    assert told.job.job.accountable == 0


# Retries.


def test_a_users_failure_spends_one_retry_and_the_last_one_counts(story: Tell) -> None:
    told = story(job_retry_count=1).place().start().end("0-worker-0-0", USER_FAILURE)
    assert told.status().verdict == USER_FAILURE
    assert (told.again().phase(), told.job.job.attempt) == (JobPhase.WAITING, 1)
    assert told.status().retries.user == 1
    told.place().start().end("1-worker-0-0", USER_FAILURE)
    assert told.status().state is JobState.FAILED
    assert told.status().retries.model_dump() == {"user": 1, "platform": 0, "resource": 0}


@pytest.mark.parametrize(
    ("ending", "spent"),
    [
        (Ending(exit_code=137), 1),
        (Ending(exit_code=143), 1),
        (Ending(signal=9), 1),
        (Ending(signal=15), 1),
        (Ending(signal=9, oom=Oom.SUSPECTED), 1),
        (Ending(signal=15, stop_reason="withdrawn"), 0),
        (Ending(signal=9, stop_reason="preempted", forced=True), 0),
        (Ending(exit_code=143, stop_reason="supervisor-terminated"), 0),
        (Ending(loss=Loss.SUPERVISOR), 0),
        (Ending(loss=Loss.REBOOT), 0),
    ],
)
def test_a_kill_is_free_of_charge_only_where_the_platform_did_it(
    story: Tell, ending: Ending, spent: int
) -> None:
    told = story(job_retry_count=1).place().start().end("0-worker-0-0", judge(ending))
    told.wait(1).place().start()
    assert (told.phase(), told.job.job.accountable) == (JobPhase.RUNNING, spent)
    told.end("1-worker-0-0", judge(ending))
    assert (told.phase() is JobPhase.FAILED) == (spent == 1)


def test_a_permanent_failure_is_never_retried(story: Tell) -> None:
    told = story(job_retry_count=5).place().start().end("0-worker-0-0", SYNTAX_ERROR)
    assert told.status().state is JobState.FAILED


@pytest.mark.parametrize(
    "verdict",
    [WITHDRAWN, never_ran(), failure(Behavior.TRANSIENT, Fault.PLATFORM, 253)],
    ids=["withdrawn", "never-ran", "port-conflict"],
)
def test_what_the_platform_breaks_is_retried_at_no_cost(story: Tell, verdict: Verdict) -> None:
    told = story(job_retry_count=0).place().end("0-worker-0-0", verdict)
    assert told.phase() is JobPhase.BACKOFF
    told.wait(1)
    assert (told.phase(), told.job.job.accountable) == (JobPhase.WAITING, 0)
    assert told.place().start().end("1-worker-0-0").status().state is JobState.SUCCEEDED


def test_platform_failures_in_a_row_wait_longer_each_time_up_to_a_bound(story: Tell) -> None:
    told, waits = story(), []
    for attempt in range(12):
        told.place().end(f"{attempt}-worker-0-0", WITHDRAWN)
        retry_at = told.status().retry_at
        assert retry_at is not None
        waits.append((retry_at - told.now).total_seconds())
        told.wait(waits[-1])
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 300


def test_a_long_attempt_makes_the_waits_start_anew(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", WITHDRAWN).wait(1)
    told.place().start().wait(601).end("1-worker-0-0", WITHDRAWN)
    retry_at = told.status().retry_at
    assert retry_at is not None
    assert retry_at - told.now == timedelta(seconds=1)


def test_a_conflict_over_resources_waits_between_its_bounds(story: Tell) -> None:
    conflict = failure(Behavior.TRANSIENT_CONFLICT, Fault.PLATFORM, 251)
    told = story().place().end("0-worker-0-0", conflict)
    retry_at = told.status().retry_at
    assert retry_at is not None
    assert timedelta(seconds=60) <= retry_at - told.now <= timedelta(seconds=900)
    assert told.wait(900).job.job.retries.resource == 1


@pytest.mark.parametrize("limit", [-1, -2])
def test_a_negative_count_retries_failures_without_end(story: Tell, limit: int) -> None:
    told = story(job_retry_count=limit)
    for attempt in range(3):
        told.place().start().end(f"{attempt}-worker-0-0", USER_FAILURE).wait(600)
    assert told.job.job.attempt == 3


def test_minus_two_retries_success_and_permanent_failure_too(story: Tell) -> None:
    told = story(job_retry_count=-2).place().start().end("0-worker-0-0").wait(600)
    told.place().start().end("1-worker-0-0", SYNTAX_ERROR).wait(600)
    assert told.job.job.attempt == 2


def test_a_task_of_its_own_is_retried_alone(story: Tell) -> None:
    told = story({"worker": 2}, role={"task_retry_count": 1}, gang=False).place().start()
    told.end("0-worker-0-0", USER_FAILURE)
    assert told.phase() is JobPhase.RUNNING
    assert told.scheduler.gangs["j1-0-worker-0-0"].pods == ()
    told.place().start().end("0-worker-0-1").end("0-worker-1-0")
    final = told.status()
    assert final.state is JobState.SUCCEEDED
    assert [t.retries for t in final.task_roles[0].tasks] == [1, 0]
    assert [t.accountable_retries for t in final.task_roles[0].tasks] == [1, 0]
    assert final.attempt == 0


def test_tasks_of_a_gang_are_not_retried_alone(story: Tell) -> None:
    told = story({"worker": 2}, role={"task_retry_count": 5}).place().start()
    assert told.end("0-worker-0-0", USER_FAILURE).phase() is JobPhase.COMPLETING


def test_a_task_of_its_own_waits_for_its_retry_after_a_platform_failure(story: Tell) -> None:
    told = story({"worker": 2}, gang=False).place().start().end("0-worker-0-0", WITHDRAWN).wait(0.9)
    assert told.job.tasks["worker", 0].phase is TaskPhase.BACKOFF
    assert "j1-0-worker-0-1" not in told.scheduler.gangs
    told.wait(0.1)
    assert told.scheduler.gangs["j1-0-worker-0-1"].pods
    told.place().start().end("0-worker-0-1", WITHDRAWN).wait(1.9)
    assert told.job.tasks["worker", 0].phase is TaskPhase.BACKOFF
    told.wait(0.1).place().start().end("0-worker-0-2").end("0-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED
    assert told.status().task_roles[0].tasks[0].accountable_retries == 0


def test_a_task_that_waits_for_its_retry_is_stopped_with_its_job(story: Tell) -> None:
    told = story({"worker": 1}, gang=False).place().start().end("0-worker-0-0", WITHDRAWN).stop()
    assert told.status().state is JobState.STOPPED
    assert told.open_subjects() == set()


def test_a_new_attempt_starts_with_a_clean_slate(story: Tell) -> None:
    told = story(time_limit_s=100).place().start().wait(10).end("0-worker-0-0", WITHDRAWN)
    over = told.status()
    assert (over.state, over.verdict) == (JobState.WAITING, WITHDRAWN)
    assert over.reason is not None
    assert over.reason.text == "The next attempt begins at 2026-01-01 00:00:11 UTC: It failed."
    assert over.attempt_completed_at == told.now
    told.wait(1)
    begun = told.status()
    assert (begun.attempt, begun.verdict, begun.trigger, begun.retry_at) == (1, None, None, None)
    assert begun.reason is None
    assert (begun.attempt_created_at, begun.attempt_launched_at) == (told.now, None)
    assert begun.attempt_completed_at is None
    assert begun.launched_at == START
    assert begun.created_at == START
    told.wait(500).place().start().wait(99)
    assert told.phase() is JobPhase.RUNNING, "the limit counts anew"
    assert told.status().launched_at == START


def test_an_attempt_that_never_ran_was_never_launched(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", never_ran())
    assert told.status().launched_at is None
    assert told.status().task_roles[0].tasks[0].launched_at is None
