"""Gangs that can do without some of their tasks: these start later, and come back when taken."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from launcher.domain.states import JobPhase
from launcher_peers import failure
from muster.contracts.gangs import PodDecisionState
from muster.contracts.jobs import JobRequest, JobState, TaskState
from muster.contracts.pods import PodState
from muster.contracts.verdicts import Behavior, Fault

Story = Any
Tell = Callable[..., Story]

FAILURE = failure(Behavior.PERMANENT)
RESET = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def elastic(story: Tell, least: int = 1, most: int = 3, **more: Any) -> Story:
    role = {"min_instances": least, **more.pop("role", {})}
    return story({"worker": most}, role=role, **more)


def place(told: Story, count: int | None = None, node: str = "n1") -> Story:
    """So many of its pods get a place, the first ones."""
    return told.tell(told.scheduler.place("j1-0", node, count))


def shrink(told: Story, *pods: str, grace_s: float = 10) -> Story:
    """These pods are asked back."""
    until = told.now + timedelta(seconds=grace_s)
    return told.tell(told.scheduler.give_back("j1-0", until, "other-0", pods))


def states(told: Story) -> list[TaskState]:
    told.wait(1)
    return [task.state for task in told.status().task_roles[0].tasks]


def wanted(told: Story) -> list[tuple[str, bool]]:
    """The pods in the gang's newest word, and whether it can do without them."""
    return [(ask.pod, ask.surplus) for ask in told.scheduler.gangs["j1-0"].pods]


def test_the_scheduler_is_told_what_the_gang_can_do_without(story: Tell) -> None:
    assert wanted(elastic(story)) == [
        ("j1-0-worker-0-0", False),
        ("j1-0-worker-1-0", True),
        ("j1-0-worker-2-0", True),
    ]


def test_without_a_gang_no_task_is_one_to_do_without(story: Tell) -> None:
    told = elastic(story, gang=False)
    assert not any(ask.surplus for word in told.scheduler.gangs.values() for ask in word.pods)


def test_it_runs_when_what_it_needs_has_a_place(story: Tell) -> None:
    told = elastic(story, least=2)
    told.tell(told.scheduler.defer("j1-0", "No room."))
    place(told, 1)
    assert told.runs() == []
    place(told, 1)
    assert [run.pod for run in told.runs()] == ["j1-0-worker-0-0", "j1-0-worker-1-0"]
    told.start()
    assert told.status().state is JobState.RUNNING
    assert states(told) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
    assert told.status().reason is None


def test_users_are_told_how_many_tasks_are_enough(story: Tell) -> None:
    told = elastic(story, least=2).wait(10)
    assert told.status().task_roles[0].min_instances == 2
    told = story({"worker": 3}).wait(10)
    assert told.status().task_roles[0].min_instances is None


def test_what_gets_a_place_later_runs_and_knows_its_peers(story: Tell) -> None:
    told = place(elastic(story), 1).start()
    place(told, 1).start()
    assert states(told) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
    first, second = (word.run for word in told.runs())
    assert [peers.address_of for peers in first.peers] == [(0,)]
    assert [peers.address_of for peers in second.peers] == [(0, 0)]
    assert second.roles[0].instances == 3
    assert second.roles[0].min_instances == 1


def test_what_is_asked_back_waits_again_and_the_gang_goes_on(story: Tell) -> None:
    told = shrink(place(elastic(story)).start(), "j1-0-worker-2-0")
    assert list(told.stops()) == ["j1-0-worker-2-0"]
    assert told.stops()["j1-0-worker-2-0"].stop.reason == "preempted"
    assert told.stops()["j1-0-worker-2-0"].stop.grace_s == 10
    told.end_stopped()
    assert states(told) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
    assert wanted(told)[2] == ("j1-0-worker-2-1", True)
    status = told.status()
    assert (status.state, status.attempt, status.retries.platform) == (JobState.RUNNING, 0, 0)
    assert status.reason is not None
    assert status.reason.text == "For other-0."
    place(told).start()
    assert states(told) == [TaskState.RUNNING] * 3
    assert told.status().reason is None
    assert [run.pod for run in told.runs()][-1] == "j1-0-worker-2-1"


def test_from_when_on_its_gpus_are_free_is_told(story: Tell) -> None:
    told = shrink(place(elastic(story)).start(), "j1-0-worker-2-0").end_stopped()
    assert [end.pod for end in told.scheduler.gangs["j1-0"].released] == ["j1-0-worker-2-0"]


def test_what_is_asked_back_before_it_ran_waits_again_at_once(story: Tell) -> None:
    told = elastic(story)
    told.scheduler.place("j1-0", "n1")
    shrink(told, "j1-0-worker-1-0")
    assert [run.pod for run in told.runs()] == ["j1-0-worker-0-0", "j1-0-worker-2-0"]
    assert wanted(told)[1] == ("j1-0-worker-1-1", True)


