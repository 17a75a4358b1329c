"""Whether a container of the kubelet double is ready, by its startup and readiness probes.

Liveness probes are not played.
"""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
from container_shim import RUNNING, Container

Json = dict[str, Any]
NSENTER = "/usr/bin/nsenter"
UNTIL_READY_S = 1.0
"""Between two probes of a container that is not ready yet, at most."""


class Readiness:
    """Of one start of a container: it is ready once its startup probe, and then its readiness
    probe, has passed, until the latter fails `failureThreshold` times.
    """

    def __init__(self, container: Json, directory: Path, address: str) -> None:
        self.is_ready = "readinessProbe" not in container and "startupProbe" not in container
        self._container = container
        self._directory = directory
        self._address = address
        self._is_started = "startupProbe" not in container
        self._failures = 0
        self._due = 0.0

    async def look(self) -> float | None:
        """Ask if it is due; return after how long to look again."""
        probe = self._container.get("readinessProbe" if self._is_started else "startupProbe")
        if probe is None:
            return None
        if time.monotonic() < self._due:
            return self._due - time.monotonic()
        passed = await self._passes(probe)
        self._failures = 0 if passed else self._failures + 1
        if not self._is_started:
            self._is_started = passed
            self.is_ready = passed and "readinessProbe" not in self._container
            period_s = 0.0 if passed else UNTIL_READY_S
        else:
            if passed or self._failures >= probe.get("failureThreshold", 3):
                self.is_ready = passed
            period_s = probe.get("periodSeconds", 10) if self.is_ready else UNTIL_READY_S
        self._due = time.monotonic() + period_s
        return float(period_s)

    async def _passes(self, probe: Json) -> bool:
        with contextlib.suppress(OSError, TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                if "httpGet" in probe:
                    port, path = self._port(probe["httpGet"]["port"]), probe["httpGet"]["path"]
                    url = f"http://{self._address}:{port}{path}"
                    async with aiohttp.ClientSession() as session, session.get(url) as answer:
                        return answer.status < 400
                if "tcpSocket" in probe:
                    port = self._port(probe["tcpSocket"]["port"])
                    _, writer = await asyncio.open_connection(self._address, port)
                    writer.close()
                    return True
                return await self._run(probe["exec"]["command"])
        return False

    def _port(self, given: str | int) -> int:
        named = {each.get("name"): each["containerPort"] for each in self._container["ports"]}
        return int(named.get(given, given))

    async def _run(self, command: list[str]) -> bool:
        """In the container, as its user."""
        pid = json.loads((self._directory / RUNNING).read_text())["pid"]
        inside = Container.read(self._directory)
        as_user = [f"--setuid={inside.uid}", f"--setgid={inside.gid}"]
        process = await asyncio.create_subprocess_exec(
            *[NSENTER, f"--target={pid}", "--mount", "--pid", "--root", "--wd", *as_user],
            *command,
            env=inside.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
