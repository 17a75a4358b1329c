"""GPU time: from a pod's placement to its end; refunded where the platform's fault lost it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from launcher_peers import failure, stopped
from muster.contracts.verdicts import Behavior, Fault, Verdict
from runtime_agent.domain.ending import Ending
from runtime_agent.domain.verdict import judge

Story = Any
NewStory = Callable[..., Story]


def a_story(new_story: NewStory, tasks: int = 2, **more: Any) -> Story:
    return new_story({"worker": tasks}, **more)


def gpu_time(story: Story) -> tuple[float, float]:
    """Held and refunded seconds; each task has one GPU."""
    time = story.wait(1).job.job.gpu_time
    assert story.status().gpu_time == time
    return time.held_s, time.refunded_s


def run(story: Story, seconds: float = 100) -> Story:
    """Placed, running 10 s later, for so long."""
    return story.place().wait(10).start().wait(seconds)


def end_all(story: Story, *verdict: Any) -> Story:
    for run_ in story.runs():
        story.end(run_.pod.removeprefix("j1-"), *verdict)
    return story


def test_time_counts_from_the_placement_to_the_end(new_story: NewStory) -> None:
    story = a_story(new_story).wait(50)  # in the queue
    assert gpu_time(end_all(run(story))) == (220, 0)
    assert {task.placed_at for task in story.status().task_roles[0].tasks} != {None}


def test_an_attempt_that_the_platform_failed_is_refunded_whole(new_story: NewStory) -> None:
    story = run(a_story(new_story))
    story.end("0-worker-0-0", failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013))
    story.wait(5).end_stopped()
    assert gpu_time(story) == (225, 225)
    story.wait(60).place("n2").wait(10).start().wait(90)
    for name in ("1-worker-0-0", "1-worker-1-0"):
        story.end(name)
    assert gpu_time(story) == (425, 225)


@pytest.mark.parametrize("fault", [Fault.USER, Fault.UNKNOWN])
def test_a_users_failure_is_not_refunded(new_story: NewStory, fault: Fault) -> None:
    story = run(a_story(new_story))
    story.end("0-worker-0-0", failure(Behavior.PERMANENT, fault)).end_stopped()
    assert gpu_time(story) == (220, 0)


def test_neither_is_a_preemption_nor_a_stop(new_story: NewStory) -> None:
    story = run(a_story(new_story)).preempt().end_stopped()
    assert gpu_time(story) == (220, 0)
    story = run(a_story(new_story)).stop().end_stopped()
    assert gpu_time(story) == (220, 0)


KILLED = judge(Ending(signal=9, stop_reason="preempted", forced=True))
"""What a real agent reports of a pod that is stopped for a preemption or a drain."""


@pytest.mark.parametrize("verdict", [stopped(), KILLED])
def test_a_drained_attempt_is_refunded_whole_and_its_next_one_counts(
    new_story: NewStory, verdict: Verdict
) -> None:
    story = end_all(run(a_story(new_story)).preempt(preemptor=None), verdict)
    assert (story.status().verdict.symptom, story.status().ended) == (verdict.symptom, None)
    assert (story.status().verdict.rule, gpu_time(story)) == ("drained", (220, 220))
    run(story.again())
    assert "drained a node of the attempt" in story.status().ended
    end_all(story.preempt(), verdict)
    assert (story.status().verdict.rule, gpu_time(story)) == ("preempted", (440, 220))


def test_what_is_lost_while_its_node_is_drained_was_lost(new_story: NewStory) -> None:
    story = run(a_story(new_story)).preempt(preemptor=None).lose("n1")
    assert (story.status().verdict.rule, gpu_time(story)) == ("node-lost", (220, 220))


def test_what_was_preempted_before_its_node_is_drained_is_not_refunded(new_story: NewStory) -> None:
    story = run(a_story(new_story)).preempt().preempt(preemptor=None).end_stopped()
    assert (story.status().verdict.rule, gpu_time(story)) == ("preempted", (220, 0))


def test_of_tasks_that_started_singly_the_drained_ones_are_refunded(new_story: NewStory) -> None:
    story = run(a_story(new_story, gang=False))
    until = story.now + timedelta(seconds=10)
    story.receive(story.scheduler.preempt("j1-0-worker-0-0", until, None))
    story.receive(story.scheduler.preempt("j1-0-worker-1-0", until)).end_stopped()
    assert gpu_time(story) == (220, 110)
    run(story.again()).stop().end_stopped()  # the next attempts of both
    assert story.job.job.gpu_time.refunded_s == 110


def test_lost_tasks_that_started_singly_are_refunded(new_story: NewStory) -> None:
    story = a_story(new_story, gang=False)
    run(story).lose("n1")
    held, refunded = gpu_time(story)
    assert held == refunded == 220
    assert story.job.job.attempt_gpu_s == 0


def test_what_still_runs_is_not_counted_yet(new_story: NewStory) -> None:
    story = run(a_story(new_story, gang=False))
    story.end("0-worker-0-0")
    assert gpu_time(story) == (110, 0)
