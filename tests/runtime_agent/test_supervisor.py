"""A pod's life under its supervisor, with real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_agent.pods import Phase, never_ran
from runtime_agent.supervisor import cgroup, lock, proc
from runtime_agent.supervisor.logs import BoundedFile

F_OFD_SETLK = 37  # fcntl.h
Patience = Callable[[Callable[[], bool]], None]


def pids_in(path: Path) -> list[int]:
    return [int(message) for message in path.read_text().split()] if path.exists() else []


def test_a_pod_that_ends_well_has_exit_code_zero(node: Any) -> None:
    end = node.run("echo done")
    assert (end.ran, end.exit_code, end.signal, end.oom, end.stop_reason) == (
        True, 0, None, "none", None,
    )  # fmt: skip


def test_a_failing_command_ends_the_script_with_its_exit_code(node: Any) -> None:
    end = node.run("(exit 7)\necho never")
    assert end.exit_code == 7
    assert not (node.pods.logs_path("pod") / "stdout.log").exists()


@pytest.mark.parametrize("script", ["false | true", "echo $UNSET_NAME"])
def test_broken_pipes_and_unset_variables_fail_the_script(node: Any, script: str) -> None:
    assert node.run(f"{script}\ntrue").exit_code == 1


def test_a_signal_is_distinguished_from_an_exit_code(node: Any) -> None:
    end = node.run("kill -SEGV $$")
    assert (end.exit_code, end.signal) == (None, signal.SIGSEGV)


def test_streams_are_kept_apart_and_merged_with_times_and_marks(node: Any) -> None:
    node.run("echo out; echo err >&2; printf unfinished")
    assert node.log("pod", "stdout") == "out\nunfinished"
    assert node.log("pod", "stderr") == "err\n"
    merged = [line.split(" ", 3) for line in node.log("pod", "all").splitlines()]
    assert sorted(tuple(line[1:]) for line in merged) == [
        ("stderr", "F", "err"),
        ("stdout", "F", "out"),
        ("stdout", "F", "unfinished"),
    ]
    assert all(line[0].endswith("Z") and "T" in line[0] for line in merged)


def test_a_log_keeps_no_more_than_twice_its_limit_and_its_end(node: Any) -> None:
    node.run("seq -f 'line %g' 20000", log_max_bytes=70_000)
    files = sorted(node.pods.logs_path("pod").iterdir())
    assert [file.name for file in files] == [
        "all.log", "all.log.1", "all.log.place",
        "stdout.log", "stdout.log.1", "stdout.log.place",
    ]  # fmt: skip
    assert all(file.stat().st_size <= 70_000 for file in files)
    assert node.log("pod", "stdout").splitlines()[-1] == "line 20000"


def test_a_line_without_end_is_cut_in_the_merged_log(node: Any) -> None:
    node.run("head -c 200000 /dev/zero | tr '\\0' x; echo")
    lines = [line.split(" ", 3) for line in node.log("pod", "all").splitlines()]
    assert [line[2] for line in lines] == ["P", "P", "P", "F"]
    assert sum(len(line[3]) for line in lines) == 200_000


def test_the_pod_sees_nothing_but_its_own_environment(node: Any) -> None:
    os.environ["SECRET_OF_THE_AGENT"] = "hush"
    try:
        node.run("env")
    finally:
        del os.environ["SECRET_OF_THE_AGENT"]
    assert "hush" not in node.log("pod", "stdout")
    assert "MUSTER_POD=pod\n" in node.log("pod", "stdout")


def test_what_a_pod_leaves_behind_ends_with_it(node: Any, patience: Patience) -> None:
    end = node.run("setsid sleep 300 & echo $!; (sleep 301 & echo $!) ; sleep 0.2")
    pids = [int(line) for line in node.log("pod", "stdout").split()]
    assert len(pids) == 2
    assert [proc.start_ticks(pid) for pid in pids] == [None, None]
    assert end.exit_code == 0
    assert end.leftovers_killed >= 2


def test_a_stop_asks_first_and_the_pod_may_end_in_its_own_way(
    node: Any, patience: Patience
) -> None:
    node.start("trap 'echo bye; exit 5' TERM; echo ready; sleep 300 & wait")
    patience(lambda: (node.pods.logs_path("pod") / "stdout.log").exists())
    node.pods.ask_to_stop("pod", "stopped", 30.0)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.exit_code, end.stop_reason, end.forced) == (5, "stopped", False)
    assert "bye" in node.log("pod", "stdout")


def test_a_pod_that_will_not_stop_is_killed_with_all_its_processes(
    node: Any, patience: Patience
) -> None:
    node.start("trap '' TERM; setsid sleep 300 & echo $!; wait; sleep 300; sleep 300")
    patience(lambda: (node.pods.logs_path("pod") / "stdout.log").exists())
    node.pods.ask_to_stop("pod", "stopped", 0.2)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.signal, end.stop_reason, end.forced) == (signal.SIGKILL, "stopped", True)
    assert proc.start_ticks(int(node.log("pod", "stdout"))) is None


def test_a_second_stop_shortens_the_grace(node: Any, patience: Patience) -> None:
    node.start("trap '' TERM; echo ready; while true; do sleep 300; done")
    patience(lambda: (node.pods.logs_path("pod") / "stdout.log").exists())
    node.pods.ask_to_stop("pod", "stopped", 600.0)
    node.pods.ask_to_stop("pod", "withdrawn", 0.0)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.signal, end.stop_reason) == (signal.SIGKILL, "withdrawn")


def test_a_stop_before_the_start_means_that_the_pod_never_runs(node: Any) -> None:
    node.prepare("touch ran")
    node.pods.ask_to_stop("pod", "stopped", 1.0)
    node.fork_server.start(node.pods.path("pod"))
    seen = node.until("pod", Phase.EXITED)
    assert (seen.exit.ran, seen.exit.stop_reason, seen.start) == (False, "stopped", None)
    assert not (node.pods.work_path("pod") / "ran").exists()


def test_a_pod_runs_at_most_once_however_often_it_is_started(node: Any, patience: Patience) -> None:
    node.prepare("echo ran; sleep 0.5")
    for _ in range(5):
        node.fork_server.start(node.pods.path("pod"))
    node.until("pod", Phase.EXITED)
    direct = [sys.executable, "-I", "-m", "runtime_agent.supervisor", str(node.pods.path("pod"))]
    assert subprocess.run(direct, check=False).returncode == 3
    assert node.log("pod", "stdout") == "ran\n"


def test_a_pod_of_which_a_start_is_recorded_never_starts_again(node: Any, kill: Any) -> None:
    node.start("echo ran; sleep 300")
    node.until("pod", Phase.RUNNING)
    kill(node, "pod")
    node.until("pod", Phase.SUPERVISOR_LOST)
    direct = [sys.executable, "-I", "-m", "runtime_agent.supervisor", str(node.pods.path("pod"))]
    assert subprocess.run(direct, check=False).returncode == 3


def test_the_pod_dies_with_its_supervisor(node: Any, kill: Any, patience: Patience) -> None:
    node.start("sleep 300 & echo $! > pids; exec sleep 300")
    patience(lambda: pids_in(node.pods.work_path("pod") / "pids") != [])
    start = node.until("pod", Phase.RUNNING).start
    kill(node, "pod")
    patience(lambda: proc.start_ticks(start.pid) is None)
    assert node.pods.observe("pod").phase is Phase.SUPERVISOR_LOST
    patience(lambda: node.pods.kill_leftovers("pod", start) == 0)
    (child,) = pids_in(node.pods.work_path("pod") / "pids")
    patience(lambda: proc.start_ticks(child) is None)


def test_a_program_that_outlives_its_killed_supervisor_is_ended_by_the_agent(
    node: Any, kill: Any, patience: Patience
) -> None:
    """A program can undo the signal that the kernel sends it when its supervisor ends."""
    undo = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); print(flush=True); time.sleep(300)"
    node.start(f"exec {sys.executable} -c '{undo}'")
    patience(lambda: (node.pods.logs_path("pod") / "stdout.log").exists())
    start = node.until("pod", Phase.RUNNING).start
    kill(node, "pod")
    node.until("pod", Phase.SUPERVISOR_LOST)
    assert proc.start_ticks(start.pid) is not None
    patience(lambda: node.pods.is_over("pod"))
    assert proc.start_ticks(start.pid) is None


def test_processes_that_the_agent_may_not_kill_hold_up_no_other_and_are_tried_again(
    node: Any, kill: Any, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start("for _ in 1 2 3; do sleep 300 & done; jobs -p > pids; wait")
    patience(lambda: len(pids_in(node.pods.work_path("pod") / "pids")) == 3)
    forbidden, *others = pids_in(node.pods.work_path("pod") / "pids")
    kill(node, "pod")
    node.until("pod", Phase.SUPERVISOR_LOST)
    send = os.kill

    def send_if_allowed(pid: int, number: int) -> None:
        if pid == forbidden:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        send(pid, number)

    monkeypatch.setattr(os, "kill", send_if_allowed)
    assert not node.pods.is_over("pod")
    patience(lambda: [proc.start_ticks(pid) for pid in others] == [None, None])
    assert not node.pods.is_over("pod")
    monkeypatch.undo()
    patience(lambda: node.pods.is_over("pod"))
    assert proc.start_ticks(forbidden) is None


def test_no_process_is_killed_for_one_that_had_its_number() -> None:
    sleeping = subprocess.Popen(["sleep", "300"])
    ticks = proc.start_ticks(sleeping.pid)
    assert ticks is not None
    proc.kill(sleeping.pid, ticks - 1)
    proc.kill(sleeping.pid, None)
    sleeping.terminate()
    assert sleeping.wait() == -signal.SIGTERM


def test_a_lock_without_a_process_of_its_own_has_nothing_killed(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the kernel -1 means every process."""
    node.prepare("true")
    path = node.pods.path("pod") / "lock"
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _number: killed.append(pid))
    with path.open("w") as file:
        # struct flock: of an open file and not of a process
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        assert lock.holder(path) == -1
        assert not node.pods.kill_supervisor("pod")
    assert killed == []


