"""`make bench`: how fast Muster is on this machine, beside the floor measured in the same run.

The floor is what the same number of PostgreSQL commits, Kafka hops and process starts cost with no
logic at all, over the same embedded servers. Nothing is asserted: figures are printed, and kept in
docs/performance.md with the machine they were measured on.
"""

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from muster_up import Http, Up, up

HOPS = (
    6  # job-submitted, gang-requested, placement-decided, pod-requested, pod-started, job-updated
)
COMMITS = 8  # REST, Launcher, Scheduler twice, Launcher, agent's journal, Launcher, REST
WATCH_LIMIT_S = 300.0
FETCH_WAIT_MS = 4  # as `muster up` sets it for its embedded broker

JOB = """protocolVersion: 2
name: {name}
type: job
prerequisites: [{{type: dockerimage, name: i, uri: none}}]
taskRoles:
  worker:
    dockerImage: i
    resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: 0}}
    commands: ["{command}"]
"""

console = Console()


def job(name: str, command: str = "true") -> bytes:
    return JOB.format(name=name, command=command).encode()


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


class Report:
    """The table that grows while the benchmark runs."""

    def __init__(self) -> None:
        self.table = Table("measured", "p50 or value", "p99", "beside the floor", "aim")

    def row(self, what: str, value: str, p99: str = "", floor: str = "", aim: str = "") -> None:
        self.table.add_row(what, value, p99, floor, aim)
        console.print(f"  {what}: {value} {p99} {floor}")

    def latency(self, what: str, seconds: Sequence[float], floor_s: float, aim: str) -> None:
        p50, p99 = quantiles(seconds)
        ratio = f"{p50 / floor_s:.2f} ×" if floor_s else ""
        self.row(what, f"{p50 * 1000:.1f} ms", f"{p99 * 1000:.1f} ms", ratio, aim)


async def floor_of_commits(database_url: str, count: int = 200) -> float:
    """Seconds of one commit of one row, p50."""
    conn = await asyncpg.connect(database_url)
    took = []
    try:
        await conn.execute("CREATE SCHEMA IF NOT EXISTS bench; DROP TABLE IF EXISTS bench.floor")
        await conn.execute("CREATE TABLE bench.floor (id bigserial PRIMARY KEY, value text)")
        for _ in range(count):
            started = time.perf_counter()
            await conn.execute("INSERT INTO bench.floor (value) VALUES ('x')")
            took.append(time.perf_counter() - started)
        await conn.execute("DROP SCHEMA bench CASCADE")
    finally:
        await conn.close()
    return quantiles(took)[0]


async def floor_of_hops(bootstrap: str, count: int = 150) -> float:
    """Seconds from a produce to its consume by a reader that waits, as those of services do, p50;
    spread out, as waits at the broker are.
    """
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    consumer = AIOKafkaConsumer(
        "alert-resolved", bootstrap_servers=bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS
    )
    await producer.start()
    await consumer.start()
    took: list[float] = []
    came: asyncio.Queue[float] = asyncio.Queue()

    async def read() -> None:
        async for _ in consumer:
            came.put_nowait(time.perf_counter())

    reading = asyncio.create_task(read())
    try:
        for number in range(count):
            await asyncio.sleep(0.01 + 0.0007 * (number % 17))
            started = time.perf_counter()
            await producer.send(  # nobody waits for the broker's answer, as no hop does
                "alert-resolved", b"{}", key=b"bench"
            )
            took.append(await came.get() - started)
    finally:
        reading.cancel()
        await consumer.stop()
        await producer.stop()
    return quantiles(took)[0]


def floor_of_starts(count: int = 100) -> float:
    """Seconds of one process start and end, p50."""
    took = []
    for _ in range(count):
        started = time.perf_counter()
        subprocess.run(["/bin/true"], check=True)
        took.append(time.perf_counter() - started)
    return quantiles(took)[0]


async def submit(http: Http, name: str, command: str = "true") -> float:
    """Submit; returns when it was accepted."""
    answer = await http.call("POST", "/api/v2/jobs", job(name, command), "text/yaml")
    if answer.status != 202:
        raise RuntimeError(f"{answer.status}: {answer.body.decode()}")
    return time.perf_counter()


