"""`python -I -m runtime_agent.supervisor <pod directory>`, or `--fork-server` to fork many."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime_agent.supervisor import fork_server, run


def main() -> int:
    """The exit status of the process."""
    if len(sys.argv) != 2:
        usage = "python -I -m runtime_agent.supervisor <pod directory>|--fork-server"
        sys.stderr.write(f"usage: {usage}\n")
        return 2
    if sys.argv[1] == "--fork-server":
        return fork_server.serve()
    directory = Path(sys.argv[1]).resolve()
    if os.getpgrp() != os.getpid():
        os.setsid()
    fork_server.redirect(directory)
    return run.supervise(directory)


if __name__ == "__main__":
    sys.exit(main())
