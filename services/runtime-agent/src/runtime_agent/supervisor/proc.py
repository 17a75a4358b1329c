"""Processes by /proc and prctl; a process is named by its number and its start time."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

_PRCTL = {  # linux/prctl.h
    "PR_SET_PDEATHSIG": 1,
    "PR_SET_CHILD_SUBREAPER": 36,
    "PR_SET_NO_NEW_PRIVS": 38,
}
SUPERVISOR = b"runtime_agent.supervisor"
"""In the command line of every supervisor."""
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's own namespace of process numbers (linux/proc_ns.h)."""
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: str, value: int) -> None:
    """Raises OSError."""
    if _libc.prctl(_PRCTL[option], value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends."""
    _prctl("PR_SET_CHILD_SUBREAPER", 1)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends; at once where it already has.

    Its children are not killed, and a program can undo it: this only shortens what follows.
    """
    _prctl("PR_SET_PDEATHSIG", signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def forbid_new_privileges() -> None:
    """No program that this process starts gains rights: set-user-ID bits count no more."""
    _prctl("PR_SET_NO_NEW_PRIVS", 1)


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


def uid_of(pid: int) -> int | None:
    """The real uid of the process, None where it is gone. Not that of its files in /proc: a process
    can give those to root.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return None


def parent_of(pid: int) -> int | None:
    """The parent, None where the process is gone."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def name_of(pid: int) -> str:
    """Of its program, at most 15 bytes; "" where the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def sees_machine() -> bool:
    """Whether process numbers here are the machine's: in a container they are its own."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    return False


def living() -> Iterator[tuple[int, int]]:
    """Every process, by its number and its start in ticks."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (ticks := start_ticks(int(entry.name))) is not None:
            yield int(entry.name), ticks


def kill(pid: int, ticks: int | None, number: signal.Signals = signal.SIGKILL) -> None:
    """Signals the process that has this number and this start, and no other one.

    Raises PermissionError.
    """
    if ticks is not None and start_ticks(pid) == ticks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def in_pod(uid: str) -> Iterator[tuple[int, int]]:
    """The processes in the control groups of Kubernetes' pod of that uid, as `living` has them.

    kubelet writes a uid with "-" or, below systemd, with "_". Raises ValueError for an empty uid,
    which would be that of every process.
    """
    if not uid:
        raise ValueError("a pod without a uid has no processes")
    for pid, ticks in living():
        if is_in_pod(pid, (uid,)):
            yield pid, ticks


def is_in_pod(pid: int, uids: Iterable[str]) -> bool:
    """Whether the process is in the control groups of one of these pods, see `in_pod`."""
    with contextlib.suppress(OSError):
        groups = Path(f"/proc/{pid}/cgroup").read_bytes().replace(b"_", b"-")
        return any(uid.encode() in groups for uid in uids)
    return False


def orphans_of(uid: int) -> Iterator[tuple[int, int]]:
    """All processes of a uid that no living supervisor has started, as `living` has them.

    A supervisor adopts its pod's processes, so it is above each of them while it lives. Nobody but
    root can look like one: only the nearest ancestor with another uid is asked.
    """
    for pid, ticks in living():
        if uid_of(pid) == uid and not _is_supervised(pid, uid):
            yield pid, ticks


def _is_supervised(pid: int, uid: int) -> bool:
    """True also where an ancestor ends meanwhile: the next look decides."""
    above: int | None = pid
    while above is not None and (owner := uid_of(above)) is not None:
        if owner != uid:
            with contextlib.suppress(OSError):
                return SUPERVISOR in Path(f"/proc/{above}/cmdline").read_bytes()
        above = parent_of(above)
    return True


def is_supervised(pid: int) -> bool:
    """Whether a supervisor is above the process, which adopts all that its pod starts. True also
    where an ancestor ends meanwhile: the next look decides.
    """
    above: int | None = pid
    while above:
        with contextlib.suppress(OSError):
            if SUPERVISOR in Path(f"/proc/{above}/cmdline").read_bytes():
                return True
        above = parent_of(above)
    return above is None


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
    """How many processes the kernel has killed for want of memory since boot; 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
