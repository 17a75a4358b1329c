"""How long people wait for an answer with 10,000 waiting gangs: REST and the Scheduler as processes
of their own, asked over HTTP as `muster why` and `muster queue` do.

The cluster and the gangs are those of W2, asked for over the bus, and placed by the service itself.
Asked about are jobs that REST knows. CPU is that of both processes while a question was answered,
whatever else they did meanwhile; what they use without any is shown beside it.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from bench_takeover import report
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.process import free_port
from clusters import in_quarters
from meter import loop_ns, quantile
from muster.bus import Bus
from muster.contracts.gangs import GangRequest, PodAsk
from muster.contracts.topics import EVERY_TOPIC, Service
from muster.db import Pool, open_pool
from muster.metrics import PlumbingMetrics
from muster.migrate import migrate
from muster.settings import ServiceSettings
from prometheus_client import CollectorRegistry
from scheduler import store
from scheduler.domain.formats.cluster_file import cluster_data
from scheduler.settings import SchedulerSettings
from standby_run import Around, Instance
from w2 import drawn_gang

SEED = 7
START = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = 11_500
"""More than the 10,000 that are to wait still when some have come for others that left."""

PER_NODE = 5
"""Gangs that are asked for beside those that are to wait: more than start."""

AT_ONCE = 500
USERS = 20
START_S = 1200.0
ASK_S = 30.0
AIM_MS = 100
IDLE_S = 10.0
MOVE_S = 0.2
"""Between two ends, where gangs come and go meanwhile."""

PASSWORD = "a-password-for-benchmarks"
JOB = """
protocolVersion: 2
name: {name}
type: job
defaults: {{virtualCluster: vc0}}
prerequisites: [{{type: dockerimage, name: image, uri: none}}]
taskRoles:
  w:
    instances: 1
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 64, gpu: 1}}
    commands: ["true"]
