"""Where the agent is root, a pod runs under a uid of its user, apart from all others."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.errors import Broken
from muster.settings import SECRETS_DIR
from runtime_agent.confinement import confinement_of
from runtime_agent.pod_files import DOOMED_DIR
from runtime_agent.pods import Phase
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor import isolation, proc
from runtime_agent.supervisor.records import ExitRecord

Patience = Callable[[Callable[[], bool]], None]
UID, OTHER_UID = 2_001_000_001, 2_001_000_002
UID_OF_FEW = 2_001_100_000
"""Of one test: the kernel counts the processes of a uid, also those of tests beside it."""
UID_OF_TRIAL = 2_001_200_000
"""Of no pod: after the loss of a supervisor the agent kills all of its uid, of any test."""
ROOT = Path(__file__).parents[2]
TRIAL = (sys.executable, "-I", "-m", "runtime_agent.supervisor", "--separate", str(UID_OF_TRIAL))
PR_CAPBSET_DROP = 24
ADD_KEY, KEYCTL, JOIN_SESSION_KEYRING, SESSION_KEYRING = 248, 250, 1, -3

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root separates users")


def run(node: Any, command: str, uid: int = UID, name: str = "pod", **spec: object) -> ExitRecord:
    end: ExitRecord = node.run(command, name=name, uid=uid, **spec)
    assert end.start_error is None
    return end


def test_a_pod_runs_under_its_users_uid_and_gains_no_rights(node: Any) -> None:
    groups = os.getgroups()
    os.setgroups([4, 27])
    try:
        run(node, "true", name="starts-the-fork-server")
    finally:
        os.setgroups(groups)
    run(node, "id -u; id -g; id -G; grep -E 'NoNewPrivs|CapEff' /proc/self/status; pwd")
    assert node.log("pod", "stdout").split() == [
        *[str(UID)] * 3,
        "CapEff:", "0" * 16, "NoNewPrivs:", "1",
        str(node.pods.work_path("pod")),
    ]  # fmt: skip


def test_a_pod_has_its_work_directory_for_itself_alone(node: Any) -> None:
    run(node, "echo mine > file; stat -c '%a %u' .")
    assert node.log("pod", "stdout").split() == ["700", str(UID)]
    assert (node.pods.work_path("pod") / "file").read_text() == "mine\n"


def test_a_pod_sees_a_tmp_of_its_own(node: Any) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as others:
        run(node, f"test ! -e {others.name}; echo a > /tmp/mine; cat /var/tmp/mine")
    assert node.log("pod", "stdout") == "a\n"
    assert not Path("/tmp/mine").exists()
    assert (node.pods.path("pod") / "tmp" / "mine").exists()
    node.pods.drop_work("pod")
    assert not (node.pods.path("pod") / "tmp").exists()


def test_a_pod_reaches_the_agents_python_behind_private_folders(node: Any) -> None:
    """The tests' folder is private, and often that of the interpreter as well."""
    run(node, f"{sys.executable} -c 'import sys; print(sys.version_info.major)'")
    assert node.log("pod", "stdout") == "3\n"


@pytest.mark.parametrize("uid", [UID, OTHER_UID])
def test_a_pod_reads_nothing_of_other_pods_nor_of_its_own_records(node: Any, uid: int) -> None:
    run(node, "echo secret > file; chmod 644 file; chmod 755 .", name="first")
    first = node.pods.path("first")
    paths = [first / "work" / "file", first / "pod.json", first / "logs" / "all.log", first]
    for index, path in enumerate(paths):
        name = f"second-{index}"
        end = run(node, f"cat {path} || ls {path}", uid, name)
        assert end.exit_code != 0, path
        assert "secret" not in node.log(name, "stderr")


def test_a_pod_reads_and_stops_no_service(node: Any) -> None:
    """This process stands for a service: root's, with secrets in its environment."""
    me = os.getpid()
    files = [f"/proc/{me}/{file}" for file in ("environ", "mem", "maps")]
    attacks = [f"kill -TERM {me}", f"ls /proc/{me}/fd", *(f"head -c1 {file}" for file in files)]
    for index, attack in enumerate(attacks):
        assert run(node, attack, name=f"pod-{index}").exit_code != 0, attack


