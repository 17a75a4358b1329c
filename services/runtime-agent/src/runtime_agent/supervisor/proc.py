"""What /proc and prctl tell and do; a process is named by its number and its start time."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends; at once where it already has."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def boot_id() -> str:
    """Changes with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with the boot id it names a process.

    None where it is gone or a zombie.
    """
    fields = _stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])  # field 22 of proc_pid_stat(5); two are cut off, and lists start at 0


def session_of(pid: int) -> int | None:
    """The session that the process belongs to, None where it is gone."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[3])


def _stat_fields(pid: int) -> list[str] | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return line[line.rindex(")") + 2 :].split()  # the name in parentheses may hold anything


def descendants(pid: int) -> Iterator[int]:
    """All living descendants, parents first."""
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        yield from children
        waiting.extend(children)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                text = (thread / "children").read_text()
                found.extend(int(child) for child in text.split())
    return found


def oom_kills_of_machine() -> int:
    """How many processes the kernel has killed for want of memory since boot (0 where not told)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
