"""How attempts end that did not end by themselves: lost, preempted, refused, stopped, too long."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from launcher.domain.states import JobPhase
from launcher_peers import failure, stopped
from muster.contracts.jobs import Execution, JobRequest, JobState
from muster.contracts.pods import PodAction, PodRequest
from muster.contracts.verdicts import Behavior, Fault
from scheduler.domain.messages import ended

Story = Any
MakeRequest = Callable[..., JobRequest]
NewStory = Callable[..., Story]

USER_FAILURE = failure(Behavior.UNKNOWN)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def test_a_lost_node_costs_no_retry_and_the_job_runs_elsewhere(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, job_retry_count=0).place().start().lose("n1")
    assert story.phase() is JobPhase.BACKOFF
    verdict = story.status().verdict
    assert verdict is not None
    assert (verdict.code, verdict.rule) == (-1001, "node-lost")
    story.wait(1).place("n2").start().end("1-worker-0-0").end("1-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED
    assert story.status().retries.model_dump() == {"user": 0, "platform": 1, "resource": 0}


def test_a_lost_pod_stays_lost_and_is_stopped_when_its_node_comes_back(new_story: NewStory) -> None:
    story = new_story().place().start().lose("n1")
    stop = story.stops()["j1-0-worker-0-0"].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == ("node-lost", 5)
    before = story.job
    story.published.clear()
    story.receive(story.agents.statuses["j1-0-worker-0-0"].model_copy(update={"revision": 9}))
    assert story.stops().keys() == {"j1-0-worker-0-0"}
    story.end("0-worker-0-0")
    assert story.published[-1].message.action is PodAction.FORGET
    assert story.job.tasks == before.tasks
    assert story.phase() is JobPhase.BACKOFF


@pytest.mark.parametrize("runs", [False, True])
def test_a_gang_that_the_scheduler_knows_to_have_ended_is_followed_by_the_next_attempt(
    new_story: NewStory, runs: bool
) -> None:
    """The Launcher's database was restored to a moment when it had asked for the gang."""
    story = new_story({"worker": 2}, job_retry_count=0)
    if runs:
        story.place().start()
    story.receive(ended(story.scheduler.gangs["j1-0"], 1))
    assert story.phase() is JobPhase.BACKOFF
    verdict = story.status().verdict
    assert verdict is not None
    assert (verdict.rule, "has ended" in verdict.symptom) == ("node-lost", True)
    assert story.stops().keys() == ({"j1-0-worker-0-0", "j1-0-worker-1-0"} if runs else set())
    story.wait(1).place().start().end("1-worker-0-0").end("1-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED
    assert story.status().retries.model_dump() == {"user": 0, "platform": 1, "resource": 0}


def test_a_task_whose_gang_has_ended_goes_on_under_its_next_name(new_story: NewStory) -> None:
    story = new_story(gang=False, role={"task_retry_count": 0})
    for attempt in range(3):
        gang = f"j1-0-worker-0-{attempt}"
        assert story.scheduler.waiting() == [gang]
        story.receive(ended(story.scheduler.gangs[gang], 1)).wait(10)
    story.place().start().end("0-worker-0-3")
    (task,) = story.status().task_roles[0].tasks
    assert (story.status().state, task.accountable_retries) == (JobState.SUCCEEDED, 0)


def test_peers_that_fail_while_a_node_is_being_lost_are_on_the_platforms_account(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2}, job_retry_count=0)
    story.receive(story.scheduler.place("j1-0", "n1", 1))
    story.receive(story.scheduler.place("j1-0", "n2"))
    story.start().end("0-worker-1-0", USER_FAILURE)
    assert story.phase() is JobPhase.COMPLETING
    story.lose("n1")
    assert story.phase() is JobPhase.BACKOFF
    verdict = story.status().verdict
    assert verdict is not None
    assert verdict.rule == "node-lost"
    assert "worker[1] failed" in verdict.symptom


def test_a_lost_node_does_not_hang_a_stop(new_story: NewStory) -> None:
    story = new_story().place().start().stop()
    assert story.phase() is JobPhase.STOPPING
    assert story.lose("n1").status().state is JobState.STOPPED


