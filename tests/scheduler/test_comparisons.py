"""What a change would have made of the last days: the service tells, from its own record, in a
process of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.embedded.process import free_port
from muster.db import Pool, open_pool
from muster.service import Runtime
from scheduler import order_policies, store
from scheduler.domain.core.model import Gang
from scheduler.domain.formats.cluster_file import cluster_data, read_cluster
from scheduler.domain.given import Noted, changed_line
from scheduler.settings import SchedulerSettings
from scheduler.store.record import Part, Row
from scheduler.what_if import NoRecordError, Task, compared
from scheduler_answers import asking
from scheduler_watched import measured, until

RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
DAY_S, DEADLINE_S = 86_400.0, 120.0
FILE = """\
cellTypes: {node: {child: gpu, count: 2, node: true}}
physicalCells:
  - {type: node, name: n0}
  - {type: node, name: n1}
virtualClusters: {default: {cells: [{type: node, count: 2}]}}
"""
HALF = "virtualClusters: {default: {cells: [{type: node, count: 1}]}}"
Recorded = Sequence[tuple[float, dict[str, Any]]]


def wants(gang: str, user: str = "ann") -> dict[str, Any]:
    """A node."""
    pods = [{"name": "w", "count": 1, "gpus": 2}]
    fields = {"id": gang, "user": user, "virtualCluster": "default", "priority": 0, "pods": pods}
    return {"event": "gang-requested", "gang": fields}


def ends(gang: str) -> dict[str, Any]:
    return {"event": "gang-released", "gang": gang}


def outcomes(runtime: Runtime, outcome: str) -> float:
    """Comparisons of which this came."""
    name = "muster_scheduler_what_ifs_total"
    return runtime.registry.get_sample_value(name, {"outcome": outcome}) or 0.0


FOUR: Recorded = [
    *((0.0, wants(f"g{n}")) for n in range(4)),
    *((600.0, ends(f"g{n}")) for n in range(2)),
    *((1200.0, ends(f"g{n}")) for n in range(2, 4)),
]
"""Two at a time, for ten minutes each."""


async def write(pool: Pool, recorded: Recorded, days_ago: float) -> None:
    """The record is this, which began so long ago, and nothing else."""
    async with pool.acquire() as conn:
        at = await store.record.clock(conn) - days_ago * DAY_S
        await conn.execute("TRUNCATE recorded_cycle, recorded_snapshot")
        text = changed_line(read_cluster(FILE.encode()).config)
        await store.record.add_part(conn, Part(at - 1, 0, 0, at - 1, True, text))
        rows, size = [], 0
        by_time: dict[float, list[str]] = {}
        for after_s, event in recorded:
            by_time.setdefault(after_s, []).append(json.dumps(event))
        for number, (after_s, lines) in enumerate(by_time.items(), 1):
            size += len("\n".join(lines).encode())
            rows.append(Row(number, Noted(at + after_s, tuple(lines)), at - 1, size))
        await store.record.add(conn, rows)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


@asynccontextmanager
async def recorded(
    scheduler: RunScheduler, file: Path, events: Recorded, days_ago: float = 3, **settings: Any
) -> AsyncIterator[tuple[Runtime, httpx2.AsyncClient]]:
    """A service that finds this record, and its door."""
    async with scheduler(cluster_file=file) as runtime:
        await until(lambda: measured(runtime, "is_leader") == 1)
        reached = runtime.settings
    assert isinstance(reached, SchedulerSettings)
    pool = await open_pool(reached, "scheduler")
    await write(pool, events, days_ago)
    await pool.close()
    port = free_port()
    async with (
        scheduler(port, cluster_file=file, **settings) as runtime,
        asking(port) as client,
    ):
        await until(lambda: measured(runtime, "is_leader") == 1)
        yield runtime, client


async def asked(client: httpx2.AsyncClient, text: str) -> dict[str, Any]:
    """The answer, however long it takes."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await client.post("/configuration/what-if", content=text.encode())
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            if found["state"] != "running":
                return found


