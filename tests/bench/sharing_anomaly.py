"""`make experiment-sharing`: what sharing a cluster costs its tenants, with and without cells.

The same jobs run three ways in virtual time, over the scheduler's own core: on a private cluster
for each tenant, of just its quota; on one shared cluster where a quota is a number of GPUs,
anywhere; and on the same shared cluster where a quota is cells (racks). With numbers of GPUs a
tenant can wait longer than it would alone, because what it is owed is free only in pieces (the
*sharing anomaly*); with cells it must not.
"""

import argparse
import math
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from clusters import CELL_TYPES, GPU, RACK, racks
from figures import slim
from rich.console import Console
from scheduler.domain.core.config import ClusterConfig, Finding, Policy, QuotaCells, VirtualCluster
from scheduler.domain.core.model import Placed, Preempted
from scheduler.domain.formats.model import GangRequested
from scheduler.domain.simulation.run import Simulation
from sharing_jobs import TENANTS, Tenant, jobs

FIRST_SEED = 1
SEEDS = 20
"""A tenant's waits differ by their half from seed to seed, so a few seeds show little."""
POLICY = Policy(order_by=("priority", "age"), is_backfilling=False)
"""As the peers that it is compared with."""
ALLOWED = 0.05
"""Of the private mean wait, beside the grace."""

console = Console()


@dataclass(slots=True)
class Waits:
    """Seconds from the request to the first start, by gang; how often opportunistic ones were
    preempted.
    """

    of: dict[str, float] = field(default_factory=dict)
    preempted: int = 0

    def mean_s(self, tenant: str, work: Mapping[str, GangRequested]) -> float:
        """Of the tenant's guaranteed jobs."""
        found = [wait for gang, wait in self.of.items() if _is_owed(work[gang], tenant)]
        return statistics.fmean(found) if found else 0.0

    def worst_s(self, tenant: str, than: "Waits", work: Mapping[str, GangRequested]) -> float:
        """The most that one guaranteed job of the tenant waited longer than there."""
        return max(
            wait - than.of[gang] for gang, wait in self.of.items() if _is_owed(work[gang], tenant)
        )


def _is_owed(job: GangRequested, tenant: str) -> bool:
    gang = job.file.gang
    return gang.virtual_cluster == tenant and gang.priority >= 0


def config(tenants: Sequence[Tenant], quota: str) -> ClusterConfig:
    """Just as many racks as the tenants own together; ``quota``: a path of cells."""
    in_rack = 1 if quota == RACK else TENANTS[0].gpus // TENANTS[0].racks
    return ClusterConfig(
        cell_types=CELL_TYPES,
        physical_cells=racks(sum(tenant.racks for tenant in tenants)),
        virtual_clusters={
            tenant.name: VirtualCluster((QuotaCells(quota, tenant.racks * in_rack),))
            for tenant in tenants
        },
        policy=POLICY,
    )


def run(cluster: ClusterConfig, work: Iterable[GangRequested], waits: Waits) -> None:
    """All of the work, to its end."""
    asked = list(work)
    came = {job.file.gang.id: job.at for job in asked}
    simulation = Simulation(cluster, warn=_unexpected)
    for now, decision in simulation.run(asked):
        match decision:
            case Placed(gang):
                waits.of.setdefault(gang, now - came[gang])
            case Preempted():
                waits.preempted += 1
            case _:
                pass
    if simulation.runs or len(came) > sum(gang in waits.of for gang in came):
        raise RuntimeError(f"{len(simulation.runs)} gangs never ended")


