"""A control group for one pod where one may be made: memory limit and proof of out-of-memory.

Version 2 and the memory hierarchy of version 1 are understood. Where none can be made the pod runs
without a limit, which its exit record notes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_V2_MARK = "cgroup.controllers"


@dataclass(frozen=True)
class Cgroup:
    """One directory below the parent that the agent chose."""

    directory: Path
    is_v2: bool

    def enter(self) -> None:
        """Moves the calling process in; its children are born inside."""
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))

    def oom_kills(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in (self.directory / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def kill_all(self) -> None:
        """Sends SIGKILL to every process inside."""
        if self.is_v2:
            with contextlib.suppress(OSError):
                (self.directory / "cgroup.kill").write_text("1")
                return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Who is inside now."""
        with contextlib.suppress(OSError):
            return [int(pid) for pid in (self.directory / "cgroup.procs").read_text().split()]
        return []

    def remove(self) -> None:
        """Takes the empty group away; one that is not empty stays."""
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def existing(directory: Path) -> Cgroup:
    """The group that a start record names."""
    return Cgroup(directory, is_v2=(directory / _V2_MARK).exists())


def make(parent: Path, name: str, memory_limit_bytes: int | None) -> Cgroup:
    """Makes the group and sets its limit. Raises OSError where that is not possible."""
    directory = parent / name
    directory.mkdir(exist_ok=True)
    group = existing(directory)
    if memory_limit_bytes is not None:
        try:
            limit = "memory.max" if group.is_v2 else "memory.limit_in_bytes"
            (directory / limit).write_text(str(memory_limit_bytes))
        except OSError:
            group.remove()
            raise
    return group


def usable_parent(configured: Path | None = None) -> Path | None:
    """Where groups with a memory limit can be made: the configured place, else below our own.

    Version 2 allows it only where the parent hands its memory controller down, as a delegated
    subtree does. None where it can't be done.
    """
    candidates = [configured] if configured is not None else _own_groups()
    for candidate in candidates:
        with contextlib.suppress(OSError):
            make(candidate, f"muster-probe-{os.getpid()}", 64 * 1024 * 1024).remove()
            return candidate
    return None


def _own_groups() -> list[Path]:
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            found.append(Path("/sys/fs/cgroup/memory") / path.lstrip("/"))
        elif not controllers and Path("/sys/fs/cgroup", _V2_MARK).exists():
            found.append(Path("/sys/fs/cgroup") / path.lstrip("/"))
    return found
