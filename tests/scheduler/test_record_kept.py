"""What is kept of the record, for how long; and what an export makes of what is not there."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from muster.db import Connection, Pool, open_pool
from muster.errors import Broken
from muster.metrics import PlumbingMetrics
from muster.service_keys import SCHEDULER
from muster.token_guard import TokenGuard
from prometheus_client import CollectorRegistry
from scheduler import store
from scheduler.api.exporting import Export, Stretch
from scheduler.api.routes import routes
from scheduler.comparisons import Comparisons
from scheduler.domain.core.model import Gang, Kind, Role
from scheduler.domain.cores import core_of
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.given import Noted
from scheduler.domain.rules import Rules
from scheduler.domain.state import State
from scheduler.metrics import SchedulerMetrics
from scheduler.recorder import Recorder
from scheduler.settings import SchedulerSettings
from scheduler.store.record import End, Whole
from starlette.applications import Starlette

pytestmark = pytest.mark.postgres
DAY_S = 86_400.0
DEADLINE_S = 60.0
CLUSTER = (
    b"cellTypes: {n: {child: t, count: 2, node: true}}\nphysicalCells: [{type: n, name: n0}]\n"
)
LINE = '{"event":"node-bad","node":"n0"}'


class Kept:
    """A record without a service around it."""

    def __init__(self, pool: Pool, **settings: Any) -> None:
        self.pool = pool
        self.core = core_of(read_cluster(CLUSTER).config)
        changed = SchedulerSettings(database_url="postgresql://x", record_clean_s=1e-9)
        self.metrics = SchedulerMetrics(CollectorRegistry())
        self.settings = changed.model_copy(update=settings)
        self.recorder = Recorder(self.settings, self.metrics, self.deciding, pool.acquire)
        self.deciding_transactions = 0

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[Connection]:
        self.deciding_transactions += 1
        async with self.pool.acquire() as conn, conn.transaction():
            yield conn

    async def begin(self, at: float, *, is_written: bool = True) -> None:
        """Memory begins."""
        async with self.pool.acquire() as conn:
            await self.recorder.begin(await store.record.end(conn), self.core, at)
        if is_written:
            await self.recorder.write_snapshot()

    async def cycles(self, first: float, count: int, line: str = LINE) -> None:
        """So many cycles, a second apart."""
        self.recorder.note([Noted(first + number, (line,)) for number in range(count)])
        async with self.deciding() as conn:
            await self.recorder.write(conn)

    async def snapshot(self, at: float) -> None:
        """A later one."""
        await self.recorder.take(self.core, at)
        await self.recorder.write_snapshot()

    async def now(self) -> float:
        async with self.pool.acquire() as conn:
            return await store.record.clock(conn)

    async def left(self) -> tuple[list[int], list[float]]:
        """Numbers of cycles, and times of snapshots, that are there."""
        cycles = await self.pool.fetch("SELECT number FROM recorded_cycle ORDER BY number")
        snapshots = await self.pool.fetch("SELECT DISTINCT at FROM recorded_snapshot ORDER BY at")
        return [row["number"] for row in cycles], [row["at"] for row in snapshots]

    async def exported(self, since: float, until: float = 1e12) -> list[Any]:
        """The lines of an export."""
        async with self.pool.acquire() as conn:
            first = await store.record.snapshot_before(conn, since)
        assert first is not None
        return [line async for line in self.export(first, since, until)]

    async def export(self, first: Whole, since: float, until: float) -> AsyncIterator[Any]:
        export = Export(self.pool.acquire, Stretch(since, until), first)
        async for text in export.lines():
            for line in text.splitlines():
                yield json.loads(line)


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """Of the Scheduler's schema."""
    opened = await open_pool(SchedulerSettings(database_url=database_url), "scheduler")
    yield opened
    await opened.close()


def told(lines: list[Any]) -> list[tuple[float, str]]:
    return [(line["at"], line["event"]) for line in lines[1:]]


async def test_what_is_too_old_is_removed_up_to_a_snapshot_a_bounded_number_at_once(
    pool: Pool,
) -> None:
    kept = Kept(pool, record_days=2.0, record_clean_cycles=3)
    now = await kept.now()
    await kept.begin(now - 5 * DAY_S)
    await kept.cycles(now - 5 * DAY_S + 1, 8)
    await kept.snapshot(now - 3 * DAY_S)
    await kept.cycles(now - 3 * DAY_S + 1, 2)
    await kept.snapshot(now - DAY_S)
    await kept.cycles(now - DAY_S + 1, 2)
    before = kept.deciding_transactions
    await kept.recorder.clean()
    assert kept.deciding_transactions == before  # a renewal would wait for such a one
    # The first that is kept is the last before the two days: they can be replayed from it.
    assert await kept.left() == ([8, 9, 10, 11, 12], [now - 3 * DAY_S, now - DAY_S])
    assert len(await kept.exported(0)) == 1 + 4
    assert kept.metrics.record_cycles._value.get() == 5
    assert 2.9 * DAY_S < kept.metrics.record_age._value.get() < 3.1 * DAY_S


