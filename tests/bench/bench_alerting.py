"""`make bench-alerting`: seconds from an event on the bus to the first attempt at a receiver, idle
or under load; many alerts at once, beside Debian's Alertmanager; and what kills do to deliveries.

It runs the real Alerting over an embedded PostgreSQL (with fsync) and an embedded broker. The
receiver and the sender of events are in this process, so both times are of one clock. Figures are
printed; nothing is asserted.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil
from aiokafka import AIOKafkaProducer
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.postgres import EmbeddedPostgres
from meter import loop_ns
from muster.contracts.jobs import JobState, JobStatus
from muster.contracts.nodes import NodeReport, ProblemKind
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import AlertEvent, Subscription
from muster.contracts.topics import EVERY_TOPIC
from real_alertmanager import running_alertmanager

USERS = 200
"""Each has one subscription, to their own jobs."""
PARTITIONS = 1
LOOK_S = 0.2
BATCH_MS = 50
"""How long the sender gathers events: the embedded broker gives a reader one batch of a partition
at a time, so lone events would come no faster than some 40 a second.
"""
BATCH_BYTES = 2**20
"""So that what is gathered is one batch, as a reader of Kafka gets many at a time."""
WAIT_S = 900.0
KILL_S = (1.0, 4.0)
"""The least and the longest time between a start and the next kill."""
LEASE_S, TIMEOUT_S = 3.0, 2.0
"""Of deliveries, so that those of a killed process are soon taken again."""
ALIVE_S = 60.0
BACKLOG = 2_000
"""Events that are sent ahead: the embedded broker keeps the last 5 MiB of a partition."""
FLOOR, FLOOR_BATCH = 3_000, 100
"""Deliveries that measure the floor, and how many of them are in one transaction."""
ENDED = "SELECT count(*) FROM delivery WHERE state = 'sent'"
POSTED = 500
"""Alerts in one request to Alertmanager."""


@dataclass
class Receiver:
    """Answers every webhook at once, and notes when the first and how many came about each job or
    node.
    """

    first_at: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                about = about_of(json.loads(await reader.readexactly(length)))
                self.first_at.setdefault(about, time.perf_counter())
                self.counts[about] += 1
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
        writer.close()


def about_of(body: dict[str, Any]) -> str:
    """The job or node that a message is about: Alerting's, or Alertmanager's."""
    if "data" not in body:
        return str(body["commonLabels"]["node"])
    data = body["data"]
    return str(data["alerts"][0]["labels"]["node"] if "alerts" in data else data["job"])


@dataclass
class World:
    """The servers, the receiver and the sender of events."""

    database_url: str
    bootstrap: str
    receiver: Receiver
    producer: AIOKafkaProducer
    sent_at: dict[str, float] = field(default_factory=dict)
    process: Process | None = None

    async def subscribe(self) -> None:
        """One webhook for each user."""
        for number in range(USERS):
            user = f"user-{number}"
            subscription = Subscription(
                id=user,
                owner=user,
                events=(AlertEvent.JOB_FAILED,),
                filter={"users": (user,)},  # type: ignore[arg-type]  # pydantic makes it
                webhook_url=f"http://127.0.0.1:{self.receiver.port}/{user}",
            )
            await self._subscribe(subscription)

    async def _subscribe(self, subscription: Subscription) -> None:
        setting = f"subscription/{subscription.id}"
        value = subscription.model_dump(mode="json", by_alias=True)
        notice = SettingChanged(setting=setting, revision=1, value=value)
        content = notice.model_dump_json().encode()
        await self.producer.send_and_wait("receivers-changed", content, key=setting.encode())

    async def fail(self, job: str) -> None:
        """A job of some user fails."""
        now = datetime.fromtimestamp(time.time(), UTC)
        status = JobStatus(
            job=job,
            name=job,
            user=f"user-{len(self.sent_at) % USERS}",
            virtual_cluster="default",
            submitted_at=now,
            completed_at=now,
            revision=1,
            state=JobState.FAILED,
        )
        self.sent_at[job] = time.perf_counter()
        await self.producer.send("job-updated", status.model_dump_json().encode(), key=job.encode())

    async def subscribe_to_nodes(self) -> None:
        """One webhook of operators'."""
        await self._subscribe(
            Subscription(
                id="nodes",
                owner="admin",
                events=(AlertEvent.ALERT_RAISED,),
                webhook_url=f"http://127.0.0.1:{self.receiver.port}/nodes",
            )
        )

    async def full_disk(self, node: str) -> None:
        """A node reports that its disk is full."""
        report = NodeReport(
            node=node,
            revision=1,
            journal="j",
            boot="b",
            at=datetime.fromtimestamp(time.time(), UTC),
            address="10.0.0.1",
            version="1",
            cpu=8,
            memory_mb=1024,
            problem="Only 1 MB are free.",
            problem_kind=ProblemKind.DISK,
        )
        content = report.model_dump_json().encode()
        self.sent_at[node] = time.perf_counter()
        await self.producer.send("node-reported", content, key=node.encode())

    async def until_received(self, count: int) -> None:
        """Wait until the receiver has had so many jobs."""
        async with asyncio.timeout(WAIT_S):
            while len(self.receiver.first_at) < count:
                await asyncio.sleep(0.005)

    def waits(self, prefix: str) -> list[float]:
        """Seconds from sending to the first attempt, of jobs that are named so."""
        received = self.receiver.first_at
        return [received[job] - at for job, at in self.sent_at.items() if job.startswith(prefix)]

    async def until_recorded(self, count: int) -> None:
        """Wait until so many deliveries are recorded as sent."""
        async with asyncio.timeout(WAIT_S):
            while await self.value(ENDED) < count:
                await asyncio.sleep(LOOK_S)

    def cpu_s(self) -> dict[str, float]:
        """The CPU seconds of each part up to now."""
        found: Counter[str] = Counter()
        for it in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = it.cpu_times()
                # A server process that has ended counts at its parent.
                found[part_of(it)] += sum(times[:4])
        return dict(found)

    async def value(self, sql: str) -> int:
        """One number of Alerting's tables."""
        settings = {"search_path": "alerting"}
        conn = await asyncpg.connect(self.database_url, server_settings=settings)
        try:
            return int(await conn.fetchval(sql))
        finally:
            await conn.close()

    async def start(self) -> None:
        """Start Alerting."""
        environment = os.environ | {
            "MUSTER_DATABASE_URL": self.database_url,
            "MUSTER_KAFKA_BOOTSTRAP": self.bootstrap,
            "MUSTER_HTTP_PORT": "0",
            "MUSTER_GROUP_SESSION_S": "1",
            "MUSTER_WEBHOOK_KEY": "bench",
            "MUSTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
            "MUSTER_WEBHOOK_TIMEOUT_S": str(TIMEOUT_S),
            "MUSTER_SMTP_TIMEOUT_S": str(TIMEOUT_S),
            "MUSTER_DELIVERY_LEASE_S": str(LEASE_S),
            # As `muster up` has it: the embedded broker answers a fetch when its wait is over.
            "MUSTER_FETCH_WAIT_BUSY_MS": "4",
            "MUSTER_FETCH_WAIT_IDLE_MS": "100",
        }
        command = (sys.executable, "-m", "alerting")
        self.process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=DEVNULL, stderr=DEVNULL
        )

    async def kill(self) -> None:
        """Kill Alerting."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()
            self.process = None


@contextlib.asynccontextmanager
async def world(home: Path) -> AsyncIterator[World]:
    """Servers of this run's own."""
    with (
        EmbeddedPostgres(home / "postgres") as postgres,
        EmbeddedBroker(EVERY_TOPIC, partitions=PARTITIONS) as broker,
    ):
        migrate = (sys.executable, "-m", "muster.migrate", "--database-url", postgres.dsn)
        subprocess.run(migrate, check=True)  # noqa: ASYNC221  nothing runs yet
        receiver = Receiver()
        server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
        receiver.port = server.sockets[0].getsockname()[1]
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, linger_ms=BATCH_MS, max_batch_size=BATCH_BYTES
        )
        await producer.start()
        made = World(postgres.dsn, broker.bootstrap, receiver, producer)
        try:
            yield made
        finally:
            await made.kill()
            await producer.stop()
            server.close()


