"""A node of its own for each test: pod directories, a fork server, and patience with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from launcher_double import Launcher, settings_for
from runtime_agent.fork_server import ForkServer
from runtime_agent.pods import Observation, Phase, PodDirectories
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor import lock
from runtime_agent.supervisor.records import ExitRecord, PodSpec

DEADLINE_S = 60.0


class Node:
    """Starts real pods below a temporary directory, and leaves none behind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods = PodDirectories(root)
        self.fork_server = ForkServer()

    def prepare(self, command: str, name: str = "pod", **spec: object) -> str:
        """Makes the directory."""
        environment = {"PATH": os.environ["PATH"], "MUSTER_POD": name}
        self.pods.prepare(PodSpec(name, environment, **spec), command)  # type: ignore[arg-type]
        return name

    def start(self, command: str, name: str = "pod", **spec: object) -> str:
        """Makes the directory and has the pod started."""
        self.prepare(command, name, **spec)
        self.fork_server.start(self.pods.path(name))
        return name

    def until(self, name: str, phase: Phase) -> Observation:
        """Looks until the pod has come to the phase."""
        wait_until(lambda: self.pods.observe(name).phase is phase)
        return self.pods.observe(name)

    def run(self, command: str, name: str = "pod", **spec: object) -> ExitRecord:
        """Runs a pod to its end."""
        end = self.until(self.start(command, name, **spec), Phase.EXITED).exit
        assert end is not None
        return end

    def log(self, name: str, which: str) -> str:
        """A log as text."""
        return (self.pods.logs_path(name) / f"{which}.log").read_text()

    def close(self) -> None:
        """Ends what the test has left."""
        self.fork_server.close()
        end_all(self.pods)


def end_all(pods: PodDirectories) -> None:
    """Kills whatever runs in these directories."""
    for name in pods.names():
        pods.kill_supervisor(name)
        start = pods.observe(name).start
        wait_until(lambda: pods.kill_leftovers(name, start) == 0)  # noqa: B023


def wait_until(holds: Callable[[], bool]) -> None:
    """Looks again and again until it holds; fails at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "what the test waited for has not come"
        time.sleep(0.005)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose pods are real processes."""
    node = Node(tmp_path / "pods")
    yield node
    node.close()


@pytest.fixture
def patience() -> Callable[[Callable[[], bool]], None]:
    """Waits until something holds."""
    return wait_until


@pytest.fixture
def kill() -> Callable[[Node, str], int]:
    """Kills a pod's supervisor as the machine would, and tells which process it was."""

    def kill_supervisor(node: Node, name: str) -> int:
        pid = lock.holder(node.pods.path(name) / "lock")
        assert pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    return kill_supervisor


@pytest.fixture
async def launcher(bootstrap: str) -> AsyncIterator[Launcher]:
    async with Launcher(bootstrap) as launcher:
        yield launcher


@pytest.fixture
def settings(bootstrap: str, tmp_path: Path) -> Iterator[AgentSettings]:
    """Of an agent whose pods end with the test, also where a setting keeps them."""
    settings = settings_for(bootstrap, tmp_path / "agent")
    yield settings
    for pods in tmp_path.glob("*/pods"):
        end_all(PodDirectories(pods))
