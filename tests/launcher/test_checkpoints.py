"""That a gang's work is saved reaches who decides whom to preempt."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from muster.contracts.gangs import GangRequest

Story = Any
Tell = Callable[..., Story]


def save(told: Story, pod: str, at: datetime) -> Story:
    """The pod says that the work up to then is saved."""
    status = told.agents.statuses[f"j1-{pod}"]
    told.agents.statuses[f"j1-{pod}"] = said = status.model_copy(
        update={"revision": status.revision + 1, "checkpointed_at": at}
    )
    return told.tell(said)


def words(told: Story) -> list[tuple[str, GangRequest]]:
    return [(say.topic, say.message) for say in told.says if isinstance(say.message, GangRequest)]


def test_a_gangs_work_is_saved_when_one_of_its_pods_says_so(story: Tell) -> None:
    told = story({"worker": 2}).place().start().wait(1)
    first, second = told.now + timedelta(seconds=5), told.now + timedelta(seconds=3)
    before = len(words(told)), len(told.statuses())
    save(save(told.wait(10), "0-worker-0-0", first), "0-worker-1-0", second).wait(1)
    ((topic, word),) = words(told)[before[0] :]
    assert (topic, word.checkpointed_at) == ("gang-requested", first)
    assert len(word.pods) == 2
    assert len(told.statuses()) == before[1]


def test_what_is_known_is_not_said_again(story: Tell) -> None:
    told = story().place().start().wait(1)
    at = told.now
    save(told, "0-worker-0-0", at).wait(1)
    before = len(words(told))
    save(told, "0-worker-0-0", at).wait(1)
    save(told, "0-worker-0-0", at - timedelta(seconds=1)).wait(1)
    assert len(words(told)) == before


def test_a_task_that_starts_singly_saves_its_own_work(story: Tell) -> None:
    told = story({"worker": 2}, gang=False).place().start().wait(1)
    save(told, "0-worker-1-0", told.now).wait(1)
    found = {gang: word.checkpointed_at for gang, word in told.scheduler.gangs.items()}
    assert found == {"j1-0-worker-0-0": None, "j1-0-worker-1-0": told.now - timedelta(seconds=1)}


def test_the_next_attempt_has_saved_nothing_yet(story: Tell) -> None:
    told = story(job_retry_count=1).place().start()
    save(told, "0-worker-0-0", told.now).preempt().end_stopped().again()
    assert told.scheduler.gangs["j1-1"].checkpointed_at is None
