"""Separates a pod from other users and from Muster, where the agent is root.

The pod's process gets the uid of its user, a `/tmp` of its own, and a mount namespace in which
every private folder on the way to its own files is hidden.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runtime_agent.supervisor import proc

PRIVATE = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  replaced by the pod's own
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000  # linux/mount.h
_TO_ALL = 0o001
"""A folder without this bit stops other users on their way."""
_MASK_OPTIONS = b"mode=0711,size=1m"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Isolation:
    """How a pod is separated. `uid` is its group's number as well. `tmp` is what it sees at
    `/tmp`. It reaches `exposed` (folders and files) at their own paths.
    """

    uid: int
    tmp: Path
    exposed: tuple[Path, ...]

    def enter(self) -> None:
        """Separates the calling process, which is root and has one thread. Raises OSError."""
        if _libc.unshare(_CLONE_NEWNS) != 0:
            raise _error("unshare(CLONE_NEWNS)")
        _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)
        sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in self.exposed}
        tmp = os.open(self.tmp, os.O_PATH | os.O_CLOEXEC)
        for place in PRIVATE:
            _bind(tmp, place)
        for path in sorted(sources):
            _expose(path, sources[path], self.uid)
        _become(self.uid)


def attempt(uid: int) -> int:
    """Separates this process for a trial: 0, or 1 with the reason on standard error."""
    try:
        Isolation(uid, PRIVATE[0], ()).enter()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    proc.forbid_new_privileges()


def _expose(path: Path, source: int, uid: int) -> None:
    """Makes `path` reachable: an empty file system hides the first private folder above it."""
    for folder in reversed(path.parents):
        if not folder.exists():
            break
        found = folder.stat()
        if not found.st_mode & _TO_ALL and found.st_uid != uid:
            _mount("tmpfs", folder, "tmpfs", 0, _MASK_OPTIONS)
            break
    else:
        if path.exists():
            return
    _make_folders(path.parents)
    if Path(f"/proc/self/fd/{source}").is_dir():
        path.mkdir(exist_ok=True)
    else:
        path.touch()
    _bind(source, path)


def _make_folders(parents: Iterable[Path]) -> None:
    for folder in reversed(list(parents)):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o711)  # whatever the umask


def _bind(source: int, place: Path) -> None:
    _mount(f"/proc/self/fd/{source}", place, None, _MS_BIND | _MS_REC)


def _mount(
    source: str | None, place: Path, kind: str | None, flags: int, options: bytes | None = None
) -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, place, kind)]
    if _libc.mount(*names, ctypes.c_ulong(flags), options) != 0:
        raise _error(f"mount at {place}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