def test_a_preempted_gang_stops_in_its_grace_and_is_retried_at_no_cost(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, job_retry_count=0).place().start().preempt(grace_s=10)
    assert story.phase() is JobPhase.RUNNING
    asked = story.stops()
    assert {(w.stop.reason, w.stop.grace_s) for w in asked.values() if w.stop} == {
        ("preempted", 10)
    }
    assert len(asked) == 2
    story.end_stopped().again()
    assert story.phase() is JobPhase.WAITING
    assert story.job.job.retries.platform == 1
    assert story.job.job.accountable == 0


@pytest.mark.parametrize("preemptor", ["other-0", None])
def test_what_was_preempted_or_drained_is_asked_for_again_at_once_at_its_age(
    new_story: NewStory, preemptor: str | None
) -> None:
    story = new_story({"worker": 2}, job_retry_count=0)
    for attempt in range(5):
        story.place().start().wait(7).preempt(10, preemptor).end_stopped().again()
        assert story.scheduler.gangs[f"j1-{attempt}"].pods == ()
        again = story.scheduler.gangs[f"j1-{attempt + 1}"]
        assert len(again.pods) == 2
        assert again.submitted_at == story.request.submitted_at
    assert story.place().start().end("5-worker-0-0").end("5-worker-1-0").phase() is (
        JobPhase.SUCCEEDED
    )


def test_preemptions_do_not_make_later_waits_longer(new_story: NewStory) -> None:
    story = new_story().place().start().preempt().end_stopped().again()
    story.place().start().preempt().end_stopped().again()
    story.place().end("2-worker-0-0", failure(Behavior.TRANSIENT, Fault.PLATFORM, -1010))
    assert story.status().retry_at == story.now + timedelta(seconds=1)


@pytest.mark.parametrize(("left_s", "grace_s"), [(-60, 0), (0, 0), (600, 600), (86400, 3600)])
def test_a_preempted_pod_has_until_the_deadline(
    new_story: NewStory, left_s: int, grace_s: int
) -> None:
    story = new_story().place().start().preempt(left_s)
    (stop,) = story.stops().values()
    assert stop.stop is not None
    assert stop.stop.grace_s == grace_s


def test_a_repeated_preemption_changes_nothing(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().preempt(10)
    published = len(story.published)
    story.receive(story.scheduler.decisions["j1-0"]).wait(5).receive(
        story.scheduler.decisions["j1-0"]
    )
    assert not [s for s in story.published[published:] if isinstance(s.message, PodRequest)]
    story.end_stopped().again().receive(story.scheduler.decisions["j1-0"])
    assert story.scheduler.gangs["j1-1"].pods
    assert story.stops().keys() == {"j1-0-worker-0-0", "j1-0-worker-1-0"}


def test_a_deadline_holds_for_an_attempt_that_is_ending_already(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start()
    story.end("0-worker-0-0", USER_FAILURE)
    kept = {w.stop.grace_s for w in story.stops().values() if w.stop}
    story.preempt(3)
    hurried = {w.stop.grace_s for w in story.stops().values() if w.stop}
    published = len(story.published)
    story.wait(1).receive(story.scheduler.decisions["j1-0"])
    assert (kept, hurried) == ({30}, {3})
    assert not [s for s in story.published[published:] if isinstance(s.message, PodRequest)]
    story.end_stopped()
    assert story.status().verdict == USER_FAILURE


def test_a_job_that_is_stopped_in_its_preemption_is_not_asked_for_again(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2}).place().start().preempt().stop().end_stopped()
    assert story.status().state is JobState.STOPPED
    assert set(story.scheduler.gangs) == {"j1-0"}


def test_the_ended_attempt_names_the_gang_that_preempted_it(new_story: NewStory) -> None:
    story = new_story().place().preempt().start().end_stopped()
    ended = story.again().statuses()[-2]
    assert ended.attempt == 0
    assert ended.verdict is not None
    assert ended.verdict.rule == "preempted"
    assert ended.trigger is not None
    assert ended.trigger.message.endswith("was preempted, and its gang with it: For other-0.")


def test_a_pod_that_succeeds_in_the_grace_of_its_preemption_has_succeeded(
    new_story: NewStory,
) -> None:
    story = new_story().place().start().preempt().end("0-worker-0-0")
    assert story.status().state is JobState.SUCCEEDED


def test_a_preempted_gang_is_retried_even_where_failures_are_borne(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": -1}).place().start().preempt()
    story.end("0-worker-0-0")
    assert story.phase() is JobPhase.RUNNING
    story.end("0-worker-1-0", stopped())
    assert story.phase() is JobPhase.BACKOFF
    assert (story.status().verdict or USER_FAILURE).rule == "preempted"


def test_the_status_has_the_reason_of_a_preemption(new_story: NewStory) -> None:
    reason = new_story().place().start().wait(1).preempt().wait(1).status().reason
    assert reason is not None
    assert reason.text == "For other-0."


def test_a_gang_that_is_to_be_given_back_before_it_ran_is_asked_for_anew(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2})
    story.receive(story.scheduler.place("j1-0", "n1", 1)).preempt()
    assert story.phase() is JobPhase.BACKOFF
    assert story.runs() == []
    assert story.scheduler.gangs["j1-0"].pods == ()
    assert story.again().scheduler.gangs["j1-1"].pods


def test_a_running_job_whose_drained_task_waits_does_not_say_that_it_is_drained(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2}, gang=False).place().start()
    story.receive(story.scheduler.preempt("j1-0-worker-0-0", story.now, None))
    assert story.wait(1).status().reason.code == "drained"
    status = story.end_stopped().wait(1).status()
    assert (status.state, status.reason) == (JobState.RUNNING, None)


