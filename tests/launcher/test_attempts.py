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
from scheduler.domain.words import ended

Story = Any
MakeRequest = Callable[..., JobRequest]
Tell = Callable[..., Story]

USER_FAILURE = failure(Behavior.UNKNOWN)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def test_a_lost_node_costs_no_retry_and_the_job_runs_elsewhere(story: Tell) -> None:
    told = story({"worker": 2}, job_retry_count=0).place().start().lose("n1")
    assert told.phase() is JobPhase.BACKOFF
    verdict = told.status().verdict
    assert verdict is not None
    assert (verdict.code, verdict.rule) == (-1001, "node-lost")
    told.wait(1).place("n2").start().end("1-worker-0-0").end("1-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED
    assert told.status().retries.model_dump() == {"user": 0, "platform": 1, "resource": 0}


def test_a_lost_pod_stays_lost_and_is_stopped_when_its_node_comes_back(story: Tell) -> None:
    told = story().place().start().lose("n1")
    stop = told.stops()["j1-0-worker-0-0"].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == ("node-lost", 5)
    before = told.job
    told.says.clear()
    told.tell(told.agents.statuses["j1-0-worker-0-0"].model_copy(update={"revision": 9}))
    assert told.stops().keys() == {"j1-0-worker-0-0"}
    told.end("0-worker-0-0")
    assert told.says[-1].message.action is PodAction.FORGET
    assert told.job.tasks == before.tasks
    assert told.phase() is JobPhase.BACKOFF


@pytest.mark.parametrize("runs", [False, True])
def test_a_gang_that_the_scheduler_knows_to_have_ended_is_followed_by_the_next_attempt(
    story: Tell, runs: bool
) -> None:
    """The Launcher's database was restored to a moment when it had asked for the gang."""
    told = story({"worker": 2}, job_retry_count=0)
    if runs:
        told.place().start()
    told.tell(ended(told.scheduler.gangs["j1-0"], 1))
    assert told.phase() is JobPhase.BACKOFF
    verdict = told.status().verdict
    assert verdict is not None
    assert (verdict.rule, "ended before" in verdict.symptom) == ("node-lost", True)
    assert told.stops().keys() == ({"j1-0-worker-0-0", "j1-0-worker-1-0"} if runs else set())
    told.wait(1).place().start().end("1-worker-0-0").end("1-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED
    assert told.status().retries.model_dump() == {"user": 0, "platform": 1, "resource": 0}


def test_a_task_whose_gang_has_ended_goes_on_under_its_next_name(story: Tell) -> None:
    told = story(gang=False, role={"task_retry_count": 0})
    for attempt in range(3):
        gang = f"j1-0-worker-0-{attempt}"
        assert told.scheduler.waiting() == [gang]
        told.tell(ended(told.scheduler.gangs[gang], 1)).wait(10)
    told.place().start().end("0-worker-0-3")
    (task,) = told.status().task_roles[0].tasks
    assert (told.status().state, task.accountable_retries) == (JobState.SUCCEEDED, 0)


def test_peers_that_fail_while_a_node_is_being_lost_are_on_the_platforms_account(
    story: Tell,
) -> None:
    told = story({"worker": 2}, job_retry_count=0)
    told.tell(told.scheduler.place("j1-0", "n1", 1))
    told.tell(told.scheduler.place("j1-0", "n2"))
    told.start().end("0-worker-1-0", USER_FAILURE)
    assert told.phase() is JobPhase.COMPLETING
    told.lose("n1")
    assert told.phase() is JobPhase.BACKOFF
    verdict = told.status().verdict
    assert verdict is not None
    assert verdict.rule == "node-lost"
    assert "worker[1] failed" in verdict.symptom


def test_a_lost_node_does_not_hang_a_stop(story: Tell) -> None:
    told = story().place().start().stop()
    assert told.phase() is JobPhase.STOPPING
    assert told.lose("n1").status().state is JobState.STOPPED


def test_a_preempted_gang_stops_in_its_grace_and_is_retried_at_no_cost(story: Tell) -> None:
    told = story({"worker": 2}, job_retry_count=0).place().start().preempt(grace_s=10)
    assert told.phase() is JobPhase.RUNNING
    asked = told.stops()
    assert {(w.stop.reason, w.stop.grace_s) for w in asked.values() if w.stop} == {
        ("preempted", 10)
    }
    assert len(asked) == 2
    told.end_stopped().again()
    assert told.phase() is JobPhase.WAITING
    assert told.job.job.retries.platform == 1
    assert told.job.job.accountable == 0


@pytest.mark.parametrize("preemptor", ["other-0", None])
def test_what_was_preempted_or_drained_is_asked_for_again_at_once_at_its_age(
    story: Tell, preemptor: str | None
) -> None:
    told = story({"worker": 2}, job_retry_count=0)
    for attempt in range(5):
        told.place().start().wait(7).preempt(10, preemptor).end_stopped().again()
        assert told.scheduler.gangs[f"j1-{attempt}"].pods == ()
        again = told.scheduler.gangs[f"j1-{attempt + 1}"]
        assert len(again.pods) == 2
        assert again.submitted_at == told.request.submitted_at
    assert told.place().start().end("5-worker-0-0").end("5-worker-1-0").phase() is (
        JobPhase.SUCCEEDED
    )


def test_preemptions_do_not_make_later_waits_longer(story: Tell) -> None:
    told = story().place().start().preempt().end_stopped().again()
    told.place().start().preempt().end_stopped().again()
    told.place().end("2-worker-0-0", failure(Behavior.TRANSIENT, Fault.PLATFORM, -1010))
    assert told.status().retry_at == told.now + timedelta(seconds=1)


@pytest.mark.parametrize(("left_s", "grace_s"), [(-60, 0), (0, 0), (600, 600), (86400, 3600)])
def test_a_preempted_pod_has_until_the_deadline(story: Tell, left_s: int, grace_s: int) -> None:
    told = story().place().start().preempt(left_s)
    (stop,) = told.stops().values()
    assert stop.stop is not None
    assert stop.stop.grace_s == grace_s


def test_a_give_back_that_is_said_again_changes_nothing(story: Tell) -> None:
    told = story({"worker": 2}).place().start().preempt(10)
    said = len(told.says)
    told.tell(told.scheduler.decisions["j1-0"]).wait(5).tell(told.scheduler.decisions["j1-0"])
    assert not [s for s in told.says[said:] if isinstance(s.message, PodRequest)]
    told.end_stopped().again().tell(told.scheduler.decisions["j1-0"])
    assert told.scheduler.gangs["j1-1"].pods
    assert told.stops().keys() == {"j1-0-worker-0-0", "j1-0-worker-1-0"}


def test_a_deadline_holds_for_an_attempt_that_is_ending_already(story: Tell) -> None:
    told = story({"worker": 2}).place().start()
    told.end("0-worker-0-0", USER_FAILURE)
    kept = {w.stop.grace_s for w in told.stops().values() if w.stop}
    told.preempt(3)
    hurried = {w.stop.grace_s for w in told.stops().values() if w.stop}
    said = len(told.says)
    told.wait(1).tell(told.scheduler.decisions["j1-0"])
    assert (kept, hurried) == ({30}, {3})
    assert not [s for s in told.says[said:] if isinstance(s.message, PodRequest)]
    told.end_stopped()
    assert told.status().verdict == USER_FAILURE


def test_a_job_that_is_stopped_in_its_preemption_is_not_asked_for_again(story: Tell) -> None:
    told = story({"worker": 2}).place().start().preempt().stop().end_stopped()
    assert told.status().state is JobState.STOPPED
    assert set(told.scheduler.gangs) == {"j1-0"}


def test_who_takes_the_place_is_kept_with_the_attempt_that_ended(story: Tell) -> None:
    told = story().place().preempt().start().end_stopped()
    ended = told.again().statuses()[-2]
    assert ended.attempt == 0
    assert ended.verdict is not None
    assert ended.verdict.rule == "preempted"
    assert ended.trigger is not None
    assert ended.trigger.message.endswith("was preempted, and its gang with it: For other-0.")


def test_a_pod_that_succeeds_in_the_grace_of_its_preemption_has_succeeded(story: Tell) -> None:
    told = story().place().start().preempt().end("0-worker-0-0")
    assert told.status().state is JobState.SUCCEEDED


def test_a_preempted_gang_is_retried_even_where_failures_are_borne(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place().start().preempt()
    told.end("0-worker-0-0")
    assert told.phase() is JobPhase.RUNNING
    told.end("0-worker-1-0", stopped())
    assert told.phase() is JobPhase.BACKOFF
    assert (told.status().verdict or USER_FAILURE).rule == "preempted"


def test_why_it_is_preempted_is_told(story: Tell) -> None:
    reason = story().place().start().wait(1).preempt().wait(1).status().reason
    assert reason is not None
    assert reason.text == "For other-0."


def test_a_gang_that_is_to_be_given_back_before_it_ran_is_asked_for_anew(story: Tell) -> None:
    told = story({"worker": 2})
    told.tell(told.scheduler.place("j1-0", "n1", 1)).preempt()
    assert told.phase() is JobPhase.BACKOFF
    assert told.runs() == []
    assert told.scheduler.gangs["j1-0"].pods == ()
    assert told.again().scheduler.gangs["j1-1"].pods


def test_a_preempted_task_of_its_own_is_retried_alone(story: Tell) -> None:
    told = story({"worker": 2}, gang=False).place().start()
    told.tell(told.scheduler.give_back("j1-0-worker-0-0", told.now))
    assert told.stops().keys() == {"j1-0-worker-0-0"}
    told.end_stopped()
    assert told.scheduler.gangs["j1-0-worker-0-1"].pods
    assert told.phase() is JobPhase.RUNNING


def test_what_can_never_run_fails_for_good_and_says_why(story: Tell) -> None:
    told = story(job_retry_count=3)
    told.tell(told.scheduler.refuse("j1-0"))
    final = told.status()
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert (final.verdict.code, final.verdict.cause) == (-200, "It is too large.")
    assert told.open_subjects() == set()


# Stop, time limit.


@pytest.mark.parametrize("gang", [True, False])
def test_a_waiting_job_is_stopped_at_once(story: Tell, gang: bool) -> None:
    told = story(gang=gang).stop()
    final = told.status()
    assert final.state is JobState.STOPPED
    assert final.verdict is not None
    assert (final.verdict.code, final.verdict.cause) == (-210, "ada stopped the job.")
    assert told.open_subjects() == set()


def test_a_running_job_is_stopping_until_its_pods_have_ended(story: Tell) -> None:
    told = story({"worker": 2}).place().start().stop()
    assert told.status().state is JobState.STOPPING
    told.end("0-worker-0-0", stopped())
    assert told.phase() is JobPhase.STOPPING
    told.end("0-worker-1-0", stopped())
    assert told.status().state is JobState.STOPPED
    assert told.open_subjects() == set()


def test_a_job_that_waits_for_its_retry_is_stopped_at_once(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", WITHDRAWN).stop()
    assert told.status().state is JobState.STOPPED
    assert told.status().retries.platform == 0


def test_when_an_attempt_ended_is_not_changed_by_a_later_stop(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", WITHDRAWN)
    ended = told.now
    told.now += timedelta(seconds=0.5)
    assert told.stop().status().attempt_completed_at == ended
    assert told.status().completed_at == told.now


def test_a_stop_leaves_an_outcome_that_is_known_and_final(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_succeeded_instances": 1}).place().start()
    told.end("0-worker-0-0").stop()
    assert told.status().state is JobState.STOPPING
    assert told.end_stopped().status().state is JobState.SUCCEEDED


def test_a_stop_of_a_job_that_nobody_knows_makes_it_and_ends_it(
    make_request: MakeRequest, tell_of: Callable[[JobRequest], Story]
) -> None:
    request = make_request("j1").model_copy(update={"execution": Execution.STOP, "spec": None})
    told = tell_of(request)
    assert told.status().state is JobState.STOPPED
    assert not told.says[-1].is_open


def test_a_job_that_runs_too_long_fails_for_good(story: Tell) -> None:
    told = story(time_limit_s=60, job_retry_count=3).place().wait(1000)
    assert told.phase() is JobPhase.WAITING, "waiting is not running"
    told.start().wait(59)
    assert told.phase() is JobPhase.RUNNING
    told.wait(1).end_stopped()
    final = told.status()
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert final.verdict.code == -1004
