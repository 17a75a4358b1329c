"""What keeps a process and its files private to its user. Linux only."""

import ctypes
import errno
import os
import stat
from pathlib import Path

_PR_SET_DUMPABLE = 4  # linux/prctl.h
_PRIVATE_UMASK = 0o077
_PRIVATE_FOLDER = 0o700


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
    """Makes a folder that its owner alone enters. One that exists and is this user's is closed to
    others. Raises OSError, also for a folder that others share (with the sticky bit, as /tmp).
    """
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & stat.S_ISVTX:
        raise OSError(errno.EPERM, f"{folder} is shared with others: choose a folder in it")
    if found.st_uid == os.geteuid():
        folder.chmod(_PRIVATE_FOLDER)
