"""Control groups for one pod where they may be made: its limits, and proof of out-of-memory.

Version 2 has one group for all limits, version 1 one below each of its hierarchies. Where none can
be made the pod runs without that limit, which its exit record notes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from runtime_agent.supervisor.records import Oom

Controller = Literal["memory", "cpu"]
Files = dict[str, str]
"""What to write into which file of a group."""

CPU_PERIOD_US = 100_000
_ROOT = Path("/sys/fs/cgroup")
_V2_MARK = "cgroup.controllers"
_PREFIX = "muster-"
_NAME_CHARACTERS = 100


@dataclass(frozen=True)
class Cgroups:
    """The directories that hold one pod, in the order in which they were made."""

    directories: tuple[Path, ...]

    def enter(self) -> None:
        """Moves the calling process in, which has one thread; its children are born inside.

        Version 1 moves that thread, for which the kernel need not hold up every fork of the
        machine, as it does (for some 15 ms) to move a process.
        """
        for directory in self.directories:
            if _is_v2(directory):
                (directory / "cgroup.procs").write_text(str(os.getpid()))
            else:
                (directory / "tasks").write_text("0")

    def oom(self) -> Oom | None:
        """What the groups' counters say of kills for want of memory; None where none counts.

        The kernel counts here also whom it killed because the whole machine was out of memory:
        it is certain only where the pod had met its own limit.
        """
        for directory in self.directories:
            with contextlib.suppress(OSError, KeyError):
                kills, limits_met = _memory_events(directory)
                if kills == 0:
                    return "none"
                return "certain" if limits_met else "suspected"
        return None

    def kill_all(self) -> None:
        """Sends SIGKILL to every process inside."""
        for directory in self.directories:
            if _is_v2(directory):
                with contextlib.suppress(OSError):
                    (directory / "cgroup.kill").write_text("1")
                    return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> set[int]:
        """Who is inside now."""
        found: set[int] = set()
        for directory in self.directories:
            with contextlib.suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def remove(self) -> None:
        """Takes the empty groups away; one that is not empty stays."""
        for directory in self.directories:
            with contextlib.suppress(OSError):
                directory.rmdir()


def _is_v2(directory: Path) -> bool:
    return (directory / _V2_MARK).exists()


def _memory_events(directory: Path) -> tuple[int, int]:
    """How many processes were killed, and how often the limit was met.

    Raises OSError or KeyError where the group counts no memory.
    """
    if _is_v2(directory):
        events = _pairs(directory / "memory.events")
        return events["oom_kill"], events["oom"]
    kills = _pairs(directory / "memory.oom_control")["oom_kill"]
    return kills, int((directory / "memory.failcnt").read_text())


def _pairs(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number in lines}


def name_for(pod_directory: Path) -> str:
    """Of a pod's groups: by its directory, as agents may share a machine."""
    mark = sha256(os.fsencode(pod_directory)).hexdigest()[:12]
    return f"{_PREFIX}{pod_directory.name[:_NAME_CHARACTERS]}-{mark}"


def make(parent: Path, name: str, files: Mapping[str, str]) -> Path:
    """Makes a group and sets its limits. Raises OSError where that is not possible."""
    directory = parent / name
    directory.mkdir(exist_ok=True)
    try:
        for file, content in files.items():
            (directory / file).write_text(content)
    except OSError:
        with contextlib.suppress(OSError):
            directory.rmdir()
        raise
    return directory


def limit(parent: Path, controller: Controller, amount: int) -> Files:
    """The files that hold a group below `parent` to `amount`: bytes of memory, or CPUs."""
    is_v2 = _is_v2(parent)
    match controller:
        case "memory":
            return {"memory.max" if is_v2 else "memory.limit_in_bytes": str(amount)}
        case "cpu" if is_v2:
            return {"cpu.max": f"{amount * CPU_PERIOD_US} {CPU_PERIOD_US}"}
        case "cpu":
            return {
                "cpu.cfs_period_us": str(CPU_PERIOD_US),
                "cpu.cfs_quota_us": str(amount * CPU_PERIOD_US),
            }


def usable_parent(controller: Controller, configured: Path | None = None) -> Path | None:
    """Where groups with that limit can be made: the configured place, else below our own group.

    Version 2 allows it only where the parent hands the controller down, as a delegated subtree
    does. None where it can't be done.
    """
    probe = 64 * 1024 * 1024 if controller == "memory" else 1
    for parent in _own_groups(controller) if configured is None else [configured]:
        with contextlib.suppress(OSError):
            files = limit(parent, controller, probe)
            make(parent, f"{_PREFIX}probe-{os.getpid()}", files).rmdir()
            return parent
    return None


def sweep(parent: Path, before_s: float) -> None:
    """Removes empty groups of pods that were made before that Unix time, whosever they were.

    They stay behind where supervisor and agent are both killed and the pod's directory is removed.
    The kernel keeps those that hold a process.
    """
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_mtime < before_s:
                directory.rmdir()


def _own_groups(controller: Controller) -> list[Path]:
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            found.append(_ROOT / controller / path.lstrip("/"))
        elif not controllers and (_ROOT / _V2_MARK).exists():
            found.append(_ROOT / path.lstrip("/"))
    return found
