"""The files of a pod's directory: their names, their contents, and how they are written.

Every file is written whole under another name, flushed to the disk and renamed, so that a reader
sees the old contents or the new and never a part, also after a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

SPEC_FILE = "pod.json"
COMMAND_FILE = "command.sh"
START_FILE = "start.json"
EXIT_FILE = "exit.json"
STOP_FILE = "stop.json"
LOCK_FILE = "lock"
DOORBELL_FILE = "doorbell"
EXIT_RESERVE_FILE = "reserve"
STOP_RESERVE_FILE = "reserve-stop"
WORK_DIR = "work"
TMP_DIR = "tmp"
LOGS_DIR = "logs"

RESERVES = {EXIT_RESERVE_FILE: 16 * 1024, STOP_RESERVE_FILE: 4 * 1024}
"""Space reserved for records that must be written on a full disk as well: in bytes, more than the
longest of them. The record is written into it, so that no other process can take it.
"""

Oom = Literal["none", "suspected", "certain"]


@dataclass(frozen=True)
class Mount:
    """The folder `source` of the node, seen at `place`. `is_own`: it is the user's alone, and made
    where it is missing.
    """

    source: str
    place: str
    read_only: bool = False
    is_own: bool = False


@dataclass(frozen=True)
class PodSpec:
    """What a supervisor has to know; written once, when the pod's directory is made.

    It is not flushed to the disk, which `boot_id` makes up for: after another start of the machine
    the directory of a pod that has not begun is made anew. `cgroups`: below which directories a
    control group is to be made, with what to write into which of its files. `uid`: the pod runs
    under it, apart from other users, and reaches the paths `exposed` besides its own; None: it runs
    as the agent's user. `user_processes`: the most processes of its user on the machine; 0: no
    limit here. `mounts`: the fields of a `Mount` for each storage.
    """

    name: str
    environment: dict[str, str]
    boot_id: str = ""
    cgroups: dict[str, dict[str, str]] = field(default_factory=dict)
    default_grace_s: float = 30.0
    log_max_bytes: int = 256 * 1024 * 1024
    agent_doorbell: str | None = None
    uid: int | None = None
    exposed: list[str] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    user_processes: int = 0


@dataclass(frozen=True)
class StartRecord:
    """Written before the pod's first instruction runs: from here on the name is used up."""

    pid: int
    process_start_ticks: int
    supervisor_pid: int
    boot_id: str
    started_at_s: float
    cgroup_dirs: list[str] = field(default_factory=list)
    uid: int | None = None


@dataclass(frozen=True)
class StopRequest:
    """The agent's request to end the pod; `grace_s` lies between SIGTERM and SIGKILL."""

    reason: str
    grace_s: float


@dataclass(frozen=True)
class ExitRecord:
    """The last file of a pod. `ran` is false where no instruction of it was ever run."""

    ran: bool
    exit_code: int | None = None
    signal: int | None = None
    oom: Oom = "none"
    stop_reason: str | None = None
    forced: bool = False
    start_error: str | None = None
    started_at_s: float | None = None
    ended_at_s: float = 0.0
    run_time_s: float = 0.0
    cpu_time_s: float = 0.0
    peak_memory_bytes: int = 0
    leftovers_killed: int = 0
    dropped_lines: int = 0
    notes: list[str] = field(default_factory=list)


FULL = (errno.ENOSPC, errno.EDQUOT)


class _IsDataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Record = TypeVar("Record", bound=_IsDataclass)


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """The record, or None where there is no file; unknown fields of a newer writer are left out.

    Raises ValueError where the file can't be one of ours.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        content: dict[str, Any] = json.loads(text)
        known = {each.name for each in fields(kind)}
        return kind(**{key: value for key, value in content.items() if key in known})
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a {kind.__name__}: {error}") from error


def write_record(
    path: Path,
    record: _IsDataclass,
    *,
    durable: bool = True,
    reserve: Path | None = None,
) -> None:
    """Writes it whole; with `durable` it also survives a power cut. Raises OSError.

    Where the disk is full it takes the room of the file `reserve`, where that is still there.
    """
    content = json.dumps(vars(record)).encode()
    try:
        _write_whole(path, content, durable)
    except OSError as error:
        if error.errno not in FULL or reserve is None or not _write_into(reserve, content, path):
            raise
    if durable:
        flush_directory(path.parent)


def _write_into(reserve: Path, content: bytes, path: Path) -> bool:
    """Makes the record of the space of another file; False where that is used up or too small."""
    try:
        descriptor = os.open(reserve, os.O_WRONLY)
    except FileNotFoundError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if len(content) > size or os.write(descriptor, content.ljust(size)) < size:
            return False
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    reserve.replace(path)
    return True


def _write_whole(path: Path, content: bytes, durable: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def flush_directory(directory: Path) -> None:
    """Makes creations, renames and removals in it survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ring(doorbell: Path, message: bytes = b"!") -> bool:
    """Rings the pipe's reader to make it look again; False where there is none. Never waits."""
    try:
        descriptor = os.open(doorbell, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(descriptor, message)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
