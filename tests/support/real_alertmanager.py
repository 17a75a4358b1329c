"""Debian's Alertmanager, which `make prometheus` fetches."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml
from cli.embedded.process import dying_with_me, free_port
from plain_http import NO_TLS
from real_prometheus import program

ENCLOSED = 'mount --bind "$0/usr/share" /usr/share && exec "$@"'
"""Debian's program reads its templates there and nowhere else."""


@asynccontextmanager
async def running_alertmanager(
    folder: Path, config: Mapping[str, Any], port: int | None = None
) -> AsyncIterator[tuple[httpx2.AsyncClient, int]]:
    """A client of it, and its process. ``folder``: of its data."""
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{port or free_port()}"
    binary = program("prometheus-alertmanager")
    command = [
        *("unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])),
        *("sh", "-c", ENCLOSED, str(binary.parents[2]), str(binary)),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
            command, stdout=log, stderr=log, preexec_fn=dying_with_me(signal.SIGKILL)
        )
    try:
        url = f"http://{address}"
        async with httpx2.AsyncClient(base_url=url, timeout=30, verify=NO_TLS) as client:
            async with asyncio.timeout(60):
                while not await _is_ready(client):
                    assert process.poll() is None, (folder / "log").read_text()
                    await asyncio.sleep(0.05)
            yield client, process.pid
    finally:
        process.terminate()
        process.wait(30)


async def _is_ready(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).status_code == 200
    except httpx2.HTTPError:
        return False
