"""How long a Scheduler needs to take over a large cluster: `python tests/bench/bench_takeover.py`.

10,000 nodes in racks of eight, 20,000 running gangs of one to four pods, the last tenth of them
opportunistic. The rows are written by the service's own SQL into a PostgreSQL of this run. Nothing
is asserted; beside the whole stands how long the event loop was held, for in it the leadership is
renewed.
"""

import argparse
import asyncio
import platform
import random
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cli.embedded.postgres import EmbeddedPostgres
from clusters import in_quarters
from muster.contracts.gangs import GangRequest, PodAsk
from muster.contracts.nodes import Gpu, NodeReport
from muster.db import Pool, open_pool
from muster.migrate import migrate
from prometheus_client import CollectorRegistry
from scheduler import store
from scheduler.cluster_file import Loaded
from scheduler.decider import Decider
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler.pauses import Collector
from scheduler.settings import SchedulerSettings

START = datetime(2026, 1, 1, tzinfo=UTC)
IN_A_CYCLE = 500
WATCH_S = 0.001
GUARANTEED = 0.9
"""Of the gangs; the others are opportunistic, and come last, so that nobody has to leave."""


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


def word(number: int, chance: random.Random, *, is_guest: bool) -> GangRequest:
    """A gang of the mix."""
    name = f"g{number:06d}-0"
    gpus = chance.choice([1, 1, 1, 2, 4])
    pods = chance.choice([1, 1, 1, 2, 4] if gpus < 4 else [1])
    return GangRequest(
        gang=name,
        job=name,
        name=name,
        user="u",
        virtual_cluster=f"vc{number % 4}",
        priority=-1 if is_guest else 10,
        submitted_at=START + timedelta(seconds=number),
        pods=tuple(
            PodAsk(pod=f"{name}-w-{n}-0", role="w", gpus=gpus, cpu=4 * gpus, memory_mb=1000)
            for n in range(pods)
        ),
    )


async def fill(pool: Pool, config: ClusterConfig, nodes: list[str], gangs: int) -> State:
    """A cluster at work, and its rows."""
    state, chance = State(Rules(cycle_gangs=10**6), config), random.Random(1)
    for node in nodes:
        state.report(report(node, 1), 0.0)
        state.ledger.hear(node, "j", 0.0)
    state.remake(0.0)
    number = 0
    while sum(1 for live in state.cluster.gangs.values() if live.pods) < gangs:
        is_guest = number >= GUARANTEED * gangs
        words = [word(number + n, chance, is_guest=is_guest) for n in range(IN_A_CYCLE)]
        number += IN_A_CYCLE
        for each in words:
            state.request(each, 0.0, float(number))
        decisions = state.decide(0.0, float(number))
        waiting = [each for each in words if state.is_waiting(each.gang)]
        for each in waiting:
            state.request(each.model_copy(update={"pods": ()}), 0.0, float(number))
        changes = state.take_changes()
        named = {*changes.kept, *(d.gang for d in decisions)} & state.gangs.keys()
        kept = [state.known(gang) for gang in sorted(named)]
        async with pool.acquire() as conn:
            await store.save_requests(conn, [g.request for g in kept])
            await store.insert_placements(conn, list(changes.rows.placed.values()), 1)
            await store.keep_gangs(conn, kept)
        if len(waiting) > IN_A_CYCLE // 2:
            break
    async with pool.acquire() as conn:
        rows = [store.KnownNode(n, 0, False, None, size=state.ledger.nodes[n].size) for n in nodes]
        await store.save_nodes(conn, rows)
        await conn.execute("UPDATE gang SET is_dirty = false")
    return state


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
    runtime: Any = SimpleNamespace(bus=bus, pool=pool, registry=registry, relay=None)
    return Decider(runtime, settings, "bench", Loaded(b"", config, ()), Collector())


async def run(nodes: int, gangs: int, url: str) -> None:
    await migrate(url, ("scheduler",))
    settings = SchedulerSettings(database_url=url, http_port=0)
    pool = await open_pool(settings, "scheduler")
    config = in_quarters(nodes, is_limited=True)
    names = sorted(config.nodes, key=lambda name: int(name[1:]))
    was = await fill(pool, config, names, gangs)
    running = sum(1 for live in was.cluster.gangs.values() if live.pods)
    del was
    print(
        f"{platform.machine()}, Python {platform.python_version()}: {nodes} nodes, {running} gangs"
    )
    for turn in range(2):
        decider = a_decider(pool, settings, config)
        watch = decider.watch
        for follower in (watch.reports, watch.orders):
            follower.caught_up.set()
        now = time.monotonic()
        for name in names:
            watch.state.report(report(name, 1), now)
            watch.heard[name] = (now, "j")
        pulse = Pulse()
        beating = asyncio.create_task(pulse.run())
        started = time.perf_counter()
        await decider.rebuild()
        rebuilt_s = time.perf_counter() - started
        decider._decide([])
        cycled_s = time.perf_counter() - started - rebuilt_s
        await asyncio.sleep(0)
        beating.cancel()
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        held = sum(1 for live in decider.state.cluster.gangs.values() if live.is_charged)
        print(
            f"turn {turn}: memory rebuilt in {rebuilt_s:.2f} s, first cycle {cycled_s:.2f} s;"
            f" the event loop was held for {pulse.longest_s:.2f} s at the longest;"
            f" {held} gangs in their cells; {memory_mb} MB at the most"
        )
    await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_016, help="a multiple of 32")
    parser.add_argument("--gangs", type=int, default=20_000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedPostgres(Path(home) / "postgres", fsync=False) as server,
    ):
        asyncio.run(run(arguments.nodes, arguments.gangs, server.dsn))


if __name__ == "__main__":
    main()
