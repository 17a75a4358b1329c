"""The agent as a process over a driver that hangs at its start, reports an Xid, or has MIG on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from launcher_double import Launcher, agent_process
from muster.contracts.nodes import NodeReport
from prometheus_client.parser import text_string_to_metric_families
from runtime_agent.pods import PodDirectories
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor.logs import stream_path

pytestmark = pytest.mark.kafka

TWO: dict[str, Any] = {"GPU-a": None, "GPU-b": None}


class Machine:
    """Runs agents, one at a time, over a driver that follows a script."""

    def __init__(self, settings: AgentSettings, folder: Path) -> None:
        self._settings = settings
        self._script = folder / "driver.json"
        install = f"nvml_double.install(pathlib.Path({str(self._script)!r}))"
        here = f"proc.FIRST_PID_NAMESPACE = {Path('/proc/self/ns/pid').stat().st_ino}"
        (folder / "sitecustomize.py").write_text(
            "import nvml_double, pathlib\n"
            f"from runtime_agent.supervisor import proc\n{install}\n{here}\n"
        )
        support = Path(__file__).parents[1] / "support"
        self._environment = {
            "PYTHONPATH": f"{folder}{os.pathsep}{support}",
            "MUSTER_FAKE_GPUS": "0",
            "MUSTER_DEVICE_TIMEOUT_S": "0.5",
            "MUSTER_DEVICE_LOOK_S": "0.1",
        }
        self._agent: subprocess.Popen[bytes] | None = None

    def play(self, **script: Any) -> None:
        """From the driver's next call on."""
        written = self._script.with_suffix(".new")
        written.write_text(json.dumps({"cards": TWO} | script))
        written.replace(self._script)

    def start(self) -> None:
        """A new agent takes the place of the one before, which is killed."""
        self.kill()
        self._agent = agent_process(self._settings, more=self._environment)

    def kill(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()


@pytest.fixture
def machine(settings: AgentSettings, tmp_path: Path) -> Iterator[Machine]:
    folder = tmp_path / "driver"
    folder.mkdir()
    made = Machine(settings, folder)
    yield made
    made.kill()


def problems(count: int, words: str) -> Callable[[NodeReport], bool]:
    """Whether a report has so many GPUs, each with such a problem ("": none)."""
    return lambda report: (
        len(report.gpus) == count
        and all(
            words in (gpu.problem or "") and gpu.is_healthy is (words == "") for gpu in report.gpus
        )
    )


async def test_a_driver_that_hangs_neither_stops_an_agent_nor_hides_a_gpu(
    launcher: Launcher, machine: Machine
) -> None:
    machine.play(hangs=True)
    machine.start()
    unknown = await launcher.report(lambda report: not report.is_healthy)
    assert unknown.gpus == ()
    assert "GPU driver has not answered" in str(unknown.problem)
    machine.play()
    well = await launcher.report(problems(2, ""))
    assert well.is_healthy
    machine.play(hangs=True)
    machine.start()
    again = await launcher.report(problems(2, "has not answered"))
    assert (again.journal, again.is_healthy) == (well.journal, True)
    assert [gpu.uuid for gpu in again.gpus] == ["GPU-a", "GPU-b"]
    machine.play()
    await launcher.report(problems(2, ""))


async def test_an_xid_is_in_the_journal_before_the_agent_is_killed(
    launcher: Launcher, machine: Machine
) -> None:
    machine.play()
    machine.start()
    await launcher.report(problems(2, ""))
    machine.play(xids={"GPU-a": [79], "GPU-b": [79]})
    await launcher.report(problems(2, "Xid 79"))
    machine.play()
    machine.start()
    before = len(launcher.reports())
    await launcher.report(lambda report: len(launcher.reports()) > before)
    assert problems(2, "Xid 79")(launcher.reports()[-1])


async def test_a_process_of_no_pod_makes_its_gpu_unhealthy_as_long_as_it_lives(
    launcher: Launcher, machine: Machine, settings: AgentSettings
) -> None:
    machine.play()
    machine.start()
    await launcher.report(problems(2, ""))
    request = await launcher.run("owner", "sleep 600 & echo $!; wait", gpus=(0,))
    pods = PodDirectories(settings.agent_home / "pods")
    log = stream_path(pods.logs_path("owner"), "stdout")
    await launcher.until(lambda: log.exists() and log.read_text().endswith("\n"))
    foreign = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        use = {"GPU-a": [int(log.read_text())], "GPU-b": [foreign.pid]}
        machine.play(processes=use)
        used = await launcher.report(lambda report: not all(g.is_healthy for g in report.gpus))
    finally:
        foreign.kill()
        await foreign.wait()
    assert [gpu.problem for gpu in used.gpus] == [
        None, f"A process of no Muster pod uses the GPU: {foreign.pid} (sleep). End it.",
    ]  # fmt: skip
    assert used.is_healthy
    await launcher.report(problems(2, ""))
    await launcher.stop(request)
    await launcher.ended("owner")


async def test_what_a_task_uses_is_scraped_while_it_runs(
    launcher: Launcher, machine: Machine, settings: AgentSettings
) -> None:
    machine.play()
    machine.start()
    await launcher.report(problems(2, ""))
    request = await launcher.run("busy", "while :; do :; done", gpus=(1,))

    async def series(name: str, **labels: str) -> list[float]:
        async with httpx2.AsyncClient() as http:
            text = (await http.get(f"http://127.0.0.1:{settings.http_port}/metrics")).text
        return [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    async with asyncio.timeout(60):
        while not any(percent > 1 for percent in await series("task_cpu_percent")):
            await asyncio.sleep(0.05)
    run = request.run
    assert run is not None
    assert await series("task_mem_usage_byte", job_name=run.job_name, username=run.user)
    assert await series("gpu_mem_utilization", minor_number="1", job_name=run.job_name) == [0]
    assert await series("gpu_mem_utilization", minor_number="0", job_name="") == [0]
    assert await series("muster_agent_gpu_xids_total", gpu="0", tier="fatal") == [0]
    assert await series("muster_agent_node_memory_bytes", node_name=settings.node)
    assert await series("process_resident_memory_bytes")
    await launcher.stop(request)
    await launcher.ended("busy")
    async with asyncio.timeout(60):
        while await series("task_cpu_percent"):
            await asyncio.sleep(0.05)


async def test_a_pod_on_a_mig_device_sees_that_device_alone(
    launcher: Launcher, machine: Machine, settings: AgentSettings
) -> None:
    machine.play(cards={"GPU-a": ["MIG-1", "MIG-2"], "GPU-b": None})
    machine.start()
    report = await launcher.report(problems(3, ""))
    index = {gpu.uuid: gpu.index for gpu in report.gpus}
    command = "echo $CUDA_VISIBLE_DEVICES"
    await launcher.run("on-mig", command, gpus=(index["MIG-2"],))
    await launcher.run("on-whole", command, gpus=(index["GPU-b"],))
    await launcher.run("on-none", command, gpus=(0,))
    for pod in ("on-mig", "on-whole"):
        assert (await launcher.ended(pod)).exit_code == 0
    refused = await launcher.ended("on-none")
    assert refused.verdict is not None
    assert refused.verdict.rule == "bad-request"
    pods = PodDirectories(settings.agent_home / "pods")
    seen = [
        stream_path(pods.logs_path(pod), "stdout").read_text().strip()
        for pod in ("on-mig", "on-whole")
    ]
    assert seen == ["MIG-2", "GPU-b"]