def test_what_ends_well_as_it_is_asked_back_has_not_done_its_work(story: Tell) -> None:
    told = elastic(story, role={"min_succeeded_instances": 1})
    shrink(place(told).start(), "j1-0-worker-2-0").end("0-worker-2-0")
    assert states(told) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]


@pytest.mark.parametrize("how", ["lost", "reset"])
def test_what_the_platform_takes_waits_again(story: Tell, how: str) -> None:
    told = place(elastic(story), 2)
    place(told, 1, "n2").start()
    if how == "lost":
        told.lose("n2")
    else:
        told.end("0-worker-2-0", RESET)
    told.wait(2)
    assert wanted(told)[2] == ("j1-0-worker-2-1", True)
    assert told.phase() is JobPhase.RUNNING
    assert told.job.job.accountable == 0


def test_losing_what_it_needs_ends_the_attempt(story: Tell) -> None:
    told = place(elastic(story), 1)
    place(told, None, "n2").start()
    told.lose("n1").end_stopped()
    assert (told.status().state, told.status().retries.platform) == (JobState.WAITING, 0)
    assert told.phase() is JobPhase.BACKOFF


def test_a_failure_of_its_own_fails_the_attempt_as_any_other(story: Tell) -> None:
    told = place(elastic(story)).start().end("0-worker-2-0", FAILURE).end_stopped()
    assert told.status().state is JobState.FAILED


def test_a_failure_of_its_own_before_it_ran_breaks_no_gang(story: Tell) -> None:
    told = place(elastic(story, role={"min_failed_instances": 2}), 2).start()
    place(told).end("0-worker-2-0", FAILURE)
    assert states(told) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.FAILED]


def test_a_gang_that_is_preempted_gives_all_back(story: Tell) -> None:
    told = place(elastic(story), 2).start().preempt().end_stopped()
    assert told.phase() is JobPhase.BACKOFF
    assert sorted(told.stops()) == ["j1-0-worker-0-0", "j1-0-worker-1-0"]
    assert told.again().status().attempt == 1


def test_it_succeeds_without_what_never_had_a_place(story: Tell) -> None:
    told = place(elastic(story), 2).start().end("0-worker-0-0")
    assert told.phase() is JobPhase.RUNNING
    told.end("0-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED
    assert states(told) == [TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.STOPPED]
    assert told.open_subjects() == set()


@pytest.fixture
def served(make_request: Callable[..., JobRequest], tell_of: type) -> Story:
    """A server, which does not end by itself, and three workers: one is enough."""
    request = make_request("j1", {"server": 1, "worker": 3})
    assert request.spec is not None
    server, worker = request.spec.task_roles
    worker = worker.model_copy(update={"min_instances": 1, "min_succeeded_instances": 3})
    spec = request.spec.model_copy(update={"task_roles": (server, worker)})
    return tell_of(request.model_copy(update={"spec": spec}))


def test_a_role_has_succeeded_when_all_of_it_that_had_a_place_have(served: Story) -> None:
    """Whatever else runs, as with roles of which all are needed."""
    told = place(served, 3).start().end("0-worker-0-0")
    assert told.phase() is JobPhase.RUNNING
    told.end("0-worker-1-0").end_stopped()
    assert told.status().state is JobState.SUCCEEDED
    assert "succeeded: 2 of minSucceededInstances 3" in told.status().trigger.message


def test_a_role_has_succeeded_when_the_last_that_has_not_is_asked_back(served: Story) -> None:
    told = shrink(place(served).start(), "j1-0-worker-2-0")
    told.end("0-worker-0-0").end("0-worker-1-0")
    assert told.phase() is JobPhase.RUNNING
    told.end_stopped().end_stopped()
    assert told.status().state is JobState.SUCCEEDED


def test_it_succeeds_without_what_is_asked_back_at_the_end(story: Tell) -> None:
    told = shrink(place(elastic(story)).start(), "j1-0-worker-2-0")
    told.end("0-worker-0-0").end("0-worker-1-0").end_stopped()
    assert told.status().state is JobState.SUCCEEDED
    assert told.status().task_roles[0].tasks[2].verdict.rule == "preempted"


def test_it_is_stopped_with_what_waits(story: Tell) -> None:
    told = place(elastic(story), 1).start().stop().end_stopped()
    assert told.status().state is JobState.STOPPED
    assert states(told) == [TaskState.STOPPED] * 3
    assert told.open_subjects() == set()


def test_a_word_that_comes_late_of_a_pod_that_came_back_changes_nothing(story: Tell) -> None:
    told = place(elastic(story)).start()
    old = told.agents.statuses["j1-0-worker-2-0"]
    shrink(told, "j1-0-worker-2-0").end_stopped()
    told.tell(old)
    assert old.state is PodState.RUNNING
    assert states(told)[2] is TaskState.WAITING
    decided = {pod.pod: pod.state for pod in told.scheduler.decisions["j1-0"].pods}
    assert decided["j1-0-worker-2-1"] is PodDecisionState.WAITING
