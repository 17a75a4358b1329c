"""How a gang ended, as its last message tells the Scheduler."""

from collections.abc import Callable
from typing import Any

import pytest
from launcher_peers import failure
from muster.contracts.gangs import GangEnd, GangRequest
from muster.contracts.verdicts import Behavior, Fault

Story = Any
NewStory = Callable[..., Story]

FAILURE = failure(Behavior.PERMANENT)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def ends(story: Story) -> dict[str, GangEnd | None]:
    """The ends of the gangs that are over, in their last messages."""
    gangs: dict[str, GangRequest] = story.scheduler.gangs
    return {gang: message.end for gang, message in gangs.items() if not message.pods}


def test_a_gang_that_ran_to_its_end(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().end("0-worker-0-0").wait(1)
    assert ends(story) == {}
    assert story.scheduler.gangs["j1-0"].end is None
    assert ends(story.end("0-worker-1-0")) == {"j1-0": GangEnd.SUCCEEDED}


def test_a_gang_that_failed(new_story: NewStory) -> None:
    assert ends(new_story().place().start().end("0-worker-0-0", FAILURE)) == {
        "j1-0": GangEnd.FAILED
    }


def test_a_gang_that_its_user_stopped(new_story: NewStory) -> None:
    assert ends(new_story().place().start().stop().end_stopped()) == {"j1-0": GangEnd.STOPPED}


def test_a_gang_that_ran_for_as_long_as_it_may(new_story: NewStory) -> None:
    story = new_story(time_limit_s=60).place().start().wait(60).end_stopped()
    assert ends(story) == {"j1-0": GangEnd.LIMIT}


@pytest.mark.parametrize("how", ["lost", "preempted", "withdrawn", "peer"])
def test_a_gang_that_was_taken_away(new_story: NewStory, how: str) -> None:
    story = new_story({"worker": 2}).place().start()
    match how:
        case "lost":
            story.lose("n1")
        case "preempted":
            story.preempt().end_stopped()
        case "withdrawn":
            story.end("0-worker-0-0", WITHDRAWN).end_stopped()
        case "peer":
            story.end("0-worker-0-0", failure(Behavior.UNKNOWN)).lose("n1")
    assert ends(story)["j1-0"] is GangEnd.TAKEN


def test_tasks_that_start_singly_end_singly(new_story: NewStory) -> None:
    """A task that the attempt no longer needs ends as the attempt does."""
    role = {"min_succeeded_instances": 2, "min_failed_instances": 3}
    story = new_story({"worker": 4}, gang=False, role=role).place().start()
    story.end("0-worker-0-0").end("0-worker-1-0", FAILURE)
    assert ends(story) == {"j1-0-worker-0-0": GangEnd.SUCCEEDED, "j1-0-worker-1-0": GangEnd.FAILED}
    story.end("0-worker-2-0").end_stopped()
    assert ends(story)["j1-0-worker-3-0"] is GangEnd.SUCCEEDED


def test_a_task_of_its_own_is_stopped_by_its_user_or_taken(new_story: NewStory) -> None:
    story = new_story(gang=False).place().start().stop().end_stopped()
    assert ends(story) == {"j1-0-worker-0-0": GangEnd.STOPPED}
    assert (
        ends(new_story(gang=False).place().start().lose("n1"))["j1-0-worker-0-0"] is GangEnd.TAKEN
    )


def test_the_jobs_run_times_reach_the_scheduler(new_story: NewStory) -> None:
    story = new_story(expected_s=600, min_run_s=60, checkpoint_s=30, borrow=True)
    message = story.scheduler.gangs["j1-0"]
    assert (message.expected_s, message.min_run_s, message.checkpoint_s, message.borrow) == (
        600,
        60,
        30,
        True,
    )