"""

Ask = Callable[[], Awaitable[Any]]


def request(rng: random.Random, number: int, job: str) -> GangRequest:
    """A gang of the stream, as the Launcher asks for it."""
    gang, _, _ = drawn_gang(rng, number)
    expected_s = rng.choice((None, 600, 3_600, 14_400, 86_400))
    return GangRequest(
        gang=f"{job}-0",
        job=job,
        name=f"job-{number}",
        user=f"u{number % USERS}",
        virtual_cluster=gang.virtual_cluster,
        priority=gang.priority,
        submitted_at=START + timedelta(seconds=number),
        expected_s=expected_s,
        revision=1,
        pods=tuple(
            PodAsk(
                pod=f"{job}-0-{pod}-0",
                role=role.name or "w",
                gpus=role.kind.gpus,
                cpu=role.kind.cpu,
                memory_mb=role.kind.memory_mb,
            )
            for role in gang.roles
            for pod in role.pods
        ),
    )


class Rest:
    """REST as a process of its own, and a client that is logged in there."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rest"],
                env=os.environ | environment | {"MUSTER_HTTP_PORT": str(port)},
                stdout=output,
            )
        self.client = httpx2.AsyncClient(base_url=self.url, timeout=ASK_S, trust_env=False)

    async def log_in(self) -> None:
        login = {"username": "admin", "password": PASSWORD}
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    answer = await self.client.post("/api/v2/authn/basic/login", json=login)
                    if answer.status_code == 200:
                        break
                await asyncio.sleep(0.2)
        self.token = str(answer.json()["token"])
        self.client.headers["Authorization"] = f"Bearer {self.token}"

    async def submit(self, name: str) -> str:
        """The id of a new job of this name."""
        sent = await self.client.post("/api/v2/jobs", content=JOB.format(name=name))
        assert sent.status_code == 202, sent.text
        return str((await self.get(f"/jobs/admin~{name}"))["debugId"])

    async def get(self, path: str) -> Any:
        answer = await self.client.get(f"/api/v2{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def stop(self) -> None:
        await self.client.aclose()
        self.process.kill()
        self.process.wait()


@dataclass
class Answering:
    """Both processes with a full cluster. ``asked``: names of REST's jobs that wait."""

    rest: Rest
    scheduler: Instance
    around: Around
    pool: Pool
    asked: list[str] = field(default_factory=list)
    requests: dict[str, GangRequest] = field(default_factory=dict)

    async def save(self, requests: Sequence[GangRequest]) -> None:
        """Save messages of the Launcher."""
        self.requests |= {each.gang: each for each in requests if each.pods}
        async with self.pool.acquire() as conn:
            await store.gangs.save_requests(conn, requests)

    def ends_of(self, rows: Iterable[Mapping[str, Any]]) -> list[GangRequest]:
        """The last messages of these gangs, each once."""
        gone = [self.requests.pop(str(row["gang"]), None) for row in rows]
        return [each.model_copy(update={"pods": (), "revision": 2}) for each in gone if each]

    def cpu_s(self) -> float:
        return sum(map(cpu_s_of, (self.rest.process.pid, self.scheduler.process.pid)))


def cpu_s_of(pid: int) -> float:
    """CPU seconds of a process up to now, in all its threads."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


@contextlib.asynccontextmanager
async def both(nodes: int, asked: int) -> AsyncIterator[Answering]:
    """REST and the Scheduler, beside a cluster of which all is used, and so many jobs to ask."""
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedPostgres(Path(home) / "postgres", fsync=False) as server,
        EmbeddedBroker(EVERY_TOPIC) as broker,
    ):
        await migrate(server.dsn, ("scheduler", "rest"))
        pool = await open_pool(SchedulerSettings(database_url=server.dsn, http_port=0), "scheduler")
        config = in_quarters(nodes, is_limited=True)
        file = Path(home) / "cluster.json"
        file.write_text(json.dumps(cluster_data(config)))
        common = {
            "MUSTER_LEASE_TIMEOUT_S": "3600",
            "MUSTER_DATABASE_URL": server.dsn,
            "MUSTER_KAFKA_BOOTSTRAP": broker.bootstrap,
        }
        log = Path(home) / "log"
        scheduler = Instance(common | {"MUSTER_CLUSTER_FILE": str(file)}, log)
        its = {"MUSTER_SCHEDULER_URL": f"http://127.0.0.1:{scheduler.port}"}
        rest = Rest(common | its | {"MUSTER_ADMIN_PASSWORD": PASSWORD}, log)
        settings = ServiceSettings(kafka_bootstrap=broker.bootstrap)
        bus = Bus(settings, Service.LAUNCHER, PlumbingMetrics(CollectorRegistry()))
        running = asyncio.create_task(bus.run())
        found = Answering(rest, scheduler, Around(pool, bus, random.Random(SEED)), pool)
        leaving = asyncio.create_task(_leaving(found))
        try:
            await fill(found, sorted(config.nodes), asked)
            yield found
        finally:
            leaving.cancel()
            running.cancel()
            await bus.close()
            scheduler.kill()
            await rest.stop()
            await pool.close()


async def fill(service: Answering, nodes: Sequence[str], asked: int) -> None:
    """Reports of all nodes, and gangs until so many wait."""
    rng = random.Random(SEED)
    await service.rest.log_in()
    count = WAITING + PER_NODE * len(nodes)
    named = sorted(rng.sample(range(count), 2 * asked))  # about as many wait as start
    jobs = {number: await service.rest.submit(f"job-{number}") for number in named}
    await service.scheduler.until("muster_scheduler_is_leader", 1)
    await service.around.report([report(name, 1) for name in nodes])
    await service.scheduler.until("muster_scheduler_nodes", len(nodes), state="alive")
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        requests = [request(rng, number, jobs.get(number, f"j{number:025d}")) for number in numbers]
        await service.save(requests)
        async with asyncio.timeout(START_S):  # saved requests are read in the ids' order
            while await service.pool.fetchval(_UNREAD):
                await asyncio.sleep(0.02)
    async with asyncio.timeout(START_S):
        while await service.pool.fetch(_PREEMPTED):
            await asyncio.sleep(MOVE_S)
    states = "SELECT DISTINCT gang FROM placement"
    waiting = service.requests.keys() - {
        str(row["gang"]) for row in await service.pool.fetch(states)
    }
    service.asked = [f"job-{n}" for n in named if f"{jobs[n]}-0" in waiting][:asked]
    if len(service.asked) < asked:
        raise RuntimeError(f"only {len(service.asked)} of {2 * asked} jobs wait")


@dataclass(slots=True)
class Took:
    """Milliseconds of each question: on the wall, and of CPU in both processes."""

    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    async def ask(self, service: Answering, question: Ask) -> Any:
        cpu_s, began = service.cpu_s(), time.perf_counter()
        answer = await question()
        self.walls.append((time.perf_counter() - began) * 1e3)
        self.cpus.append((service.cpu_s() - cpu_s) * 1e3)
        return answer

    def __str__(self) -> str:
        parts = []
        for name, times in (("wall", self.walls), ("CPU", self.cpus)):
            ordered = sorted(times)
            middle, p99, most = (quantile(ordered, share) for share in (0.5, 0.99, 1))
            late = sum(each > AIM_MS for each in ordered) / len(ordered)
            parts.append(
                f"{name} p50 {middle:.0f}, p99 {p99:.0f}, longest {most:.0f} ms,"
                f" {late:.1%} over {AIM_MS} ms"
            )
        return "; ".join(parts)


_UNREAD = "SELECT count(*) FROM gang WHERE is_dirty"
_RUNNING = """
SELECT gang FROM placement JOIN gang USING (gang) WHERE preempted_until IS NULL AND is_wanted
ORDER BY random() LIMIT 1
"""
_PREEMPTED = """
SELECT DISTINCT gang FROM placement JOIN gang USING (gang)
WHERE preempted_until IS NOT NULL AND is_wanted
"""


async def _moving(service: Answering) -> None:
    """One gang ends and another comes, again and again."""
    rng, number = random.Random(SEED), 10_000_000
    while True:
        await asyncio.sleep(MOVE_S)
        gone = await service.pool.fetch(_RUNNING)
        number += 1
        await service.save([request(rng, number, f"j{number:025d}"), *service.ends_of(gone)])


async def _leaving(service: Answering) -> None:
    """Preempted gangs end."""
    while True:
        await asyncio.sleep(MOVE_S)
        await service.save(service.ends_of(await service.pool.fetch(_PREEMPTED)))


async def run(nodes: int, asked: int) -> None:
    """Ask, and print what it took."""
    print("REST and the Scheduler are being filled", flush=True)
    async with both(nodes, asked) as service:
        waiting = await service.scheduler.metric("muster_scheduler_waiting_gangs")
        print(
            f"{nodes:,} nodes, {waiting:,.0f} wait, {len(service.asked)} asked about; "
            f"plain loop {loop_ns():.0f} ns",
            flush=True,
        )
        for moves in (False, True):
            print("gangs come and go:" if moves else "nothing changes:")
            mover = asyncio.create_task(_moving(service)) if moves else None
            await _ask_all(service)
            if mover is not None:
                mover.cancel()


async def _ask_all(service: Answering) -> None:
    began, cpu_s = time.perf_counter(), service.cpu_s()
    await asyncio.sleep(IDLE_S)
    beside = (service.cpu_s() - cpu_s) / (time.perf_counter() - began)
    print(f"  {beside:.2f} CPU seconds a second without a question")
    get, why, short, long = service.rest.get, Took(), Took(), Took()
    cut = 0
    for job in service.asked:
        path = f"/jobs/admin~{job}/why"
        answer = await why.ask(service, lambda path=path: get(path))  # type: ignore[misc]
        assert answer["schedulerProblem"] is None, answer
        for gang in (answer["scheduler"] or {}).get("gangs", ()):
            cut += bool((gang.get("counterfactual") or {}).get("leftOut"))
    print(f"  /jobs/…/why: {why}; {cut} in the midst of a cycle, or not all found")
    for took, limit in ((short, 50), (long, 1000)):
        for _ in range(len(service.asked) // 4):
            answer = await took.ask(service, lambda limit=limit: get(f"/queue?limit={limit}"))  # type: ignore[misc]
        print(f"  /queue?limit={limit}: {took}", flush=True)