def _unexpected(finding: Finding) -> None:
    raise RuntimeError(finding.message)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed."""

    work: Mapping[str, GangRequested]
    private: Waits
    counted: Waits
    cells: Waits


def outcome(seed: int) -> Outcome:
    work = jobs(seed)
    private, counted, cells = Waits(), Waits(), Waits()
    for tenant in TENANTS:
        own = [job for job in work if job.file.gang.virtual_cluster == tenant.name]
        run(config([tenant], RACK), own, private)
    run(config(TENANTS, GPU), work, counted)
    run(config(TENANTS, RACK), work, cells)
    return Outcome({job.file.gang.id: job for job in work}, private, counted, cells)


def report(outcomes: Sequence[Outcome]) -> None:
    """Every tenant's means over the seeds, and what single seeds have beside them."""
    heads = [
        "tenant",
        "GPUs",
        "jobs",
        "quota of",
        "mean\nmin",
        "beyond\nprivate",
        "standard\nerror",
    ]
    heads += ["worst\nseed", "seeds\nabove", "one\njob", "anomaly"]
    table = slim("Mean waits in minutes, and minutes beyond the private ones", heads)
    for tenant in TENANTS:
        private = [one.private.mean_s(tenant.name, one.work) for one in outcomes]
        count = sum(1 for job in outcomes[0].work.values() if _is_owed(job, tenant.name))
        mean = f"{statistics.fmean(private) / 60:,.1f}"
        table.add_row(tenant.name, f"{tenant.gpus}", f"{count:,}", "(private)", mean)
        for name, ways in _shared(outcomes):
            cells = _row(tenant, outcomes, private, ways)
            table.add_row("", "", "", name, *cells)
    console.print(table)
    for name, ways in (("private", [one.private for one in outcomes]), *_shared(outcomes)):
        spares = [
            wait
            for one, each in zip(outcomes, ways, strict=True)
            for gang, wait in each.of.items()
            if one.work[gang].file.gang.priority < 0
        ]
        preempted = sorted(each.preempted for each in ways)
        console.print(
            f"  {name}: opportunistic gangs waited {statistics.fmean(spares) / 60:.1f} min on"
            f" average; preempted {preempted[0]:,} to {preempted[-1]:,} times a seed"
        )


def _shared(outcomes: Sequence[Outcome]) -> tuple[tuple[str, list[Waits]], ...]:
    return (
        ("GPUs", [one.counted for one in outcomes]),
        ("cells", [one.cells for one in outcomes]),
    )


def _row(
    tenant: Tenant, outcomes: Sequence[Outcome], private: Sequence[float], ways: Sequence[Waits]
) -> list[str]:
    means = [way.mean_s(tenant.name, one.work) for one, way in zip(outcomes, ways, strict=True)]
    beyond = [mean - own for mean, own in zip(means, private, strict=True)]
    error = statistics.stdev(beyond) / math.sqrt(len(beyond)) if len(beyond) > 1 else math.nan
    above = sum(map(_is_anomaly, means, private))
    one_job = max(
        way.worst_s(tenant.name, one.private, one.work)
        for one, way in zip(outcomes, ways, strict=True)
    )
    return [
        f"{statistics.fmean(means) / 60:,.1f}",
        f"{statistics.fmean(beyond) / 60:+,.1f}",
        f"{error / 60:,.1f}",
        f"{max(beyond) / 60:+,.1f}",
        f"{above}",
        f"{one_job / 60:+,.0f}",
        "yes" if _is_anomaly(statistics.fmean(means), statistics.fmean(private)) else "no",
    ]


def _is_anomaly(mean_s: float, private_s: float) -> bool:
    return mean_s > private_s * (1 + ALLOWED) + POLICY.grace_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="How many, from 1 on.")
    arguments = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    console.print(
        f"Python {platform.python_version()}; seeds {seeds[0]} to {seeds[-1]}; {POLICY};\n anomaly:"
        f" a mean wait over all seeds above the private one by more than grace and {ALLOWED:.0%}"
    )
    outcomes = []
    with ProcessPoolExecutor() as pool:
        for seed, one in zip(seeds, pool.map(outcome, seeds), strict=True):
            outcomes.append(one)
            console.print(f"  seed {seed} done: {len(one.work):,} jobs")
    report(outcomes)


if __name__ == "__main__":
    main()