async def state(http: Http, name: str) -> str:
    answer = await http.call("GET", f"/api/v2/jobs/admin~{name}")
    return str(answer.json()["jobStatus"]["state"])


async def one_at_a_time(http: Http, count: int, prefix: str) -> tuple[list[float], list[float]]:
    """Submit→running and submit→finished of no-op jobs, each after the one before has ended."""
    running, finished = [], []
    for number in range(count):
        name = f"{prefix}-{number}-{os.getpid()}"
        started = time.perf_counter()
        await submit(http, name)
        seen_running = False
        while (now := await state(http, name)) not in ("SUCCEEDED", "FAILED"):
            if now == "RUNNING" and not seen_running:
                running.append(time.perf_counter() - started)
                seen_running = True
            await asyncio.sleep(0.008)
        if not seen_running:
            running.append(time.perf_counter() - started)
        finished.append(time.perf_counter() - started)
        if now != "SUCCEEDED":
            raise RuntimeError(f"{name} is {now}")
    return running, finished


async def watched(
    http: Http, names: dict[str, float], count: int, every_s: float
) -> tuple[list[float], list[float]]:
    """When each job is first seen running (or over), and over, by asking for the open ones: a list
    of all would keep REST busy.
    """
    running: dict[str, float] = {}
    finished: dict[str, float] = {}
    until = time.perf_counter() + WATCH_LIMIT_S
    while len(finished) < count:
        known = [name for name in names if name not in finished]
        answer = await http.call("GET", f"/api/v2/jobs?state=WAITING,RUNNING&limit={count}")
        now = time.perf_counter()
        open_jobs = {item["name"]: item["state"] for item in answer.json()}
        for name in known:
            match open_jobs.get(name):
                case "WAITING":
                    pass
                case "RUNNING":
                    running.setdefault(name, now)
                case None:
                    running.setdefault(name, now)
                    finished.setdefault(name, now)
        if now > until:
            raise RuntimeError(f"only {len(finished)} of {count} jobs ended in {WATCH_LIMIT_S} s")
        await asyncio.sleep(every_s)
    failed = (await http.call("GET", "/api/v2/jobs?state=FAILED,STOPPED&limit=1")).json()
    if failed:
        raise RuntimeError(f"{failed[0]['name']} is {failed[0]['state']}")
    return (
        [running[n] - t for n, t in names.items()],
        [finished[n] - t for n, t in names.items()],
    )


async def at_rate(http: Http, per_s: float, count: int) -> tuple[list[float], list[float]]:
    """Submit→running and submit→finished at a steady rate."""
    names: dict[str, float] = {}

    async def one(name: str) -> None:
        started = time.perf_counter()
        await submit(http, name)
        names[name] = started

    async def offer() -> None:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, begun + number / per_s - time.perf_counter()))
                name = f"rate-{number}-{os.getpid()}"
                group.create_task(one(name))

    async with asyncio.TaskGroup() as group:
        group.create_task(offer())
        return await watched(http, names, count, 0.03)


async def throughput(http: Http, count: int, prefix: str, clients: int = 16) -> tuple[float, float]:
    """Accepted submissions a second, and jobs a second to their end."""
    numbers = iter(range(count))
    names: dict[str, float] = {}

    async def client() -> None:
        for number in numbers:
            name = f"{prefix}-{number}-{os.getpid()}"
            started = time.perf_counter()
            await submit(http, name)
            names[name] = started

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    accepted = time.perf_counter() - started
    _, finished = await watched(http, names, count, 0.25)
    ended = max(names[n] + took for n, took in zip(names, finished, strict=True)) - started
    return count / accepted, count / ended


