"""Gangs for the experiment on the scheduler's judgement: a stream like W1's with run times, drawn
by a seed, and the example of the trace importer.

Sizes and their shares are W1's. Beside these: few users that ask for most, run times over four
orders of magnitude, limits that are too long, as people choose them, and estimates that are often
wrong, and wrong either way.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from clusters import in_quarters
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.model import GangFile, GangRequested, Pods
from scheduler.domain.trace.csv_rows import Rows
from scheduler.domain.trace.gangs import import_rows
from scheduler.domain.trace.mapping_file import read_mapping
from w1 import GPUS_PER_NODE, VIRTUAL_CLUSTERS, drawn_size, shape

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
NODES = 32
LARGE = 32
LOAD = 0.95
"""Of all GPUs by guaranteed gangs, if nobody ever waited."""
SPARE = 0.1
"""By opportunistic ones of one GPU, beside that."""
DAYS = 4
MEDIAN_S, SIGMA = 0.5 * HOUR_S, 1.5
"""Of the run times' log-normal distribution."""
SHORTEST_S, LONGEST_S = 60.0, 2 * DAY_S
USERS = tuple(accumulate(1 / number for number in range(1, 9)))
"""Of each virtual cluster eight: how much the first so many ask for (Zipf)."""
URGENT = 0.1
"""Gangs of a higher priority."""
SILENT = 0.3
"""Gangs without an estimate of their run time."""
ESTIMATE_SIGMA = 0.4
"""Of the log-normal factor by which estimates are wrong."""
LIMITS = (1.2, 5.0)
"""By what limits are longer than the runs, evenly drawn."""
FEWEST = 4
"""Elastic gangs can do with one part in so many of their pods."""
SAVES_S = 0.5 * HOUR_S
SAVING = 0.6
"""Gangs that save their work, as often as that."""

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace"


@dataclass(frozen=True, slots=True)
class Work:
    """Gangs for a cluster. ``large``: GPUs of a large gang, at the least."""

    name: str
    cluster: ClusterConfig
    asked: Sequence[GangRequested]
    large: int


def stream(seed: int, nodes: int = NODES, days: int = DAYS) -> Work:
    """Four virtual clusters with a quarter of the racks each."""
    gpus = nodes * GPUS_PER_NODE
    rng = random.Random(f"judgement {seed}")
    drawn = [
        *_drawn(rng, LOAD * gpus, days, is_spare=False),
        *_drawn(rng, SPARE * gpus, days, is_spare=True),
    ]
    asked = sorted(drawn, key=lambda each: (each.at, each.file.gang.id))
    return Work("W1-like", in_quarters(nodes), asked, LARGE)


def _drawn(
    rng: random.Random, load_gpus: float, days: int, *, is_spare: bool
) -> Iterator[GangRequested]:
    left_gpu_s, number = load_gpus * days * DAY_S, 0
    while left_gpu_s > 0:
        gpus = 1 if is_spare else drawn_size(rng)
        run_s = rng.lognormvariate(0.0, SIGMA) * MEDIAN_S
        run_s = float(round(min(LONGEST_S, max(SHORTEST_S, run_s))))
        at = float(round(rng.uniform(0.0, days * DAY_S)))
        yield _request(rng, at, number, (gpus, run_s), is_spare=is_spare)
        left_gpu_s -= gpus * run_s
        number += 1


def _request(
    rng: random.Random, at: float, number: int, size: tuple[int, float], *, is_spare: bool
) -> GangRequested:
    gpus, run_s = size
    pods = Pods("w", *shape_of(gpus))
    estimate_s = run_s * rng.lognormvariate(0.0, ESTIMATE_SIGMA)
    owner = rng.choice(VIRTUAL_CLUSTERS)
    user = rng.choices(range(len(USERS)), cum_weights=USERS)[0]
    is_silent, is_saving = rng.random() < SILENT, rng.random() < SAVING
    limit_s, is_urgent = run_s * rng.uniform(*LIMITS), rng.random() < URGENT
    gang = Gang(
        id=f"{'spare' if is_spare else 'job'}{number}",
        virtual_cluster=owner,
        user=f"{owner}-u{user}",
        priority=OPPORTUNISTIC if is_spare else 2 if is_urgent else 1,
        roles=(pods.role(),),
        submitted_at=at,
        expected_s=None if is_silent else float(round(estimate_s)),
        limit_s=float(round(limit_s)),
        checkpoint_s=SAVES_S if is_saving else None,
    )
    return GangRequested(at, file=GangFile(gang, (pods,), run_s=run_s))


def shape_of(gpus: int) -> tuple[int, Kind]:
    """How many pods, and what each wants."""
    pods, each = shape(gpus)
    return pods, Kind(gpus=each)


def elastic(asked: GangRequested) -> GangRequested:
    """The same gang, which can do with a quarter of its pods where it has several."""
    (pods,) = asked.file.pods
    if pods.count == 1:
        return asked
    some = replace(pods, least=max(1, pods.count // FEWEST))
    limit_s = (asked.file.gang.limit_s or 0.0) * FEWEST or None  # with fewer it runs for longer
    gang = replace(asked.file.gang, roles=(some.role(),), limit_s=limit_s)
    return replace(asked, file=GangFile(gang, (some,), run_s=asked.file.run_s))


def exact(asked: GangRequested) -> GangRequested:
    """The same gang, of which it is known how long it will run."""
    gang = replace(asked.file.gang, expected_s=asked.file.run_s, limit_s=None)
    return replace(asked, file=replace(asked.file, gang=gang))


def example() -> Work:
    """The trace that comes with the importer: a pod is a gang of its own, of 8 GPUs at the most."""
    mapping = read_mapping((EXAMPLE / "alibaba-gpu-2023.yaml").read_bytes())
    with (EXAMPLE / "sample.csv").open("rb") as source:
        imported = import_rows(Rows(iter(source), mapping.columns), mapping)
    events = read_events(line.encode() for line in imported.lines())
    asked = [each for each in events if isinstance(each, GangRequested)]
    cluster = read_cluster((EXAMPLE / "cluster.yaml").read_bytes())
    return Work("example", cluster.config, asked, GPUS_PER_NODE)
