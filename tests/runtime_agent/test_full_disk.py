"""A disk that a pod has filled to the last byte: the agent goes on as if nothing were."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from launcher_double import Launcher, agent_process
from muster.contracts.pods import PodState
from runtime_agent.settings import AgentSettings

pytestmark = pytest.mark.kafka

NAMESPACE = (
    "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child",
    "--mount-proc",
)  # fmt: skip
SMALL_DISK = (
    'mount -t tmpfs -o size=40m,mode=0700 none "$MUSTER_AGENT_HOME" && while :; do "$@"; done'
)
"""The agent's home, where it is started again whenever it ends."""
GREEDY = "while :; do cat /dev/zero >> fill || sleep 0.01; done 2> /dev/null"
ENDS_WHEN_FULL = "while head -c 65536 /dev/zero > probe; do sleep 0.01; done 2> /dev/null; exit 7"


@pytest.fixture
def started_anew(settings: AgentSettings) -> Iterator[psutil.Process]:
    """The shell that starts the agent; whatever runs on the small disk ends with it."""
    probe = subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"no small disk can be mounted here: {probe.stderr.decode().strip()}")
    settings.agent_home.mkdir()
    outer = agent_process(settings, within=(*NAMESPACE, "sh", "-c", SMALL_DISK, "sh"))
    try:
        yield psutil.Process(outer.pid)
    finally:
        outer.kill()
        outer.wait()


def agent_of(outer: psutil.Process) -> psutil.Process:
    command = [sys.executable, "-m", "runtime_agent"]
    return next(p for p in outer.children(recursive=True) if p.cmdline() == command)


async def test_ends_and_stops_are_published_and_the_next_agent_starts_though_no_byte_is_free(
    launcher: Launcher, started_anew: psutil.Process
) -> None:
    await launcher.run("other", ENDS_WHEN_FULL)
    await launcher.status("other", PodState.RUNNING)
    greedy = await launcher.run("greedy", GREEDY)
    assert (await launcher.ended("other")).exit_code == 7
    await launcher.stop(greedy)
    ended = await launcher.ended("greedy")
    assert ended.verdict is not None
    assert ended.verdict.rule == "stopped"
    agent = agent_of(started_anew)
    agent.send_signal(signal.SIGTERM)
    await launcher.until(lambda: any(report.is_stopping for report in launcher.reports()))
    await asyncio.to_thread(agent.wait, 60)
    stopped = await launcher.report(lambda r: not r.is_stopping)
    assert "Only 0 MB are free" in str(stopped.problem)
