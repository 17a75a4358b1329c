"""The agent's side of a pod's directory: make it, see what became of the pod, stop it, clear it.

Nothing is kept in memory, and each step can be repeated after a crash in its middle: the
directories are the truth. The pod's process belongs to its supervisor, never to the agent. One
thread only may use it: the kernel frees a lock when any descriptor of its file is closed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import structlog

from runtime_agent.domain.environment import CHECKPOINT_FILE
from runtime_agent.pod_files import PodFiles, touched_at_s
from runtime_agent.supervisor import cgroup, lock, proc
from runtime_agent.supervisor.records import (
    COMMAND_FILE,
    DOORBELL_FILE,
    EXIT_FILE,
    EXIT_RESERVE_FILE,
    LOCK_FILE,
    LOGS_DIR,
    RESERVES,
    SPEC_FILE,
    START_FILE,
    STOP_FILE,
    STOP_RESERVE_FILE,
    TMP_DIR,
    WORK_DIR,
    ExitRecord,
    PodSpec,
    Record,
    StartRecord,
    StopRequest,
    read_record,
    ring,
    write_record,
)

_log = structlog.get_logger()

LOGGED_PIDS = 10
MARK = "MUSTER_POD_DIRECTORY"
"""The variable that names a process's pod, also once its parents are gone.

It holds the directory and not the name: another agent may have a pod of the same name.
"""


class Phase(StrEnum):
    """The phase of a pod, as its directory shows it."""

    ABSENT = "absent"
    PREPARED = "prepared"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    SUPERVISOR_LOST = "supervisor-lost"
    REBOOTED = "node-rebooted"


@dataclass(frozen=True)
class Observation:
    """One look at a pod."""

    phase: Phase
    start: StartRecord | None = None
    exit: ExitRecord | None = None
    stop: StopRequest | None = None


class PodDirectories(PodFiles):
    """The pods that supervisors run."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._boot = proc.boot_id()

    def prepare(self, spec: PodSpec, command: str) -> None:
        """Makes the directory whole or not at all; one that can be used stays as it is."""
        directory = self.path(spec.name)
        if self._is_usable(directory):
            return
        self.remove(spec.name)
        fresh = self.root / f".new-{directory.name}"
        self._doom(fresh)
        fresh.mkdir(mode=0o700)
        try:
            (fresh / WORK_DIR).mkdir(mode=0o700)
            (fresh / LOGS_DIR).mkdir(mode=0o700)
            for reserve, size in RESERVES.items():
                (fresh / reserve).write_bytes(b"\0" * size)
            os.mkfifo(fresh / DOORBELL_FILE, 0o600)
            (fresh / COMMAND_FILE).write_text(command)
            if spec.uid is not None:
                _give_to(spec.uid, fresh)
            environment = spec.environment | {MARK: str(directory)}
            spec = replace(spec, environment=environment, boot_id=self._boot)
            write_record(fresh / SPEC_FILE, spec, durable=False)
            fresh.rename(directory)
        except OSError:
            with contextlib.suppress(OSError):  # the next attempt repeats it
                self._doom(fresh)
            raise

    def _is_usable(self, directory: Path) -> bool:
        """Whether the pod has begun, or can begin with what was written since the machine did."""
        if (directory / START_FILE).exists() or (directory / EXIT_FILE).exists():
            return True
        spec = _readable(directory / SPEC_FILE, PodSpec)
        return spec is not None and spec.boot_id == self._boot

    def observe(self, name: str) -> Observation:
        """The pod's phase and records so far; a damaged record only shows that it exists."""
        directory = self.path(name)
        stop = _readable(directory / STOP_FILE, StopRequest)
        # In the order in which a supervisor acts, so that nothing it does meanwhile can make a
        # living pod look lost: a supervisor that wrote a start holds the lock until it wrote the
        # end.
        has_started = (directory / START_FILE).exists()
        start = _readable(directory / START_FILE, StartRecord)
        supervisor = lock.holder(directory / LOCK_FILE)
        end = _readable(directory / EXIT_FILE, ExitRecord)
        if end is not None:
            phase = Phase.EXITED
            start = start or _readable(directory / START_FILE, StartRecord)
        elif has_started:
            phase = self._phase_without_end(start, supervisor)
        elif supervisor is not None:
            phase = Phase.STARTING
        else:
            phase = Phase.PREPARED if directory.exists() else Phase.ABSENT
        return Observation(phase, start, end, stop)

    def _phase_without_end(self, start: StartRecord | None, supervisor: int | None) -> Phase:
        if start is not None and start.boot_id != self._boot:
            return Phase.REBOOTED
        return Phase.RUNNING if supervisor is not None else Phase.SUPERVISOR_LOST

    def checkpointed_at_s(self, name: str) -> float | None:
        """When the pod has touched its file last (Unix)."""
        return touched_at_s(self.work_path(name) / CHECKPOINT_FILE)

    def ask_to_stop(self, name: str, reason: str, grace_s: float) -> None:
        """Writes the request and rings the doorbell; a repeat can only shorten the grace."""
        directory = self.path(name)
        request, reserve = StopRequest(reason, grace_s), directory / STOP_RESERVE_FILE
        write_record(directory / STOP_FILE, request, reserve=reserve)
        ring(directory / DOORBELL_FILE)

    def seal(self, name: str, record: ExitRecord) -> bool:
        """Ends a pod that has never started so that it never will; False where it has started."""
        directory = self.path(name)
        held = lock.take(directory / LOCK_FILE)
        if held is None:
            return False
        try:
            if (directory / START_FILE).exists():
                return False
            if not (directory / EXIT_FILE).exists():
                reserve = directory / EXIT_RESERVE_FILE
                write_record(directory / EXIT_FILE, record, reserve=reserve)
        finally:
            os.close(held)
        return True

    def disown_start(self, name: str) -> None:
        """Drops the record of a start that another machine has written: here another process has
        that number. A supervisor that runs here holds the lock, and its record stays.
        """
        directory = self.path(name)
        # First the lock: a supervisor that ends has written its end before it lets go of it.
        if lock.holder(directory / LOCK_FILE) is None and not (directory / EXIT_FILE).exists():
            (directory / START_FILE).unlink(missing_ok=True)

    def is_over(self, name: str) -> bool:
        """Whether nothing of the pod runs any more; kills what a lost supervisor has left."""
        seen = self.observe(name)
        if seen.phase is Phase.SUPERVISOR_LOST:
            return self.kill_leftovers(name, seen.start) == 0
        return seen.phase in (Phase.EXITED, Phase.REBOOTED, Phase.ABSENT)

    def kill_supervisor(self, name: str) -> bool:
        """The last means against a supervisor that no longer acts; then `kill_leftovers` ends the
        pod. False where there is none, or none with a number here.
        """
        pid = lock.holder(self.path(name) / LOCK_FILE)
        if pid is None or pid <= 0:
            return False
        _kill(name, {pid: proc.start_ticks(pid)})
        return True

    def kill_leftovers(self, name: str, start: StartRecord | None) -> int:
        """Kills what is left of a pod without supervisor; how many processes there still were.

        To be called again until it gives 0: only then are the pod's devices free.
        """
        if start is not None and start.boot_id == self._boot:
            _groups(start).kill_all()
        found = dict(self._leftovers(name, start))
        _kill(name, found)
        if not found and start is not None:
            _groups(start).remove()
        return len(found)

    def _leftovers(self, name: str, start: StartRecord | None) -> Iterator[tuple[int, int | None]]:
        """Each with its start in ticks, read before what shows that the process is the pod's."""
        mark = os.fsencode(f"{MARK}={self.path(name)}")
        session = None
        if start is not None and start.boot_id == self._boot:
            groups = _groups(start)
            ticks_of = {pid: proc.start_ticks(pid) for pid in groups.processes()}
            yield from ((pid, ticks_of.get(pid)) for pid in groups.processes())
            if start.uid is not None:
                yield from proc.orphans_of(start.uid)
            if proc.start_ticks(start.pid) == start.process_start_ticks:
                session = start.pid
        for pid, ticks in proc.living():
            if pid == os.getpid():
                continue
            if session is not None and proc.session_of(pid) == session:
                yield pid, ticks
            else:
                with contextlib.suppress(OSError):
                    if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        yield pid, ticks

    def start(self, name: str) -> StartRecord | None:
        """The record of its start; None where it has not begun."""
        return _readable(self.path(name) / START_FILE, StartRecord)

    def drop_command(self, name: str) -> None:
        """Removes the pod's command, which may hold secrets. Raises OSError where it stays."""
        (self.path(name) / COMMAND_FILE).unlink(missing_ok=True)

    def drop_work(self, name: str) -> None:
        """Removes what the pod wrote for itself; its records and logs stay."""
        for reserve in RESERVES:
            (self.path(name) / reserve).unlink(missing_ok=True)
        for folder in (TMP_DIR, WORK_DIR):  # the work directory shows that there is more to drop
            self._doom(self.path(name) / folder)


