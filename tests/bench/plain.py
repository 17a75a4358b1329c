"""The plain oracle, a scheduler straight from the definitions, on the first gangs of W1 beside the
core.

It has no index and is in no hurry: what it needs for a gang is what the core's indexes save.
"""

import sys
import time
from pathlib import Path

from clusters import in_quarters
from meter import Meter, loop_ns
from w1 import stream
from w1_run import Run, start, start_with

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulation"))
from oracle.slow import SlowCluster

NODES = 128
GANGS = 250
"""The fill and some steady ones."""
LIMIT_S = 20.0


def beside_the_core() -> tuple[Meter, Meter]:
    """The costs of the oracle and of the core on the same gangs, as many as it can in the time."""
    slow = SlowCluster(in_quarters(NODES))
    plain = _through(start_with(slow, slow.decide, NODES, stream(NODES, GANGS)), GANGS)
    count = len(plain.walls)
    return plain, _through(start(NODES, GANGS), count)


def _through(run: Run, gangs: int) -> Meter:
    until = time.process_time() + LIMIT_S
    for _ in range(gangs):
        if time.process_time() > until:
            break
        run.advance(1)
    meter = Meter()
    for part in (run.fill, run.steady):
        part.slice_ends(loop_ns())
        meter.join(part)
    return meter
