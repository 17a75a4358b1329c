"""What the embedded servers share about processes: free ports, dying with the parent, ending a
child.

Linux only, as it uses prctl and /proc.
"""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LEFTOVER_POLL_S = 0.01
SERVER_PORTS = range(10000, 20000)
PORT_TRIES = 100
_given: deque[int] = deque(maxlen=100)
"""The last ports: their servers may not listen yet."""

_libc = ctypes.CDLL(None, use_errno=True)


class EmbeddedServerError(RuntimeError):
    """An embedded server can't be started; the message has the place and the fix."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that no process holds now, nor gets by chance; not a recent one.

    The kernel gives outgoing connections ports of its own choice (from 32768 on, on Linux). A
    server on one of those could not come back after a crash if a connection had got its port
    meanwhile, for as long as that lasts. Pods get theirs from 20000 on.
    """
    for _ in range(PORT_TRIES):
        port = random.choice(SERVER_PORTS)  # noqa: S311  no secret
        if port not in _given and is_port_free(port, is_new=True):
            _given.append(port)
            return port
    raise EmbeddedServerError(
        f"No port between {SERVER_PORTS[0]} and {SERVER_PORTS[-1]} of 127.0.0.1 is free."
    )


def is_port_free(port: int, *, is_new: bool = False) -> bool:
    """Whether a server could listen on 127.0.0.1:port now. ``is_new``: and no process has bound the
    port without listening yet, or has just left it.
    """
    with socket.socket() as probe:
        if not is_new:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def die_with_parent(parent: int, signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends.

    `parent` is the starter's pid: if it is gone already, nobody would send the signal any more.
    """
    if _libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def dying_with_me(signal_number: int) -> Callable[[], None]:
    """A `preexec_fn` for children that must not outlive this process."""
    parent = os.getpid()
    return lambda: die_with_parent(parent, signal_number)


def end(process: "subprocess.Popen[bytes]", signal_number: int, grace_s: float) -> int:
    """Ask a child to end, kill it after the grace; its exit status."""
    if process.poll() is None:
        process.send_signal(signal_number)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait(grace_s)


def is_alive(pid: int | None) -> bool:
    """Whether a process of this number exists."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def standing_in(folder: Path, program: str) -> list[int]:
    """The processes of a program whose working directory is this folder, as far as we may see."""
    wanted = folder.stat()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            there = (entry / "cwd").stat()
            name = (entry / "exe").readlink().name
        except OSError:
            continue  # ended meanwhile, or another user's
        if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino) and name == program:
            found.append(int(entry.name))
    return sorted(found)


def end_leftovers(folder: Path, program: str, number: signal.Signals, grace_s: float) -> None:
    """End what a killed owner left running in this folder; after the grace by SIGKILL.

    Pid files are not trusted: their number may be another process's by now.
    """
    polite_until = time.monotonic() + grace_s
    asked: set[int] = set()
    while leftovers := standing_in(folder, program):
        late = time.monotonic() - polite_until
        if late > grace_s:
            raise EmbeddedServerError(f"Processes {leftovers} still use {folder}: end them first.")
        for pid in leftovers:
            if late > 0 or pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late > 0 else number)
        asked.update(leftovers)
        time.sleep(LEFTOVER_POLL_S)
