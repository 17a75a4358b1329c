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
NewStory = Callable[..., Story]

FAILURE = failure(Behavior.PERMANENT)
RESET = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def elastic(new_story: NewStory, least: int = 1, most: int = 3, **more: Any) -> Story:
    role = {"min_instances": least, **more.pop("role", {})}
    return new_story({"worker": most}, role=role, **more)


def place(story: Story, count: int | None = None, node: str = "n1") -> Story:
    """So many of its pods get a place, the first ones."""
    return story.receive(story.scheduler.place("j1-0", node, count))


def shrink(story: Story, *pods: str, grace_s: float = 10) -> Story:
    """These pods are asked back."""
    until = story.now + timedelta(seconds=grace_s)
    return story.receive(story.scheduler.preempt("j1-0", until, "other-0", pods))


def states(story: Story) -> list[TaskState]:
    story.wait(1)
    return [task.state for task in story.status().task_roles[0].tasks]


def wanted(story: Story) -> list[tuple[str, bool]]:
    """The pods in the gang's newest message, and whether each is surplus."""
    return [(ask.pod, ask.surplus) for ask in story.scheduler.gangs["j1-0"].pods]


def test_the_gangs_message_marks_surplus_pods(new_story: NewStory) -> None:
    assert wanted(elastic(new_story)) == [
        ("j1-0-worker-0-0", False),
        ("j1-0-worker-1-0", True),
        ("j1-0-worker-2-0", True),
    ]


def test_without_a_gang_no_task_is_one_to_do_without(new_story: NewStory) -> None:
    story = elastic(new_story, gang=False)
    assert not any(
        ask.surplus for message in story.scheduler.gangs.values() for ask in message.pods
    )


def test_it_runs_when_what_it_needs_has_a_place(new_story: NewStory) -> None:
    story = elastic(new_story, least=2)
    story.receive(story.scheduler.defer("j1-0", "No room."))
    place(story, 1)
    assert story.runs() == []
    place(story, 1)
    assert [run.pod for run in story.runs()] == ["j1-0-worker-0-0", "j1-0-worker-1-0"]
    story.start()
    assert story.status().state is JobState.RUNNING
    assert states(story) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
    assert story.status().reason is None


def test_the_status_has_the_least_number_of_tasks(new_story: NewStory) -> None:
    story = elastic(new_story, least=2).wait(10)
    assert story.status().task_roles[0].min_instances == 2
    story = new_story({"worker": 3}).wait(10)
    assert story.status().task_roles[0].min_instances is None


def test_what_gets_a_place_later_runs_and_knows_its_peers(new_story: NewStory) -> None:
    story = place(elastic(new_story), 1).start()
    place(story, 1).start()
    assert states(story) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
    first, second = (message.run for message in story.runs())
    assert [peers.address_of for peers in first.peers] == [(0,)]
    assert [peers.address_of for peers in second.peers] == [(0, 0)]
    assert second.roles[0].instances == 3
    assert second.roles[0].min_instances == 1


def test_what_is_asked_back_waits_again_and_the_gang_goes_on(new_story: NewStory) -> None:
    story = shrink(place(elastic(new_story)).start(), "j1-0-worker-2-0")
    assert list(story.stops()) == ["j1-0-worker-2-0"]
    assert story.stops()["j1-0-worker-2-0"].stop.reason == "preempted"
    assert story.stops()["j1-0-worker-2-0"].stop.grace_s == 10
    story.end_stopped()
    assert states(story) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]
    assert wanted(story)[2] == ("j1-0-worker-2-1", True)
    status = story.status()
    assert (status.state, status.attempt, status.retries.platform) == (JobState.RUNNING, 0, 0)
    assert status.reason is not None
    assert status.reason.text == "For other-0."
    place(story).start()
    assert states(story) == [TaskState.RUNNING] * 3
    assert story.status().reason is None
    assert [run.pod for run in story.runs()][-1] == "j1-0-worker-2-1"


def test_the_gangs_message_has_the_ends_of_released_pods(new_story: NewStory) -> None:
    story = shrink(place(elastic(new_story)).start(), "j1-0-worker-2-0").end_stopped()
    assert [end.pod for end in story.scheduler.gangs["j1-0"].released] == ["j1-0-worker-2-0"]


def test_what_is_asked_back_before_it_ran_waits_again_at_once(new_story: NewStory) -> None:
    story = elastic(new_story)
    story.scheduler.place("j1-0", "n1")
    shrink(story, "j1-0-worker-1-0")
    assert [run.pod for run in story.runs()] == ["j1-0-worker-0-0", "j1-0-worker-2-0"]
    assert wanted(story)[1] == ("j1-0-worker-1-1", True)


def test_what_ends_well_as_it_is_asked_back_has_not_done_its_work(new_story: NewStory) -> None:
    story = elastic(new_story, role={"min_succeeded_instances": 1})
    shrink(place(story).start(), "j1-0-worker-2-0").end("0-worker-2-0")
    assert states(story) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.WAITING]


