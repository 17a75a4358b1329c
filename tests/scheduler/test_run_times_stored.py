"""Learnt run times in the database: kept by a restart, followed by a standby."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import pytest
from muster.contracts.gangs import GangEnd
from muster.service import Runtime
from scheduler import store
from scheduler.domain.run_times import Bounds, History, Key, Run, RunTimes
from scheduler_watched import measured, until

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]
RunAnother = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ODD = Key('a "b" \\ ü,{}', "n%", "")


@pytest.fixture
async def conn(scheduler: RunScheduler) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the Scheduler's schema, in which nobody writes."""
    async with scheduler() as runtime, runtime.pool.acquire() as conn:
        yield conn


async def test_what_is_written_is_read_again_and_nothing_else(conn: asyncpg.Connection) -> None:
    known = RunTimes(Bounds(runs=3, keys=3, user_keys=2))
    for at in range(12):
        key = ODD if at % 3 == 0 else Key("u", f"n{at % 5}", str(at))
        await store.run_times.save(conn, known.note([Run(key, at + 1 / 3, 2**31 - 1 - at)]))
        assert await store.run_times.load(conn) == known.histories
    assert ODD in known.histories
    assert await store.run_times.load_of(conn, [ODD, Key("", "", "")]) == {
        ODD: known.histories[ODD]
    }
    assert await store.run_times.load_of(conn, []) == {}


async def test_whatever_writes_a_key_it_is_noted_for_those_who_follow(
    conn: asyncpg.Connection,
) -> None:
    other = Key("u", "n", "1")
    for change in (
        {ODD: History((1.0,), (5,)), other: History((1.0,), (5,))},
        {ODD: History((1.0, 2.0), (5, 6)), other: History((3.0,), (1,))},
        {ODD: None, other: None},
    ):
        seen = await store.changes.snapshot(conn)
        async with conn.transaction():
            await store.run_times.save(conn, change)
        changed = await store.changes.since(conn, seen)
        assert changed is not None
        assert changed.run_times == {ODD, other}
        assert not changed.gangs | changed.nodes


async def test_changes_of_a_kind_that_a_newer_version_notes_are_passed_over(
    conn: asyncpg.Connection,
) -> None:
    seen = await store.changes.snapshot(conn)
    await conn.execute("INSERT INTO change (what, name) VALUES ('new', 'x')")
    changed = await store.changes.since(conn, seen)
    assert changed is not None
    assert not changed.gangs | changed.nodes | changed.run_times


async def run(kit: Kit, others: Others, gang: str) -> None:
    """A gang of a job like the others, from its start to its end."""
    message = kit.gang(gang, *kit.pods(gang, 1, gpus=1))
    await others.ask(message)
    await others.until(lambda: others.states(gang) == ["placed"])
    await others.ask(message.model_copy(update={"pods": (), "end": GangEnd.SUCCEEDED}))
    await others.until(lambda: others.is_over(gang))


async def asked(kit: Kit, others: Others, gang: str) -> None:
    await others.ask(kit.gang(gang, *kit.pods(gang, 1, gpus=1)))
    await others.until(lambda: others.states(gang) == ["placed"])


EXPECTED = "SELECT expected_s FROM gang WHERE gang = $1"


async def test_a_job_that_ran_twice_is_expected_to_take_as_long_also_after_a_restart(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler() as runtime:
        await others.report(kit.report("n0", gpus=8))
        await run(kit, others, "g0")
        await asked(kit, others, "g1")
        assert await runtime.pool.fetchval(EXPECTED, "g1") is None
        message = kit.gang("g1")
        await others.ask(message.model_copy(update={"end": GangEnd.STOPPED}))
        await others.until(lambda: others.is_over("g1"))
        await asked(kit, others, "g2")
        first = await runtime.pool.fetchval(EXPECTED, "g2")
        assert first is not None
        assert first >= 1
        await until(lambda: measured(runtime, "run_time_keys") == 1)  # it is counted now and then
    async with scheduler() as runtime:
        await asked(kit, others, "g3")
        assert await runtime.pool.fetchval(EXPECTED, "g3") == first
        assert await runtime.pool.fetchval(EXPECTED, "g2") == first
        await others.ask(kit.gang("g2").model_copy(update={"end": GangEnd.SUCCEEDED}))
        await others.until(lambda: others.is_over("g2"))
        by = {"by": "history"}
        sample = runtime.registry.get_sample_value
        assert sample("muster_scheduler_run_time_by_expected_count", by) == 1
        assert sample("muster_scheduler_runs_total", by) == 1
        rows = await store.run_times.load(runtime.pool)  # type: ignore[arg-type]
        assert [len(history.seconds) for history in rows.values()] == [3]


async def test_who_takes_over_from_memory_knows_what_was_learnt_meanwhile(
    kit: Kit, another_scheduler: RunAnother, scheduler: RunScheduler, others: Others
) -> None:
    async with another_scheduler() as leader:
        await others.report(kit.report("n0", gpus=8))
        await run(kit, others, "g0")
        async with scheduler() as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            await run(kit, others, "g1")
            leader.kill()
            await leader.wait()
            await asked(kit, others, "g2")
            assert others.decisions["g2"].epoch == 2
            assert await standby.pool.fetchval(EXPECTED, "g2") is not None
            assert measured(standby, "rebuilds_total") == 0
