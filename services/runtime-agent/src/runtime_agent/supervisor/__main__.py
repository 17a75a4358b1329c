"""`python -I -m runtime_agent.supervisor <pod directory>`, or `--fork-server` to fork many of them.

`--separate <uid>` tries whether a pod could be separated, and ends with 3 and the reason if not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime_agent.supervisor import fork_server, isolation, run


def main() -> int:
    """The exit status of the process."""
    match sys.argv[1:]:
        case ["--fork-server"]:
            return fork_server.serve()
        case ["--separate", uid]:
            return isolation.attempt(int(uid))
        case [name]:
            directory = Path(name).resolve()
            if os.getpgrp() != os.getpid():
                os.setsid()
            fork_server.redirect(directory)
            return run.supervise(directory)
        case _:
            sys.stderr.write(f"usage: {__doc__}\n")
            return 2


if __name__ == "__main__":
    sys.exit(main())
