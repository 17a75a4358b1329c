"""What is kept for gangs that wait, and what users used, in the database: kept by a restart, and
followed by a standby, which decides as the leader would have.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from muster.contracts.gangs import GangRequest
from muster.db import Pool, open_pool
from muster.service import Runtime
from scheduler import store
from scheduler.domain.core.model import (
    CellUse,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
)
from scheduler.domain.core_rows import CoreRows, KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.settings import SchedulerSettings
from scheduler_watched import measured, until, until_alive

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]
RunAnother = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ODD = 'a "b" \\ ü,{}'
FILE = """
cellTypes: {node: {child: t, count: 4, node: true}}
physicalCells: [{type: node, name: n0}]
virtualClusters: {default: {cells: [{type: node, count: 1}]}}
policy: {backfill: true, fairShare: {halfLifeSeconds: 100000}}
"""


@pytest.fixture
async def conn(settings: SchedulerSettings) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the Scheduler's schema, in which nobody else writes."""
    async with closing_pool(settings) as pool, pool.acquire() as conn:
        yield conn


@asynccontextmanager
async def closing_pool(settings: SchedulerSettings) -> AsyncIterator[Pool]:
    pool = await open_pool(settings, "scheduler")
    yield pool
    await pool.close()


def kept(gang: str, since: float) -> KnownReservation:
    restored = RestoredReservation(
        gang,
        (("n0", (0, 1)), (ODD, (3,))),
        starts_at=1e9 + 1 / 3,
        since=since,
        bound=(CellUse("r/n0", ODD),),
        held=(("n0", (1,)),),
    )
    return KnownReservation(restored, "digest")


async def test_what_is_kept_is_read_again_and_noted(conn: asyncpg.Connection) -> None:
    bare = KnownReservation(RestoredReservation("b", (("n", (0,)),), 1.0, 0.0, held=()), "")
    rows: dict[str, KnownReservation] = {}
    for change in (
        {ODD: kept(ODD, 0.1), "b": bare},
        {ODD: kept(ODD, 0.7), "b": kept("b", 0.8)},
        {ODD: None, "b": bare},
        {"b": None},
    ):
        seen = await store.changes.snapshot(conn)
        await store.reservations.save(conn, change)
        rows = {g: row for g, row in (rows | change).items() if row is not None}
        assert await store.reservations.load(conn) == rows
        assert await store.reservations.load_of(conn, [ODD, "x"]) == {
            gang: row for gang, row in rows.items() if gang == ODD
        }
        changed = await store.changes.since(conn, seen)
        assert changed is not None
        assert changed.reservations == change.keys()
        assert not changed.gangs | changed.nodes | changed.run_times | changed.usage
    assert await store.reservations.load_of(conn, []) == {}


def test_what_is_kept_is_restored_in_its_order() -> None:
    rows = {"b": kept("b", 2.0), "a": kept("a", 3.0), "c": kept("c", 1.0)}
    assert [row.restored.gang for row in CoreRows().keep_reservations(rows)] == ["c", "b", "a"]


async def test_what_was_used_is_read_again_and_noted(conn: asyncpg.Connection) -> None:
    one, other = ("vc", True, ODD), (ODD, False, "u")
    rows: dict[Any, RestoredUsage] = {}
    for change in (
        {one: RestoredUsage("vc", ODD, True, 1e9 + 1 / 3, {ODD: 1 / 3, "cpu": 1e22})},
        {
            one: RestoredUsage("vc", ODD, True, 2e9, {}),
            other: RestoredUsage(ODD, "u", False, 0.1, {"t": 0.1}),
        },
        {one: None},
        {other: None},
    ):
        seen = await store.changes.snapshot(conn)
        await store.usage.save(conn, change)
        rows = {key: row for key, row in (rows | change).items() if row is not None}
        assert await store.usage.load(conn) == rows
        assert await store.usage.load_of(conn, [one, ("", False, "")]) == {
            key: row for key, row in rows.items() if key == one
        }
        changed = await store.changes.since(conn, seen)
        assert changed is not None
        assert changed.usage == change.keys()
        assert not changed.gangs | changed.nodes | changed.run_times | changed.reservations
    assert await store.usage.load_of(conn, []) == {}


