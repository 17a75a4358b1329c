"""The runner helps where supervisors are missing, lost or stuck; the watch cleans up after them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.pods import PodRun, RoleShape
from runtime_agent.confinement import Confinement
from runtime_agent.devices import SimulatedDevices
from runtime_agent.domain.ending import Loss
from runtime_agent.domain.pods import Phase as PodPhase
from runtime_agent.domain.pods import Pod, Stopping
from runtime_agent.pods import Phase
from runtime_agent.runner import Seen
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.supervised import SupervisedPods
from runtime_agent.supervisor import lock
from runtime_agent.supervisor.records import PodSpec, read_record

Patience = Callable[[Callable[[], bool]], None]


def a_pod(command: str, name: str = "pod", **more: Any) -> Pod:
    shape = RoleShape(
        name="w", instances=1, gpus=0, cpu=1, memory_mb=64, min_failed_instances=1,
        min_succeeded_instances=-1,
    )  # fmt: skip
    run = PodRun(
        user="u", user_number=7, job_name="u~j", virtual_cluster="default", role="w", index=0,
        job_attempt=0, task_attempt=0, command=command, cpu=1, memory_mb=64,
        roles=(shape,), peers=(),
    )  # fmt: skip
    return Pod(name, "job", "job-0", PodPhase.ACCEPTED, run, **more)


GPUS = SimulatedDevices("n", 2)


@pytest.fixture
def runner(node: Any, tmp_path: Path) -> SupervisedPods:
    settings = AgentSettings(
        launch_timeout_s=60.0, launch_attempts=3, supervisor_patience_s=0.1, node="n"
    )
    free = Confinement({}, (), "for this test")
    return SupervisedPods(
        settings,
        node.pods,
        node.fork_server,
        GPUS,
        tmp_path / "no-doorbell",
        free,
        SecretsKey(tmp_path),
    )


@pytest.fixture
def hasty(runner: SupervisedPods) -> SupervisedPods:
    """Tries the launches of its pods again at once."""
    runner.settings = runner.settings.model_copy(update={"launch_timeout_s": 0.1})
    return runner


def end_of(runner: SupervisedPods, pod: Pod, patience: Patience) -> Seen:
    found: list[Seen] = []

    def has_ended() -> bool:
        found.extend(seen for seen in runner.look([pod]) if seen.ending is not None)
        return bool(found)

    patience(has_ended)
    return found[0]


def test_a_pod_whose_launch_was_lost_is_launched_by_a_look(
    runner: SupervisedPods, patience: Patience
) -> None:
    seen = end_of(runner, a_pod("exit 3"), patience)
    assert seen.ending is not None
    assert seen.ending.exit_code == 3


def test_a_pod_that_was_stopped_before_its_launch_never_runs(
    runner: SupervisedPods, patience: Patience
) -> None:
    seen = end_of(runner, a_pod("true", stop=Stopping("stopped", 1.0)), patience)
    assert seen.ending is not None
    assert (seen.ending.stop_reason, seen.ending.exit_code) == ("stopped", None)


def test_a_pod_that_no_supervisor_takes_up_fails_as_not_launched(
    hasty: SupervisedPods, node: Any, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.fork_server, "start", lambda _directory: None)
    seen = end_of(hasty, a_pod("true"), patience)
    assert seen.ending is not None
    assert "3 attempts" in str(seen.ending.start_error)
    monkeypatch.undo()
    node.fork_server.start(node.pods.path("pod"))
    assert node.pods.observe("pod").start is None


def test_a_disk_that_takes_no_directory_fails_the_launch_and_not_the_agent(
    hasty: SupervisedPods, node: Any, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.pods, "prepare", full)
    seen = end_of(hasty, a_pod("true"), patience)
    assert seen.ending is not None
    assert seen.ending.start_error is not None


def test_a_supervisor_that_is_stuck_is_killed_when_the_grace_is_long_over(
    runner: SupervisedPods, node: Any, patience: Patience
) -> None:
    pod = a_pod("sleep 300")
    runner.launch(pod)
    node.until("pod", Phase.RUNNING)
    supervisor = lock.holder(node.pods.path("pod") / "lock")
    os.kill(supervisor, signal.SIGSTOP)
    runner.stop("pod", Stopping("stopped", 0.0))
    seen = end_of(runner, pod, patience)
    assert seen.ending is not None
    assert seen.ending.loss is Loss.SUPERVISOR


def test_the_error_that_a_pod_printed_last_is_in_its_end(
    runner: SupervisedPods, patience: Patience
) -> None:
    seen = end_of(runner, a_pod("echo good; echo 'ImportError: no torch' >&2; exit 1"), patience)
    assert seen.ending is not None
    assert seen.ending.log_tail == ("ImportError: no torch",)


def test_a_stop_that_the_disk_did_not_take_is_asked_for_again(
    runner: SupervisedPods, node: Any, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = a_pod("sleep 300")
    runner.launch(pod)
    node.until("pod", Phase.RUNNING)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.pods, "ask_to_stop", full)
    with pytest.raises(OSError, match="No space"):
        runner.stop("pod", Stopping("stopped", 60.0))
    monkeypatch.undo()
    seen = end_of(runner, a_pod("sleep 300", stop=Stopping("stopped", 60.0)), patience)
    assert seen.ending is not None
    assert (seen.ending.stop_reason, seen.ending.signal) == ("stopped", signal.SIGTERM)


def test_a_stop_that_the_disk_never_takes_ends_the_pod_with_its_supervisor(
    runner: SupervisedPods, node: Any, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.launch(a_pod("sleep 300"))
    node.until("pod", Phase.RUNNING)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.pods, "ask_to_stop", full)
    ends: list[Seen] = []

    def has_ended() -> bool:
        with contextlib.suppress(OSError):
            ends.extend(runner.look([a_pod("sleep 300", stop=Stopping("stopped", 0.0))]))
        return any(seen.ending is not None for seen in ends)

    patience(has_ended)
    assert ends[-1].ending is not None
    assert ends[-1].ending.loss is Loss.SUPERVISOR


def test_a_failed_launch_has_its_cause(
    hasty: SupervisedPods, node: Any, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.pods, "prepare", full)
    seen = end_of(hasty, a_pod("true"), patience)
    assert seen.ending is not None
    assert "No space left" in str(seen.ending.start_error)


@pytest.mark.parametrize("file", ["start.json", "exit.json", "stop.json"])
def test_a_damaged_record_ends_its_pod_and_hurts_nobody_else(
    runner: SupervisedPods, node: Any, patience: Patience, file: str
) -> None:
    pod = a_pod("sleep 300")
    runner.launch(pod)
    node.until("pod", Phase.RUNNING)
    node.pods.kill_supervisor("pod")
    node.until("pod", Phase.SUPERVISOR_LOST)
    (node.pods.path("pod") / file).write_bytes(b"\xff{")
    seen = end_of(runner, pod, patience)
    assert seen.ending is not None
    assert seen.ending.loss is Loss.SUPERVISOR
    assert node.pods.names() == ["pod"]


def test_a_pod_is_held_to_what_it_asked_for(node: Any, tmp_path: Path) -> None:
    settings = AgentSettings(node="n")
    parents: dict[Any, Path] = {"memory": Path("/m"), "cpu": Path("/c"), "processes": Path("/p")}
    confined = Confinement(parents, ("swap",), "for this test")
    held = SupervisedPods(
        settings,
        node.pods,
        node.fork_server,
        GPUS,
        tmp_path / "bell",
        confined,
        SecretsKey(tmp_path),
    )
    held._prepare(pod := a_pod("true"), pod.run)  # type: ignore[arg-type]
    spec = read_record(node.pods.path("pod") / "pod.json", PodSpec)
    assert spec is not None
    assert spec.cgroups == {
        "/m": {"memory.limit_in_bytes": str(64 * 1024 * 1024)},
        "/c": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"},
        "/p": {"pids.max": "16384"},
    }


def test_a_pod_of_an_older_sender_that_names_no_user_is_not_prepared(
    runner: SupervisedPods,
) -> None:
    runner.confinement = replace(runner.confinement, single_user=None)
    pod = a_pod("true")
    assert pod.run is not None
    pod = replace(pod, run=pod.run.model_copy(update={"user_number": 0}))
    with pytest.raises(OSError, match="upgrade REST and the Launcher"):
        runner.launch(pod)


def test_a_pod_for_a_gpu_that_has_gone_is_not_prepared(runner: SupervisedPods) -> None:
    pod = a_pod("true")
    assert pod.run is not None
    pod = replace(pod, run=pod.run.model_copy(update={"gpus": (0, 64)}))
    with pytest.raises(OSError, match="no longer has GPU 64"):
        runner.launch(pod)
