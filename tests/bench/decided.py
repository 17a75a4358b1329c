"""What the core makes of W2: `python tests/bench/decided.py NODES ARRIVALS` prints which core it
was, plain or compiled, and a SHA-256 of all places and counts on the way.
"""

import hashlib
import sys

import w2_run
from rich.console import Console
from scheduler.domain.core import cycle

STEP = 100
"""Arrivals between two looks."""


def which_core() -> str:
    """Plain, or compiled (`make compiled`)."""
    return "plain" if cycle.__file__.endswith(".py") else "compiled"


def main() -> None:
    nodes, arrivals = map(int, sys.argv[1:])
    digest = hashlib.sha256()
    run = w2_run.start(nodes, arrivals)
    while run.next_event is not None:
        run.advance(STEP)
        busy = run.busy
        seen = busy.books.places.items(), busy.said.items(), busy.codes.items()
        digest.update(repr([sorted(each) for each in seen]).encode())
    Console().print(which_core(), digest.hexdigest())


if __name__ == "__main__":
    main()
