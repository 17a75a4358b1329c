"""A leader is killed, and a standby decides: two processes of the service, a database and a broker.

What is measured is the time from the kill to the first decision that is committed: on a recorded
message, and on one that comes over the bus, whose dead reader the broker has to miss first.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from cli.embedded.apache import ADMINISTRATOR, ApacheKafka
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.process import free_port
from muster.bus import Bus, Outgoing
from muster.contracts.gangs import GangRequest
from muster.contracts.nodes import NodeHeartbeat, NodeReport
from muster.contracts.topics import Service
from muster.db import Pool
from muster.metrics import PlumbingMetrics
from muster.settings import PREFIX, ServiceSettings
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from scheduler import store
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.formats.cluster_file import cluster_data

AT_ONCE = 500
LOOK_S = 0.01
START_S = 300.0
AT_WORK_S = 5.0
"""How long gangs come before the kill."""

PER_LOOK = 2
"""Gangs that come every tenth of a second while the leader is at work."""


ROUNDS = 4
QUICK = {
    "MUSTER_LEASE_TIMEOUT_S": "3600",
    "MUSTER_FETCH_WAIT_BUSY_MS": "10",
    "MUSTER_FETCH_WAIT_IDLE_MS": "50",
}
"""The embedded broker answers a fetch only when its wait is over; nodes beat once in this run."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Seconds from the kill to a decision. ``took_s``: of them from the lead to the first cycle."""

    recorded_s: float
    on_the_bus_s: float
    took_s: float
    rebuilds: int


class Instance:
    """The service as a process of its own."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.port = free_port()
        self._url = f"http://127.0.0.1:{self.port}/metrics"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scheduler"],
                env=os.environ | environment | {"MUSTER_HTTP_PORT": str(self.port)},
                stdout=output,
            )

    async def metric(self, name: str, **labels: str) -> float:
        """A metric as it is now; 0 while there is none."""
        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
                text = (await client.get(self._url)).text
        except httpx2.HTTPError:
            return 0.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return 0.0

    async def until(
        self, name: str, least: float, within_s: float = START_S, **labels: str
    ) -> None:
        """Wait for a metric to reach this."""
        async with asyncio.timeout(within_s):
            while await self.metric(name, **labels) < least:
                await asyncio.sleep(0.2)

    def kill(self) -> None:
        """At once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Around:
    """The Launcher and the agents of a cluster at work."""

    def __init__(self, pool: Pool, bus: Bus, chance: random.Random) -> None:
        self._pool = pool
        self._bus = bus
        self._chance = chance
        self._names = 0

    async def publish(self, records: Sequence[Outgoing]) -> None:
        """All of them, until the bus has taken each."""
        async with asyncio.timeout(START_S):
            for first in range(0, len(records), AT_ONCE):
                rest = list(records[first : first + AT_ONCE])
                while rest:
                    outcomes = await self._bus.publish(rest)
                    rest = [r for r, outcome in zip(rest, outcomes, strict=True) if outcome]

    async def report(self, reports: Sequence[NodeReport]) -> None:
        """Every node's report."""
        await self.publish([_record("node-reported", each.node, each) for each in reports])

    async def beat(self, reports: Sequence[NodeReport]) -> None:
        """Every node's heartbeat."""
        beats = [NodeHeartbeat(node=each.node, journal=each.journal) for each in reports]
        await self.publish([_record("node-heartbeat", each.node, each) for each in beats])

    def request(self) -> GangRequest:
        """A small gang of one owner."""
        self._names += 1
        name = f"late{self._names:06d}-0"
        owner = self._chance.randrange(4)
        values = {"gang": name, "job": name, "name": name, "user": "u", "priority": 10}
        pod = {"pod": f"{name}-w-0-0", "role": "w", "gpus": 1, "cpu": 4, "memory_mb": 1000}
        more = {"submitted_at": "2026-01-02T00:00:00Z", "virtual_cluster": f"vc{owner}"}
        return GangRequest.model_validate({**values, **more, "revision": 1, "pods": [pod]})

    async def record(self, count: int) -> list[str]:
        """Messages that the leader has recorded. Returns their gangs."""
        requests = [self.request() for _ in range(count)]
        async with self._pool.acquire() as conn:
            await store.gangs.save_requests(conn, requests)
        return [request.gang for request in requests]

    async def ask(self) -> str:
        """A message over the bus. Returns its gang."""
        request = self.request()
        await self.publish([_record("gang-requested", request.gang, request)])
        return request.gang

    async def placed(self, gang: str) -> None:
        """Until a decision on the gang is committed."""
        async with asyncio.timeout(START_S):
            while not await self._pool.fetchval("SELECT 1 FROM placement WHERE gang = $1", gang):
                await asyncio.sleep(LOOK_S)


def _record(topic: str, key: str, message: NodeReport | NodeHeartbeat | GangRequest) -> Outgoing:
    value = message.model_dump_json(exclude_none=True).encode()
    return Outgoing(topic, key, value, f"bench/{topic}/{key}/{time.time_ns()}", time.time())


async def kill_leaders(
    pool: Pool,
    config: ClusterConfig,
    reports: Sequence[NodeReport],
    url: str,
    broker: EmbeddedBroker | ApacheKafka,
    folder: Path,
) -> list[Killed]:
    """Kill one leader after the other; each time a standby is there. ``folder``: for files."""
    login: dict[str, Any] = {"kafka_bootstrap": broker.bootstrap}
    if isinstance(broker, ApacheKafka):
        login = broker.login(ADMINISTRATOR)
    settings = ServiceSettings(**login)
    bus = Bus(settings, Service.LAUNCHER, PlumbingMetrics(CollectorRegistry()))
    running = asyncio.create_task(bus.run())
    try:
        file = folder / "cluster.json"
        file.write_text(json.dumps(cluster_data(config)))
        environment = QUICK | {
            "MUSTER_DATABASE_URL": url,
            **{PREFIX + name.upper(): value for name, value in login.items()},
            "MUSTER_CLUSTER_FILE": str(file),
        }
        around = Around(pool, bus, random.Random(2))
        return await _rounds(environment, folder / "log", around, reports)
    finally:
        running.cancel()
        await bus.close()


async def _rounds(
    environment: dict[str, str], log: Path, around: Around, reports: Sequence[NodeReport]
) -> list[Killed]:
    instances = [Instance(environment, log)]
    found: list[Killed] = []
    try:
        await instances[0].until("muster_scheduler_is_leader", 1)
        await around.report(reports)
        for _ in range(ROUNDS):
            instances.append(Instance(environment, log))
            found.append(await _round(*instances, around, reports))
            del instances[0]
    finally:
        for instance in instances:
            instance.kill()
    return found


async def _round(
    leader: Instance, standby: Instance, around: Around, reports: Sequence[NodeReport]
) -> Killed:
    await standby.until("muster_scheduler_is_warm", 1)
    await around.beat(reports)
    await around.placed((await around.record(1))[0])
    until = time.monotonic() + AT_WORK_S
    while time.monotonic() < until:
        await around.record(PER_LOOK)
        await asyncio.sleep(0.1)
    leader.kill()
    killed = time.monotonic()
    (recorded,), asked = await around.record(1), await around.ask()
    await around.placed(recorded)
    recorded_s = time.monotonic() - killed
    await around.placed(asked)
    return Killed(
        recorded_s,
        time.monotonic() - killed,
        await standby.metric("muster_scheduler_takeover_seconds_sum"),
        int(await standby.metric("muster_scheduler_rebuilds_total")),
    )