def test_a_pod_can_not_have_more_processes_than_its_user_may(node: Any) -> None:
    # Perl, for Bash tries to fork for 15 s.
    forks = "perl -e 'for (1..6) { defined(my $pid = fork) or die $!; $pid or sleep 300 }'"
    end = run(node, forks, uid=UID_OF_FEW, user_processes=4)
    assert end.exit_code == errno.EAGAIN
    assert "Resource temporarily unavailable" in node.log("pod", "stderr")


def test_a_pod_that_can_not_be_separated_does_not_run(node: Any) -> None:
    end = node.run("echo ran", uid=UID, exposed=["/nowhere/at/all"])
    assert not end.ran
    assert "/nowhere/at/all" in end.start_error


def test_nothing_of_a_pod_outlives_a_lost_supervisor(
    node: Any, kill: Callable[[Any, str], int], patience: Patience
) -> None:
    """Not even what has left the session, the environment and its parent."""
    escape = "env -i setsid bash -c 'echo $$ > escaped; exec sleep 300' & "
    node.start(f"({escape}); sleep 300", uid=UID)
    node.start("sleep 300", name="other", uid=UID)
    escaped = node.pods.work_path("pod") / "escaped"
    patience(lambda: escaped.exists() and escaped.read_text().strip() != "")
    pid = int(escaped.read_text())
    kill(node, "pod")
    start = node.until("pod", Phase.SUPERVISOR_LOST).start
    patience(lambda: node.pods.kill_leftovers("pod", start) == 0)
    assert proc.start_ticks(pid) is None
    assert node.pods.observe("other").phase is Phase.RUNNING


def test_a_pods_process_ends_with_its_supervisor(
    node: Any, kill: Callable[[Any, str], int], patience: Patience
) -> None:
    node.start("sleep 300", uid=UID)
    start = node.until("pod", Phase.RUNNING).start
    kill(node, "pod")
    patience(lambda: proc.start_ticks(start.pid) is None)


def test_folders_deeper_than_python_can_remove_are_removed(node: Any) -> None:
    # Perl, for Bash looks at each folder above for every `cd`.
    run(node, 'perl -e \'for (1..1500) { mkdir "d"; chdir "d" or die }\'')
    node.pods.drop_work("pod")
    assert not node.pods.work_path("pod").exists()
    asyncio.run(node.pods.remove_doomed())
    assert list((node.root / DOOMED_DIR).iterdir()) == []


def test_an_agent_names_a_shared_folder_that_is_missing(tmp_path: Path) -> None:
    missing = tmp_path / "not-mounted"
    settings = AgentSettings(task_paths=f"{tmp_path}, {missing}")
    with pytest.raises(Broken, match=f"MUSTER_TASK_PATHS: {missing} .*No such file"):
        confinement_of(settings)


