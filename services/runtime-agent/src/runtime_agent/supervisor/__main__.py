"""`python -I -m runtime_agent.supervisor <pod directory>`, or `--nursery` to fork many of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime_agent.supervisor import nursery, run


def main() -> int:
    """The exit status of the process."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -I -m runtime_agent.supervisor <pod directory>|--nursery\n")
        return 2
    if sys.argv[1] == "--nursery":
        return nursery.tend()
    directory = Path(sys.argv[1]).resolve()
    if os.getpgrp() != os.getpid():
        os.setsid()
    nursery.redirect(directory)
    return run.supervise(directory)


if __name__ == "__main__":
    sys.exit(main())
