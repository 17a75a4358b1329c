"""The agent's side of a pod's directory: make it, see what became of the pod, stop it, clear it.

Nothing is kept in memory, and each step can be repeated after a crash in its middle: the
directories are the truth. The pod's process belongs to its supervisor, never to the agent. No step
takes longer for a pod with more files: what a pod leaves is renamed at once and removed later.
One thread only may use it: the kernel frees a lock when any descriptor of its file is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import structlog

from runtime_agent.domain.environment import CHECKPOINT_FILE
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

DOOMED_DIR = ".old"
"""Below the root: what leaves the disk. A rename into it is all that a removal takes at once."""
REASON_BYTES = 1000
PIPE_BYTES = 64 * 1024
LOGGED_PIDS = 10
LONGEST_NAME = 200
"""Longer pod names are kept under their hash: file systems end at 255 bytes."""
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


@dataclass(frozen=True)
class Remains:
    """What a pod has left on the disk; `changed_s` (Unix): when something was last recorded."""

    name: str
    changed_s: float
    log_bytes: int
    has_work: bool


class PodDirectories:
    """All pods below one root, which belongs to one agent. `has_doomed` calls for
    `remove_doomed`.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root = root.resolve()  # pods change their directory
        self._doomed = self.root / DOOMED_DIR
        self._doomed.mkdir(exist_ok=True, mode=0o700)
        self.has_doomed = asyncio.Event()
        self._boot = proc.boot_id()

    def names(self) -> list[str]:
        """Every pod that has a directory."""
        found = []
        for entry in self.root.iterdir():
            if entry.is_dir() and not entry.name.startswith("."):
                spec = _readable(entry / SPEC_FILE, PodSpec)
                found.append(entry.name if spec is None else spec.name)
        return sorted(found)

    def path(self, name: str) -> Path:
        """Where the pod's directory is or would be. Raises ValueError for what is no pod's name."""
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} can't be the name of a pod")
        if len(name.encode()) > LONGEST_NAME:
            return self.root / sha256(name.encode()).hexdigest()
        return self.root / name

    def work_path(self, name: str) -> Path:
        """The pod's own work directory."""
        return self.path(name) / WORK_DIR

    def logs_path(self, name: str) -> Path:
        """The directory of the pod's logs."""
        return self.path(name) / LOGS_DIR

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
        """When the pod has touched its file last (Unix). Only a file in its own work directory
        counts, and nothing of it is read.
        """
        try:
            found = (self.work_path(name) / CHECKPOINT_FILE).lstat()
        except OSError:
            return None
        return found.st_mtime if stat.S_ISREG(found.st_mode) else None

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

    def drop_work(self, name: str) -> None:
        """Removes what the pod wrote for itself; its records and logs stay."""
        for reserve in RESERVES:
            (self.path(name) / reserve).unlink(missing_ok=True)
        for folder in (TMP_DIR, WORK_DIR):  # the work directory shows that there is more to drop
            self._doom(self.path(name) / folder)

    def remove(self, name: str) -> None:
        """Removes all of the pod."""
        self._doom(self.path(name))

    def drop_command(self, name: str) -> None:
        """Removes the pod's command, which may hold secrets. Raises OSError where it stays."""
        (self.path(name) / COMMAND_FILE).unlink(missing_ok=True)

    def drop_logs(self, name: str) -> None:
        """Removes the pod's logs; its records stay."""
        self._doom(self.logs_path(name))

    def _doom(self, path: Path) -> None:
        if os.path.lexists(path):
            path.rename(self._doomed / uuid4().hex)
            self.has_doomed.set()

    def sweep(self) -> None:
        """Removes what a crash has left half made or half removed."""
        for entry in self.root.glob(".new-*"):
            self._doom(entry)
        self.has_doomed.set()

    async def remove_doomed(self) -> None:
        """Takes off the disk what is removed. Raises OSError, with a reason, where something stays.

        A process does it: folders may be deeper than Python can, and a stop can end it.
        """
        self.has_doomed.clear()
        process = await asyncio.create_subprocess_exec(
            *("find", self._doomed, "-mindepth", "1", "-xdev", "-delete"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},  # pods may read it: nothing secret
        )
        assert process.stderr is not None
        try:
            reason = await process.stderr.read(REASON_BYTES)
            while await process.stderr.read(PIPE_BYTES):
                pass
            if await process.wait():
                raise OSError(reason.decode(errors="replace"))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def remains(self) -> list[Remains]:
        """Of every pod, the oldest first. It opens no lock, so any thread may ask."""
        found = []
        for name in self.names():
            directory = self.path(name)
            changed_s = max(_changed_s(directory / file) for file in (SPEC_FILE, EXIT_FILE))
            has_work = (directory / WORK_DIR).exists()
            found.append(Remains(name, changed_s, _bytes_in(directory / LOGS_DIR), has_work))
        return sorted(found, key=lambda each: each.changed_s)


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


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _bytes_in(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def never_ran(reason: str) -> ExitRecord:
    """The record of a pod that was stopped before it began."""
    return ExitRecord(ran=False, stop_reason=reason, ended_at_s=time.time())
