"""The files of the image `muster-step`, which a job's pod copies into its volume: tini, busybox and
the script `begin`.
"""

from __future__ import annotations

from pathlib import Path

import debian
from files import File, Link, Tree

HERE = Path(__file__).parent
LOCK = HERE / "packages.lock"
BEGIN = HERE.parent.parent / "services/runtime-agent/step/begin"
PACKAGES = ("tini", "busybox-static")
PROGRAMS = {"tini": "usr/bin/tini-static", "busybox": "usr/bin/busybox"}
COPY = ["/bin/busybox", "cp", "-R", "/bin", "/muster/"]
"""What the image runs."""


def step_files(cache: Path) -> Tree:
    """The tree, from packages that are downloaded into a folder."""
    unpacked = debian.unpacked(LOCK, PACKAGES, cache)
    tree: Tree = {f"bin/{name}": unpacked[path] for name, path in PROGRAMS.items()}
    tree["bin/sh"] = Link("busybox")
    tree["bin/begin"] = File(BEGIN.read_bytes(), 0o755)
    return tree | {path: entry for path, entry in unpacked.items() if path.endswith("/copyright")}