def _kill(name: str, found: Mapping[int, int | None]) -> None:
    """Kills the processes of a pod, by number and start. The caller finds again what stays."""
    refused = []
    for pid, ticks in found.items():
        try:
            proc.kill(pid, ticks)
        except PermissionError:
            refused.append(pid)
    if refused:
        _log.error(
            "the agent may not kill processes of a pod (does it lack CAP_KILL?); trying again",
            pod=name,
            processes=len(refused),
            pids=refused[:LOGGED_PIDS],
        )


def _give_to(uid: int, directory: Path) -> None:
    """The user owns the work directory, and reads the command; the rest stays root's."""
    os.chown(directory / WORK_DIR, uid, uid)
    os.chown(directory / COMMAND_FILE, 0, uid)
    (directory / COMMAND_FILE).chmod(0o440)
    (directory / TMP_DIR).mkdir()
    (directory / TMP_DIR).chmod(0o1777)


def _readable(path: Path, kind: type[Record]) -> Record | None:
    try:
        return read_record(path, kind)
    except ValueError as error:
        _log.error("a record of a pod is damaged", error=str(error))
        return None


def _groups(start: StartRecord) -> cgroup.Cgroups:
    return cgroup.Cgroups(tuple(map(Path, start.cgroup_dirs)))


def never_ran(reason: str) -> ExitRecord:
    """The record of a pod that was stopped before it began."""
    return ExitRecord(ran=False, stop_reason=reason, ended_at_s=time.time())
