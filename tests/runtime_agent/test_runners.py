"""What every runner does: processes under supervisors, pods of Kubernetes, pretended pods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from containers import CGROUPS, remove_groups
from kube_world import World, a_run
from pod_api_double import PodApiDouble
from runtime_agent.confinement import Confinement
from runtime_agent.devices import SimulatedDevices
from runtime_agent.domain.pods import Phase, Pod, Stopping
from runtime_agent.domain.report import Offer
from runtime_agent.pretended import PretendedPods
from runtime_agent.runner import Runner, Seen
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.supervised import SupervisedPods

DEADLINE_S = 60.0


async def nothing() -> None:
    """The node runs pods by itself."""


@dataclass
class Kit:
    """A runner, and what plays the rest of its node: called again and again."""

    runner: Runner
    node: Callable[[], Awaitable[None]] = nothing
    can_run: bool = True

    def pod(self, command: str = "true", **more: Any) -> Pod:
        run = a_run().model_copy(update={"command": command})
        return Pod("pod-1", "job", "job-0", Phase.ACCEPTED, run, **more)

    async def until(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            assert time.monotonic() < deadline, "what the test waited for has not come"
            await self.node()
            await asyncio.sleep(0.005)
        return found

    async def end_of(self, pod: Pod) -> Seen:
        def look() -> Seen | None:
            return next((s for s in self.runner.look([pod]) if s.ending is not None), None)

        found = await self.until(look)
        assert isinstance(found, Seen)
        return found


class Kubelet:
    """Runs the world's objects: each asks for its permit, and ends well or when it is deleted."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def __call__(self) -> None:
        for key, body in list(self.world.api.objects.items()):
            name = body["metadata"]["annotations"]["muster/pod"]
            if "deletionTimestamp" in body["metadata"]:
                self.world.api.ended(body, 143)
                self.world.api.drop(key)
            elif body["status"]["phase"] == "Pending":
                self.world.api.running(body)
            elif body["status"]["phase"] == "Running":
                answer = await self.world.permit(name=name)
                if answer.status_code == 200 and "sleep" not in answer.text:
                    self.world.api.ended(body, 0)


@pytest.fixture(params=["supervised", "kubernetes", "pretended"])
async def kit(request: pytest.FixtureRequest, node: Any, tmp_path: Path) -> AsyncIterator[Kit]:
    match request.param:
        case "supervised":
            free = Confinement({}, (), "for this test")
            devices, key = SimulatedDevices("n", 2), SecretsKey(tmp_path)
            yield Kit(
                SupervisedPods(
                    AgentSettings(node="n"), node.pods, node.fork_server, devices,
                    tmp_path / "bell", free, key,
                )
            )  # fmt: skip
        case "pretended":
            yield Kit(PretendedPods(tmp_path / "bell", Offer(cpu=1, memory_mb=64)), can_run=False)
        case _:
            world = World(tmp_path, PodApiDouble())
            await world.runner.ready()
            yield Kit(world.runner, Kubelet(world))
            await world.stop()


@contextlib.contextmanager
def process_of(kit: Kit) -> Iterator[int]:
    """The pod's; with Kubernetes one in a control group as kubelet makes it below systemd."""
    if isinstance(kit.runner, SupervisedPods):
        start = kit.runner.directories.observe("pod-1").start
        assert start is not None
        yield start.pid
        return
    uid = kit.node.world.api.only()["metadata"]["uid"] if isinstance(kit.node, Kubelet) else "none"
    slices = f"kubepods-{os.getpid()}.slice"
    tree = CGROUPS if (CGROUPS / "cgroup.controllers").exists() else CGROUPS / "pids"
    group = tree / slices / f"kubepods-pod{uid.replace('-', '_')}.slice"
    group.mkdir(parents=True)
    process = subprocess.Popen(["sleep", "300"])
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
    finally:
        process.kill()
        process.wait()
        remove_groups(slices)


def accepted(kit: Kit, pod: Pod) -> Pod:
    """As the journal has it, which Kubernetes' permits ask."""
    if isinstance(kit.node, Kubelet):
        kit.node.world.journal_pod(pod)
    return pod


async def test_a_launched_pod_ends_well(kit: Kit) -> None:
    pod = accepted(kit, kit.pod())
    kit.runner.launch(pod)
    seen = await kit.end_of(pod)
    assert seen.ending is not None
    assert (seen.ending.exit_code, seen.ending.loss, seen.ending.refusal) == (0, None, None)
    assert seen.started_at_s is not None
    assert seen.ended_at_s is not None


async def test_all_of_it_can_be_repeated(kit: Kit) -> None:
    pod = accepted(kit, kit.pod())
    for _ in range(3):
        kit.runner.launch(pod)
    assert (await kit.end_of(pod)).ending is not None
    for _ in range(3):
        kit.runner.forget(pod.pod)
        kit.runner.forget("unknown")
    assert kit.runner.end_now("unknown", of_another_machine=False)


async def test_a_stop_is_the_reason_of_the_end(kit: Kit) -> None:
    stopping = Stopping("stopped", 1.0)
    pod = accepted(kit, kit.pod("sleep 300"))
    kit.runner.launch(pod)
    if kit.can_run:
        await kit.until(lambda: any(s.started_at_s for s in kit.runner.look([pod])))
    pod = accepted(kit, kit.pod("sleep 300", stop=stopping))
    kit.runner.stop(pod.pod, stopping)
    seen = await kit.end_of(pod)
    assert seen.ending is not None
    assert seen.ending.stop_reason == "stopped"


async def test_what_the_node_has_is_named_and_can_be_ended(kit: Kit) -> None:
    pod = accepted(kit, kit.pod("sleep 300"))
    kit.runner.launch(pod)
    assert kit.runner.has(pod.pod) == kit.can_run
    assert kit.runner.names() == ([pod.pod] if kit.can_run else [])
    await kit.until(lambda: kit.runner.end_now(pod.pod, of_another_machine=False))


async def test_the_processes_of_a_pod_are_its_own_and_no_others(kit: Kit) -> None:
    pod = accepted(kit, kit.pod("sleep 300"))
    kit.runner.launch(pod)
    if kit.can_run:
        await kit.until(lambda: any(s.started_at_s for s in kit.runner.look([pod])))
    with process_of(kit) as pid:
        assert kit.runner.owns(pid) is kit.can_run
    assert not kit.runner.owns(os.getpid())


async def test_the_node_offers_something(kit: Kit) -> None:
    await kit.until(lambda: kit.runner.offer().problem is None)
    assert kit.runner.offer().cpu > 0
    assert kit.runner.offer().memory_mb > 0
