"""How an agent of a DaemonSet gets credentials of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from runtime_agent.enrolment import read, store

CREDENTIALS = {"muster_kafka_password": b"one", "muster_service_key": b"two"}
END_S = 30


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runtime_agent.enrolment", *words],
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )


def a_secret(folder: Path, content: dict[str, bytes] = CREDENTIALS) -> Path:
    """A Secret as kubelet mounts it: files are links into a folder of this version."""
    version = folder / "..2026"
    version.mkdir(parents=True)
    (folder / "..data").symlink_to("..2026")
    for name, value in content.items():
        (version / name).write_bytes(value)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    secret, target = a_secret(tmp_path / "secret"), tmp_path / "loaded"
    target.mkdir()
    node = tmp_path / "node"
    assert run("store", secret, node).returncode == 0
    assert run("load", node, target).returncode == 0
    assert read(target) == CREDENTIALS


def test_only_the_owner_reads_them(tmp_path: Path) -> None:
    store(CREDENTIALS, tmp_path / "node")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "node").iterdir()}
    assert modes == dict.fromkeys(CREDENTIALS, 0o600)
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700


def test_a_changed_secret_replaces_the_old_one(tmp_path: Path) -> None:
    store(CREDENTIALS | {"muster_metrics_token": b"old"}, tmp_path / "node")
    changed = CREDENTIALS | {"muster_service_key": b"new"}
    store(changed, tmp_path / "node")
    assert read(tmp_path / "node") == changed


def test_an_incomplete_secret_is_refused(tmp_path: Path) -> None:
    secret = a_secret(tmp_path / "secret", {"muster_kafka_password": b"one"})
    done = run("store", secret, tmp_path / "node")
    assert done.returncode == 1
    assert "muster_service_key" in done.stderr
    assert not (tmp_path / "node").exists()


def test_an_agent_waits_for_its_node_and_names_the_fix(tmp_path: Path) -> None:
    target = tmp_path / "loaded"
    target.mkdir()
    waiting = subprocess.Popen(
        [sys.executable, "-m", "runtime_agent.enrolment", "load", tmp_path / "node", target],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert waiting.stderr is not None
        assert "deploy/k8s/README.md" in waiting.stderr.readline()
        store(CREDENTIALS, tmp_path / "node")
        assert waiting.wait(END_S) == 0
        assert read(target) == CREDENTIALS
    finally:
        waiting.kill()
        waiting.communicate()


@pytest.mark.parametrize("words", [(), ("load",), ("keep", "a", "b")])
def test_other_words_are_refused(words: tuple[str, ...]) -> None:
    assert "usage:" in run(*words).stderr