async def test_preemptions_are_read_again_in_their_order_for_an_hour(
    conn: asyncpg.Connection,
) -> None:
    first = [
        RestoredPreemption(1e9 + 1 / 3, ODD, "b"),
        RestoredPreemption(1e9 + 1 / 3, ODD, "b", ODD),
        RestoredPreemption(1e9 + 1 / 3, ODD, "b", ODD),
    ]
    later = [RestoredPreemption(1e9 + 3600, "c", ODD), RestoredPreemption(1e9 + 3600, "a", "b")]
    for change, rows in ((first, first), ((), first), (later, [*first, *later])):
        seen = await store.changes.snapshot(conn)
        await store.preemptions.add(conn, change)
        assert await store.preemptions.load(conn) == rows
        changed = await store.changes.since(conn, seen)
        assert changed is not None
        assert await store.preemptions.load_of(conn, changed.preemptions) == [*change]
        assert not changed.gangs | changed.nodes | changed.reservations | changed.usage
    last = [RestoredPreemption(1e9 + 3601, "d", "e")]
    await store.preemptions.add(conn, last)
    assert await store.preemptions.load(conn) == [*later, *last]


async def test_what_is_known_of_a_gang_is_read_again(kit: Kit, conn: asyncpg.Connection) -> None:
    request = kit.gang(ODD, *kit.pods("w", 1, gpus=1))
    await store.gangs.save_requests(conn, [request])
    bare = KnownGang(request)
    for known in (replace(bare, passed=ODD), bare):
        await store.gangs.keep_gangs(conn, [known])
        assert await store.gangs.load_gangs(conn, "", 10) == [known]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A node of four GPUs, for which cells and a time are kept."""
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    policy = "backfill: true, fairShare: {halfLifeSeconds: 100000}"
    none = "backfill: false, fairShare: false"
    path.with_name("without.yaml").write_text(FILE.replace(policy, none))
    return path


def asked(kit: Kit, gang: str, gpus: int, user: str = "ada", **more: Any) -> GangRequest:
    message: GangRequest = kit.gang(gang, *kit.pods(gang, 1, gpus=gpus))
    return message.model_copy(update={"user": user, **more})


async def reserved(kit: Kit, others: Others) -> None:
    """A gang has two GPUs, and all four are kept for another."""
    await others.report(kit.report("n0", gpus=4))
    await others.ask(asked(kit, "runs", 2, limit_s=3000))
    await others.until(lambda: others.states("runs") == ["placed"])
    await others.ask(asked(kit, "first", 4, user="bob"))
    await others.until(lambda: "expectedStart" in told(others, "first"))


def told(others: Others, gang: str) -> dict[str, Any]:
    """The numbers of why it waits."""
    message = others.decisions.get(gang)
    return {} if message is None or message.reason is None else dict(message.reason.numbers)


async def decided_by_it(kit: Kit, others: Others, runtime: Runtime) -> None:
    """Nobody passes who would stay too long, and the first starts where its cells were kept."""
    await others.ask(asked(kit, "longer", 2, limit_s=90_000))
    await others.until(lambda: others.states("longer") == ["waiting"])
    assert others.decisions["longer"].reason.code == "reservation"
    await others.ask(asked(kit, "short", 2, limit_s=60))
    await others.until(lambda: others.states("short") == ["placed"])
    assert (await rows(runtime)).keys() == {"first"}
    for gang in ("short", "runs"):
        await others.ask(kit.gang(gang))
        await others.until(lambda gang=gang: others.is_over(gang))
    await others.until(lambda: others.states("first") == ["placed"])
    assert others.states("longer") == ["waiting"]
    await until_none(runtime)


async def rows(runtime: Runtime) -> dict[str, KnownReservation]:
    async with runtime.pool.acquire() as conn:
        return await store.reservations.load(conn)


async def until_none(runtime: Runtime) -> None:
    """Of those that started nothing is kept."""
    async with asyncio.timeout(60):
        while "first" in await rows(runtime):
            await asyncio.sleep(0.05)


async def used(runtime: Runtime) -> dict[Any, RestoredUsage]:
    async with runtime.pool.acquire() as conn:
        return await store.usage.load(conn)


async def test_a_standby_that_takes_over_goes_on_with_what_was_kept_and_used(
    kit: Kit, another_scheduler: RunAnother, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with another_scheduler(cluster_file=file) as leader:
        await others.report(kit.report("n0", gpus=4))
        await others.ask(asked(kit, "runs", 2, limit_s=3000))
        await others.until(lambda: others.states("runs") == ["placed"])
        async with scheduler(cluster_file=file) as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            await others.ask(asked(kit, "first", 4, user="bob"))
            await others.until(lambda: "expectedStart" in told(others, "first"))
            async with asyncio.timeout(60):  # it may be written a moment after it was said
                while not (found := await rows(standby)):
                    await asyncio.sleep(0.02)
            (before,) = found.values()
            assert before.restored.cells == (("n0", (0, 1, 2, 3)),)
            assert len(dict(before.restored.held or ())["n0"]) == 2
            account = (await used(standby))["default", False, "ada"]
            leader.kill()
            await leader.wait()
            await others.ask(asked(kit, "long", 2, limit_s=90_000))
            await others.until(lambda: others.states("long") == ["waiting"])
            assert others.decisions["long"].epoch == 2
            assert await rows(standby) == {"first": before}
            await decided_by_it(kit, others, standby)
            assert others.decisions["first"].epoch == 2
            assert measured(standby, "rebuilds_total") == 0
            after = (await used(standby))["default", False, "ada"]
            assert after.at > account.at
            assert after.used["t"] >= 2 * (after.at - account.at) * 0.9


async def test_a_restart_goes_on_with_what_was_kept(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with scheduler(cluster_file=file) as runtime:
        await reserved(kit, others)
        accounts = await used(runtime)
    async with scheduler(cluster_file=file) as runtime:
        await until(lambda: measured(runtime, "is_leader") == 1)
        await until_alive(runtime, 1)
        assert await used(runtime) == accounts
        await decided_by_it(kit, others, runtime)


async def test_a_restart_knows_whom_it_told_to_leave(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    """The budget of an hour is used up, so nobody leaves for the second one."""
    spent = "preemptionsPerHour: 1, graceSeconds: 0"
    careful = file.with_name("careful.yaml")
    careful.write_text(FILE.replace("backfill: true", f"backfill: true, {spent}"))
    async with scheduler(cluster_file=careful) as runtime:
        await others.report(kit.report("n0", gpus=4))
        for gang in ("one", "other"):
            await others.ask(asked(kit, gang, 2, priority=1, job=gang))
            await others.until(lambda gang=gang: others.states(gang) == ["placed"])
        await others.ask(asked(kit, "first", 2, priority=5))
        await others.until(lambda: "victims" in told(others, "first"))
        async with runtime.pool.acquire() as conn:
            (before,) = await store.preemptions.load(conn)
        assert (before.for_job, before.virtual_cluster) == ("first", "default")
    async with scheduler(cluster_file=careful) as runtime:
        await until(lambda: measured(runtime, "is_leader") == 1)
        await others.ask(asked(kit, "second", 2, priority=5))
        await others.until(lambda: "protected" in told(others, "second"))
        async with runtime.pool.acquire() as conn:
            assert await store.preemptions.load(conn) == [before]


async def test_what_no_policy_asks_for_any_more_is_stored_no_longer(
    kit: Kit, scheduler: RunScheduler, others: Others, file: Path
) -> None:
    async with scheduler(cluster_file=file) as runtime:
        await reserved(kit, others)
    without = file.with_name("without.yaml")
    async with scheduler(cluster_file=without) as runtime:
        await others.ask(asked(kit, "long", 2))
        await others.until(lambda: others.states("long") == ["placed"])
        await until_none(runtime)
        assert not await used(runtime)