async def bench(asked: argparse.Namespace, home: Path) -> None:
    """Idle, load, kills."""
    async with world(home) as here:
        await floor(here)
        await here.subscribe()
        await here.start()
        await here.fail("first")
        await here.until_received(1)
        total = 1
        cost = here.cpu_s()
        for number in range(asked.idle):
            total += 1
            await here.fail(f"idle-{number}")
            await here.until_received(total)
            await asyncio.sleep(random.uniform(0.05, LOOK_S))
        show(f"idle, {asked.idle} events", here.waits("idle"), "aim: P95 under 1 s")
        cost = here.cpu_s()
        started = time.perf_counter()
        for number in range(asked.rate * asked.seconds):
            await here.fail(f"load-{number}")
            ahead_s = number / asked.rate - (time.perf_counter() - started)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
        took_s = time.perf_counter() - started
        total += asked.rate * asked.seconds
        await here.until_received(total)
        rate = asked.rate * asked.seconds / took_s
        what = f"{rate:.0f} events/s for {took_s:.0f} s, {USERS} receivers"
        show(what, here.waits("load"), "aim: P95 under 5 s at 500 events/s")
        last = max(at for job, at in here.receiver.first_at.items() if job.startswith("load"))
        print(f"    {asked.rate * asked.seconds / (last - started):.0f} deliveries/s", flush=True)
        await here.until_recorded(total)
        show_cost(cost, here.cpu_s(), asked.rate * asked.seconds)
        await many_alerts(here, asked.alerts, home)
        await kills(here, asked.deliveries)


