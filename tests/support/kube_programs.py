"""Builds the programs of the test cluster from pinned Go modules, once: `python kube_programs.py
[PROGRAM…]`.

They are kept outside the repository, in a folder for each set of pins. A build that was cut off
goes on where it was: finished programs stay, and Go's own cache keeps what it compiled. Go itself
comes from a pinned wheel, so that a machine needs only Python.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.embedded.process import dying_with_me

REPOSITORY = Path(__file__).parents[2]
PINS = REPOSITORY / "tests/k8s"
GO_PIN = PINS / "go-requirements.txt"
KUBERNETES = "1.35.4"

_VERSIONS = [
    f"-X {package}.{name}={value}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    for name, value in (("gitVersion", f"v{KUBERNETES}"), ("gitMajor", "1"), ("gitMinor", "35"))
]
FLAGS = ("-p", "2", "-trimpath", "-tags", "notest,grpcnotrace")
LINKING = ("-ldflags", " ".join(["-s", "-w", *_VERSIONS]))


@dataclass(frozen=True)
class Program:
    """A main package and the Go module that pins it."""

    package: str
    module: Path = PINS
    data: str | None = None
    """A folder of the package's module that the program needs."""


PROGRAMS = {
    "etcd": Program("go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Program("k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": Program("k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kubectl": Program("k8s.io/kubernetes/cmd/kubectl"),
    "kubelet": Program("k8s.io/kubernetes/cmd/kubelet"),
    "kwok": Program("sigs.k8s.io/kwok/cmd/kwok", PINS / "kwok", data="kustomize/stage"),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")


class NotBuiltError(RuntimeError):
    """The program is not built yet; the message names the command that builds it."""


def program(name: str) -> Path:
    """A program that was built before; `<program>.data` beside it is its folder of data."""
    path = _place(name)
    if not path.exists():
        raise NotBuiltError(
            f"{name} is not built: run `.venv/bin/python {Path(__file__).relative_to(REPOSITORY)}"
            f" {name}`."
        )
    return path


def build(names: Sequence[str]) -> None:
    """Build the programs that are missing; one build at a time on this machine."""
    missing = [name for name in names if not _place(name).exists()]
    if not missing:
        return
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Another build runs on this machine; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in names if not _place(name).exists()]
        shutil.rmtree(_work(), ignore_errors=True)  # of a build that was cut off
        _work().mkdir()
        go = _go()
        for number, name in enumerate(missing, start=1):
            _say(f"Building {name} ({number} of {len(missing)}) from {PROGRAMS[name].package}")
            started = time.monotonic()
            _build(go, name)
            _say(f"Built {name} in {time.monotonic() - started:.0f} s")


def _build(go: Path, name: str) -> None:
    what, place = PROGRAMS[name], _place(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f"{name}.new")
    _run([go, "build", *FLAGS, *LINKING, "-o", unfinished, what.package], what.module)
    if what.data is not None:
        source = _run([go, "list", "-f", "{{.Module.Dir}}", what.package], what.module)
        link = place.with_name(f"{name}.data")
        _run(["cp", "-rT", Path(source) / what.data, link], what.module)
    unfinished.replace(place)


def _go() -> Path:
    """The Go compiler, installed now if it is missing."""
    place = _cache() / f"go-{_digest(GO_PIN.read_bytes())}"
    if not place.exists():
        _say("Installing Go")
        unfinished = place.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        uv = REPOSITORY / ".uv/bin/uv"
        exactly = ("--quiet", "--require-hashes", "--python", sys.executable, "-r", str(GO_PIN))
        _run([uv, "pip", "install", "--target", unfinished, *exactly], REPOSITORY)
        unfinished.rename(place)
    return place / "go/bin/go"


def _run(command: Sequence[str | Path], folder: Path) -> str:
    ours = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    place = {"GOTMPDIR": str(_work())}
    environment = {k: v for k, v in os.environ.items() if k != "GOROOT"} | ours | place
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=dying_with_me(signal.SIGTERM),
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command[:2]))} failed: its reason is above")
    return done.stdout.strip()


def _place(name: str) -> Path:
    module = PROGRAMS[name].module
    pins = [(module / "go.mod").read_bytes(), (module / "go.sum").read_bytes(), GO_PIN.read_bytes()]
    return _cache() / _digest(*pins, " ".join([*FLAGS, *LINKING]).encode()) / name


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/kube"


def _work() -> Path:
    """Where Go links programs; it leaves them there when it is killed."""
    return _cache() / "work"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    build(sys.argv[1:] or CONTROL_PLANE)
