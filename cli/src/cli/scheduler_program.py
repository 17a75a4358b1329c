"""The Scheduler's own programs that turn files into others: they need no server.

Each runs in a process of its own, with this one's input and output.
"""

import subprocess
import sys

from cli.client import CommandError, Exit

ENDS = (Exit.OK, Exit.USAGE, Exit.FAILED, Exit.INTERRUPTED)
"""Exit statuses of the programs."""


def run(module: str, options: list[str], *files: str) -> Exit:
    """Run one; ``files`` may begin with a hyphen."""
    # -P: a file in the working directory that is named like a module is not one of ours.
    command = [sys.executable, "-P", "-m", module, *options, "--", *files]
    sys.stdout.flush()
    ended = subprocess.run(command, check=False)
    if ended.returncode not in ENDS:
        message = f"{module} ended with status {ended.returncode}: report it."
        raise CommandError(Exit.FAILED, message)
    return Exit(ended.returncode)
