"""The files of the image `muster-step`, gathered once for this machine (see its `gather`)."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

STEP = Path(__file__).parents[2] / "services/runtime-agent/step"
GATHER_TIMEOUT_S = 300
COPY = ["/bin/busybox", "cp", "-R", "/bin", "/muster/"]
"""What the init container runs."""
BEGIN = ["/muster/bin/tini", "-g", "--", "/muster/bin/sh", "/muster/bin/begin"]
"""What the main container runs."""


@cache
def step_image() -> Path:
    """The image's root directory. It needs apt, for two small packages of Debian."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/step"
    sources = b"\0".join((STEP / name).read_bytes() for name in ("gather", "begin"))
    place = cached / hashlib.sha256(sources).hexdigest()[:16]
    cached.mkdir(parents=True, exist_ok=True)
    with (cached / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            subprocess.run([STEP / "gather", unfinished], check=True, timeout=GATHER_TIMEOUT_S)
            unfinished.rename(place)
    return place
