"""The command `muster`, as people and pipes see it."""

import os
import subprocess
import sys
from pathlib import Path

from forked_muster import Ran, run_forked

TIMEOUT_S = 300
"""A simulation of 10 s took more than 60 on a machine that others used, too."""


def muster(*arguments: str | Path, given: bytes | None = None) -> Ran:
    """Run it to its end; ``given``: what comes in by a pipe."""
    return run_forked([*map(str, arguments)], given=given, timeout_s=TIMEOUT_S)


def started_muster(*arguments: str | Path, given: bytes | None = None) -> Ran:
    """The same, as a program of its own."""
    return subprocess.run(
        _command(arguments),
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def unread_muster(*arguments: str | Path) -> Ran:
    """Run it where nobody reads what it prints."""
    gone, out = os.pipe()
    os.close(gone)
    with os.fdopen(out, "wb") as closed:
        return subprocess.run(
            _command(arguments),
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )


def _command(arguments: tuple[str | Path, ...]) -> list[str]:
    return [sys.executable, "-m", "cli", *map(str, arguments)]