def test_a_trial_tells_whether_users_can_be_separated() -> None:
    done = subprocess.run(TRIAL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", isolation.CAPABILITIES)
def test_users_are_not_separated_without_any_capability_of_the_list(name: str) -> None:
    libc = ctypes.CDLL(None)

    def drop() -> None:
        assert libc.prctl(PR_CAPBSET_DROP, isolation.CAPABILITIES[name], 0, 0, 0) == 0

    done = subprocess.run(TRIAL, capture_output=True, text=True, check=False, preexec_fn=drop)
    assert done.returncode == isolation.CANNOT_SEPARATE
    assert done.stderr == f"the agent lacks {name}\n"


@pytest.mark.parametrize("page", ["docs/security.md", "deploy/systemd/muster-agent.service"])
def test_what_operators_read_names_these_capabilities(page: str) -> None:
    assert set(re.findall(r"CAP_[A-Z_]+", (ROOT / page).read_text())) == set(isolation.CAPABILITIES)


def test_a_trial_names_a_uid_that_the_user_namespace_lacks() -> None:
    command = ("unshare", "--user", "--map-root-user", *TRIAL)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"the uid {UID_OF_TRIAL} is not mapped in the agent's user namespace" in done.stderr


@pytest.mark.parametrize("how", ["exit 1", "echo no memory >&2; exit 1", "kill -KILL $$"])
def test_a_trial_that_breaks_never_lets_tasks_run_as_root(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\n{how}\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(Broken, match=r"ended with status .* \((no memory|without a message)\)"):
        confinement_of(AgentSettings())


def test_an_agent_that_separates_users_needs_a_key_for_their_logs() -> None:
    settings = AgentSettings(node="gpu-1")
    with pytest.raises(Broken, match=r"MUSTER_SERVICE_KEY is not set.*derive_key agent/gpu-1"):
        confinement_of(settings)
    settings = AgentSettings(node="gpu-1", service_key="a key")
    assert confinement_of(settings).single_user is None


def test_an_agent_names_a_control_group_that_is_none(tmp_path: Path) -> None:
    for parent in (tmp_path, tmp_path / "missing"):
        settings = AgentSettings(cgroup_parent=parent)
        with pytest.raises(Broken, match=f"MUSTER_CGROUP_PARENT: .* {parent} .*No such file"):
            confinement_of(settings)
    assert list(tmp_path.iterdir()) == []


def test_a_pod_reaches_no_key_of_the_agents_session(node: Any) -> None:
    """Those of root's log-in, where an administrator starts the agent by hand."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of its system calls are not in this test")
    libc = ctypes.CDLL(None)
    held = [ctypes.c_long(SESSION_KEYRING), b"user", b"muster-test", b"secret", ctypes.c_long(6)]
    if libc.syscall(KEYCTL, ctypes.c_long(JOIN_SESSION_KEYRING), None) < 0:
        pytest.skip("this machine has no keyrings")
    assert libc.syscall(ADD_KEY, held[1], held[2], held[3], held[4], held[0]) > 0
    assert "muster-test" in Path("/proc/keys").read_text()
    assert run(node, "! grep muster-test /proc/keys").exit_code == 0


def test_a_pod_reads_no_secrets_of_the_agents_container(node: Any) -> None:
    assert isolation.SECRETS == SECRETS_DIR
    node.prepare(f"ls -A {SECRETS_DIR} | wc -l", uid=UID)
    mount = f"mount -t tmpfs none {SECRETS_DIR.parent} && mkdir {SECRETS_DIR}"
    make = f"echo secret > {SECRETS_DIR}/key"
    supervisor = [sys.executable, "-I", "-m", "runtime_agent.supervisor", node.pods.path("pod")]
    script = f'{mount} && {make} && exec "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *supervisor], check=True)
    assert node.log("pod", "stdout") == "0\n"


def test_a_pod_reaches_a_task_folder_by_a_link_of_the_agents_start_and_no_later_one(
    node: Any, tmp_path: Path
) -> None:
    shared, private, link = tmp_path / "shared", tmp_path / "private", tmp_path / "link"
    for folder in (shared, private):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    link.symlink_to(shared)
    (folder,) = confinement_of(AgentSettings(task_paths=str(link), service_key="a")).task_folders
    run(node, f"cat {folder}/file", name="before", exposed=[str(folder)])
    assert node.log("before", "stdout") == "shared"
    shared.rename(tmp_path / "moved")
    shared.symlink_to(private)
    end = node.run(f"cat {folder}/file", name="after", uid=UID, exposed=[str(folder)])
    assert not end.ran
    assert f"{shared} has become a link to {private}" in end.start_error


def test_a_pod_makes_files_that_others_may_read(node: Any) -> None:
    """Whatever the agent's umask: on shared storage users decide by folders."""
    before = os.umask(0o077)
    try:
        run(node, "umask", name="pod")
    finally:
        os.umask(before)
    assert node.log("pod", "stdout") == "0022\n"


def test_a_stop_reaches_a_pod_of_another_uid(node: Any) -> None:
    node.start("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done", uid=UID)
    node.until("pod", Phase.RUNNING)
    node.pods.ask_to_stop("pod", "stopped", 30.0)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.exit_code or end.signal) in (3, signal.SIGTERM)