@pytest.mark.parametrize("how", ["lost", "reset"])
def test_what_the_platform_takes_waits_again(new_story: NewStory, how: str) -> None:
    story = place(elastic(new_story), 2)
    place(story, 1, "n2").start()
    if how == "lost":
        story.lose("n2")
    else:
        story.end("0-worker-2-0", RESET)
    story.wait(2)
    assert wanted(story)[2] == ("j1-0-worker-2-1", True)
    assert story.phase() is JobPhase.RUNNING
    assert story.job.job.accountable == 0


def test_losing_what_it_needs_ends_the_attempt(new_story: NewStory) -> None:
    story = place(elastic(new_story), 1)
    place(story, None, "n2").start()
    story.lose("n1").end_stopped()
    assert (story.status().state, story.status().retries.platform) == (JobState.WAITING, 0)
    assert story.phase() is JobPhase.BACKOFF


def test_a_failure_of_its_own_fails_the_attempt_as_any_other(new_story: NewStory) -> None:
    story = place(elastic(new_story)).start().end("0-worker-2-0", FAILURE).end_stopped()
    assert story.status().state is JobState.FAILED


def test_a_failure_of_its_own_before_it_ran_breaks_no_gang(new_story: NewStory) -> None:
    story = place(elastic(new_story, role={"min_failed_instances": 2}), 2).start()
    place(story).end("0-worker-2-0", FAILURE)
    assert states(story) == [TaskState.RUNNING, TaskState.RUNNING, TaskState.FAILED]


def test_a_gang_that_is_preempted_gives_all_back(new_story: NewStory) -> None:
    story = place(elastic(new_story), 2).start().preempt().end_stopped()
    assert story.phase() is JobPhase.BACKOFF
    assert sorted(story.stops()) == ["j1-0-worker-0-0", "j1-0-worker-1-0"]
    assert story.again().status().attempt == 1


def test_it_succeeds_without_what_never_had_a_place(new_story: NewStory) -> None:
    story = place(elastic(new_story), 2).start().end("0-worker-0-0")
    assert story.phase() is JobPhase.RUNNING
    story.end("0-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED
    assert states(story) == [TaskState.SUCCEEDED, TaskState.SUCCEEDED, TaskState.STOPPED]
    assert story.open_subjects() == set()


@pytest.fixture
def served(make_request: Callable[..., JobRequest], story_of: type) -> Story:
    """A server, which does not end by itself, and three workers: one is enough."""
    request = make_request("j1", {"server": 1, "worker": 3})
    assert request.spec is not None
    server, worker = request.spec.task_roles
    worker = worker.model_copy(update={"min_instances": 1, "min_succeeded_instances": 3})
    spec = request.spec.model_copy(update={"task_roles": (server, worker)})
    return story_of(request.model_copy(update={"spec": spec}))


def test_a_role_has_succeeded_when_all_of_it_that_had_a_place_have(served: Story) -> None:
    """Whatever else runs, as with roles of which all are needed."""
    story = place(served, 3).start().end("0-worker-0-0")
    assert story.phase() is JobPhase.RUNNING
    story.end("0-worker-1-0").end_stopped()
    assert story.status().state is JobState.SUCCEEDED
    assert "succeeded: 2 of minSucceededInstances 3" in story.status().trigger.message


def test_a_role_has_succeeded_when_the_last_that_has_not_is_asked_back(served: Story) -> None:
    story = shrink(place(served).start(), "j1-0-worker-2-0")
    story.end("0-worker-0-0").end("0-worker-1-0")
    assert story.phase() is JobPhase.RUNNING
    story.end_stopped().end_stopped()
    assert story.status().state is JobState.SUCCEEDED


def test_it_succeeds_without_what_is_asked_back_at_the_end(new_story: NewStory) -> None:
    story = shrink(place(elastic(new_story)).start(), "j1-0-worker-2-0")
    story.end("0-worker-0-0").end("0-worker-1-0").end_stopped()
    assert story.status().state is JobState.SUCCEEDED
    assert story.status().task_roles[0].tasks[2].verdict.rule == "preempted"


def test_it_is_stopped_with_what_waits(new_story: NewStory) -> None:
    story = place(elastic(new_story), 1).start().stop().end_stopped()
    assert story.status().state is JobState.STOPPED
    assert states(story) == [TaskState.STOPPED] * 3
    assert story.open_subjects() == set()


def test_a_late_message_about_a_pod_that_came_back_changes_nothing(
    new_story: NewStory,
) -> None:
    story = place(elastic(new_story)).start()
    old = story.agents.statuses["j1-0-worker-2-0"]
    shrink(story, "j1-0-worker-2-0").end_stopped()
    story.receive(old)
    assert old.state is PodState.RUNNING
    assert states(story)[2] is TaskState.WAITING
    decided = {pod.pod: pod.state for pod in story.scheduler.decisions["j1-0"].pods}
    assert decided["j1-0-worker-2-1"] is PodDecisionState.WAITING
