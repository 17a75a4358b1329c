"""The agent killed at random moments: every pod runs once and tells its true end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launcher_double import Launcher, agent_process, wanted
from muster.contracts.pods import PodRequest, PodState
from runtime_agent.pods import Phase, PodDirectories
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor import lock

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PODS = 40
KILLS = 8
DEADLINE_S = 90.0
ENDED = (PodState.SUCCEEDED, PodState.FAILED)


async def repeat(launcher: Launcher, requests: list[PodRequest]) -> None:
    """Republishes what the agent has not answered, as the Launcher would."""
    while True:
        await asyncio.sleep(0.5)
        for request in requests:
            if launcher.has_published(request.pod) and not launcher.statuses(request.pod):
                await launcher.publish(request, again=True)


def ended(launcher: Launcher, pod: str) -> bool:
    return any(status.state in ENDED for status in launcher.statuses(pod))


async def test_no_pod_runs_twice_or_lies_about_its_end_however_often_the_agent_is_killed(
    launcher: Launcher, settings: AgentSettings, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED", time.time_ns() % 2**32))
    print(f"MUSTER_TEST_SEED={seed}")
    chance = random.Random(seed)
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    agent = agent_process(settings)
    report = await launcher.report()
    requests = [
        wanted(
            f"pod-{n}",
            f"echo ran >> {runs}/pod-{n}; sleep {chance.random():.2f}; exit {n % 5}",
            report.journal,
        )
        for n in range(PODS)
    ]
    repeating = asyncio.create_task(repeat(launcher, requests))
    try:
        for round_ in range(KILLS):
            for request in requests[round_ * PODS // KILLS : (round_ + 1) * PODS // KILLS]:
                await launcher.publish(request)
            await asyncio.sleep(chance.random() * 0.5)
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            agent = agent_process(settings)
            await asyncio.sleep(chance.random() * 1.5)
        deadline = time.monotonic() + DEADLINE_S
        while not all(ended(launcher, request.pod) for request in requests):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    finally:
        repeating.cancel()
        stop(agent)
    for number, request in enumerate(requests):
        assert (runs / request.pod).read_text() == "ran\n"
        ends = [s for s in launcher.statuses(request.pod) if s.state in ENDED]
        assert {status.exit_code for status in ends} == {number % 5}


async def test_a_killed_supervisor_ends_its_pod_once_and_leaves_nothing(
    launcher: Launcher, settings: AgentSettings, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED", time.time_ns() % 2**32))
    print(f"MUSTER_TEST_SEED={seed}")
    chance = random.Random(seed)
    agent = agent_process(settings)
    try:
        report = await launcher.report()
        pods = PodDirectories(settings.agent_home / "pods")
        requests = [
            wanted(f"pod-{n}", f"setsid sleep 4242{n} & echo $!; sleep 300", report.journal)
            for n in range(10)
        ]
        for request in requests:
            await launcher.publish(request)
        for request in requests:
            await launcher.until(lambda r=request: pods.observe(r.pod).phase is Phase.RUNNING)
            pid = lock.holder(pods.path(request.pod) / "lock")
            assert pid
            await asyncio.sleep(chance.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
        for request in requests:
            status = await launcher.ended(request.pod)
            assert status.verdict is not None
            assert status.verdict.rule == "supervisor-lost"
    finally:
        stop(agent)
    assert not await asyncio.to_thread(processes_with, b"sleep\0004242")


def processes_with(messages: bytes) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if messages in path.read_bytes():
                found.append(path.parent.name)
    return found


def stop(agent: subprocess.Popen[bytes]) -> None:
    agent.send_signal(signal.SIGTERM)
    agent.wait(timeout=60)
