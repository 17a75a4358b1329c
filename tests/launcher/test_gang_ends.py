"""How a gang ended, as its last message tells the Scheduler."""

from collections.abc import Callable
from typing import Any

import pytest
from launcher.domain.states import JobPhase
from launcher_peers import failure
from muster.contracts.gangs import GangClass, GangEnd, GangRequest
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


def test_a_gang_that_was_taken_away(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().preempt().end_stopped()
    assert ends(story)["j1-0"] is GangEnd.TAKEN
    assert story.again().scheduler.gangs["j1-1"].follows is None


@pytest.mark.parametrize("how", ["lost", "withdrawn", "peer", "drained"])
def test_the_next_attempt_follows_a_gang_that_the_platform_failed(
    new_story: NewStory, how: str
) -> None:
    story, failed = new_story({"worker": 2}).place().start(), {"j1-0-worker-0-0"}
    match how:
        case "lost":
            story.lose("n1")
            failed |= {"j1-0-worker-1-0"}
        case "withdrawn":
            story.end("0-worker-0-0", WITHDRAWN).end_stopped()
        case "peer":
            story.end("0-worker-0-0", failure(Behavior.UNKNOWN)).lose("n1")
            failed = {"j1-0-worker-1-0"}
        case "drained":
            story.preempt(preemptor=None).end_stopped()
            failed |= {"j1-0-worker-1-0"}
    assert ends(story)["j1-0"] is GangEnd.REQUEUED
    assert set(story.scheduler.gangs["j1-0"].failed) == failed
    story.wait(1)
    assert story.scheduler.gangs["j1-1"].follows == "j1-0"
    story.place().start().preempt().end_stopped().again()
    assert story.scheduler.gangs["j1-2"].follows is None


def guaranteed(story: Story) -> Story:
    """The Scheduler has published that the gang has its cells."""
    decision = story.scheduler.decisions["j1-0"]
    return story.receive(decision.model_copy(update={"gang_class": GangClass.GUARANTEED}))


def test_a_gang_that_is_requeued_releases_its_cells_at_once(new_story: NewStory) -> None:
    story = guaranteed(new_story({"worker": 3}).place().start())
    story.end("0-worker-0-0", WITHDRAWN).end("0-worker-1-0", failure(Behavior.UNKNOWN)).wait(1)
    assert len(story.scheduler.gangs["j1-0"].pods) == 3
    story.end_stopped()
    assert ends(story) == {"j1-0": GangEnd.REQUEUED}


def test_a_job_that_is_stopped_before_its_next_attempt_gives_its_place_free(
    new_story: NewStory,
) -> None:
    story = new_story().place().start().lose("n1").stop()
    assert story.phase() is JobPhase.STOPPED
    assert ends(story) == {"j1-0": None}


def test_a_next_attempt_that_comes_late_has_no_place_kept(new_story: NewStory) -> None:
    """The wait between attempts doubles: 1, 2, 4, 8, 16, 32 seconds."""
    story = new_story()
    for number in range(6):
        story.place().start().lose("n1")
        last = ends(story)[f"j1-{number}"]
        assert last is (GangEnd.REQUEUED if number < 5 else GangEnd.TAKEN)
        story.wait(2**number)
    assert story.scheduler.gangs["j1-6"].follows is None


def test_a_job_that_its_user_stops_while_it_fails_is_not_requeued(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().end("0-worker-0-0", WITHDRAWN)
    story.stop().end_stopped()
    assert ends(story)["j1-0"] is not GangEnd.REQUEUED


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


def test_the_jobs_wishes_reach_the_scheduler(new_story: NewStory) -> None:
    story = new_story(expected_s=600, min_run_s=60, checkpoint_s=30, borrow=True, node="n1")
    message = story.scheduler.gangs["j1-0"]
    assert message.node == "n1"
    assert (message.expected_s, message.min_run_s, message.checkpoint_s, message.borrow) == (
        600,
        60,
        30,
        True,
    )
