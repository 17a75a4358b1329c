"""How a gang came to its end, as the Scheduler is told."""

from collections.abc import Callable
from typing import Any

import pytest
from launcher_peers import failure
from muster.contracts.gangs import GangEnd, GangRequest
from muster.contracts.verdicts import Behavior, Fault

Story = Any
Tell = Callable[..., Story]

FAILURE = failure(Behavior.PERMANENT)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def ends(told: Story) -> dict[str, GangEnd | None]:
    """Of the gangs that are over, as they were told last."""
    gangs: dict[str, GangRequest] = told.scheduler.gangs
    return {gang: word.end for gang, word in gangs.items() if not word.pods}


def test_a_gang_that_ran_to_its_end(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-0-0").wait(1)
    assert ends(told) == {}
    assert told.scheduler.gangs["j1-0"].end is None
    assert ends(told.end("0-worker-1-0")) == {"j1-0": GangEnd.SUCCEEDED}


def test_a_gang_that_failed(story: Tell) -> None:
    assert ends(story().place().start().end("0-worker-0-0", FAILURE)) == {"j1-0": GangEnd.FAILED}


def test_a_gang_that_its_user_stopped(story: Tell) -> None:
    assert ends(story().place().start().stop().end_stopped()) == {"j1-0": GangEnd.STOPPED}


def test_a_gang_that_ran_for_as_long_as_it_may(story: Tell) -> None:
    told = story(time_limit_s=60).place().start().wait(60).end_stopped()
    assert ends(told) == {"j1-0": GangEnd.LIMIT}


@pytest.mark.parametrize("how", ["lost", "preempted", "withdrawn", "peer"])
def test_a_gang_that_was_taken_away(story: Tell, how: str) -> None:
    told = story({"worker": 2}).place().start()
    match how:
        case "lost":
            told.lose("n1")
        case "preempted":
            told.preempt().end_stopped()
        case "withdrawn":
            told.end("0-worker-0-0", WITHDRAWN).end_stopped()
        case "peer":
            told.end("0-worker-0-0", failure(Behavior.UNKNOWN)).lose("n1")
    assert ends(told)["j1-0"] is GangEnd.TAKEN


def test_tasks_that_start_singly_end_singly(story: Tell) -> None:
    """Who the attempt does not need any more ended as it did."""
    role = {"min_succeeded_instances": 2, "min_failed_instances": 3}
    told = story({"worker": 4}, gang=False, role=role).place().start()
    told.end("0-worker-0-0").end("0-worker-1-0", FAILURE)
    assert ends(told) == {"j1-0-worker-0-0": GangEnd.SUCCEEDED, "j1-0-worker-1-0": GangEnd.FAILED}
    told.end("0-worker-2-0").end_stopped()
    assert ends(told)["j1-0-worker-3-0"] is GangEnd.SUCCEEDED


def test_a_task_of_its_own_is_stopped_by_its_user_or_taken(story: Tell) -> None:
    told = story(gang=False).place().start().stop().end_stopped()
    assert ends(told) == {"j1-0-worker-0-0": GangEnd.STOPPED}
    assert ends(story(gang=False).place().start().lose("n1"))["j1-0-worker-0-0"] is GangEnd.TAKEN


def test_what_the_job_says_of_its_run_reaches_the_scheduler(story: Tell) -> None:
    told = story(expected_s=600, min_run_s=60, checkpoint_s=30, borrow=True)
    word = told.scheduler.gangs["j1-0"]
    assert (word.expected_s, word.min_run_s, word.checkpoint_s, word.borrow) == (600, 60, 30, True)
