"""Five tenants and a week of their jobs, drawn by a seed, for the experiment on sharing.

What is typical of shared clusters: some tenants have thousands of small jobs, in bursts, with run
times over four orders of magnitude, others few and large gangs; together they fill most of the
cluster.
"""

import random
from dataclasses import dataclass

from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind
from scheduler.domain.formats.model import GangFile, GangRequested, Pods
from w1 import GPUS_PER_NODE, RACK_GPUS

HOUR_S = 3_600.0
HORIZON_S = 7 * 24 * HOUR_S
"""Jobs come during this time; all of them are run to their end."""
LONGEST_S = 72 * HOUR_S
SHORTEST_S = 60.0
PRIORITY = 1


@dataclass(frozen=True, slots=True)
class Tenant:
    """``racks``: its quota. ``load``: of its quota in use on average if nothing waits. ``sizes``:
    GPUs of a job and how often; above 8 in pods of 8. ``median_s`` and ``sigma``: of the run
    times' log-normal distribution. ``burst``: jobs that come at once, on average. ``scavenged``:
    the load of its opportunistic jobs, of one GPU each, beside that.
    """

    name: str
    racks: int
    load: float
    sizes: tuple[tuple[int, float], ...]
    median_s: float
    sigma: float
    burst: float = 1.0
    scavenged: float = 0.0

    @property
    def gpus(self) -> int:
        return self.racks * RACK_GPUS


_SWEEPS = ((1, 1.0),)
_VISION = ((1, 0.2), (2, 0.4), (4, 0.4))
_SPEECH = ((4, 0.8), (8, 0.2))
_LANGUAGE = ((8, 0.5), (16, 0.3), (32, 0.2))
_ROBOTS = ((8, 0.8), (16, 0.2))

TENANTS = (
    Tenant("sweeps", 3, 1.05, _SWEEPS, 2 * HOUR_S, 1.8, burst=60),
    Tenant("vision", 3, 0.95, _VISION, 2 * HOUR_S, 1.6, burst=6),
    Tenant("speech", 2, 0.9, _SPEECH, 1 * HOUR_S, 1.3, burst=4),
    Tenant("language", 3, 0.8, _LANGUAGE, 0.75 * HOUR_S, 1.0, scavenged=0.05),
    Tenant("robots", 1, 0.6, _ROBOTS, 1 * HOUR_S, 1.2, scavenged=0.1),
)
"""The first three always have more to run, the others large gangs and room for them."""


def jobs(seed: int) -> list[GangRequested]:
    """All jobs in order of time."""
    found = [each for tenant in TENANTS for each in _jobs_of(tenant, seed)]
    return sorted(found, key=lambda each: (each.at, each.file.gang.id))


def _jobs_of(tenant: Tenant, seed: int) -> list[GangRequested]:
    rng = random.Random(f"{seed} {tenant.name}")
    found = _stream(tenant, rng, tenant.load, tenant.sizes, PRIORITY)
    if tenant.scavenged:
        found += _stream(tenant, rng, tenant.scavenged, ((1, 1.0),), OPPORTUNISTIC)
    return found


def _stream(
    tenant: Tenant,
    rng: random.Random,
    load: float,
    sizes: tuple[tuple[int, float], ...],
    priority: int,
) -> list[GangRequested]:
    """Bursts at exponential distances, until their GPU seconds are the load."""
    burst = tenant.burst if priority >= 0 else 1.0
    left_gpu_s = load * tenant.gpus * HORIZON_S
    drawn: list[tuple[int, float, int]] = []
    count = 0
    while left_gpu_s > 0:
        for _ in range(1 + int(rng.expovariate(1.0) * (burst - 1))):
            gpus = rng.choices([size for size, _ in sizes], [share for _, share in sizes])[0]
            run_s = rng.lognormvariate(0.0, tenant.sigma) * tenant.median_s
            run_s = float(round(min(LONGEST_S, max(SHORTEST_S, run_s))))
            drawn.append((count, run_s, gpus))
            left_gpu_s -= gpus * run_s
        count += 1
    times = sorted(float(round(rng.uniform(0.0, HORIZON_S))) for _ in range(count))
    kind = "job" if priority >= 0 else "spare"
    return [
        _request(tenant, f"{kind}{number}", times[at], gpus, run_s, priority)
        for number, (at, run_s, gpus) in enumerate(drawn)
    ]


def _request(
    tenant: Tenant, name: str, at: float, gpus: int, run_s: float, priority: int
) -> GangRequested:
    pods = Pods("w", max(1, gpus // GPUS_PER_NODE), Kind(gpus=min(gpus, GPUS_PER_NODE)))
    gang = Gang(
        id=f"{tenant.name}-{name}",
        virtual_cluster=tenant.name,
        user=tenant.name,
        priority=priority,
        roles=(pods.role(),),
        submitted_at=at,
    )
    return GangRequested(at, file=GangFile(gang, (pods,), run_s=run_s))
