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
    Row,
    footprints,
    qualities,
    rates,
)
from footprint import footprint
from meter import NORM_NS, Meter, loop_ns
from plain import NODES as PLAIN_NODES
from plain import beside_the_core
from rich.console import Console
from scheduler.pauses import Collector
from w1 import SEED
from w1_run import WINDOWS

TURNS = 40
OVERLOAD_TURNS = 10
SLICE_LIMIT_S = 20.0
"""A turn in the queue that takes longer is cut short; the table says how many gangs it was."""

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
    """Nodes and steady arrivals, in both tables; releases with 10,000 waiting."""

    w1: tuple[tuple[int, int], ...]
    w2: tuple[tuple[int, int], ...]
    releases: int
    quality_arrivals: dict[int, int]


FULL = Plan(
    w1=((128, 20_000), (1_024, 20_000), (4_096, 60_000), (16_384, 90_000)),
    w2=((128, 10_000), (1_024, 10_000), (4_096, 10_000), (16_384, 10_000)),
    releases=2_000,
    quality_arrivals={128: 20_000, 1_024: 20_000, 4_096: 20_000},
)
QUICK = Plan(
    w1=((128, 3_000), (1_024, 4_000)),
    w2=((128, 1_500), (1_024, 1_500)),
    releases=200,
    quality_arrivals={},
)


@dataclass(slots=True)
class Turns:
    """Lets several runs take turns, with the garbage collector between them."""

    collector: Collector = field(default_factory=Collector)
    tidies_ms: dict[int, float] = field(default_factory=dict)

    def take(self, key: int, act: Callable[[], None], meters: Sequence[Meter]) -> None:
        """One turn, then the loop, then the collector. ``key``: whose pauses it counts to."""
        act()
        loop = loop_ns()
        for meter in meters:
            meter.slice_ends(loop)
        started = time.perf_counter()
        self.collector.tidy()
        took_ms = (time.perf_counter() - started) * 1e3
        self.tidies_ms[key] = max(self.tidies_ms.get(key, 0.0), took_ms)

    def run(self, runs: Sequence[tuple[int, int, Advances]]) -> None:
        """Nodes, steady arrivals and the run; first the fills, then the steady phases."""
        self.collector.settle()
        while any(run.is_filling for _, _, run in runs):
            for nodes, _, run in runs:
                if run.is_filling:
                    count = max(50, nodes // 10)
                    self.take(nodes, lambda r=run, n=count: r.advance(n), (run.fill,))  # type: ignore[misc]
        self.collector.settle()
        self.tidies_ms.clear()
        for _ in range(TURNS):
            for nodes, arrivals, run in runs:
                count = arrivals // TURNS
                self.take(nodes, lambda r=run, n=count: r.advance(n), (run.steady,))  # type: ignore[misc]


def first_table(plan: Plan) -> None:
    """W1: rates, and places on the windows that HiveD's figures are about."""
    runs = [(nodes, count, w1_run.start(nodes, count)) for nodes, count in plan.w1]
    turns = Turns()
    turns.run(runs)
    rows = [Row(nodes, "fill", run.fill, 0.0) for nodes, _, run in runs]
    rows += [Row(nodes, "steady", run.steady, turns.tidies_ms[nodes]) for nodes, _, run in runs]
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
    console.print(f"  aims of gangs in one rack: {aims}; best block in node: 100 %")
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
            rows.append((nodes, f"+{seed - SEED}", run.steady_quality))
    if rows:
        console.print(qualities("W1: places on other seeds, whole steady phase", rows))


def second_table(plan: Plan) -> None:
    """W2: mixed, then with 10,000 waiting."""
    runs = [(nodes, count, w2_run.start(nodes, count)) for nodes, count in plan.w2]
    turns = Turns()
    turns.run(runs)
    rows = [Row(nodes, "mixed", run.steady, turns.tidies_ms[nodes]) for nodes, _, run in runs]
    queues = [(nodes, overload.start(run.busy, SEED)) for nodes, _, run in runs]
    for nodes, _, run in runs:
        busy = run.busy
        console.print(
            f"  {nodes:,} mixed: GPUs {busy.gpu_share:.0%}, CPU {busy.cpu_share:.0%} in use; "
            f"{dict(sorted(busy.said.items()))} {dict(sorted(busy.codes.items()))}"
        )
        busy.begin_anew()
    turns.tidies_ms.clear()
    for nodes, queue in queues:
        until = time.process_time() + 3 * SLICE_LIMIT_S
        while queue.is_queueing and time.process_time() < until:
            turns.take(nodes, queue.queue_up, (queue.queueing,))
    turns.tidies_ms.clear()
    for _ in range(OVERLOAD_TURNS):
        for nodes, queue in queues:
            act = _releases(queue, plan.releases // OVERLOAD_TURNS)
            turns.take(nodes, act, (queue.steady,))
    rows += [Row(nodes, "queue", queue.steady, turns.tidies_ms[nodes]) for nodes, queue in queues]
    for nodes, queue in queues:
        busy = queue.busy
        console.print(
            f"  {nodes:,} queue: {len(busy.waiting):,} wait, GPUs {busy.gpu_share:.0%}, "
            f"CPU {busy.cpu_share:.0%} in use; "
            f"{dict(sorted(busy.said.items()))} {dict(sorted(busy.codes.items()))}"
        )
    title = "W2: short of CPU and memory, opportunistic gangs, bad nodes; then 10,000 waiting"
    console.print(rates(title, rows, has_peer=False))
    console.print(
        f"  aim: {AIM_HARD_PER_S:,} gangs/CPU-s; a line of the queue is a release and its cycle"
    )
    flatness([(nodes, run.steady) for nodes, _, run in runs])


def _releases(queue: overload.OverloadRun, count: int) -> Callable[[], None]:
    def act() -> None:
        until = time.process_time() + SLICE_LIMIT_S
        for _ in range(count):
            if time.process_time() > until:
                break
            queue.release_one()

    return act


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
            queue.queue_up()
        profile.runcall(_releases(queue, 300))
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
