"""Asks the nursery, a small process beside the agent, to fork a supervisor for a pod.

An ask may be lost when the nursery dies; the pod's directory then still says "prepared", and the
ask is repeated. Two asks are as good as one: the second supervisor finds the lock taken.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

CLOSE_TIMEOUT_S = 1.0


class Nursery:
    """Starts the process when it is first needed, and again after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, directory: Path) -> None:
        """Has a supervisor forked for the pod. Raises OSError where no process can be started."""
        line = os.fsencode(directory) + b"\n"
        if self._process is None or not self._send(self._process, line):
            self.close()
            self._process = self._open()
            if not self._send(self._process, line):
                raise OSError("the nursery of supervisors ended at once; see the agent's output")

    @staticmethod
    def _open() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "runtime_agent.supervisor", "--nursery"],
            stdin=subprocess.PIPE,
            env={"PATH": os.defpath},  # pods can read it in /proc: nothing secret goes there
            start_new_session=True,
            bufsize=0,
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    @staticmethod
    def _send(process: subprocess.Popen[bytes], line: bytes) -> bool:
        assert process.stdin is not None
        try:
            return process.poll() is None and process.stdin.write(line) == len(line)
        except OSError:
            return False

    @property
    def pid(self) -> int | None:
        """Of the nursery, None before the first start."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Lets the nursery end, or ends it; the supervisors stay."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=CLOSE_TIMEOUT_S)
        self._process = None
