"""What the agent removes, and what it republishes when a clock is set back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from launcher_double import wanted
from muster.channels import Outgoing
from muster.contracts.notices import RESYNC_SETTING, SettingChanged
from muster.contracts.pods import PodAction, PodStop
from muster.contracts.verdicts import Verdict
from muster.exchange import Exchange
from muster.metrics import PlumbingMetrics
from muster.records import Received, read_message_id
from prometheus_client import CollectorRegistry
from runtime_agent.confinement import Confinement
from runtime_agent.devices import SimulatedDevices
from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Forget, Phase, Pod
from runtime_agent.domain.report import Offer
from runtime_agent.domain.verdict import judge
from runtime_agent.fork_server import ForkServer
from runtime_agent.handlers import Handlers
from runtime_agent.metrics import AgentMetrics
from runtime_agent.pods import PodDirectories
from runtime_agent.pretended import PretendedPods
from runtime_agent.runner import Runner, Seen
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.step import Memory, Node
from runtime_agent.store import Entry, Journal, new_subject
from runtime_agent.supervised import SupervisedPods
from runtime_agent.supervisor import proc
from runtime_agent.supervisor.records import ExitRecord, PodSpec, write_record
from runtime_agent.watch import Watch

MEBIBYTE = 1024 * 1024
NOW_S = 2_000_000_000.0


class World:
    """A journal and directories, watched over; nothing runs."""

    def __init__(self, home: Path) -> None:
        self.pods = PodDirectories(home / "pods")
        self.journal = Journal(home / "journal.sqlite", "id")
        self.published: list[str] = []
        self.load()

    def load(self, runner: Runner | None = None, **more: Any) -> None:
        """As at the start of an agent."""
        registry = CollectorRegistry()
        memory = Memory(self.journal, Node("n", "boot", 30.0), lambda _name: False)
        self.handlers = Handlers(memory, self._publish, lambda: None)
        settings = AgentSettings(node="n", **({"disk_min_mb": 0} | more))
        runner = runner or PretendedPods(Path("no-doorbell"), Offer(cpu=1, memory_mb=64))
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.metrics = AgentMetrics(registry)
        self.watch = Watch(
            self.handlers, runner, self.pods, settings,
            self.metrics, PlumbingMetrics(registry), self.caught_up,
        )  # fmt: skip

    def load_real(self, **more: Any) -> None:
        """The same, over real pods."""
        devices, free = SimulatedDevices("n", 0), Confinement({}, (), "for this test")
        settings, bell = AgentSettings(node="n"), Path("no-doorbell")
        key = SecretsKey(self.pods.root)
        self.load(
            SupervisedPods(settings, self.pods, ForkServer(), devices, bell, free, key), **more
        )

    def failed(self, effect: str) -> float:
        return self.metrics.effects_failed.labels(effect)._value.get()  # type: ignore[no-any-return]

    def files(self) -> set[str]:
        """The files that pods have in their work directories, also in removed ones."""
        return {path.name for path in self.pods.root.rglob("of-*")}

    def _publish(self, records: Sequence[Outgoing]) -> None:
        named = (read_message_id(record.event_id) for record in records)
        self.published += ["an acknowledgement" if each is None else each[2] for each in named]

    def keep(self, name: str, phase: Phase, **more: object) -> None:
        is_forgotten = bool(more.pop("is_forgotten", False))
        pod = Pod(name, "job", "job-0", phase, is_forgotten=is_forgotten)
        subject = replace(new_subject(pod, "id"), topic="pod-failed", message='{"pod":"x"}')
        changed_at = more.pop("changed_at", moment(NOW_S))
        subject = replace(subject, **more)  # type: ignore[arg-type]
        self.journal.save([Entry(pod, subject, changed_at)])  # type: ignore[arg-type]

    def pod_with_work(self, name: str) -> None:
        self.pods.prepare(PodSpec(name, {}), "true")
        (self.pods.work_path(name) / f"of-{name}").touch()

    def pod_with_logs(self, name: str, ended_s: float) -> None:
        """One MiB of logs; its end was recorded at that time."""
        self.pods.prepare(PodSpec(name, {}), "true")
        (self.pods.logs_path(name) / "stdout.log").write_bytes(b"x" * MEBIBYTE)
        end = self.pods.path(name) / "exit.json"
        write_record(end, ExitRecord(ran=True, exit_code=0))
        for file in (end, self.pods.path(name) / "pod.json"):
            os.utime(file, (ended_s, ended_s))

    def with_logs(self) -> set[str]:
        return {name for name in self.pods.names() if self.pods.logs_path(name).exists()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@asynccontextmanager
async def removing(world: World) -> AsyncIterator[None]:
    """Files are removed, until the agent is stopped."""
    removals = asyncio.create_task(world.watch.run_removals())
    yield
    removals.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removals


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def test_when_logs_are_too_many_those_of_the_oldest_ended_pods_go_and_no_others(
    world: World,
) -> None:
    for age, name in enumerate(("new", "middle", "old", "oldest-but-alive")):
        world.pod_with_logs(name, NOW_S - age * 60)
        is_alive = name == "oldest-but-alive"
        world.keep(name, Phase.RUNNING if is_alive else Phase.ENDED)
    world.load(logs_max_mb=2)
    await world.watch.clean(NOW_S)
    assert world.with_logs() == {"new", "oldest-but-alive"}
    assert world.pods.names() == ["middle", "new", "old", "oldest-but-alive"]


async def test_on_a_full_disk_logs_of_ended_pods_go_though_the_journal_takes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pod_with_logs("ended", NOW_S)
    world.keep("ended", Phase.ENDED)
    world.load(disk_min_mb=10**9)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.journal, "drop_ended", full)
    with pytest.raises(sqlite3.OperationalError):
        await world.watch.clean(NOW_S)
    assert world.with_logs() == set()


async def test_on_a_full_disk_work_of_ended_pods_goes_before_they_are_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ended", "not-started"):
        world.pods.prepare(PodSpec(name, {}), "true")
        (world.pods.work_path(name) / "file").write_bytes(b"x")
    world.keep("ended", Phase.ENDED)
    world.keep("not-started", Phase.ACCEPTED)
    world.load_real(disk_min_mb=10**9)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.journal, "drop_ended", full)
    with pytest.raises(sqlite3.OperationalError):
        await world.watch.clean(NOW_S)
    assert not world.pods.work_path("ended").exists()
    assert world.pods.work_path("not-started").exists()


async def test_what_ended_long_ago_leaves_the_disk_once_its_name_has_left_the_journal(
    world: World,
) -> None:
    for name in ("forgotten", "known"):
        world.pod_with_logs(name, NOW_S - 40 * 86400)
    world.keep("known", Phase.ENDED, exchange=Exchange(1, repeat_at=moment(NOW_S)))
    world.load()
    await world.watch.clean(NOW_S)
    assert world.pods.names() == ["known"]


async def test_a_forgotten_pod_loses_its_work_at_once_and_the_disk_is_cleared_beside_it(
    world: World,
) -> None:
    """However many files there are: the loop waits for none of them."""
    world.pod_with_work("pod")
    world.load_real()
    world.handlers.effects.append(Forget("pod"))
    world.watch.carry_out_all()
    assert not world.pods.work_path("pod").exists()
    assert world.files() == {"of-pod"}
    async with removing(world), asyncio.timeout(60):
        while world.files():
            await asyncio.sleep(0.005)


async def test_a_clean_up_removes_work_that_was_left_of_forgotten_pods_and_no_other(
    world: World,
) -> None:
    """The agent was killed between the decision and the removal."""
    for name in ("forgotten", "ended", "ending", "unknown"):
        world.pod_with_work(name)
    world.keep("forgotten", Phase.ENDED, is_forgotten=True)
    world.keep("ended", Phase.ENDED)
    world.keep("ending", Phase.RUNNING, is_forgotten=True)
    world.load_real()
    await world.watch.clean(NOW_S)
    assert world.files() == {"of-ended", "of-ending", "of-unknown"}


async def test_a_removal_that_fails_is_counted_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pod_with_work("pod")
    world.keep("pod", Phase.ENDED, is_forgotten=True)
    world.load_real()
    world.handlers.effects.append(Forget("pod"))

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", broken)
    world.watch.carry_out_all()
    assert (world.failed("forget"), world.pods.work_path("pod").exists()) == (1, True)
    monkeypatch.undo()
    await world.watch.clean(NOW_S)
    assert world.files() == set()


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def a_find(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the place of the program that removes files."""
    (folder / "find").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "find").chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


