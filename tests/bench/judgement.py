"""`make experiment-judgement`: what order, reservation, care and elasticity are worth.

The same gangs run under several policies in virtual time, over the scheduler's own core: waits with
nobody passing, with everybody passing, and with backfill; what preemptions cost with and without
protection; how far expected starts are from actual ones; and how much elastic gangs use.
"""

import argparse
import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from figures import slim
from judged_jobs import DAYS, HOUR_S, NODES, Work, elastic, exact, example, stream
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scheduler.domain.core.config import Finding, Policy
from scheduler.domain.core.model import OPPORTUNISTIC, GangClass, Placed, Reserved
from scheduler.domain.formats.model import GangRequested
from scheduler.domain.simulation.figures import quantile
from scheduler.domain.simulation.run import Simulation

FIRST_SEED, SEEDS = 1, 3
EXAMPLE = 0
"""Instead of a seed: the importer's example."""

FREE = Policy(order_by=("priority", "age"), is_backfilling=False)
BACKFILL = replace(FREE, is_backfilling=True)
FAIR = Policy()
WAYS = {
    "strict order": replace(FREE, is_strict=True),
    "free order": FREE,
    "backfill": BACKFILL,
    "… and fair share": FAIR,
}
CARE = {
    "… and 10 min to run": replace(FAIR, min_run_s=600.0),
    "… and 6 an hour": replace(FAIR, min_run_s=600.0, preemptions_per_hour=6),
}
POLICIES = {**WAYS, **CARE}
BEST = "… and fair share"
KINDS: Mapping[str, Callable[[GangRequested], GangRequested]] = {
    "as drawn": lambda asked: asked,
    "exact": exact,
    "elastic": elastic,
}

console = Console()


@dataclass(slots=True)
class Outcome:
    """One run. ``waits_s``: of guaranteed gangs, from the request to the first start; ``large_s``:
    of the large ones among them. ``errors_s``: how much later than first expected a gang with a
    reservation started. ``used``: share of all GPUs while gangs came. ``preempted`` and
    ``lost_gpu_s``: by class.
    """

    waits_s: list[float] = field(default_factory=list)
    large_s: list[float] = field(default_factory=list)
    errors_s: list[float] = field(default_factory=list)
    used: float = 0.0
    ended_at: float = 0.0
    preempted: dict[str, int] = field(default_factory=dict)
    lost_gpu_s: dict[str, float] = field(default_factory=dict)


def outcome(seed: int, policy: Policy, kind: str, size: tuple[int, int]) -> Outcome:
    """All the work of a seed, to its end; of a stream of this ``size``: nodes and days."""
    work = example() if seed == EXAMPLE else stream(seed, *size)
    asked = [KINDS[kind](each) for each in work.asked]
    simulation, found = (
        Simulation(replace(work.cluster, policy=policy), warn=_unexpected),
        Outcome(),
    )
    simulation.core.is_explaining = False
    _follow(simulation, _noting(asked, simulation, found), work.large, found)
    found.ended_at = simulation.tally.now
    preempted, lost_gpu_s = defaultdict[str, int](int), defaultdict[str, float](float)
    for (_, name), group in simulation.tally.groups.items():
        preempted[name] += group.preempted
        lost_gpu_s[name] += group.lost_gpu_s
    found.preempted, found.lost_gpu_s = dict(preempted), dict(lost_gpu_s)
    return found


def _follow(
    simulation: Simulation, events: Iterable[GangRequested], large: int, found: Outcome
) -> None:
    """Waits, and the first expected start of each gang with a reservation."""
    started, expected = set[str](), dict[str, float]()
    for now, decision in simulation.run(events):
        gang = decision.gang
        if gang in started:
            continue
        if isinstance(decision, Placed):
            started.add(gang)
            run = simulation.runs[gang]
            if run.gang.priority > OPPORTUNISTIC:
                wait_s = now - run.gang.submitted_at
                found.waits_s.append(wait_s)
                if run.wanted_gpus >= large:
                    found.large_s.append(wait_s)
            if gang in expected:
                found.errors_s.append(now - expected.pop(gang))
        elif isinstance(decision, Reserved) and decision.starts_at is not None:
            expected.setdefault(gang, decision.starts_at)


def _noting(
    asked: Iterable[GangRequested], simulation: Simulation, found: Outcome
) -> Iterator[GangRequested]:
    """The requests; after the last the use so far is noted."""
    yield from asked
    room_s = simulation.tally.room_s
    found.used = room_s["used"] / room_s["all"]


def _unexpected(finding: Finding) -> None:
    raise RuntimeError(finding.message)


Runs = Mapping[tuple[str, str, str], Sequence[Outcome]]
"""By stream, policy and kind of gangs: an outcome for each seed."""