def test_a_preempted_task_of_its_own_is_retried_alone(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, gang=False).place().start()
    story.receive(story.scheduler.preempt("j1-0-worker-0-0", story.now))
    assert story.stops().keys() == {"j1-0-worker-0-0"}
    story.end_stopped()
    assert story.scheduler.gangs["j1-0-worker-0-1"].pods
    assert story.phase() is JobPhase.RUNNING


def test_a_gang_that_can_never_run_fails_for_good_with_the_reason(new_story: NewStory) -> None:
    story = new_story(job_retry_count=3)
    story.receive(story.scheduler.refuse("j1-0"))
    final = story.status()
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert (final.verdict.code, final.verdict.cause) == (-200, "It is too large.")
    assert story.open_subjects() == set()


# Stop, time limit.


@pytest.mark.parametrize("gang", [True, False])
def test_a_waiting_job_is_stopped_at_once(new_story: NewStory, gang: bool) -> None:
    story = new_story(gang=gang).stop()
    final = story.status()
    assert final.state is JobState.STOPPED
    assert final.verdict is not None
    assert (final.verdict.code, final.verdict.cause) == (-210, "ada stopped the job.")
    assert story.open_subjects() == set()


def test_a_running_job_is_stopping_until_its_pods_have_ended(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().stop()
    assert story.status().state is JobState.STOPPING
    story.end("0-worker-0-0", stopped())
    assert story.phase() is JobPhase.STOPPING
    story.end("0-worker-1-0", stopped())
    assert story.status().state is JobState.STOPPED
    assert story.open_subjects() == set()


def test_a_job_that_waits_for_its_retry_is_stopped_at_once(new_story: NewStory) -> None:
    story = new_story().place().end("0-worker-0-0", WITHDRAWN).stop()
    assert story.status().state is JobState.STOPPED
    assert story.status().retries.platform == 0


def test_when_an_attempt_ended_is_not_changed_by_a_later_stop(new_story: NewStory) -> None:
    story = new_story().place().end("0-worker-0-0", WITHDRAWN)
    ended = story.now
    story.now += timedelta(seconds=0.5)
    assert story.stop().status().attempt_completed_at == ended
    assert story.status().completed_at == story.now


def test_a_stop_leaves_an_outcome_that_is_known_and_final(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, role={"min_succeeded_instances": 1}).place().start()
    story.end("0-worker-0-0").stop()
    assert story.status().state is JobState.STOPPING
    assert story.end_stopped().status().state is JobState.SUCCEEDED


def test_a_stop_of_a_job_that_nobody_knows_makes_it_and_ends_it(
    make_request: MakeRequest, story_of: Callable[[JobRequest], Story]
) -> None:
    request = make_request("j1").model_copy(update={"execution": Execution.STOP, "spec": None})
    story = story_of(request)
    assert story.status().state is JobState.STOPPED
    assert not story.published[-1].is_open


def test_a_job_that_runs_too_long_fails_for_good(new_story: NewStory) -> None:
    story = new_story(time_limit_s=60, job_retry_count=3).place().wait(1000)
    assert story.phase() is JobPhase.WAITING, "waiting is not running"
    story.start().wait(59)
    assert story.phase() is JobPhase.RUNNING
    story.wait(1).end_stopped()
    final = story.status()
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert final.verdict.code == -1004
