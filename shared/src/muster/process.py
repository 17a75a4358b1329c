"""A process's own settings in the kernel. Linux only."""

import ctypes
import os

_PR_SET_DUMPABLE = 4  # linux/prctl.h


def hide_memory() -> None:
    """Other processes of the same user can't read this one's environment and memory any more, nor
    trace it; it leaves no core file. Processes that it starts are not hidden. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(), f"prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}"
        )