async def floor(here: World) -> None:
    """What a delivery needs at the least: a row inserted, leased, posted and marked as sent, many
    rows in one transaction.
    """
    url, names = f"http://127.0.0.1:{here.receiver.port}/", [f"floor-{n}" for n in range(FLOOR)]
    conn = await asyncpg.connect(here.database_url)
    await conn.execute("CREATE TABLE floor (id text PRIMARY KEY, body text, lease text)")
    bodies = {it: json.dumps({"data": {"job": it, "text": "x" * 500}}) for it in names}
    cost, started = here.cpu_s(), time.perf_counter()
    async with aiohttp.ClientSession() as session:

        async def post(some: Sequence[str]) -> None:
            for name in some:
                async with session.post(url, data=bodies[name].encode()):
                    pass

        for first in range(0, FLOOR, FLOOR_BATCH):
            some = names[first : first + FLOOR_BATCH]
            insert = "INSERT INTO floor SELECT * FROM unnest($1::text[], $2::text[])"
            await conn.execute(insert, some, [bodies[it] for it in some])
            mark = "UPDATE floor SET lease = $2 WHERE id = ANY($1)"
            await conn.execute(mark, some, "me")
            await asyncio.gather(*(post(some[start::8]) for start in range(8)))
            await conn.execute(mark, some, None)
    rate = FLOOR / (time.perf_counter() - started)
    await conn.close()
    print(f"the floor: {rate:.0f} deliveries/s; plain loop {loop_ns():.0f} ns", flush=True)
    show_cost(cost, here.cpu_s(), FLOOR)
    for name in names:
        del here.receiver.first_at[name], here.receiver.counts[name]