def test_a_pod_that_hangs_before_its_program_begins_can_be_stopped(
    node: Any, patience: Patience
) -> None:
    """It opens a pipe that nobody reads, in place of a control group's file."""
    groups = node.root / "groups"
    group = groups / cgroup.name_for(node.pods.path("pod"))
    group.mkdir(parents=True)
    os.mkfifo(group / "tasks")
    node.start("true", cgroups={str(groups): {}})
    node.until("pod", Phase.RUNNING)
    node.pods.ask_to_stop("pod", "stopped", 600.0)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.stop_reason, end.signal) == ("stopped", signal.SIGTERM)


def test_a_supervisor_that_is_ended_stops_its_pod_and_reports_it(
    node: Any, patience: Patience
) -> None:
    node.start("sleep 300")
    node.until("pod", Phase.RUNNING)
    os.kill(lock.holder(node.pods.path("pod") / "lock"), signal.SIGTERM)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.signal, end.stop_reason) == (signal.SIGTERM, "supervisor-terminated")


def test_a_shutdown_that_ends_the_pod_before_its_supervisor_is_no_end_of_its_own(
    node: Any, patience: Patience
) -> None:
    node.start("exec sleep 300")
    start = node.until("pod", Phase.RUNNING).start
    supervisor = lock.holder(node.pods.path("pod") / "lock")
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(start.pid, signal.SIGTERM)
    patience(lambda: proc.start_ticks(start.pid) is None)
    os.kill(supervisor, signal.SIGTERM)
    os.kill(supervisor, signal.SIGCONT)
    end = node.until("pod", Phase.EXITED).exit
    assert (end.signal, end.stop_reason) == (signal.SIGTERM, "supervisor-terminated")


