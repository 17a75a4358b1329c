"""The Launcher tells the Scheduler when a gang has saved its work."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from muster.contracts.gangs import GangRequest

Story = Any
NewStory = Callable[..., Story]


def save(story: Story, pod: str, at: datetime) -> Story:
    """The pod reports that it has saved its work."""
    status = story.agents.statuses[f"j1-{pod}"]
    story.agents.statuses[f"j1-{pod}"] = published = status.model_copy(
        update={"revision": status.revision + 1, "checkpointed_at": at}
    )
    return story.receive(published)


def messages(story: Story) -> list[tuple[str, GangRequest]]:
    return [
        (publish.topic, publish.message)
        for publish in story.published
        if isinstance(publish.message, GangRequest)
    ]


def test_a_gangs_work_is_saved_when_one_of_its_pods_reports_it(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().wait(1)
    first, second = story.now + timedelta(seconds=5), story.now + timedelta(seconds=3)
    before = len(messages(story)), len(story.statuses())
    save(save(story.wait(10), "0-worker-0-0", first), "0-worker-1-0", second).wait(1)
    ((topic, message),) = messages(story)[before[0] :]
    assert (topic, message.checkpointed_at) == ("gang-requested", first)
    assert len(message.pods) == 2
    assert len(story.statuses()) == before[1]


def test_a_known_checkpoint_is_not_published_again(new_story: NewStory) -> None:
    story = new_story().place().start().wait(1)
    at = story.now
    save(story, "0-worker-0-0", at).wait(1)
    before = len(messages(story))
    save(story, "0-worker-0-0", at).wait(1)
    save(story, "0-worker-0-0", at - timedelta(seconds=1)).wait(1)
    assert len(messages(story)) == before


def test_a_task_that_starts_singly_saves_its_own_work(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, gang=False).place().start().wait(1)
    save(story, "0-worker-1-0", story.now).wait(1)
    found = {gang: message.checkpointed_at for gang, message in story.scheduler.gangs.items()}
    assert found == {"j1-0-worker-0-0": None, "j1-0-worker-1-0": story.now - timedelta(seconds=1)}


def test_the_next_attempt_has_saved_nothing_yet(new_story: NewStory) -> None:
    story = new_story(job_retry_count=1).place().start()
    save(story, "0-worker-0-0", story.now).preempt().end_stopped().again()
    assert story.scheduler.gangs["j1-1"].checkpointed_at is None
