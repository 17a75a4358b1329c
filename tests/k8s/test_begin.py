"""Whoever runs `begin` runs its command once, when the agent permits it, in any image."""

import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_shim import Container, Mount
from containers import Attempt, end_shims, remove_groups
from step_image import BEGIN, step_image
from stub_agent import PROOF, StubAgent

pytestmark = pytest.mark.k8s
WAIT_S = 20
RUNS = "exec /muster/bin/busybox sh -c '/muster/bin/busybox echo ran; exit 7'"


class Node:
    """Runs `begin` in an image without any file, as a user who is not root."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.name = f"begin-{os.getpid()}"
        for directory in ("image", "muster", "run"):
            (home / directory).mkdir()
            (home / directory).chmod(0o777)
        shutil.copytree(Path(step_image().root) / "bin", home / "muster/bin", symlinks=True)

    def start(self, port: int, number: int = 0) -> Attempt:
        """As the runtime starts it, once or again."""
        attempt = Attempt(self.home / "main" / str(number))
        attempt.start(
            Container(
                argv=BEGIN,
                environment={
                    "MUSTER_HOST_IP": "127.0.0.1",
                    "MUSTER_AGENT_PORT": str(port),
                    "MUSTER_POD": "job-0-main-0-0",
                    "MUSTER_TICKET": "1234abcd",
                    "MUSTER_PROOF": PROOF,
                    "http_proxy": "http://127.0.0.1:9",
                },
                directory="/",
                uid=1000,
                gid=1000,
                root=str(self.home / "image"),
                read_only_root=True,
                mounts=[
                    Mount(str(self.home / "muster"), "/muster"),
                    Mount(str(self.home / "run"), "/muster/run"),
                ],
                log=str(self.home / f"{number}.log"),
                cgroup=f"{self.name}/main-{number}",
                memory_bytes=None,
            )
        )
        return attempt

    def output(self, number: int = 0) -> list[str]:
        """Lines without their times."""
        lines = (self.home / f"{number}.log").read_text().splitlines()
        return [line.split(" ", 3)[3] for line in lines]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    # Not in tmp_path: only root may enter it.
    home = Path("/tmp") / f"muster-begin-{os.getpid()}-{time.monotonic_ns()}"
    home.mkdir()
    node = Node(home)
    yield node
    end_shims(home)
    remove_groups(node.name)
    shutil.rmtree(home)


def until(what: Callable[[], object]) -> None:
    """Ask again until it is so."""
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def exit_code(attempt: Attempt) -> int:
    """Wait for the end."""
    handle = attempt.exit_handle()
    if handle is not None:
        assert select.select([handle], [], [], WAIT_S)[0], "it runs on"
        os.close(handle)
    return int((attempt.state() or {})["terminated"]["exitCode"])


def test_the_command_runs_once_the_agent_permits_it(node: Node) -> None:
    with StubAgent((503, "not yet"), (200, RUNS)) as agent:
        assert exit_code(node.start(agent.server_port)) == 7
    assert node.output() == ["ran"]
    (path, first), (_, second) = agent.asked
    assert path == "/start-permit/job-0-main-0-0"
    assert first == second  # An agent answers one nonce once and for all.
    assert first["ticket"] == ["1234abcd"]
    assert len(bytes.fromhex(first["nonce"][0])) == 16


def test_without_a_permit_no_command_runs(node: Node) -> None:
    with StubAgent((410, "another start has the permit")) as agent:
        assert exit_code(node.start(agent.server_port)) == 250
    assert node.output() == []
    assert len(agent.asked) == 1


def test_each_start_has_a_nonce_of_its_own(node: Node) -> None:
    with StubAgent((200, RUNS), (410, "")) as agent:
        assert [exit_code(node.start(agent.server_port, number)) for number in (0, 1)] == [7, 250]
    first, second = (asked["nonce"] for _, asked in agent.asked)
    assert first != second


def test_the_command_waits_for_an_agent_that_is_away(node: Node) -> None:
    with StubAgent((200, RUNS)) as gone:
        port = gone.server_port
    attempt = node.start(port)
    status = node.home / "run/status"
    until(lambda: status.exists() and "refused" in status.read_text())
    with StubAgent((200, RUNS), port=port):
        assert exit_code(attempt) == 7


def test_a_signal_ends_a_waiting_start(node: Node) -> None:
    with StubAgent((503, "not yet")) as agent:
        attempt = node.start(agent.server_port)
        until(lambda: agent.asked)
        attempt.send(signal.SIGTERM)
        assert exit_code(attempt) == 143


def test_a_signal_reaches_the_commands_own_children(node: Node) -> None:
    child = 'trap "echo told; exit 3" TERM; echo up; while :; do /muster/bin/busybox sleep 1; done'
    run = f"trap : TERM; /muster/bin/sh -c '{child}' & wait; wait $!"
    with StubAgent((200, run)) as agent:
        attempt = node.start(agent.server_port)
        until(lambda: node.output() == ["up"])
        attempt.send(signal.SIGTERM)
        assert exit_code(attempt) == 3
    assert node.output()[-1] == "told"  # The shell may tell that its sleep was terminated.


def test_the_permit_is_readable_by_its_user_only(node: Node) -> None:
    run = "umask; exec /muster/bin/busybox stat -c %a /muster/run/reply"
    with StubAgent((200, run)) as agent:
        assert exit_code(node.start(agent.server_port)) == 0
    assert node.output() == ["0022", "600"]
