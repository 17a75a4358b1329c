"""An embedded server (database, broker) kept running: started again on its port when it died."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable

from cli.embedded.process import EmbeddedServerError
from cli.embedded.server import EmbeddedServer
from cli.standalone.processes import PATIENCE, Backoff, Part, Patience, State

POLL_S = 0.2


class ServerRunner:
    """Watches one embedded server that is already started."""

    def __init__(
        self,
        name: str,
        server: EmbeddedServer,
        show: Callable[[str], None],
        patience: Patience = PATIENCE,
    ) -> None:
        self.server = server
        self.part = Part(name, State.READY, server.pid)
        self._show = show
        self._patience = patience
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Start the server again whenever it is gone, until `stop`."""
        backoff = Backoff(self._patience)
        started = time.monotonic()
        while not await self._is_stopping_within(POLL_S):
            if self.server.pid is not None:
                continue
            self.part.restarts += 1
            wait_s = backoff.after(time.monotonic() - started)
            self.part.become(State.WAITING)
            self._show(f"{self.part.name} ended; starts again in {wait_s:.1f} s")
            if await self._is_stopping_within(wait_s):
                break
            started = time.monotonic()
            try:
                self.server.start()
            except (EmbeddedServerError, OSError, subprocess.SubprocessError) as error:
                self._show(f"{self.part.name} can't be started: {error}")
                continue
            self.part.pid = self.server.pid
            self.part.become(State.READY)

    def stop(self) -> None:
        """Stop watching and stop the server."""
        self._stopping.set()
        self.server.stop()
        self.part.pid = None
        self.part.become(State.STOPPED)

    def kill(self) -> None:
        """Stop watching and end the server at once."""
        self._stopping.set()
        self.server.kill()

    async def _is_stopping_within(self, time_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                await self._stopping.wait()
        return self._stopping.is_set()
