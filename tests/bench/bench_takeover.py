"""How long a Scheduler needs to take over a large cluster: `python tests/bench/bench_takeover.py`.

10,000 nodes in racks of eight, 20,000 running gangs of one to four pods, the last tenth of them
opportunistic. The rows are written by the service's own SQL into a PostgreSQL of this run. Nothing
is asserted; beside the whole stands how long the event loop was held, for in it the leadership is
renewed.
"""

import argparse
import asyncio
import cProfile
import platform
import pstats
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cli.embedded.apache import ApacheKafka
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from clusters import in_quarters
from meter import loop_ns
from muster.contracts.gangs import GangRequest, PodAsk
from muster.contracts.nodes import Gpu, NodeReport
from muster.contracts.topics import EVERY_TOPIC
from muster.db import Pool, open_pool
from muster.migrate import migrate
from muster.records import Received
from prometheus_client import CollectorRegistry
from scheduler import store
from scheduler.cluster_file import Loaded
from scheduler.decider import Decider
from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.core.model import GangClass
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold, Placement
from scheduler.domain.requests import kind_of
from scheduler.domain.rules import Rules
from scheduler.domain.stored import Stored
from scheduler.pauses import Collector
from scheduler.settings import SchedulerSettings
from scheduler.watch import REPORTED, Voice, Watch
from standby_run import kill_leaders

START = datetime(2026, 1, 1, tzinfo=UTC)
IN_A_CYCLE = 500
GPUS, OWNERS = 8, 4
WATCH_S = 0.001
PARTITIONS = 4
GUARANTEED = 0.9
"""Of the gangs; the others are opportunistic, and come last, so that no gang is preempted."""


def report(node: str, revision: int) -> NodeReport:
    """A node with eight GPUs."""
    gpus = tuple(Gpu(index=i, uuid=f"{node}-{i}", model="gpu", memory_mb=1) for i in range(8))
    return NodeReport(
        node=node,
        revision=revision,
        journal="j",
        boot="b",
        at=START,
        address=node,
        version="1",
        cpu=96,
        memory_mb=768_000,
        gpus=gpus,
    )


def a_request(number: int, chance: random.Random, *, is_opportunistic: bool) -> GangRequest:
    """A gang of the mix."""
    name = f"g{number:06d}-0"
    gpus = chance.choice([1, 1, 1, 2, 4])
    pods = chance.choice([1, 1, 1, 2, 4] if gpus < 4 else [1])
    return GangRequest(
        gang=name,
        job=name,
        name=name,
        user="u",
        virtual_cluster=f"vc{number % OWNERS}",
        priority=-1 if is_opportunistic else 10,
        submitted_at=START + timedelta(seconds=number),
        pods=tuple(
            PodAsk(pod=f"{name}-w-{n}-0", role="w", gpus=gpus, cpu=4 * gpus, memory_mb=1000)
            for n in range(pods)
        ),
    )


