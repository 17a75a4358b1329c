"""What keeps a process and its files private to its user. Linux only."""

import ctypes
import errno
import os
import stat
from pathlib import Path

_PR_SET_DUMPABLE = 4  # linux/prctl.h
_PRIVATE_UMASK = 0o077
_PRIVATE_FOLDER = 0o700
_OF_OTHERS = 0o077
_LOCK = "lock"
_EMPTY = frozenset(["lost+found"])
"""What a new file system has."""


def make_process_private() -> None:
    """Other users can't read files that this process and its children make. Other processes of the
    same user can't read its environment and memory any more, nor trace it; it leaves no core file.
    Processes that it starts are not hidden. Raises OSError.
    """
    os.umask(_PRIVATE_UMASK)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(), f"prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}"
        )


def make_folder_private(folder: Path) -> None:
    """Makes a folder that its owner alone enters. One of this user's is closed to others if it is
    empty or has Muster's lock. Raises OSError, also for an open folder with other files, as /opt,
    and for one that others share (with the sticky bit, as /tmp).
    """
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & stat.S_ISVTX:
        raise OSError(errno.EPERM, f"{folder} is shared with others: choose a folder in it")
    if found.st_uid != os.geteuid() or not found.st_mode & _OF_OTHERS:
        return
    names = {each.name for each in folder.iterdir()}
    if names - _EMPTY and _LOCK not in names:
        raise OSError(
            errno.EPERM,
            f"{folder} is open to others and has files that are not Muster's: choose a folder in"
            f" it, or run `chmod 700 {folder}`",
        )
    folder.chmod(_PRIVATE_FOLDER)
