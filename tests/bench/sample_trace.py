"""A made-up pod list in the form of Alibaba's cluster-trace-gpu-v2023, the same for everybody.

    python tests/bench/sample_trace.py > examples/trace/sample.csv

Nothing of the real list is in it: shapes, shares and run times are drawn by lot, for a day of
arrivals with a slow night; then runs are stretched so that all GPUs of its `cluster.yaml`
would be used to `LOAD` over the day if nobody ever waited.
"""

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SEED = 20230401
PODS = 2_000
DAY_S = 86_400
FIRST_S = 1_000_000
"""The list's clock begins somewhere."""
GPUS = 144
LOAD = 0.95
LONGEST = 4.0
"""Most of a run, in the unit of the lot, before it is stretched."""
NIGHT = 0.6
"""How much fewer come at night than on average."""

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
SHAPES = (
    ((2_000, 8_192, 0, 0), 4),
    ((16_000, 65_536, 0, 0), 8),
    ((4_000, 16_384, 1, 100), 8),
    ((5_000, 20_480, 1, 250), 16),
    ((7_500, 30_720, 1, 500), 16),
    ((6_000, 24_576, 1, 1_000), 16),
    ((10_000, 49_152, 1, 1_000), 18),
    ((20_000, 65_536, 2, 1_000), 6),
    ((32_000, 131_072, 4, 1_000), 5),
    ((64_000, 245_760, 8, 1_000), 3),
)
"""CPU, memory, GPUs and thousandths of each; and how often."""
TYPES = (
    ("", 66),
    ("G2", 9),
    ("T4", 7),
    ("P100", 3),
    ("V100M32", 2),
    ("V100M16|V100M32", 6),
    ("P100|T4", 3),
    ("G2|T4|V100M16|V100M32", 4),
)
LARGE_TYPES = (("", 60), ("G2", 30), ("V100M16|V100M32", 10))
"""Of pods with more GPUs than all nodes have."""
CLASSES = (("LS", 38), ("BE", 46), ("Burstable", 12), ("Guaranteed", 4))
ENDS = (("Succeeded", 50), ("Running", 32), ("Failed", 15), ("Pending", 3))


@dataclass(slots=True)
class Pod:
    """A row; times are seconds."""

    shape: tuple[int, int, int, int]
    types: str
    qos: str
    phase: str
    created: int
    waited: int
    run: float

    @property
    def demand(self) -> float:
        """GPU-seconds, of whole GPUs."""
        return 0 if self.phase == "Pending" else self.shape[2] * self.run


def pods() -> list[Pod]:
    """All rows, as they arrive."""
    rng = random.Random(SEED)
    made = [_pod(rng, created) for created in _arrivals(rng)]
    stretch = LOAD * GPUS * DAY_S / sum(pod.demand for pod in made)
    for pod in made:
        pod.run *= stretch
    return made


def _pod(rng: random.Random, created: int) -> Pod:
    shape = _drawn(rng, SHAPES)
    types = _drawn(rng, LARGE_TYPES if shape[2] > 2 else TYPES) if shape[2] else ""
    phase = _drawn(rng, ENDS)
    waited = int(rng.expovariate(1 / (60 if phase == "Pending" else 4)))
    run = min(rng.lognormvariate(-0.72, 1.2), LONGEST)
    return Pod(shape, types, _drawn(rng, CLASSES), phase, created, waited, run)


def _arrivals(rng: random.Random) -> list[int]:
    """Fewer come at night: as often as the height of a cosine, which is drawn by rejection."""
    arrivals: list[int] = []
    while len(arrivals) < PODS:
        day = rng.random()
        if rng.random() * (1 + NIGHT) < 1 - NIGHT * math.cos(2 * math.pi * day):
            arrivals.append(FIRST_S + int(day * DAY_S))
    return sorted(arrivals)


def _drawn(rng: random.Random, choices: Sequence[tuple[T, int]]) -> T:
    [found] = rng.choices([each for each, _ in choices], [weight for _, weight in choices])
    return found


def lines() -> Iterator[str]:
    """The list."""
    yield HEADER
    for number, pod in enumerate(pods()):
        started = pod.created + pod.waited
        is_pending = pod.phase == "Pending"
        ended = started if is_pending else started + max(1, round(pod.run))
        cpu, memory, gpus, milli = pod.shape
        cells = (
            *(f"sample-pod-{number:04d}", cpu, memory, gpus, milli, pod.types, pod.qos),
            *(pod.phase, pod.created, ended, "" if is_pending else started),
        )
        yield ",".join(str(cell) for cell in cells)


if __name__ == "__main__":
    sys.stdout.writelines(line + "\n" for line in lines())
