"""A service as a child process that is started again, with back-off, whenever it ends or hangs.

Each child has its own session, so a terminal's Ctrl-C reaches only `muster up`, which then decides
the order. Children write their logs themselves, and so need no reader.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cli.embedded.process import dying_with_me

HEALTH_TIMEOUT_S = 2.0
READY_POLL_S = 0.1
HEALTH_POLL_S = 2.0


class State(StrEnum):
    """What a part is doing, as people see it."""

    STARTING = "starting"
    READY = "ready"
    UNREADY = "not ready"
    WAITING = "starts again soon"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Patience:
    """Times in seconds. A part that ran for `steady_s` starts again after `first_s`; the wait
    doubles up to `longest_s`. One that has not answered for `hung_s` that it is healthy, or for
    `starting_s` after its start, is killed.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    steady_s: float = 60.0
    hung_s: float = 60.0
    starting_s: float = 300.0


PATIENCE = Patience()


@dataclass(frozen=True)
class Program:
    """How to run a service; `port` is where it answers whether it is healthy, and ready."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    log: Path
    stop_grace_s: float = 15.0
    signal_if_orphaned: signal.Signals = signal.SIGTERM
    healthy: str = "/healthz"
    ready: str = "/readyz"


@dataclass
class Part:
    """One part of the running whole, as the screen and the state show it."""

    name: str
    state: State = State.STARTING
    pid: int | None = None
    restarts: int = 0
    note: str = ""
    since: float = field(default_factory=time.monotonic)

    def become(self, state: State, note: str = "") -> None:
        """Enter a state; the time in it starts anew if it is another one."""
        if state is not self.state:
            self.since = time.monotonic()
        self.state, self.note = state, note


class Backoff:
    """How long to wait before the next start."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._next_s = patience.first_s

    def after(self, ran_s: float) -> float:
        """The wait after a run of this length."""
        if ran_s >= self._patience.steady_s:
            self._next_s = self._patience.first_s
        wait_s = self._next_s
        self._next_s = min(self._patience.longest_s, wait_s * 2)
        return wait_s


class ServiceProcess:
    """Keeps one service running until it is asked to stop."""

    def __init__(
        self, program: Program, show: Callable[[str], None], patience: Patience = PATIENCE
    ) -> None:
        self.program = program
        self.part = Part(program.name)
        self._show = show
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Start the service again and again; returns when it ended after `stop` or `kill`."""
        backoff = Backoff(self._patience)
        while not self._stopping.is_set():
            started = time.monotonic()
            ending = await self._run_once()
            if self._stopping.is_set():
                break
            wait_s = backoff.after(time.monotonic() - started)
            self.part.restarts += 1
            self.part.become(State.WAITING, ending)
            self._show(
                f"{self.program.name} {ending}; starts again in {wait_s:.1f} s "
                f"(its log: {self.program.log})"
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()
        self.part.become(State.STOPPED)

    async def _run_once(self) -> str:
        """Start the service and wait for its end; how it ended."""
        try:
            process = await self._spawn()
        except OSError as error:  # no memory, no space for its log
            return f"can't be started ({error})"
        if self._stopping.is_set():  # a stop came before there was a process to ask
            _send(process, signal.SIGKILL)
        watch = asyncio.create_task(self._watch(process))
        try:
            status = await process.wait()
        finally:
            watch.cancel()
            self.part.pid = None
            self.ready.clear()
        return _ending(status)

    async def stop(self) -> None:
        """Ask the service to end, kill it after its grace."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.part.note = "stopping"
        _send(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(self.program.stop_grace_s):
                await process.wait()
        except TimeoutError:
            self._show(
                f"{self.program.name} did not end within {self.program.stop_grace_s:.0f} s: killed"
            )
            _send(process, signal.SIGKILL)
            await process.wait()

    def kill(self) -> None:
        """End the service at once, for good."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            _send(self._process, signal.SIGKILL)

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.part.become(State.STARTING)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(self.program.log, flags, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.program.environment),
                start_new_session=True,
                preexec_fn=dying_with_me(self.program.signal_if_orphaned),
            )
        finally:
            os.close(log)
        self.part.pid = self._process.pid
        return self._process

    def _note_readiness(self, is_ready: bool) -> None:
        self.part.become(State.READY if is_ready else State.UNREADY)
        (self.ready.set if is_ready else self.ready.clear)()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Follow the health of one run; kill it when it hangs."""
        answered_at, patience_s = time.monotonic(), self._patience.starting_s
        while process.returncode is None and not self._stopping.is_set():
            if await answers(self.program.port, self.program.ready):
                answered_at, patience_s = time.monotonic(), self._patience.hung_s
                self._note_readiness(True)
            elif await answers(self.program.port, self.program.healthy):
                answered_at, patience_s = time.monotonic(), self._patience.hung_s
                self._note_readiness(False)
            elif self.part.state is State.READY:
                self._note_readiness(False)
            if time.monotonic() - answered_at > patience_s:
                self._show(f"{self.program.name} has not answered for {patience_s:.0f} s")
                _send(process, signal.SIGKILL)
                return
            ready_now = self.part.state is State.READY
            await asyncio.sleep(HEALTH_POLL_S if ready_now else READY_POLL_S)


async def answers(port: int, path: str) -> bool:
    """Whether 127.0.0.1:port answers 200 for a path."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
        return False


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