def test_pods_outlive_the_fork_server(node: Any, patience: Patience) -> None:
    node.start("until test -e go; do sleep 0.01; done; echo survived")
    node.until("pod", Phase.RUNNING)
    node.fork_server.close()
    (node.pods.work_path("pod") / "go").touch()
    assert node.until("pod", Phase.EXITED).exit.exit_code == 0
    assert node.log("pod", "stdout") == "survived\n"


def test_a_killed_fork_server_is_replaced(node: Any, patience: Patience) -> None:
    node.run("true", name="first")
    os.kill(node.fork_server.pid, signal.SIGKILL)
    node.prepare("true", name="second")

    def ended() -> bool:
        if node.pods.observe("second").phase is Phase.PREPARED:
            node.fork_server.start(node.pods.path("second"))
        return node.pods.observe("second").phase is Phase.EXITED

    patience(ended)


def test_another_boot_tells_that_the_node_was_rebooted(node: Any, kill: Any) -> None:
    node.start("sleep 300")
    start = node.until("pod", Phase.RUNNING).start
    kill(node, "pod")
    path = node.pods.path("pod") / "start.json"
    path.write_text(path.read_text().replace(start.boot_id, "another-boot"))
    assert node.pods.observe("pod").phase is Phase.REBOOTED


def test_a_sealed_pod_never_starts_and_a_started_one_cannot_be_sealed(node: Any) -> None:
    node.prepare("true", name="sealed")
    assert node.pods.seal("sealed", never_ran("stopped"))
    node.fork_server.start(node.pods.path("sealed"))
    node.start("sleep 300", name="started")
    node.until("started", Phase.RUNNING)
    assert not node.pods.seal("started", never_ran("stopped"))
    assert node.pods.observe("sealed").exit.ran is False
    assert node.pods.observe("sealed").start is None