class Places:
    """Where the gangs run: each owner's in its own part of the nodes, one after the other."""

    def __init__(self, nodes: list[str], parts: int) -> None:
        self._nodes = nodes
        self._next = [number * len(nodes) // parts * GPUS for number in range(parts + 1)]

    def take(self, part: int, ask: PodAsk) -> tuple[str, tuple[int, ...]]:
        """A node and so many of its GPUs, in a whole block."""
        first = -(-self._next[part] // ask.gpus) * ask.gpus
        self._next[part] = first + ask.gpus
        node, gpu = divmod(first, GPUS)
        return self._nodes[node], tuple(range(gpu, gpu + ask.gpus))


async def fill(pool: Pool, config: ClusterConfig, nodes: list[str], gangs: int) -> None:
    """The rows of a cluster at work. Its gangs get the cells that the core gives to gangs that run
    there: deciding on each of them would take longer, and is measured elsewhere.
    """
    state, chance = Stored(Rules(), config), random.Random(1)
    for node in nodes:
        state.report(report(node, 1), 0.0)
    state.change(state.file, 0.0)
    places = Places(nodes, OWNERS + 1)
    for first in range(0, gangs, IN_A_CYCLE):
        placed: list[Placement] = []
        kept: list[KnownGang] = []
        for number in range(first, min(first + IN_A_CYCLE, gangs)):
            is_opportunistic = number >= GUARANTEED * gangs
            request = a_request(number, chance, is_opportunistic=is_opportunistic)
            part = OWNERS if is_opportunistic else number % OWNERS
            rows = [_placement(request.gang, ask, *places.take(part, ask)) for ask in request.pods]
            state.restore_holds([Hold(row) for row in rows], 0.0)
            state.restore_gang(KnownGang(request, started_at=float(number)), 0.0, float(number))
            placed += rows
            kept.append(state.known(request.gang))
        async with pool.acquire() as conn:
            await store.gangs.save_requests(conn, [gang.request for gang in kept])
            await store.gangs.insert_placements(conn, placed, 1)
            await store.gangs.keep_gangs(conn, kept)
    async with pool.acquire() as conn:
        rows_of = [
            store.nodes.KnownNode(n, 0, False, None, size=state.ledger.nodes[n].size) for n in nodes
        ]
        await store.nodes.save_nodes(conn, rows_of)
        await conn.execute("UPDATE gang SET is_dirty = false")
        await conn.execute("ANALYZE")


def _placement(gang: str, ask: PodAsk, node: str, gpus: tuple[int, ...]) -> Placement:
    return Placement(ask.pod, gang, node, "j", node, None, gpus, {}, kind_of(ask))


class Steps:
    """Wall and CPU seconds of one step after the other."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._now = time.perf_counter(), time.process_time()

    def ends(self, name: str) -> None:
        now = time.perf_counter(), time.process_time()
        wall_s, cpu_s = (after - before for after, before in zip(now, self._now, strict=True))
        self._shown.append(f"{name} in {wall_s:.2f} s ({cpu_s:.2f} s of CPU)")
        self._now = now

    def __str__(self) -> str:
        return ", ".join(self._shown)


class Pulse:
    """How long the event loop was held, at the longest."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(WATCH_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - before - WATCH_S)


def a_decider(pool: Pool, settings: SchedulerSettings, config: ClusterConfig) -> Decider:
    bus: Any = SimpleNamespace(on_new_bus=[], settings=settings)
    registry = CollectorRegistry()
    settled = asyncio.Event()
    settled.set()
    incarnations = SimpleNamespace(is_settled=settled)
    runtime: Any = SimpleNamespace(
        bus=bus, pool=pool, registry=registry, relay=None, incarnations=incarnations
    )
    return Decider(runtime, settings, "bench", Loaded(b"", config, ()), Collector())


async def run(
    nodes: int,
    gangs: int,
    url: str,
    broker: EmbeddedBroker | ApacheKafka,
    home: Path,
    profile: cProfile.Profile | None,
) -> None:
    await migrate(url, ("scheduler",))
    settings = SchedulerSettings(database_url=url, http_port=0)
    pool = await open_pool(settings, "scheduler")
    config = in_quarters(nodes, is_limited=True)
    names = sorted(config.nodes, key=lambda name: int(name[1:]))
    await fill(pool, config, names, gangs)
    print(
        f"{platform.machine()}, Python {platform.python_version()}: {nodes} nodes, {gangs} gangs;"
        f" plain loop {loop_ns():.0f} ns"
    )
    reports = [report(name, 1) for name in names]
    await rebuild(pool, settings, config, reports, profile)
    if profile is None:
        for killed in await kill_leaders(pool, config, reports, url, broker, home):
            print(
                f"a leader was killed: {killed.recorded_s:.2f} s later the standby decided on"
                f" a recorded message, {killed.on_the_bus_s:.2f} s later on one from the bus;"
                f" {killed.took_s:.3f} s from the lead to the first cycle, memory made anew"
                f" {killed.rebuilds} times; plain loop {loop_ns():.0f} ns"
            )
    await pool.close()


def _receive(watch: Watch, reports: Sequence[Received]) -> None:
    for follower in (watch.reports, watch.orders):
        follower.caught_up.set()
    for record in reports:
        watch.on_report(record, record.model())
        watch.received[record.key or ""] = Voice(time.monotonic(), "j", time.monotonic())


async def rebuild(
    pool: Pool,
    settings: SchedulerSettings,
    config: ClusterConfig,
    reports: list[NodeReport],
    profile: cProfile.Profile | None,
) -> None:
    """Cold starts, each with all that nodes reported."""
    received = [
        Received(REPORTED, 0, offset, each.node, {}, each.model_dump_json().encode())
        for offset, each in enumerate(reports)
    ]
    for turn in range(2):
        decider = a_decider(pool, settings, config)
        step = Steps()
        _receive(decider.watch, received)
        step.ends("reports read")
        pulse = Pulse()
        beating = asyncio.create_task(pulse.run())
        if profile is not None:
            profile.enable()
        await decider.rebuild()
        step.ends("memory rebuilt")
        decider._decide([])
        step.ends("first cycle")
        held_s, pulse.longest_s = pulse.longest_s, 0.0
        await asyncio.sleep(0)
        pulse.longest_s = 0.0
        decider.file_came(Loaded(b"", replace(config, policy=Policy()), ()))
        await decider.configuring.remake(decider.state, None, decider.at)
        step.ends("another file taken")
        decider._decide([])
        step.ends("its first cycle")
        await asyncio.sleep(0)
        if profile is not None:
            profile.disable()
        await asyncio.sleep(0)
        beating.cancel()
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        core = decider.state.core
        states = [state for gang in core.gang_ids() if (state := core.gang(gang))]
        running = [state.gang_class for state in states if state.started_at is not None]
        held = running.count(GangClass.GUARANTEED)
        print(
            f"turn {turn}: {step}; the event loop was held for {held_s:.2f} s at the"
            f" longest, and for {pulse.longest_s:.2f} s by the file; {len(running)} gangs run,"
            f" {held} in their cells; {memory_mb} MB at the most;"
            f" plain loop {loop_ns():.0f} ns"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_016, help="a multiple of 32")
    parser.add_argument("--gangs", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--kafka", type=Path, help="of `make kafka`: a real one, not the embedded")
    arguments = parser.parse_args()
    profile = cProfile.Profile() if arguments.profile else None
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedPostgres(Path(home) / "postgres", fsync=False) as server,
        ApacheKafka(Path(home) / "kafka", arguments.kafka)
        if arguments.kafka
        else EmbeddedBroker(EVERY_TOPIC, partitions=PARTITIONS) as broker,
    ):
        size = arguments.nodes, arguments.gangs
        asyncio.run(run(*size, server.dsn, broker, Path(home), profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
