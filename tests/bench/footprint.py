"""Start-up time and memory of one cluster: run as a process of its own, so that only it is weighed.

Memory is what the process holds (resident set) above what it held with everything imported and the
configuration made: with the cluster built, and when W1 has filled it; the stream is made as it goes
and not kept.
"""

import gc
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from clusters import in_quarters
from meter import rss_mb
from scheduler.domain.core.model import Placed
from scheduler.domain.cores import core_of
from w1 import Arrival, stream
from w1_run import gang_of

LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """``start_cpu_s``: of building the cluster from its configuration. ``filled_mb``: with
    ``gangs`` running.
    """

    start_cpu_s: float
    built_mb: float
    filled_mb: float
    gangs: int


def weigh(nodes: int) -> Footprint:
    config = in_quarters(nodes)
    gc.collect()
    before = rss_mb()
    started = time.process_time()
    core = core_of(config)
    start_cpu_s = time.process_time() - started
    gc.collect()
    built, gangs = rss_mb(), 0
    for event in stream(nodes, 0):
        assert isinstance(event, Arrival)
        gang = gang_of(event)
        core.request(gang)
        gangs += any(isinstance(each, Placed) for each in core.cycle(gang.submitted_at))
    gc.collect()
    return Footprint(start_cpu_s, built - before, rss_mb() - before, gangs)


def footprint(nodes: int) -> Footprint:
    """The same, in a new process."""
    answer = subprocess.run(
        [sys.executable, str(Path(__file__)), str(nodes)],
        capture_output=True,
        check=True,
        text=True,
        timeout=LIMIT_S,
    )
    return Footprint(**json.loads(answer.stdout))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(weigh(int(sys.argv[1])))))
