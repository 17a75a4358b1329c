"""What a task sees of storages on a node without containers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.pods import PodRun, RoleShape
from muster.contracts.storages import StorageMount
from runtime_agent.confinement import Confinement
from runtime_agent.devices import SimulatedDevices
from runtime_agent.domain.pods import Phase as PodPhase
from runtime_agent.domain.pods import Pod
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import AgentSettings
from runtime_agent.supervised import SupervisedPods

Patience = Callable[[Callable[[], bool]], None]
ANN, BOB = 7, 8
FIRST = 2_001_000_000
SHAPE = RoleShape(
    name="w", instances=1, gpus=0, cpu=1, memory_mb=64, min_failed_instances=1,
    min_succeeded_instances=-1,
)  # fmt: skip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")


class World:
    """A node with a folder that storages may lie in, below one that is closed to others."""

    def __init__(self, node: Any, home: Path, patience: Patience, **confinement: Any) -> None:
        self.node, self.patience = node, patience
        self.root = home / "srv"
        self.root.mkdir()
        self.settings = AgentSettings(
            node="n", storage_paths=str(self.root), task_uid_first=FIRST, memory_limits=False
        )
        limits = Confinement({}, (), **{"single_user": None} | confinement)
        self.runner = SupervisedPods(
            self.settings, node.pods, node.fork_server, SimulatedDevices("n", 1),
            home / "no-doorbell", limits, SecretsKey(home),
        )  # fmt: skip

    def storage(self, sub_path: str = "", **more: Any) -> StorageMount:
        fields = {"name": "s", "mount_path": "/mnt/s", "host_path": str(self.root)} | more
        return StorageMount(sub_path=sub_path, **fields)

    def folder(self, name: str, mode: int = 0o777) -> Path:
        path = self.root / name
        path.mkdir()
        path.chmod(mode)
        return path

    def run(self, command: str, *mounts: StorageMount, user: int = ANN, name: str = "pod") -> Any:
        """The pod's ending."""
        run = PodRun(
            user="ann" if user == ANN else "bob", user_number=user, job_name="u~j",
            virtual_cluster="default", role="w", index=0, job_attempt=0, task_attempt=0,
            command=command, cpu=1, memory_mb=64, roles=(SHAPE,), peers=(), mounts=mounts,
        )  # fmt: skip
        pod = Pod(name, "job", "job-0", PodPhase.ACCEPTED, run)
        self.runner.launch(pod)
        found: list[Any] = []

        def has_ended() -> bool:
            found[:] = self.runner.look([pod])
            return bool(found) and found[0].ending is not None

        self.patience(has_ended)
        return found[0].ending


@pytest.fixture
def world(node: Any, tmp_path: Path, patience: Patience) -> World:
    return World(node, tmp_path, patience)


def test_a_storage_is_at_its_place_and_nothing_of_the_node_beside_it(
    world: World, node: Any
) -> None:
    shared = world.folder("shared")
    before = sorted(Path("/mnt").iterdir())
    deep = world.storage("shared", mount_path="/mnt/a/b-c")
    ending = world.run("echo hello > /mnt/a/b-c/file; ls /mnt /mnt/a", deep)
    assert (ending.exit_code, ending.start_error) == (0, None)
    assert (shared / "file").read_text() == "hello\n"
    assert (shared / "file").stat().st_uid == FIRST + ANN
    assert node.log("pod", "stdout").split() == ["/mnt:", "a", "/mnt/a:", "b-c"]
    assert sorted(Path("/mnt").iterdir()) == before


def test_a_read_only_storage_takes_no_writes(world: World, node: Any) -> None:
    (world.folder("data") / "known").write_text("old")
    (world.root / "data" / "known").chmod(0o666)
    mounts = [
        world.storage("data", read_only=True),
        world.storage("data", name="t", mount_path="/mnt/t"),
    ]
    attacks = ["echo x > /mnt/s/known", "touch /mnt/s/new", "mount -o remount,rw /mnt/s"]
    for number, attack in enumerate(attacks):
        name = f"pod-{number}"
        assert world.run(attack, mounts[0], name=name).exit_code != 0, attack
    assert "Read-only file system" in node.log("pod-0", "stderr")
    assert world.run("cat /mnt/s/known; echo new > /mnt/t/known", *mounts).exit_code == 0
    assert (world.root / "data" / "known").read_text() == "new\n"


def test_a_users_own_folder_is_made_and_closed_to_others(world: World, node: Any) -> None:
    world.folder("users", 0o711)
    anns = world.storage("users/ann", is_own=True)
    assert world.run("echo mine > /mnt/s/file", anns).exit_code == 0
    found = (world.root / "users" / "ann").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (FIRST + ANN, 0o700)
    assert world.run("cat /mnt/s/file", anns, name="again").exit_code == 0
    other = world.run("cat /mnt/s/file", anns, user=BOB, name="bobs")
    assert other.exit_code != 0
    assert "Permission denied" in node.log("bobs", "stderr")


def test_only_the_operators_folders_are_mounted(world: World, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    world.folder("users").joinpath("ann").symlink_to(tmp_path / "secret")
    refused = {
        "does not allow": world.storage(host_path=str(tmp_path)),
        "not allow": world.storage("../secret"),
        "has become a link": world.storage("users/ann", is_own=True),
        "No such file": world.storage("missing"),
        "has no folder on nodes without Kubernetes": world.storage(host_path=None, claim="c"),
        "mount below /mnt only": world.storage(mount_path="/etc"),
        "can't be at /mnt/../etc": world.storage(mount_path="/mnt/../etc"),
    }
    for number, (why, storage) in enumerate(refused.items()):
        ending = world.run("echo ran", storage, name=f"pod-{number}")
        assert why in (ending.start_error or ending.detail), ending
        assert ending.exit_code is None


def test_nothing_is_made_in_a_folder_of_the_node(world: World) -> None:
    """A place in a storage would be made there as root."""
    shared = world.folder("shared")
    inner = world.storage("shared", name="t", mount_path="/mnt/s/t")
    ending = world.run("echo ran", world.storage("shared"), inner)
    assert "is there already" in (ending.start_error or "")
    assert not list(shared.iterdir())


def test_a_node_that_does_not_separate_users_mounts_none(
    node: Any, tmp_path: Path, patience: Patience
) -> None:
    world = World(node, tmp_path, patience, single_user="the agent is not root")
    ending = world.run("echo ran", world.storage())
    assert "does not separate users: the agent is not root" in ending.detail
