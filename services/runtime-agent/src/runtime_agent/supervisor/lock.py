"""The lock that makes a pod's directory belong to one living supervisor.

A POSIX record lock: the kernel drops it when its process ends in any way. Children do not inherit
it, and other processes can look up the holder without taking the lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

# struct flock on 64-bit Linux: short type, short whence, off_t start, off_t length, pid_t pid.
_FLOCK = struct.Struct("hhqqi4x")


def take(path: Path) -> int | None:
    """The descriptor that holds the lock, or None where another process does.

    The process must not open the file a second time: closing any descriptor of it frees the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    return descriptor


def holder(path: Path) -> int | None:
    """The process id of the living holder, or None where the lock is free or there is no file.

    It is not above 0 where the kernel can't tell: a holder in another PID namespace, on another
    machine, or by a lock of another kind.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else int(pid)
