"""A pod touches a file when its gang's work is saved; the agent reports this to the Launcher."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from muster.channels import Outgoing
from runtime_agent.domain.environment import CHECKPOINT_FILE
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.handlers import Handlers
from runtime_agent.pods import PodDirectories
from runtime_agent.runner import Seen
from runtime_agent.step import Memory, Node
from runtime_agent.store import Entry, Journal, new_subject
from runtime_agent.supervisor.records import PodSpec

NOW_S = 2_000_000_000.0
STARTED_S = NOW_S - 1000


class World:
    """An agent's handlers with one pod that runs; the clock is set by hand."""

    def __init__(self, home: Path) -> None:
        self._journal = Journal(home / "journal.sqlite", "id")
        pod = Pod("p", "job", "job-0", Phase.RUNNING, started_at=moment(STARTED_S))
        self._journal.save([Entry(pod, new_subject(pod, "id"), moment(STARTED_S))])
        self.published: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        """The agent knows what its journal does."""
        memory = Memory(self._journal, Node("n", "boot", 30.0, 30.0), lambda _name: True)
        self.handlers = Handlers(memory, self._publish, lambda: None)

    def _publish(self, records: Sequence[Outgoing]) -> None:
        assert {record.topic for record in records} <= {"pod-started"}
        self.published += [json.loads(record.value or b"") for record in records]

    def see(self, saved_at_s: float | None) -> None:
        self.handlers.on_seen([Seen("p", STARTED_S, checkpointed_at_s=saved_at_s)])

    def times(self) -> list[float]:
        found = [datetime.fromisoformat(message["checkpointedAt"]) for message in self.published]
        return [each.timestamp() for each in found]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW_S]
    monkeypatch.setattr("runtime_agent.step.time.time", lambda: now[0])
    return now


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_the_launcher_gets_the_time_of_a_checkpoint(tmp_path: Path, clock: list[float]) -> None:
    world = World(tmp_path)
    world.see(None)
    assert world.published == []
    world.see(NOW_S - 5)
    world.see(NOW_S - 5)
    assert world.times() == [NOW_S - 5]
    assert world.published[0]["state"] == "running"


def test_it_gets_them_now_and_then_and_always_the_last(tmp_path: Path, clock: list[float]) -> None:
    world = World(tmp_path)
    world.see(NOW_S)
    for second in range(1, 40):
        clock[0] = NOW_S + second
        world.see(NOW_S + min(second, 35))
    assert world.times() == [NOW_S, NOW_S + 30]
    clock[0] = NOW_S + 60
    world.see(NOW_S + 35)
    assert world.times()[2:] == [NOW_S + 35]


def test_an_agent_that_starts_again_goes_on_from_its_last_message(
    tmp_path: Path, clock: list[float]
) -> None:
    world = World(tmp_path)
    world.see(NOW_S - 5.123)
    assert len(world.times()) == 1
    world.restart()
    world.see(NOW_S - 5.123)
    assert len(world.times()) == 1
    world.handlers.on_return()
    world.handlers.on_time(10)
    assert world.times()[1:] == world.times()[:1]
    world.restart()
    world.see(NOW_S - 1)
    assert len(world.times()) == 2
    clock[0] = NOW_S + 30
    world.see(NOW_S - 1)
    assert world.times()[2:] == [NOW_S - 1]


@pytest.mark.parametrize(
    ("touched_s", "published_s"), [(-1e15, STARTED_S), (0.0, STARTED_S), (1e15, NOW_S)]
)
def test_times_that_can_not_be_are_brought_to_where_they_can(
    tmp_path: Path, clock: list[float], touched_s: float, published_s: float
) -> None:
    world = World(tmp_path)
    world.see(touched_s)
    assert world.times() == [published_s]


def test_only_a_file_of_its_own_counts(tmp_path: Path) -> None:
    pods = PodDirectories(tmp_path / "pods")
    pods.prepare(PodSpec("p", {}), "true")
    assert pods.checkpointed_at_s("p") is None
    assert pods.checkpointed_at_s("unknown") is None
    file = pods.work_path("p") / CHECKPOINT_FILE
    file.symlink_to("/etc/passwd")
    assert pods.checkpointed_at_s("p") is None
    file.unlink()
    file.touch()
    os.utime(file, (NOW_S, NOW_S))
    assert pods.checkpointed_at_s("p") == NOW_S
