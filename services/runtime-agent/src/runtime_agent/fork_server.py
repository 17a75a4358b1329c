"""Asks the fork server, a small process beside the agent, to fork a supervisor for a pod.

A fork server that dies loses the request. The pod's phase is still "prepared", so the agent repeats
the request. That is harmless: the second supervisor finds the lock taken.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

CLOSE_TIMEOUT_S = 1.0


class ForkServer:
    """Starts the process when it is first needed, and again after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, directory: Path) -> None:
        """Fork a supervisor for the pod. Raises OSError if no process can be started."""
        line = os.fsencode(directory) + b"\n"
        if self._process is None or not self._send(self._process, line):
            self.close()
            self._process = self._open()
            if not self._send(self._process, line):
                raise OSError("the fork server ended at once; see the agent's output")

    @staticmethod
    def _open() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "runtime_agent.supervisor", "--fork-server"],
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
        """Process id of the fork server; None before its first start."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the fork server, by force after a second; the supervisors stay."""
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