async def test_files_that_can_not_be_removed_are_counted_and_tried_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pod_with_work("pod")
    world.pods.drop_work("pod")
    a_find(tmp_path, "head -c 1000000 /dev/zero >&2; exit 1", monkeypatch)
    await world.watch.clean(NOW_S)
    assert (world.failed("remove"), world.files()) == (1, {"of-pod"})
    monkeypatch.undo()
    await world.watch.clean(NOW_S)
    assert (world.failed("remove"), world.files()) == (1, set())


async def test_what_a_killed_agent_has_left_half_removed_is_removed_after_its_start(
    world: World,
) -> None:
    world.pod_with_work("pod")
    world.pods.remove("pod")
    (world.pods.root / ".new-pod").mkdir()
    (world.pods.root / ".new-pod" / "of-new").touch()
    world.pods = PodDirectories(world.pods.root)
    world.load_real()
    world.pods.sweep()
    async with removing(world), asyncio.timeout(60):
        while world.files():
            await asyncio.sleep(0.005)


async def test_a_stop_of_the_agent_waits_for_no_removal(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_find(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 300", monkeypatch)
    monkeypatch.setenv("MUSTER_SERVICE_KEY", "marker")
    world.pod_with_work("pod")
    world.pods.drop_work("pod")
    async with asyncio.timeout(60), removing(world):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.005)
        pid = int((tmp_path / "pid").read_text())
        assert b"marker" not in environment_of(pid)  # pods may read it
    assert proc.start_ticks(pid) is None


async def test_a_clean_up_that_finds_nothing_to_remove_starts_no_process(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_find(tmp_path, f"touch {tmp_path}/started", monkeypatch)
    await world.watch.clean(NOW_S)
    assert not (tmp_path / "started").exists()


def test_messages_are_repeated_though_the_clock_was_set_back(world: World) -> None:
    ahead = moment(time.time()) + timedelta(days=1)
    world.keep("message", Phase.ENDED, exchange=Exchange(1, 1, repeat_at=ahead))
    world.keep("answer", Phase.ENDED, exchange=Exchange(1, 1, 1, answer_at=ahead))
    world.load()
    world.handlers.on_time(10)
    assert sorted(world.published) == ["an acknowledgement", "message"]


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_start_whose_stop_is_there_before_it_is_carried_out_starts_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, in_one_batch: bool
) -> None:
    asked = wanted("pod-1", "true", "id").model_copy(update={"node": "n", "revision": 1})
    stop = PodStop(reason="stopped", grace_s=5.0)
    stopped = asked.model_copy(update={"revision": 2, "action": PodAction.STOP, "stop": stop})
    records = [
        Received("pod-requested", 0, message.revision, "n", {}, message.model_dump_json().encode())
        for message in (asked, stopped)
    ]
    launched: list[Pod] = []
    monkeypatch.setattr(world.watch.runner, "launch", launched.append)
    for batch in [records] if in_one_batch else [[record] for record in records]:
        world.handlers.on_records(batch, (), frozenset())
    world.watch.carry_out_all()
    assert launched == []
    world.watch.look(None)
    assert world.handlers.live() == []


def test_a_pod_of_which_something_impossible_is_seen_hurts_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        world.keep(name, Phase.RUNNING)
    world.load()

    def fails(ending: Ending) -> Verdict:
        if ending.exit_code == 66:
            raise RuntimeError("a bug")
        return judge(ending)

    monkeypatch.setattr("runtime_agent.domain.pods.judge", fails)
    seen = [Seen("bad", 1.0, 2.0, Ending(exit_code=66)), Seen("good", 1.0, 2.0, Ending(0))]
    assert world.handlers.on_seen(seen) == {"good": "succeeded"}
    assert [entry.pod.pod for entry in world.handlers.live()] == ["bad"]


@pytest.mark.parametrize("revisions", [(5, 6), (6, 5)])
async def test_of_an_operators_wishes_the_newest_counts_in_whatever_order_they_are_read(
    world: World, revisions: tuple[int, int]
) -> None:
    """After a change of a topic's partitions the older may be read last."""
    world.keep("pod", Phase.ENDED)
    world.journal.save([], marks={RESYNC_SETTING: 5})
    for revision in revisions:
        message = SettingChanged(setting=RESYNC_SETTING, revision=revision, value={})
        record = Received("settings-changed", 0, 0, RESYNC_SETTING, {}, None)
        world.watch.on_setting(record, message)
    has_begun = asyncio.Event()
    has_begun.set()
    requests = asyncio.create_task(world.watch.run_requests(has_begun))
    async with asyncio.timeout(60):
        while world.journal.mark(RESYNC_SETTING) < 6:
            await asyncio.sleep(0.001)
    requests.cancel()
    assert world.published == ["pod"]
