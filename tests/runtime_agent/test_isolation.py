"""Where the agent is root, a pod runs under a uid of its user, apart from all others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.errors import Broken
from runtime_agent.confinement import confinement_of
from runtime_agent.pods import DOOMED_DIR, Phase
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor import isolation, proc
from runtime_agent.supervisor.records import ExitRecord

Patience = Callable[[Callable[[], bool]], None]
UID, OTHER_UID = 2_001_000_001, 2_001_000_002

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root separates users")


def run(node: Any, command: str, uid: int = UID, name: str = "pod", **spec: object) -> ExitRecord:
    exposed = [sys.prefix, sys.base_prefix]
    end: ExitRecord = node.run(command, name=name, uid=uid, exposed=exposed, **spec)
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
    end = run(node, "for _ in 1 2 3 4 5 6; do sleep 300 & done", user_processes=4)
    assert end.exit_code == 254  # of bash: it could not fork
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
    node.start(f"({escape}); sleep 300", uid=UID, exposed=[])
    node.start("sleep 300", name="other", uid=UID, exposed=[])
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
    node.start("sleep 300", uid=UID, exposed=[])
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
    with pytest.raises(Broken, match=f"MUSTER_TASK_PATHS: {missing} does not exist"):
        confinement_of(settings)


def test_a_trial_tells_whether_users_can_be_separated() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(isolation.attempt(UID))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_stop_reaches_a_pod_of_another_uid(node: Any) -> None:
    node.start("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done", uid=UID)
    node.until("pod", Phase.RUNNING)
    node.pods.ask_to_stop("pod", "stopped", 30.0)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.exit_code or end.signal) in (3, signal.SIGTERM)
