"""The image `muster-step` as `make images` makes it, unpacked once for this machine."""

import fcntl
import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

from files import write
from kubelet_double import Image
from step import BEGIN as SCRIPT
from step import COPY, LOCK, step_files

BEGIN = ["/muster/bin/tini", "-g", "--", "/muster/bin/sh", "/muster/bin/begin"]
"""What the main container runs."""


@cache
def step_image() -> Image:
    """For `Settings.images`. The first call on a machine needs apt, but no root."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/step"
    cached.mkdir(parents=True, exist_ok=True)
    # The script counts too: other checkouts on this machine may have another one.
    root = cached / hashlib.sha256(LOCK.read_bytes() + SCRIPT.read_bytes()).hexdigest()[:16]
    with (cached / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            unfinished = root.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            write(step_files(cached / "packages"), unfinished)
            unfinished.rename(root)
    return Image(root=str(root), entry_point=COPY, user=65532)