async def test_what_a_change_delays_is_told_from_the_record(
    scheduler: RunScheduler, file: Path
) -> None:
    """One after the other: three of them 10, 10 and 20 minutes later."""
    async with recorded(scheduler, file, FOUR) as (runtime, client):
        found = await asked(client, HALF)
        assert found["state"] == "done", found
        report = found["report"]
        said = "This delays 3 gangs of default by 13m20s on average (median 10m00s)."
        assert report["text"] == [said]
        assert report["table"].startswith(f"{said}\n\nGangs          4\n")
        assert report["users"][0]["user"] == "ann"
        assert report["recorded"]["asRecorded"] == report["recorded"]["startedAsRecorded"] == 4
        assert not report["isPartial"]
        assert 2.99 < report["days"] < 3.01
        assert outcomes(runtime, "done") == 1
        assert (await asked(client, HALF))["report"] == report
        assert outcomes(runtime, "done") == 1
        held = await client.get("/configuration")
        assert held.json()["inForce"]["virtualClusters"]["default"]["cells"][0]["count"] == 2


async def test_what_is_asked_can_be_asked_again_while_it_is_looked_at(
    scheduler: RunScheduler, file: Path
) -> None:
    async with recorded(scheduler, file, FOUR, what_if_answer_s=0.001) as (runtime, client):
        answer = await client.post("/configuration/what-if", content=HALF)
        assert answer.json()["state"] == "running"
        other = await client.post("/configuration/what-if", content="policy: {graceSeconds: 7}")
        assert (other.status_code, other.json()["code"]) == (503, "BusyError")
        assert (await asked(client, HALF))["report"]["all"]["later"]["gangs"] == 3
        assert outcomes(runtime, "busy") >= 1
        same = await asked(client, "policy: {graceSeconds: 30}")
        assert (same["state"], same["reason"]) == ("none", "The configuration is in force already.")
        removal = await asked(client, "")
        assert (removal["state"], removal["reason"]) == (same["state"], same["reason"])


async def test_what_cannot_be_compared_is_told(scheduler: RunScheduler, file: Path) -> None:
    async with recorded(scheduler, file, FOUR, what_if_s=0.001) as (runtime, client):
        found = await asked(client, HALF)
        assert (found["state"], found["reason"]) == ("failed", "It took longer than 0.00125 s.")
        wrong = await client.post("/configuration/what-if", content="policy: {graceSecond: 1}")
        assert (wrong.status_code, wrong.json()["code"]) == (400, "InvalidConfigError")
        assert measured(runtime, "is_leader") == 1
    many = [(0.0, wants(f"g{n}")) for n in range(20_000)]
    async with recorded(scheduler, file, many, what_if_mb=1) as (runtime, client):
        assert (await asked(client, HALF))["state"] == "failed"
        assert outcomes(runtime, "failed") == 1


Compare = Callable[..., Awaitable[Any]]


@pytest.fixture
async def found(scheduler: RunScheduler, file: Path, settings: SchedulerSettings) -> Compare:
    """What the program finds in a record of four gangs, ten minutes apart."""
    many = [(600.0 * n, event) for n, (_, event) in enumerate(FOUR)]
    async with recorded(scheduler, file, many) as (runtime, _), runtime.pool.acquire() as conn:
        now = await store.record.clock(conn)
    task = Task(
        database_url=settings.database_url.get_secret_value(),
        statement_timeout_s=30.0,
        cluster=json.dumps(cluster_data(read_cluster(FILE.encode()).config)),
        change={"policy": {"graceSeconds": 5}},
        since=0.0,
        until=now,
        seconds=60.0,
        memory_mb=4096,
    )
    return lambda **changes: asyncio.to_thread(compared, replace(task, **changes))


async def test_what_is_left_of_the_time_bounds_the_days(found: Compare) -> None:
    assert (await found())["isPartial"] is False
    cut = await found(seconds=0.0)
    assert (cut["isPartial"], cut["days"], cut["all"]["gangs"]) == (True, 0, 1)
    with pytest.raises(NoRecordError):
        await found(until=1.0)


class Spiteful:
    def rank(self, gang: Gang) -> float:
        raise ValueError(f"no {gang.user}\n" + "x " * 1_000)


async def test_a_sites_policy_that_fails_is_told(
    found: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = EntryPoints(
        EntryPoint(name, f"{__name__}:{name.title()}", order_policies.GROUP)
        for name in ("spiteful", "missing")
    )
    monkeypatch.setattr(order_policies, "entry_points", lambda group: points.select(group=group))
    without = await found()
    assert not any("policy" in sentence for sentence in without["text"])
    told = await found(change={"policy": {"orderBy": ["spiteful", "age"]}})
    first, *others = told["text"]
    assert first.startswith("The policy spiteful of the order failed: ValueError: no ann x x ")
    assert first.endswith("…; its gang or user goes last.")
    assert len(first) < 300
    assert others == without["text"]
    lines = told["table"].splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(map(str.strip, lines)).startswith(first)
