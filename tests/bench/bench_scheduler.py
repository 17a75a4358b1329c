"""`make bench-scheduler`: how fast the scheduler's core is, and how good its places are.

Sizes take turns in one process, so that a slow moment of the machine meets all of them alike, and
a plain loop is timed after each turn. Nothing is asserted: figures are printed, and kept in
docs/performance.md with the machine that they were measured on.
"""

import argparse
import cProfile
import os
import platform
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import overload
import w1_run
import w2_run
from figures import (
    AIM_FLAT,
    AIM_HARD_PER_S,
    AIM_P99_US,
    AIM_PAUSE_MS,
    AIM_PER_S,
    AIM_START_S,
    HIVED,
    ONE_RACK_AIMS,
    WAITS_AIMS,
    Row,
    footprints,
    qualities,
    rates,
)
from footprint import footprint
from meter import NORM_NS, Meter, loop_ns, quantile
from plain import NODES as PLAIN_NODES
from plain import beside_the_core
from rich.console import Console
from scheduler.pauses import Collector
from w1 import SEED
from w1_run import WINDOWS

TURNS = 40
GANGS_PER_TIDY = 250
"""As often the collector runs, as it would between a service's batches."""

console = Console()


class Advances(Protocol):
    """What takes turns."""

    fill: Meter
    steady: Meter

    @property
    def is_filling(self) -> bool: ...

    def advance(self, arrivals: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes and steady arrivals, in both tables; releases with 10,000 waiting. ``limit_s``: CPU
    seconds of one run's fill, steady phase or queue at the most; the table has what was done.
    """

    w1: tuple[tuple[int, int], ...]
    w2: tuple[tuple[int, int], ...]
    releases: int
    limit_s: float
    quality_arrivals: dict[int, int]


FULL = Plan(
    w1=((128, 20_000), (1_024, 20_000), (4_096, 60_000), (16_384, 90_000)),
    w2=((128, 5_000), (1_024, 5_000), (4_096, 5_000), (16_384, 3_000)),
    releases=1_000,
    limit_s=75.0,
    quality_arrivals={128: 20_000, 1_024: 20_000, 4_096: 20_000},
)
QUICK = Plan(
    w1=((128, 3_000), (1_024, 4_000)),
    w2=((128, 1_500), (1_024, 1_500)),
    releases=400,
    limit_s=10.0,
    quality_arrivals={},
)


@dataclass(slots=True)
class Turns:
    """Lets several runs take turns, with the garbage collector between them."""

    limit_s: float
    collector: Collector = field(default_factory=Collector)
    tidies_ms: dict[int, float] = field(default_factory=dict)

    def take(self, key: int, act: Callable[[], None], meter: Meter) -> None:
        """A piece of work, and the collector after it, on the work's account. ``key``: whose pauses
        it counts to.
        """
        act()
        cpu, wall = time.process_time(), time.perf_counter()
        self.collector.tidy()
        meter.spent(time.process_time() - cpu)
        took_ms = (time.perf_counter() - wall) * 1e3
        self.tidies_ms[key] = max(self.tidies_ms.get(key, 0.0), took_ms)

    def turn(self, key: int, advance: Callable[[int], None], count: int, meter: Meter) -> None:
        """So many gangs, in pieces; then the plain loop. A run that has had its time has none."""
        while count > 0 and meter.total_s < self.limit_s:
            piece = min(count, GANGS_PER_TIDY)
            self.take(key, partial(advance, piece), meter)
            count -= piece
        meter.slice_ends(loop_ns())

    def run(self, runs: Sequence[tuple[int, int, Advances]]) -> None:
        """Nodes, steady arrivals and the run; first the fills, then the steady phases."""
        self.collector.settle()
        while any(self._fills(run) for _, _, run in runs):
            for nodes, _, run in runs:
                if self._fills(run):
                    self.turn(nodes, run.advance, max(50, nodes // 10), run.fill)
        self.collector.settle()
        self.tidies_ms.clear()
        for _ in range(TURNS):
            for nodes, arrivals, run in runs:
                if not run.is_filling:
                    self.turn(nodes, run.advance, arrivals // TURNS, run.steady)

    def _fills(self, run: Advances) -> bool:
        return run.is_filling and run.fill.total_s < self.limit_s

    def row(self, nodes: int, what: str, meter: Meter) -> Row:
        return Row(nodes, what, meter, self.tidies_ms.get(nodes, 0.0))


def first_table(plan: Plan) -> None:
    """W1: rates, and places on the windows that HiveD's figures are about."""
    runs = [(nodes, count, w1_run.start(nodes, count)) for nodes, count in plan.w1]
    turns = Turns(plan.limit_s)
    turns.run(runs)
    rows = [Row(nodes, "fill", run.fill, 0.0) for nodes, _, run in runs]
    rows += [
        Row(nodes, "steady", run.steady, turns.tidies_ms.get(nodes, 0.0)) for nodes, _, run in runs
    ]
    console.print(rates("W1: gangs that fit", rows, has_peer=True))
    console.print(
        f"  aims: {AIM_PER_S:,} gangs/CPU-s, p99 {AIM_P99_US:,} µs, no pause over {AIM_PAUSE_MS} ms"
    )
    flatness([(nodes, run.steady) for nodes, _, run in runs])
    plain_line()
    seed = "1st"
    places = [(nodes, seed, run.window) for nodes, _, run in runs]
    places += [
        (nodes, seed, run.steady_quality)
        for nodes, count, run in runs
        if count != WINDOWS.get(nodes, count)
    ]
    console.print(qualities("W1: places, first window and whole steady phase", places))
    aims = ", ".join(f"{nodes:,}: {share:.0%}" for nodes, share in ONE_RACK_AIMS.items())
    console.print(f"  aims: of all gangs of several pods in one rack {aims}")
    aims = ", ".join(f"{nodes:,}: {waits}" for nodes, waits in WAITS_AIMS.items())
    console.print(
        f"  waits in the first window at most {aims}; no pod that had a better block free"
    )
    theirs = ", ".join(f"{peer.best_share:.1%}" for peer in HIVED.values())
    console.print(f"  HiveD: best block in node {theirs}; the 1st seed is {SEED}")


def flatness(meters: Sequence[tuple[int, Meter]]) -> None:
    """What the largest cluster costs in terms of the one with 1,024 nodes."""
    costs = {nodes: meter.normed_us for nodes, meter in meters}
    if 1_024 in costs:
        text = ", ".join(
            f"{n:,}: {us:.1f} µs ({us / costs[1_024]:.2f} ×)" for n, us in costs.items()
        )
        console.print(f"  a gang, normed: {text}; aim at 16,384: {AIM_FLAT} ×")


def plain_line() -> None:
    """The core beside the plain oracle, normed."""
    plain, core = beside_the_core()
    ratio = core.normed_per_s / plain.normed_per_s
    console.print(
        f"  the plain oracle, first {plain.done} gangs at {PLAIN_NODES} nodes: "
        f"{plain.normed_per_s:,.1f} gangs/CPU-s, the core {core.normed_per_s:,.0f}: {ratio:,.0f} ×"
    )


def seeds_table(plan: Plan, seeds: int) -> None:
    """Places on other streams; speed does not matter here."""
    rows = []
    for nodes, arrivals in plan.quality_arrivals.items():
        for seed in range(SEED + 1, SEED + seeds):
            run = w1_run.start(nodes, arrivals, seed)
            while run.next_event is not None:
                run.advance(arrivals)
            name = f"+{seed - SEED}"
            if arrivals != WINDOWS.get(nodes):
                rows.append((nodes, name, run.window))
            rows.append((nodes, name, run.steady_quality))
    if rows:
        console.print(
            qualities("W1: places on other seeds, first window and whole steady phase", rows)
        )


def second_table(plan: Plan) -> None:
    """W2: mixed, then with 10,000 waiting."""
    runs = [(nodes, count, w2_run.start(nodes, count)) for nodes, count in plan.w2]
    turns = Turns(plan.limit_s)
    turns.run(runs)
    rows = [
        Row(nodes, "mixed", run.steady, turns.tidies_ms.get(nodes, 0.0)) for nodes, _, run in runs
    ]
    queues = [(nodes, overload.start(run.busy, SEED)) for nodes, _, run in runs]
    for nodes, _, run in runs:
        busy = run.busy
        console.print(
            f"  {nodes:,} mixed: GPUs {busy.gpu_share:.0%}, CPU {busy.cpu_share:.0%} in use; "
            f"{dict(sorted(busy.decisions.items()))} {dict(sorted(busy.codes.items()))}"
        )
        busy.begin_anew()
    turns.tidies_ms.clear()
    for nodes, queue in queues:
        while queue.is_queueing and queue.queueing.total_s < plan.limit_s:
            turns.turn(nodes, queue.queue_up, overload.QUEUED_PER_CYCLE, queue.queueing)
    turns.tidies_ms.clear()
    for _ in range(TURNS):
        for nodes, queue in queues:
            for _ in range(plan.releases // TURNS):
                turns.turn(nodes, queue.release, 1, queue.steady)
    rows += [
        Row(nodes, "queue", queue.steady, turns.tidies_ms.get(nodes, 0.0))
        for nodes, queue in queues
    ]
    for nodes, queue in queues:
        busy = queue.busy
        console.print(
            f"  {nodes:,} queue: {len(busy.waiting):,} wait, GPUs {busy.gpu_share:.0%}, "
            f"CPU {busy.cpu_share:.0%} in use; "
            f"{dict(sorted(busy.decisions.items()))} {dict(sorted(busy.codes.items()))}"
        )
        for what, times in (("a gang of a cycle", queue.steps), ("a part of one", queue.parts)):
            ordered = sorted(times)
            p50, p99, most = (quantile(ordered, share) * 1e3 for share in (0.5, 0.99, 1))
            console.print(
                f"  {nodes:,} queue: {what} took p50 {p50:.2f} ms, p99 {p99:.1f} ms, "
                f"longest {most:.0f} ms"
            )
    title = "W2: short of CPU and memory, opportunistic gangs, bad nodes; then 10,000 waiting"
    console.print(rates(title, rows, has_peer=False))
    console.print(
        f"  aim: {AIM_HARD_PER_S:,} gangs/CPU-s; a row of the queue is a release and its cycle"
    )
    flatness([(nodes, run.steady) for nodes, _, run in runs])


def profiled(what: str, nodes: int) -> None:
    """The 25 functions that take most of the time, by themselves and with what they call."""
    profile = cProfile.Profile()
    count = 3_000
    run = w1_run.start(nodes, count) if what == "w1" else w2_run.start(nodes, count)
    while run.is_filling:
        run.advance(10_000)
    if what == "queue":
        assert isinstance(run, w2_run.MixedRun)
        queue = overload.start(run.busy, SEED)
        while queue.is_queueing:
            queue.queue_up(overload.QUEUED_PER_CYCLE)
        profile.runcall(queue.release, 100)
    else:
        profile.runcall(run.advance, count)
    stats = pstats.Stats(profile)
    stats.sort_stats("tottime").print_stats(25)
    stats.sort_stats("cumulative").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="128 and 1,024 nodes, short streams.")
    parser.add_argument("--seeds", type=int, default=4, help="Streams that places are judged on.")
    parser.add_argument("--only", choices=("w1", "w2", "start"), help="One of the tables.")
    parser.add_argument("--profile", choices=("w1", "w2", "queue"), help="Profile this instead.")
    parser.add_argument("--nodes", type=int, default=4_096, help="Of the profile.")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"normed: as if a turn of the plain loop took {NORM_NS:.0f} ns"
    )
    if arguments.profile:
        profiled(arguments.profile, arguments.nodes)
        return
    if arguments.only in (None, "start"):
        console.print(footprints([(nodes, footprint(nodes)) for nodes, _ in plan.w1]))
        console.print(f"  aim: start-up at 16,384 nodes under {AIM_START_S} s")
    if arguments.only in (None, "w1"):
        first_table(plan)
        seeds_table(plan, arguments.seeds)
    if arguments.only in (None, "w2"):
        second_table(plan)


if __name__ == "__main__":
    main()