def test_the_end_is_recorded_once_a_full_disk_has_room_again(node: Any, patience: Patience) -> None:
    """The disk refuses the record for as long as a directory stands in its place."""
    node.start("until test -e go; do sleep 0.01; done")
    start = node.until("pod", Phase.RUNNING).start
    directory = node.pods.path("pod")
    (directory / "exit.json").mkdir()
    (node.pods.work_path("pod") / "go").touch()
    patience(lambda: proc.start_ticks(start.pid) is None)
    assert lock.holder(directory / "lock") is not None
    (directory / "exit.json").rmdir()
    assert node.until("pod", Phase.EXITED).exit.exit_code == 0


def test_a_stop_takes_the_room_that_was_kept_for_it_where_the_disk_has_none(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start("sleep 300")
    node.until("pod", Phase.RUNNING)
    write = os.write

    def write_to_a_full_disk(descriptor: int, content: bytes) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith(".stop.json."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", write_to_a_full_disk)
    node.pods.ask_to_stop("pod", "stopped", 5.0)
    assert node.until("pod", Phase.EXITED).exit.stop_reason == "stopped"
    with pytest.raises(OSError, match="No space"):
        node.pods.ask_to_stop("pod", "stopped", 1.0)


def test_a_full_disk_loses_lines_and_counts_them_but_never_holds_the_pod(node: Any) -> None:
    node.prepare("seq 5000; echo end >&2")
    for name in ("stdout", "all"):
        (node.pods.logs_path("pod") / f"{name}.log").symlink_to("/dev/full")
    node.fork_server.start(node.pods.path("pod"))
    end = node.until("pod", Phase.EXITED).exit
    assert (end.exit_code, end.dropped_lines) == (0, 5001)
    assert node.log("pod", "stderr") == "end\n"


def test_a_log_notes_what_it_has_lost_once_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    file = BoundedFile(tmp_path / "log", 1000)
    file.append(b"one\ntwo\n")
    file.close()
    (tmp_path / "log").unlink()
    file.append(b"three\n")
    assert (tmp_path / "log").read_text() == (
        "[muster: 2 lines were lost, the disk was full]\nthree\n"
    )
    assert file.dropped_lines == 2


MEMORY_BYTES = 64 * 1024 * 1024


def limits(of: cgroup.Limit, amount: int) -> dict[str, dict[str, str]]:
    parent = cgroup.usable_parents([of]).get(of)
    if parent is None:
        pytest.skip(f"no control group with a limit of {of} can be made here")
    return {str(parent): cgroup.limit(parent, of, amount)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root separates users")
def test_a_pod_reads_its_own_limit_whatever_the_agents_umask(node: Any) -> None:
    """Runtimes size themselves by it."""
    before = os.umask(0o077)
    try:
        held = limits("memory", MEMORY_BYTES)
        ((parent, files),) = held.items()
        group = f"{parent}/{cgroup.name_for(node.pods.path('pod'))}"
        node.run(f"cat {group}/{next(iter(files))}", cgroups=held, uid=2_001_000_001)
    finally:
        os.umask(before)
    assert node.log("pod", "stdout").strip() == str(MEMORY_BYTES)


def test_out_of_memory_is_distinguished_where_a_control_group_can_be_made(node: Any) -> None:
    held = limits("memory", MEMORY_BYTES)
    ((parent, files),) = held.items()
    if "swap" in cgroup.usable_parents(["swap"]):  # else swap takes what memory has no room for
        held = {parent: files | cgroup.limit(Path(parent), "swap", 1)}
    greedy = f"{sys.executable} -c 'bytearray(300_000_000)'"
    assert node.run(f"{greedy}; true", cgroups=held).oom == "certain"


def test_a_pod_that_stays_below_its_memory_did_not_run_out_of_it(node: Any) -> None:
    assert node.run("kill -KILL $$", cgroups=limits("memory", 64 * 1024 * 1024)).oom == "none"


def test_a_pod_is_held_to_its_cpus(node: Any) -> None:
    """Two busy processes get no more than the one CPU that the pod asked for."""
    end = node.run(
        "for _ in 1 2; do timeout 0.5 bash -c 'while :; do :; done' & done; wait",
        cgroups=limits("cpu", 1),
    )
    assert end.cpu_time_s <= 1.5 * end.run_time_s


def test_a_pod_can_not_have_more_processes_than_its_control_group(node: Any) -> None:
    forks = "import os, signal; [signal.pause() for _ in range(6) if os.fork() == 0]"
    end = node.run(f"exec {sys.executable} -c '{forks}'", cgroups=limits("processes", 4))
    assert end.exit_code == 1
    assert "Resource temporarily unavailable" in node.log("pod", "stderr")


FORK_BOMB = """
import contextlib, os, signal
while os.getpid() != first or os.fork() == 0:
    with contextlib.suppress(OSError):
        os.fork()
signal.pause()
"""


def test_a_fork_bomb_and_what_fled_from_it_end_with_a_lost_supervisor(
    node: Any, kill: Any, patience: Patience
) -> None:
    """The control group holds also what has left the session, the environment and its parent."""
    escape = "env -i setsid --fork bash -c 'echo $$ > escaped; exec sleep 300'"
    bomb = f"exec {sys.executable} -c 'import os; first = os.getpid(){FORK_BOMB}'"
    node.start(
        f"{escape}; until test -s escaped; do :; done; {bomb}", cgroups=limits("processes", 30)
    )
    start = node.until("pod", Phase.RUNNING).start
    (group,) = map(Path, start.cgroup_dirs)
    patience(lambda: len(pids_in(group / "cgroup.procs")) == 30)
    (escaped,) = pids_in(node.pods.work_path("pod") / "escaped")
    kill(node, "pod")
    node.until("pod", Phase.SUPERVISOR_LOST)
    patience(lambda: node.pods.kill_leftovers("pod", start) == 0)
    assert proc.start_ticks(escaped) is None
    assert not group.exists()


@pytest.mark.xdist_group("cgroups")  # one of them removes empty groups
def test_control_groups_end_with_their_pod(node: Any) -> None:
    both = limits("cpu", 1) | limits("memory", 256 * 1024 * 1024)
    node.start("until test -e go; do sleep 0.01; done; cat /proc/self/cgroup", cgroups=both)
    start = node.until("pod", Phase.RUNNING).start
    assert len(start.cgroup_dirs) == len(both)
    is_there = {directory: Path(directory).is_dir() for directory in start.cgroup_dirs}
    assert all(is_there.values()), (is_there, node.pods.observe("pod"))
    (node.pods.work_path("pod") / "go").touch()
    node.until("pod", Phase.EXITED)
    assert not any(Path(directory).exists() for directory in start.cgroup_dirs)
    assert Path(start.cgroup_dirs[0]).name in node.log("pod", "stdout")


@pytest.mark.xdist_group("cgroups")  # one of them removes empty groups
def test_control_groups_that_were_left_behind_are_removed_but_not_those_in_use(
    node: Any, patience: Patience
) -> None:
    held = limits("cpu", 1)
    (parent,) = map(Path, held)
    node.start("sleep 300", cgroups=held)
    (used,) = node.until("pod", Phase.RUNNING).start.cgroup_dirs
    patience(lambda: pids_in(Path(used) / "cgroup.procs") != [])
    left = cgroup.make(parent, cgroup.name_for(node.root / "left"), {})
    cgroup.sweep(parent, left.stat().st_mtime)
    assert left.is_dir()
    cgroup.sweep(parent, left.stat().st_mtime + 1)
    assert not left.exists()
    assert Path(used).is_dir()


def test_a_pod_without_a_control_group_still_runs_and_reports_it(node: Any) -> None:
    end = node.run("true", cgroups={"/nowhere": {"memory.max": "1"}})
    assert end.exit_code == 0
    assert "no control group" in end.notes[0]
    assert "memory.max" in end.notes[0]


def test_a_shell_that_cannot_be_started_is_no_exit_code(node: Any) -> None:
    node.prepare("true")
    node.pods.work_path("pod").rmdir()
    node.fork_server.start(node.pods.path("pod"))
    end = node.until("pod", Phase.EXITED).exit
    assert (end.ran, end.exit_code, end.signal) == (False, None, None)
    assert "FileNotFoundError" in end.start_error


def test_a_noisy_pod_loses_no_line_of_its_streams(node: Any) -> None:
    node.run("seq 200000")
    assert node.log("pod", "stdout").splitlines() == [str(n) for n in range(1, 200_001)]
    assert len(node.log("pod", "all").splitlines()) == 200_000


def test_a_pod_that_has_not_begun_before_the_machine_went_down_is_prepared_anew(
    node: Any,
) -> None:
    """What was written before may be lost in part: it must not run, and must not stay."""
    node.prepare("echo old > wrong")
    spec = node.pods.path("pod") / "pod.json"
    spec.write_text(spec.read_text().replace(proc.boot_id(), "another-boot"))
    direct = [sys.executable, "-I", "-m", "runtime_agent.supervisor", str(node.pods.path("pod"))]
    assert subprocess.run(direct, check=False).returncode == 3
    end = node.run("echo new")
    assert (end.exit_code, node.log("pod", "stdout")) == (0, "new\n")


def test_a_pod_whose_directory_is_removed_does_not_run_on_unseen(
    node: Any, patience: Patience
) -> None:
    node.start("sleep 300", default_grace_s=0.1)
    start = node.until("pod", Phase.RUNNING).start
    supervisor = lock.holder(node.pods.path("pod") / "lock")
    node.pods.remove("pod")
    patience(lambda: proc.start_ticks(start.pid) is None)
    patience(lambda: proc.start_ticks(supervisor) is None)
