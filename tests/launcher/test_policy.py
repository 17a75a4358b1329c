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
NewStory = Callable[..., Story]

START = datetime(2026, 1, 1, tzinfo=UTC)
USER_FAILURE = failure(Behavior.UNKNOWN)
SYNTAX_ERROR = failure(Behavior.PERMANENT)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def test_one_failure_ends_the_attempt_and_the_others_are_stopped(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().end("0-worker-1-0", USER_FAILURE)
    assert story.phase() is JobPhase.COMPLETING
    stop = story.stops()["j1-0-worker-0-0"].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == ("completed", 30)
    story.end_stopped()
    final = story.status()
    assert final.state is JobState.FAILED
    assert final.verdict == USER_FAILURE
    assert final.trigger is not None
    assert (final.trigger.role, final.trigger.index) == ("worker", 1)
    first = final.task_roles[0].tasks[0]
    assert (first.state, first.verdict and first.verdict.code) == (TaskState.STOPPED, -220)


def test_a_task_that_failed_before_its_stop_came_is_shown_as_it_was(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().end("0-worker-1-0", USER_FAILURE)
    story.end("0-worker-0-0", SYNTAX_ERROR)
    final = story.status()
    assert [t.verdict for t in final.task_roles[0].tasks] == [SYNTAX_ERROR, USER_FAILURE]
    assert [t.state for t in final.task_roles[0].tasks] == [TaskState.FAILED] * 2
    assert final.verdict == USER_FAILURE


def test_a_failure_under_preemption_is_the_preemptions(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().preempt()
    story.end("0-worker-1-0", USER_FAILURE).end_stopped()
    assert story.phase() is JobPhase.BACKOFF
    assert story.job.job.accountable == 0


def test_enough_successes_end_the_attempt_well_whatever_else_runs(new_story: NewStory) -> None:
    story = new_story({"worker": 3}, role={"min_succeeded_instances": 2}).place().start()
    story.end("0-worker-0-0").end("0-worker-2-0").end_stopped()
    assert story.status().state is JobState.SUCCEEDED


def test_failures_below_the_bound_are_borne(new_story: NewStory) -> None:
    story = new_story({"worker": 3}, role={"min_failed_instances": 2}).place().start()
    story.end("0-worker-0-0", USER_FAILURE).end("0-worker-1-0")
    assert story.phase() is JobPhase.RUNNING
    assert story.end("0-worker-2-0").status().state is JobState.SUCCEEDED


def test_a_bound_of_minus_one_never_ends_the_attempt(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": -1}).place().start()
    story.end("0-worker-0-0", USER_FAILURE).end("0-worker-1-0", USER_FAILURE)
    assert story.status().state is JobState.SUCCEEDED


def test_nothing_succeeds_by_losing_every_task(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": -1}).place().start().lose("n1")
    assert story.phase() is JobPhase.BACKOFF


def test_nothing_succeeds_by_being_refused(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": -1}, gang=False)
    for gang in list(story.scheduler.waiting()):
        story.receive(story.scheduler.refuse(gang))
    assert story.status().state is JobState.FAILED


@pytest.mark.parametrize(
    ("code", "fault"),
    [("too-large", Fault.USER), ("unknown-virtual-cluster", Fault.PLATFORM)],
)
def test_no_job_is_blamed_for_a_virtual_cluster_that_was_removed(
    new_story: NewStory, code: str, fault: Fault
) -> None:
    story = new_story({"worker": 1})
    (gang,) = story.scheduler.waiting()
    status = story.receive(story.scheduler.refuse(gang, code)).status()
    assert status.verdict is not None
    assert (status.state, status.verdict.rule) == (JobState.FAILED, code)
    assert status.verdict.fault is fault


def test_no_gang_runs_without_the_pod_that_was_lost_before_it_ran(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": -1})
    story.scheduler.place("j1-0", "n1", 1)
    story.scheduler.place("j1-0", "n2")
    story.lose("n1")
    assert story.runs() == []
    assert story.stops() == {}
    assert story.phase() is JobPhase.BACKOFF


def test_no_gang_goes_on_without_the_pod_that_its_agent_refused(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": -1}).place()
    story.receive(story.agents.start("j1-0-worker-0-0", story.now))
    story.end("0-worker-1-0", WITHDRAWN).end_stopped()
    assert story.phase() is JobPhase.BACKOFF
    assert story.job.job.accountable == 0


# Retries.


def test_a_users_failure_spends_one_retry_and_the_last_one_counts(new_story: NewStory) -> None:
    story = new_story(job_retry_count=1).place().start().end("0-worker-0-0", USER_FAILURE)
    assert story.status().verdict == USER_FAILURE
    assert (story.again().phase(), story.job.job.attempt) == (JobPhase.WAITING, 1)
    assert story.status().retries.user == 1
    story.place().start().end("1-worker-0-0", USER_FAILURE)
    assert story.status().state is JobState.FAILED
    assert story.status().retries.model_dump() == {"user": 1, "platform": 0, "resource": 0}


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
    new_story: NewStory, ending: Ending, spent: int
) -> None:
    story = new_story(job_retry_count=1).place().start().end("0-worker-0-0", judge(ending))
    story.wait(1).place().start()
    assert (story.phase(), story.job.job.accountable) == (JobPhase.RUNNING, spent)
    story.end("1-worker-0-0", judge(ending))
    assert (story.phase() is JobPhase.FAILED) == (spent == 1)


def test_a_permanent_failure_is_never_retried(new_story: NewStory) -> None:
    story = new_story(job_retry_count=5).place().start().end("0-worker-0-0", SYNTAX_ERROR)
    assert story.status().state is JobState.FAILED


@pytest.mark.parametrize(
    "verdict",
    [WITHDRAWN, never_ran(), failure(Behavior.TRANSIENT, Fault.PLATFORM, 253)],
    ids=["withdrawn", "never-ran", "port-conflict"],
)
def test_what_the_platform_breaks_is_retried_at_no_cost(
    new_story: NewStory, verdict: Verdict
) -> None:
    story = new_story(job_retry_count=0).place().end("0-worker-0-0", verdict)
    assert story.phase() is JobPhase.BACKOFF
    story.wait(1)
    assert (story.phase(), story.job.job.accountable) == (JobPhase.WAITING, 0)
    assert story.place().start().end("1-worker-0-0").status().state is JobState.SUCCEEDED


def test_platform_failures_in_a_row_wait_longer_each_time_up_to_a_bound(
    new_story: NewStory,
) -> None:
    story, waits = new_story(), []
    for attempt in range(12):
        story.place().end(f"{attempt}-worker-0-0", WITHDRAWN)
        retry_at = story.status().retry_at
        assert retry_at is not None
        waits.append((retry_at - story.now).total_seconds())
        story.wait(waits[-1])
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 300


def test_a_long_attempt_makes_the_waits_start_anew(new_story: NewStory) -> None:
    story = new_story().place().end("0-worker-0-0", WITHDRAWN).wait(1)
    story.place().start().wait(601).end("1-worker-0-0", WITHDRAWN)
    retry_at = story.status().retry_at
    assert retry_at is not None
    assert retry_at - story.now == timedelta(seconds=1)


def test_a_conflict_over_resources_waits_between_its_bounds(new_story: NewStory) -> None:
    conflict = failure(Behavior.TRANSIENT_CONFLICT, Fault.PLATFORM, 251)
    story = new_story().place().end("0-worker-0-0", conflict)
    retry_at = story.status().retry_at
    assert retry_at is not None
    assert timedelta(seconds=60) <= retry_at - story.now <= timedelta(seconds=900)
    assert story.wait(900).job.job.retries.resource == 1


@pytest.mark.parametrize("limit", [-1, -2])
def test_a_negative_count_retries_failures_without_end(new_story: NewStory, limit: int) -> None:
    story = new_story(job_retry_count=limit)
    for attempt in range(3):
        story.place().start().end(f"{attempt}-worker-0-0", USER_FAILURE).wait(600)
    assert story.job.job.attempt == 3


def test_minus_two_retries_success_and_permanent_failure_too(new_story: NewStory) -> None:
    story = new_story(job_retry_count=-2).place().start().end("0-worker-0-0").wait(600)
    story.place().start().end("1-worker-0-0", SYNTAX_ERROR).wait(600)
    assert story.job.job.attempt == 2


def test_a_task_of_its_own_is_retried_alone(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"task_retry_count": 1}, gang=False).place().start()
    story.end("0-worker-0-0", USER_FAILURE)
    assert story.phase() is JobPhase.RUNNING
    assert story.scheduler.gangs["j1-0-worker-0-0"].pods == ()
    story.place().start().end("0-worker-0-1").end("0-worker-1-0")
    final = story.status()
    assert final.state is JobState.SUCCEEDED
    assert [t.retries for t in final.task_roles[0].tasks] == [1, 0]
    assert [t.accountable_retries for t in final.task_roles[0].tasks] == [1, 0]
    assert final.attempt == 0


def test_tasks_of_a_gang_are_not_retried_alone(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"task_retry_count": 5}).place().start()
    assert story.end("0-worker-0-0", USER_FAILURE).phase() is JobPhase.COMPLETING


def test_a_task_of_its_own_waits_for_its_retry_after_a_platform_failure(
    new_story: NewStory,
) -> None:
    story = (
        new_story({"worker": 2}, gang=False)
        .place()
        .start()
        .end("0-worker-0-0", WITHDRAWN)
        .wait(0.9)
    )
    assert story.job.tasks["worker", 0].phase is TaskPhase.BACKOFF
    assert "j1-0-worker-0-1" not in story.scheduler.gangs
    story.wait(0.1)
    assert story.scheduler.gangs["j1-0-worker-0-1"].pods
    story.place().start().end("0-worker-0-1", WITHDRAWN).wait(1.9)
    assert story.job.tasks["worker", 0].phase is TaskPhase.BACKOFF
    story.wait(0.1).place().start().end("0-worker-0-2").end("0-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED
    assert story.status().task_roles[0].tasks[0].accountable_retries == 0


def test_a_task_that_waits_for_its_retry_is_stopped_with_its_job(new_story: NewStory) -> None:
    story = (
        new_story({"worker": 1}, gang=False).place().start().end("0-worker-0-0", WITHDRAWN).stop()
    )
    assert story.status().state is JobState.STOPPED
    assert story.open_subjects() == set()


def test_a_new_attempt_starts_with_a_clean_slate(new_story: NewStory) -> None:
    story = new_story(time_limit_s=100).place().start().wait(10).end("0-worker-0-0", WITHDRAWN)
    over = story.status()
    assert (over.state, over.verdict) == (JobState.WAITING, WITHDRAWN)
    assert over.reason is not None
    assert over.reason.text == "The next attempt begins at 2026-01-01 00:00:11 UTC: It failed."
    assert over.attempt_completed_at == story.now
    story.wait(1)
    begun = story.status()
    assert (begun.attempt, begun.verdict, begun.trigger, begun.retry_at) == (1, None, None, None)
    assert begun.reason is None
    assert (begun.attempt_created_at, begun.attempt_launched_at) == (story.now, None)
    assert begun.attempt_completed_at is None
    assert begun.launched_at == START
    assert begun.created_at == START
    story.wait(500).place().start().wait(99)
    assert story.phase() is JobPhase.RUNNING, "the limit counts anew"
    assert story.status().launched_at == START


def test_an_attempt_that_never_ran_was_never_launched(new_story: NewStory) -> None:
    story = new_story().place().end("0-worker-0-0", never_ran())
    assert story.status().launched_at is None
    assert story.status().task_roles[0].tasks[0].launched_at is None