def waits(name: str, runs: Runs) -> Table:
    """With and without backfill and reservation."""
    heads = ["order", "mean\nmin", "P95\nmin", "large: mean\nmin", "worst\nhours", "used"]
    table = slim(f"Waits of guaranteed gangs, {name}", heads)
    for way in WAYS:
        found = runs[name, way, "as drawn"]
        table.add_row(
            way,
            _mean(minutes(statistics.fmean(one.waits_s)) for one in found),
            _mean(minutes(p95(one.waits_s)) for one in found),
            _mean(minutes(statistics.fmean(one.large_s)) for one in found),
            _mean(max(one.large_s) / HOUR_S for one in found),
            _mean(100 * one.used for one in found) + " %",
        )
    return table


def care(name: str, runs: Runs) -> Table:
    """What preemptions cost, with and without protection."""
    kinds = (GangClass.GUARANTEED.value, GangClass.OPPORTUNISTIC.value)
    heads = [
        "protected",
        "preempted\ninside",
        "lost\nGPU-h",
        "oppor-\ntunistic",
        "lost\nGPU-h",
        "mean\nmin",
    ]
    table = slim(f"Preemptions, {name}", heads)
    for way in (BEST, *CARE):
        found = runs[name, way, "as drawn"]
        cells: list[str] = []
        for kind in kinds:
            cells.append(_mean(float(one.preempted.get(kind, 0)) for one in found))
            cells.append(_mean(one.lost_gpu_s.get(kind, 0.0) / HOUR_S for one in found))
        wait = _mean(minutes(statistics.fmean(one.waits_s)) for one in found)
        table.add_row(way, *cells, wait)
    return table


def starts(name: str, runs: Runs) -> Table:
    """How far expected starts are from actual ones."""
    heads = ["known ends", "gangs", "median\nerror, min", "median\nwait, min"]
    heads += ["started\nlater"]
    table = slim(f"Expected and actual starts, {name}", heads)
    for kind in ("as drawn", "exact"):
        found = runs[name, BEST, kind]
        waited = [wait for one in found for wait in one.waits_s if wait]
        errors = [error for one in found for error in one.errors_s]
        if errors:
            table.add_row(
                kind,
                f"{len(errors):,}",
                f"{minutes(statistics.median(map(abs, errors))):,.1f}",
                f"{minutes(statistics.median(waited)):,.1f}",
                f"{100 * sum(error > 0 for error in errors) / len(errors):.0f} %",
            )
    return table


def elasticity(name: str, runs: Runs) -> Table:
    """What gangs use that can do with a quarter of their pods."""
    table = slim(f"Elastic gangs, {name}", ["gangs", "used", "mean\nmin", "large: mean\nmin"])
    for kind in ("as drawn", "elastic"):
        found = runs[name, BEST, kind]
        table.add_row(
            kind,
            _mean(100 * one.used for one in found) + " %",
            _mean(minutes(statistics.fmean(one.waits_s)) for one in found),
            _mean(minutes(statistics.fmean(one.large_s)) for one in found),
        )
    return table


def minutes(seconds: float) -> float:
    """Of seconds."""
    return seconds / 60


def p95(waits_s: Sequence[float]) -> float:
    """The least wait that 95 % do not exceed."""
    return quantile(sorted(waits_s), 0.95) or 0.0


def _mean(values: Iterable[float]) -> str:
    """Over seeds."""
    return f"{statistics.fmean(values):,.1f}"


TABLES: Sequence[Callable[[str, Runs], Table]] = (waits, care, starts, elasticity)


def main() -> None:
    """All tables; those of the example without elastic gangs, as each of its gangs is one pod."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="How many, from 1 on.")
    parser.add_argument("--nodes", type=int, default=NODES, help="Of the W1-like stream.")
    parser.add_argument("--days", type=int, default=DAYS, help="How long gangs come.")
    arguments = parser.parse_args()
    size = arguments.nodes, arguments.days
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    console.print(f"Python {platform.python_version()}; seeds {seeds[0]} to {seeds[-1]}; {FAIR}")
    works: Mapping[str, tuple[Work, Sequence[int]]] = {
        "W1-like at 95 %": (stream(FIRST_SEED, *size), seeds),
        "the importer's example": (example(), [EXAMPLE]),
    }
    ways = [(way, "as drawn") for way in POLICIES] + [(BEST, "exact"), (BEST, "elastic")]
    with ProcessPoolExecutor() as pool:
        asked: dict[tuple[str, str, str], list[Future[Outcome]]] = {
            (name, way, kind): [
                pool.submit(outcome, seed, POLICIES[way], kind, size) for seed in some
            ]
            for name, (_, some) in works.items()
            for way, kind in ways
        }
        every = [each for futures in asked.values() for each in futures]
        for each in track(every, "runs", console=console):
            each.result()
        runs = {key: [each.result() for each in futures] for key, futures in asked.items()}
    for name, (work, _) in works.items():
        console.print(f"{name}: {len(work.asked):,} gangs")
        for table in TABLES if name != "the importer's example" else TABLES[:-1]:
            console.print(table(name, runs))


if __name__ == "__main__":
    main()