async def test_one_transaction_removes_a_bounded_number(pool: Pool) -> None:
    kept = Kept(pool)
    await kept.begin(1.0)
    await kept.cycles(2.0, 10)
    await kept.snapshot(20.0)
    async with pool.acquire() as conn:
        first = await store.record.keep_from(conn, 30.0)
        assert first is not None
        assert await store.record.remove_before(conn, first, 4)
        assert (await kept.left())[0] == [5, 6, 7, 8, 9, 10]
        assert await store.record.remove_before(conn, first, 4)
        assert await store.record.remove_before(conn, first, 4)
        assert not await store.record.remove_before(conn, first, 4)
    assert await kept.left() == ([10], [20.0])


async def test_a_record_that_is_too_long_loses_its_oldest_part_and_asks_for_a_snapshot(
    pool: Pool,
) -> None:
    kept = Kept(pool, record_mb=1)
    long = json.dumps({"event": "x" * 300_000})
    now = await kept.now()
    await kept.begin(now)
    await kept.cycles(now + 1, 4, long)
    assert not kept.recorder.is_snapshot_due
    await kept.recorder.clean()
    assert kept.recorder.is_snapshot_due
    assert (await kept.left())[0] == [1, 2, 3, 4]  # until it is there nothing can be removed
    await kept.snapshot(now + 10)
    await kept.cycles(now + 11, 1)
    await kept.recorder.clean()
    assert await kept.left() == ([4, 5], [now + 10])
    assert not kept.recorder.is_snapshot_due
    assert kept.metrics.record_bytes._value.get() < 1024 * 1024


async def test_a_record_that_is_too_long_keeps_no_more_than_its_days(pool: Pool) -> None:
    kept = Kept(pool, record_mb=1, record_days=2.0)
    long = json.dumps({"event": "x" * 600_000})
    now = await kept.now()
    for days in (6, 5, 4, 3):
        await kept.begin(now - days * DAY_S)
        await kept.cycles(now - days * DAY_S + 1, 1, long)
    await kept.recorder.clean()
    assert await kept.left() == ([3, 4], [now - 3 * DAY_S])


