"""What all embedded servers have in common: a child process on a port of 127.0.0.1 that is started,
stopped, killed and used in a `with` block, and that never outlives its parent.
"""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self

from cli.embedded.process import end, free_port

LOG_KEPT_BYTES = 8 << 20


class EmbeddedServer(ABC):
    """One server. The port stays the same from start to start; no port given means a free one."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    stop_timeout_s: ClassVar[float] = 30.0

    def __init__(self, port: int | None) -> None:
        self.port = port if port is not None else free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @abstractmethod
    def start(self) -> None:
        """Start the server; returns when it serves.

        Raises EmbeddedServerError where it can't, with the place and the fix.
        """

    def stop(self) -> None:
        """Stop the server cleanly. Harmless if it is down."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server at once, as an accident would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end(process, number, self.stop_timeout_s)
        if process.stdout is not None:
            process.stdout.close()


class EmbeddedKafka(EmbeddedServer):
    """A server with Kafka's protocol."""

    @property
    def bootstrap(self) -> str:
        """What Kafka's clients call the address."""
        return self.address


def open_log(path: Path) -> IO[bytes]:
    """A private log to append to; a large one of earlier runs is put aside first."""
    if path.exists() and path.stat().st_size > LOG_KEPT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
