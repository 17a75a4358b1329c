"""Debian's Prometheus and promtool: `python real_prometheus.py` fetches them, once.

They lie outside the repository, in a folder for each pin; `muster up --monitoring` looks there.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import debian
import httpx2
from cli.embedded.process import dying_with_me, free_port

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
LOCK = MONITORING / "packages.lock"
READY_S = 60.0
STOP_S = 30.0


class NotFetchedError(RuntimeError):
    """The program is not there yet; the message names the command that fetches it."""


def program(name: str) -> Path:
    """`prometheus`, `promtool` or `prometheus-alertmanager`."""
    path = debian.place_of(LOCK, _cache()) / "usr/bin" / name
    if not path.exists():
        raise NotFetchedError(f"{name} is not there: run `make prometheus`")
    return path


def fetch() -> None:
    """Have both programs, and a link to them that does not change with the pin."""
    place = debian.laid_out(LOCK, _cache())
    link = _cache() / "current"
    if not link.exists() or link.readlink() != Path(place.name):
        new = link.with_name("current.new")
        new.unlink(missing_ok=True)
        new.symlink_to(place.name)
        new.replace(link)


class Prometheus:
    """A running server over a folder with its configuration `prometheus.yml`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self.folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={self.folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
                preexec_fn=dying_with_me(signal.SIGKILL),
            )
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError((self.folder / "prometheus.log").read_text()[-4000:])
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_S)

    def _is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/-/ready", trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """As `asked`, of this server."""
        return asked(self.url, path, **parameters)

    def query(self, query: str) -> list[Any]:
        """The series of an instant query."""
        found = self.ask("query", query=query)["result"]
        return list(found)

    def query_range(self, query: str, start: float, end: float, step_s: float) -> list[Any]:
        """The series of a range query."""
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"}
        return list(self.ask("query_range", query=query, **span)["result"])


def asked(url: str, path: str, **parameters: str) -> Any:
    """The `data` of an answer. Raises AssertionError with Prometheus's words where it refuses."""
    address = f"{url}/api/v1/{path}"
    with httpx2.Client(timeout=30, trust_env=False) as http:
        answer = http.post(address, data=parameters) if parameters else http.get(address)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def check(*words: str | Path) -> None:
    """Run promtool. Raises AssertionError with its output where it fails."""
    done = subprocess.run(
        [program("promtool"), *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/prometheus"


if __name__ == "__main__":
    fetch()