async def many_alerts(here: World, count: int, home: Path) -> None:
    """So many alerts of nodes fire at once; then Debian's Alertmanager gets the same."""
    await here.subscribe_to_nodes()
    ended, before, cost = await here.value(ENDED), len(here.receiver.first_at), here.cpu_s()
    for number in range(count):
        await here.full_disk(f"node-{number}")
    await here.producer.flush()
    await here.until_received(before + count)
    assert here.process is not None
    show(f"{count} alerts of nodes at once", here.waits("node"), "a message each")
    await here.until_recorded(ended + count)
    show_cost(cost, here.cpu_s(), count)
    print(f"    Alerting has {resident_mb(here.process.pid):.0f} MB (aim: under 200)", flush=True)
    for node in [it for it in here.receiver.first_at if it.startswith("node")]:
        del here.receiver.first_at[node]
    hook = {"url": f"http://127.0.0.1:{here.receiver.port}/"}
    route = {"receiver": "r", "group_by": ["node"], "group_wait": "0s", "group_interval": "1s"}
    config = {"route": route, "receivers": [{"name": "r", "webhook_configs": [hook]}]}
    folder = home / "alertmanager"
    folder.mkdir()
    before = len(here.receiver.first_at)
    async with running_alertmanager(folder, config) as (client, pid):
        for first in range(0, count, POSTED):
            names = [f"node-{number}" for number in range(first, min(first + POSTED, count))]
            labels = [{"alertname": "NodeDiskFull", "node": name} for name in names]
            here.sent_at |= dict.fromkeys(names, time.perf_counter())
            answer = await client.post("/api/v2/alerts", json=[{"labels": it} for it in labels])
            answer.raise_for_status()
        await here.until_received(before + count)
        show("    Debian's Alertmanager, the same", here.waits("node"), "which keeps no rows")
        print(f"    it has {resident_mb(pid):.0f} MB", flush=True)


def part_of(process: psutil.Process) -> str:
    """The part of the system that a process is of."""
    if process.pid == os.getpid():
        return "bench"
    command = process.cmdline()
    named = " ".join(command)
    if "cli.embedded.broker" in named:
        return "broker"
    if command[1:] == ["-m", "alerting"]:
        return "Alerting"
    return "database" if "postgres" in named else "other"


def show_cost(before: dict[str, float], after: dict[str, float], count: int) -> None:
    """The CPU time of one delivery, by part."""
    spent = {it: (after[it] - before.get(it, 0.0)) / count * 1e3 for it in sorted(after)}
    parts = ", ".join(f"{part} {ms:.2f}" for part, ms in spent.items())
    print(f"    CPU a delivery, ms: {parts}", flush=True)


def resident_mb(pid: int) -> float:
    """The memory of a process."""
    return psutil.Process(pid).memory_info().rss / 1e6


async def kills(here: World, count: int) -> None:
    """Kill Alerting at random until it has made ``count`` deliveries."""
    before, killed, all_ = sum(here.receiver.counts.values()), 0, len(here.sent_at) + count

    async def feed() -> None:
        for number in range(count):
            if number % BACKLOG == 0:
                await here.until_recorded(len(here.sent_at) - BACKLOG)
            await here.fail(f"kill-{number}")
        await here.producer.flush()

    feeding = asyncio.create_task(feed())
    while await here.value(ENDED) < all_:
        await asyncio.sleep(random.uniform(*KILL_S))
        await here.kill()
        killed += 1
        await here.start()
        if killed % 5 == 0:  # it must get somewhere
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_S):
                    await here.until_recorded(all_)
    await feeding
    came = {job: n for job, n in here.receiver.counts.items() if job.startswith("kill")}
    lost = count - len(came)
    twice = sum(n - 1 for n in came.values())
    print(
        f"{count} deliveries, {killed} kills: {lost} lost, {twice} attempts repeated"
        f" ({sum(here.receiver.counts.values()) - before} attempts); each kill loses the answers of"
        " those under way"
    )


def show(what: str, waits: Sequence[float], aim: str) -> None:
    """One line of figures."""
    p95 = statistics.quantiles(waits, n=20)[-1]
    p50, most = statistics.median(waits), max(waits)
    print(f"{what}: P50 {p50:.3f} s, P95 {p95:.3f} s, longest {most:.3f} s ({aim})", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=100, help="events, one after another")
    parser.add_argument("--rate", type=int, default=500, help="events a second under load")
    parser.add_argument("--seconds", type=int, default=30, help="how long the load lasts")
    parser.add_argument("--alerts", type=int, default=10_000, help="of nodes, firing at once")
    parser.add_argument("--deliveries", type=int, default=5_000, help="to be made despite kills")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        Path(home).chmod(0o755)
        asyncio.run(bench(asked, Path(home)))


if __name__ == "__main__":
    main()