async def test_taking_a_snapshot_lets_others_run_between_its_steps(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.domain.formats.snapshot.STEP", 1)
    kept, turns = Kept(pool), 0
    for number in range(5):
        kept.core.request(
            Gang(f"g{number}", "default", "u", 0, (Role(Kind(9), (f"g{number}-w-0",), "w"),))
        )

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await kept.recorder.take(kept.core, 1.0)
    beside.cancel()
    assert turns >= 5
    await kept.recorder.write_snapshot()
    assert told(await kept.exported(0)) == [(1, "gang-requested")] * 5


async def test_numbers_go_on_after_a_restart_and_times_never_go_back(pool: Pool) -> None:
    kept = Kept(pool)
    await kept.begin(1.0)
    await kept.cycles(5.0, 3)
    async with pool.acquire() as conn:
        end = await store.record.end(conn)
    assert end == End(3, 7.0, 3 * len(LINE))
    await kept.begin(8.0)
    await kept.cycles(9.0, 1)
    lines = await kept.exported(0)
    assert told(lines) == [
        (5, "node-bad"),
        (6, "node-bad"),
        (7, "node-bad"),
        (9, "scheduler-restarted"),
        (9, "cluster-changed"),
        (9, "node-bad"),
    ]
    assert lines[0] == lines[5]["cluster"]
    assert lines[0]["policy"]["enforceGrace"] is False


async def test_what_began_without_a_snapshot_is_left_out_and_said_to_be(pool: Pool) -> None:
    kept = Kept(pool)
    await kept.begin(1.0)
    await kept.cycles(2.0, 1)
    await kept.begin(3.0, is_written=False)
    await kept.cycles(4.0, 2)
    lines = await kept.exported(0)
    assert told(lines) == [(2, "node-bad"), (5, "scheduler-restarted")]
    assert lines[2]["gap"] is True
    assert told(await kept.exported(0, 3.5)) == [(2, "node-bad")]
    await kept.begin(6.0)
    await kept.cycles(7.0, 1)
    lines = await kept.exported(0)
    assert told(lines)[:3] == [(2, "node-bad"), (7, "scheduler-restarted"), (7, "cluster-changed")]
    assert lines[2]["gap"] is True
    assert lines[2]["at"] == 7
    read = list(read_events(json.dumps(line).encode() for line in lines[1:]))
    assert [type(event).__name__ for event in read[:2]] == [
        "NodeHealthChanged",
        "SchedulerRestarted",
    ]


async def test_a_memory_whose_snapshot_comes_amid_an_export_is_left_out_altogether(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first of its cycles would be missing, and nobody would know."""
    kept = Kept(pool)
    await kept.begin(1.0)
    await kept.cycles(2.0, 1)
    await kept.begin(3.0, is_written=False)
    await kept.cycles(4.0, 3)
    asked: list[float] = []

    async def comes(_: Connection, at: float) -> bool:
        asked.append(at)
        return len(asked) > 1

    monkeypatch.setattr(store.record, "has_whole", comes)
    await kept.recorder.write_snapshot()
    assert told(await kept.exported(0)) == [(2, "node-bad"), (6, "scheduler-restarted")]
    assert asked == [3.0]


async def test_a_snapshot_of_several_parts_is_whole_with_its_last(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.recorder.PART_CHARACTERS", 10)
    kept = Kept(pool)
    kept.core.nodes.set_node_health("n0", False)
    kept.core.nodes.cordon("n0")
    await kept.begin(1.0)
    assert await pool.fetchval("SELECT count(*) FROM recorded_snapshot") == 3
    assert told(await kept.exported(0)) == [(1, "node-bad"), (1, "node-cordoned")]
    await pool.execute("DELETE FROM recorded_snapshot WHERE is_last")
    async with pool.acquire() as conn:
        assert await store.record.snapshot_before(conn, 5.0) is None


async def test_an_export_whose_part_is_removed_meanwhile_breaks_off(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.api.exporting.PAGE_BYTES", 1)
    kept = Kept(pool)
    await kept.begin(1.0)
    await kept.cycles(2.0, 5)
    lines = kept.export(Whole(1.0, 0, 1.0), 0, 1e12)
    assert (await anext(lines))["cellTypes"]
    assert (await anext(lines))["at"] == 2
    await pool.execute("DELETE FROM recorded_cycle WHERE number < 4")
    with pytest.raises(Broken, match="has been removed"):
        _ = [line async for line in lines]


async def test_pages_are_bounded(pool: Pool) -> None:
    kept = Kept(pool)
    await kept.begin(1.0)
    await kept.cycles(2.0, 9)
    async with pool.acquire() as conn:
        some = await store.record.page(conn, 2, 2 * len(LINE))
        assert [cycle.number for cycle in some] == [3, 4, 5]
        assert [cycle.number for cycle in await store.record.page(conn, 6, 10**6)] == [7, 8, 9]
    assert told(await kept.exported(0, 3.0)) == [(2, "node-bad"), (3, "node-bad")]


async def test_no_snapshot_stands_for_cycles_that_are_not_written(pool: Pool) -> None:
    kept = Kept(pool, record_snapshot_h=1e-9)
    await kept.begin(1.0)
    kept.recorder.note([Noted(2.0, (LINE,))])
    assert not kept.recorder.is_snapshot_due
    async with kept.deciding() as conn:
        await kept.recorder.write(conn)
    assert kept.recorder.is_snapshot_due


class Asked:
    """One request for an export: its answer's status and content, which is taken while the door is
    open.
    """

    def __init__(self, app: Starlette, door: asyncio.Event) -> None:
        self.status = 0
        self.content = b""
        self.is_whole = False
        self.door = door
        self.task = asyncio.create_task(app(self.scope(), self.receive, self.send))

    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "method": "GET",
            "path": "/export",
            "query_string": b"since=0",
            "headers": [],
        }

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        if self.status == 200:
            await self.door.wait()
        self.content += message.get("body", b"")
        self.is_whole = message["type"].endswith("body") and not message.get("more_body", False)


class Leader:
    """Who answers."""

    epoch = 1
    is_leading = True
    deciding = asyncio.Lock()

    state = State(Rules())

    def at(self) -> float:
        return 1e9


async def served(pool: Pool, stall_s: float) -> Starlette:
    """The Scheduler's HTTP over a short record, with one seat for exports."""
    kept = Kept(pool, record_exports=1, record_stall_s=stall_s)
    await kept.begin(1.0)
    await kept.cycles(2.0, 3)
    comparisons = Comparisons(kept.settings, kept.metrics)
    guard = TokenGuard(SCHEDULER, kept.settings.service_key, PlumbingMetrics(CollectorRegistry()))
    return Starlette(routes=routes(Leader(), kept.settings, pool.acquire, comparisons, guard))


async def test_who_comes_while_all_seats_are_taken_hears_so_at_once(pool: Pool) -> None:
    """However close together they come."""
    door, app = asyncio.Event(), await served(pool, DEADLINE_S)
    asked = [Asked(app, door) for _ in range(4)]
    async with asyncio.timeout(DEADLINE_S):
        while sum(one.status == 503 for one in asked) < 3:
            await asyncio.sleep(0.01)
        door.set()
        await asyncio.gather(*(one.task for one in asked))
    assert sorted(one.status for one in asked) == [200, 503, 503, 503]
    (sent,) = (one for one in asked if one.status == 200)
    assert sent.is_whole
    assert len(sent.content.splitlines()) == 4


async def test_who_takes_nothing_for_long_loses_the_seat(pool: Pool) -> None:
    """And what was sent does not look whole."""
    app = await served(pool, 0.05)
    stalled = Asked(app, asyncio.Event())
    async with asyncio.timeout(DEADLINE_S):
        await stalled.task
        assert (stalled.status, stalled.is_whole) == (200, False)
        door = asyncio.Event()
        door.set()
        after = Asked(app, door)
        await after.task
    assert (after.status, after.is_whole) == (200, True)