def processes(one: Up) -> dict[str, psutil.Process]:
    """The parts that `muster up` runs."""
    parts = one.status()["services"]
    return {name: psutil.Process(part["pid"]) for name, part in parts.items() if part["pid"]}


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def whole_cpu_s(one: Up) -> float:
    """CPU seconds of `muster up` and all that runs below it."""
    assert one.process is not None
    root = psutil.Process(one.process.pid)
    total = cpu_s(root)
    seen = {root.pid}
    for process in [*root.children(recursive=True), *processes(one).values()]:
        if process.pid not in seen:
            seen.add(process.pid)
            total += cpu_s(process) + sum(
                cpu_s(child) for child in process.children() if child.pid not in seen
            )
            seen.update(child.pid for child in process.children())
    return total


async def idle(one: Up, report: Report, seconds: float) -> None:
    """CPU and memory of everything when nothing is asked of it."""
    await asyncio.sleep(12)  # fetch waits have become long
    before, started = whole_cpu_s(one), time.perf_counter()
    parts_before = {name: cpu_s(p) for name, p in processes(one).items()}
    await asyncio.sleep(seconds)
    share = (whole_cpu_s(one) - before) / (time.perf_counter() - started)
    for name, process in processes(one).items():
        part = (cpu_s(process) - parts_before[name]) / seconds
        memory = process.memory_info().rss / 2**20
        report.row(f"{name}: memory, idle CPU", f"{memory:.0f} MB", f"{part:.1%}", "", "< 120 MB")
    report.row("everything: idle CPU", f"{share:.1%} of a core", "", "", "< 20 %")


async def pretending(report: Report, home: Path, scale: float) -> None:
    """Throughput with an agent that only pretends to start processes."""
    # CPUs for every job at once: what is measured is Muster, not the wait for a free slot.
    async with up(home, MUSTER_RUNNER="pretended", MUSTER_CPU="5000") as (_one, http):
        await throughput(http, 50, "warm")
        accepted, ended = await throughput(http, int(1500 * scale), "pretend")
        report.row("submissions accepted", f"{accepted:.0f}/s", "", "", "≥ 300/s")
        report.row("jobs to their end, pretended", f"{ended:.0f}/s", "", "", "≥ 100/s")


async def real(report: Report, home: Path, scale: float) -> None:
    """Floors, latencies, idle cost and throughput with real processes."""
    async with up(home) as (one, http):
        status: dict[str, Any] = one.status()
        database_url = psql_url(one)
        commit = await floor_of_commits(database_url)
        hop = await floor_of_hops(status["kafka"])
        start = floor_of_starts()
        floor = COMMITS * commit + HOPS * hop + start
        report.row("floor: one commit", f"{commit * 1000:.2f} ms")
        report.row("floor: one hop", f"{hop * 1000:.2f} ms")
        report.row("floor: one process", f"{start * 1000:.2f} ms")
        report.row(f"floor: {COMMITS} commits, {HOPS} hops, 1 process", f"{floor * 1000:.1f} ms")
        await one_at_a_time(http, 5, "warm")
        running, finished = await one_at_a_time(http, int(60 * scale), "one")
        report.latency("submit→running, one at a time", running, floor, "≤ 2 ×, < 100 ms")
        report.latency("submit→finished, one at a time", finished, floor, "")
        running, finished = await at_rate(http, 20, int(200 * scale))
        report.latency("submit→running at 20 jobs/s", running, floor, "")
        report.latency("submit→finished at 20 jobs/s", finished, floor, "")
        _, ended = await throughput(http, int(300 * scale), "real")
        report.row("jobs to their end, real processes", f"{ended:.0f}/s")
        await idle(one, report, 20)


def psql_url(one: Up) -> str:
    """The embedded database's URL, with the password that `muster up` keeps."""
    environ = Path(f"/proc/{one.pid('launcher')}/environ").read_bytes().split(b"\0")
    found = dict(item.decode().split("=", 1) for item in environ if b"=" in item)
    return found["MUSTER_DATABASE_URL"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the usual counts.")
    arguments = parser.parse_args()
    report = Report()
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        await real(report, Path(folder) / "real", arguments.scale)
        await pretending(report, Path(folder) / "pretend", arguments.scale)
    console.print(report.table)


if __name__ == "__main__":
    asyncio.run(main())
