"""`muster up` as a process of its own, for tests that kill its parts and for benchmarks.

The client uses plain HTTP/1.1 over kept connections: it must cost little beside what it measures.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.embedded.process import free_port

READY_S = 120.0
STOP_S = 90.0


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


ADMIN_PASSWORD = "a-password-for-tests"


class Http:
    """A few kept connections to REST."""

    def __init__(self, port: int, token: str = "", connections: int = 16) -> None:
        self.port = port
        self.token = token
        self._free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]
        self._free = asyncio.LifoQueue()
        for _ in range(connections):
            self._free.put_nowait(None)

    async def call(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> Answer:
        """One request. Raises OSError where REST is away."""
        kept = await self._free.get()
        try:
            if kept is None or kept[0].at_eof():
                kept = await asyncio.open_connection("127.0.0.1", self.port)
            answer = await self._ask(kept, method, path, body, content_type)
        except BaseException:
            if kept is not None:
                kept[1].close()
            self._free.put_nowait(None)
            raise
        self._free.put_nowait(kept)
        return answer

    async def _ask(
        self,
        kept: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        method: str,
        path: str,
        body: bytes,
        content_type: str,
    ) -> Answer:
        reader, writer = kept
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(30):
            try:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            except asyncio.IncompleteReadError as error:
                raise ConnectionResetError("REST hung up") from error
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            if headers.get("transfer-encoding") == "chunked":
                return Answer(int(lines[0].split()[1]), await _chunks(reader))
            length = int(headers.get("content-length", "0"))
            return Answer(int(lines[0].split()[1]), await reader.readexactly(length))

    async def close(self) -> None:
        """Close all connections."""
        while not self._free.empty():
            kept = self._free.get_nowait()
            if kept is not None:
                kept[1].close()
                with contextlib.suppress(OSError):
                    await kept[1].wait_closed()


async def states_of_jobs(http: Http, most: int) -> dict[str, str]:
    """The state of each job by its name; empty where REST is away or does not know."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        answer = await http.call("GET", f"/api/v2/jobs?limit={most}")
        if answer.status == 200:
            return {item["name"]: item["state"] for item in json.loads(answer.body)}
    return {}


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return body


@dataclass
class Up:
    """A running `muster up` over its own MUSTER_HOME."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    kafka_port: int = field(default_factory=free_port)
    database_port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None
    unready: Sequence[str] = ()
    """Parts that `start` does not wait for."""

    def start(self, *options: str) -> None:
        """Start it and wait until all services are ready. Raises RuntimeError where it ends."""
        self.home.parent.chmod(0o777)  # what tasks share with the test lies there
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment |= {
            "MUSTER_HOME": str(self.home),
            "MUSTER_PORT": str(self.port),
            "MUSTER_KAFKA_PORT": str(self.kafka_port),
            "MUSTER_DATABASE_PORT": str(self.database_port),
            "MUSTER_ADMIN_PASSWORD": ADMIN_PASSWORD,
            "MUSTER_FAKE_GPUS": "8",
            "MUSTER_TASK_PATHS": str(self.home.parent),
        } | self.environment
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.home / "up.out").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli", "up", *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.home / "up.out").read_text()[-4000:])
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        parts = self.status().get("services", {})
        return (
            bool(parts)
            and (self.home / "credentials.json").exists()
            and all(
                part["state"] == "ready" for name, part in parts.items() if name not in self.unready
            )
        )

    def status(self) -> dict[str, Any]:
        """What `muster up` writes of itself; empty before the first time."""
        try:
            found = json.loads((self.home / "running.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return dict(found)

    def pid(self, part: str) -> int | None:
        """The process of a part: rest, launcher, …, or the embedded servers."""
        found = self.status().get("services", {}).get(part, {}).get("pid")
        return int(found) if found else None

    def send(self, part: str, number: signal.Signals) -> bool:
        """Send a signal to a part; whether it was there."""
        pid = self.pid(part)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def account(self, lines: int = 4, characters: int = 300) -> str:
        """Each part's state and last log lines, to explain a failed test."""
        lines_shown = []
        for part, state in self.status().get("services", {}).items():
            lines_shown.append(f"{part}: {state}")
            log = self.home / "log" / f"{part}.log"
            if log.exists():
                last = log.read_text(errors="replace").splitlines()[-lines:]
                lines_shown += [f"    {line[-characters:]}" for line in last]
        return "\n".join(lines_shown)

    def token(self) -> str:
        """The token that `muster up` keeps for the commands on this machine."""
        return str(json.loads((self.home / "credentials.json").read_text())["token"])

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """End it in order; returns its exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise


@contextlib.asynccontextmanager
async def up(home: Path, *options: str, **environment: str) -> AsyncIterator[tuple[Up, Http]]:
    """A running Muster and a logged-in client."""
    one = Up(home, environment)
    one.start(*options)
    http = Http(one.port, one.token())
    try:
        yield one, http
    finally:
        await http.close()
        one.stop()
