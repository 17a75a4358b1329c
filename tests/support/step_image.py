"""The image `muster-step`, made once for this machine of Debian's static tini and busybox."""

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kubelet_double import Image

SCRIPT = Path(__file__).parents[2] / "services/runtime-agent/step/begin"
PACKAGES = ("tini", "busybox-static")
PROGRAMS = {"tini": "usr/bin/tini-static", "busybox": "bin/busybox"}
APT_TIMEOUT_S = 300
COPY = ["/bin/busybox", "cp", "-dR", "/bin", "/muster/"]
BEGIN = ["/muster/bin/tini", "-g", "--", "/muster/bin/sh", "/muster/bin/begin"]
"""What the main container runs."""


@cache
def step_image() -> Image:
    """For `Settings.images`. The first call on a machine needs apt, but no root."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/step"
    cached.mkdir(parents=True, exist_ok=True)
    with (cached / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cached / "root/bin/begin").exists():
            _gather(cached / "root/bin")
        shutil.copy(SCRIPT, cached / "root/bin/begin.new")
        (cached / "root/bin/begin.new").replace(cached / "root/bin/begin")
    return Image(root=str(cached / "root"), entry_point=COPY, user=65532)


def _gather(to: Path) -> None:
    """apt verifies the packages. Its lists are its own here: a machine's may be old or missing."""
    to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as work:
        for folder in ("lists/partial", "cache/archives/partial"):
            Path(work, folder).mkdir(parents=True)
        options = [f"Dir::State::Lists={work}/lists", f"Dir::Cache={work}/cache"]
        apt = [
            "apt-get",
            "-qq",
            "-o",
            "APT::Sandbox::User=",
            *(w for o in options for w in ("-o", o)),
        ]
        _run(work, *apt, "update")
        _run(work, *apt, "download", *PACKAGES)
        for package in Path(work).glob("*.deb"):
            _run(work, "dpkg-deb", "-x", str(package), "files")
        for name, path in PROGRAMS.items():
            shutil.copy(Path(work, "files", path), to / name)
    (to / "sh").unlink(missing_ok=True)
    (to / "sh").symlink_to("busybox")


def _run(where: str, *command: str) -> None:
    subprocess.run(command, cwd=where, check=True, timeout=APT_TIMEOUT_S)
