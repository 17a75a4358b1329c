"""What one side has forgotten and the Scheduler has not: pods that an agent's lost journal had, and
gangs that have ended. Over a real database and a broker.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from muster.aggregates import apply_records
from muster.contracts.topics import Service
from muster.db import Transaction
from muster.records import Received
from muster.service import Runtime
from scheduler.handlers import GANGS
from scheduler.settings import SchedulerSettings
from scheduler_watched import measured, until, until_alive

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

LEASE_S = 2.0

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.fixture
def settings(settings: SchedulerSettings) -> SchedulerSettings:
    """With short leases."""
    return settings.model_copy(update={"lease_timeout_s": LEASE_S})


async def held(runtime: Runtime) -> set[tuple[str, int]]:
    """Which pod holds which GPU, as the database has it."""
    return {(r["pod"], r["gpu"]) for r in await runtime.pool.fetch("SELECT pod, gpu FROM held_gpu")}


async def placed(kit: Kit, others: Others) -> None:
    """A gang has all GPUs of a node, and another one waits for them."""
    await others.report(kit.report("n0", gpus=2))
    await others.ask(kit.gang("g", *kit.pods("g", 2, gpus=1)))
    await others.until(lambda: others.states("g") == ["placed"] * 2)
    await others.ask(kit.gang("h", *kit.pods("h", 1, gpus=1), age=1))
    await others.until(lambda: others.states("h") == ["waiting"])


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_pods_are_lost_with_their_journal_and_others_get_their_gpus(
    kit: Kit, scheduler: RunScheduler, others: Others, is_restarted: bool
) -> None:
    async with scheduler(lease_timeout_s=60.0 if is_restarted else LEASE_S) as runtime:
        await placed(kit, others)
        runs = {"g-w-1": others.decisions["g"].pods[1].gpus}
        await others.report(kit.report("n0", gpus=2, revision=2, journal="new", holding=runs))
        if not is_restarted:
            await others.until(lambda: others.states("g") == ["lost", "placed"])
        else:  # it is read, and nothing is lost yet
            await others.report(kit.report("n1"))
            await until_alive(runtime, 2)
            assert others.states("g") == ["placed", "placed"]
    async with scheduler() as runtime:
        await others.until(lambda: others.states("g") == ["lost", "placed"])
        assert {pod for pod, _ in await held(runtime)} == {"g-w-1"}
        assert measured(runtime, "nodes_lost_total") == 0
        assert (others.lost, others.returned) == ([], [])
        lost = others.decisions["g"]
    async with scheduler() as runtime:  # and it stays so
        await others.ask(kit.gang("late", *kit.pods("late", 1, gpus=1), age=2))
        await others.until(lambda: others.states("late") == ["waiting"])
        assert others.states("h") == ["waiting"]  # the GPU is kept for the next attempt
        assert others.decisions["g"] == lost
        await others.ask(kit.gang("g"))
        await others.until(lambda: others.is_over("g"))
        await others.report(kit.report("n0", gpus=2, revision=3, journal="new"))
        await others.until(lambda: others.states("late") == ["placed"])
        assert others.decisions["h"].pods[0].journal == "new"
        assert {pod for pod, _ in await held(runtime)} == {"h-w-0", "late-w-0"}


async def test_pods_stay_while_the_journal_is_heard_that_they_were_placed_on(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    """Another machine of that name has reported once, so that no clash is known yet."""
    async with scheduler() as runtime:
        await placed(kit, others)
        others.twins["n0"] = "new"
        await others.report(kit.report("n0", gpus=2, revision=2, journal="new"))
        await asyncio.sleep(2 * LEASE_S)  # the time is the test
        assert others.states("g") == ["placed", "placed"]
        others.alive["n0"] = "new"
        await others.until(lambda: others.states("g") == ["lost", "lost"])
        assert measured(runtime, "lost_journals_total") == 1


async def test_a_gang_that_is_released_before_any_cycle_has_seen_it_is_released(
    kit: Kit, database_url: str
) -> None:
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "scheduler"})
    for revision, pods in ((1, kit.pods("g", 2, gpus=1)), (2, ())):
        message = kit.gang("g", *pods).model_copy(update={"revision": revision})
        value = message.model_dump_json().encode()
        record = Received("gang-requested", 0, revision, "g", {}, value)
        async with conn.transaction():
            opened = Transaction(conn, datetime.now(UTC))  # noqa: TID251 - any time will do
            await apply_records(opened, Service.SCHEDULER, GANGS, [record])
        assert opened.outgoing == []
    row = await conn.fetchrow("SELECT request->>'pods' AS pods, is_dirty FROM gang")
    await conn.close()
    assert (row["pods"], row["is_dirty"]) == (None, True)


async def is_open(runtime: Runtime, gang: str) -> bool | None:
    found = await runtime.pool.fetchval("SELECT is_open FROM subject WHERE subject = $1", gang)
    assert found is None or isinstance(found, bool)
    return found


async def test_a_gang_that_has_ended_is_placed_never_again(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler() as runtime:
        await placed(kit, others)
        before = others.messages["g"]
        await others.ask(kit.gang("g"))
        await others.until(lambda: others.is_over("g"))
        await others.report(kit.report("n0", gpus=2, revision=2))
        await others.until(lambda: others.states("h") == ["placed"])
        await others.ask(before)
        await others.until(lambda: others.states("g") == ["lost", "lost"])
        answer = others.decisions["g"]
        assert (answer.reason.code, answer.epoch) == ("ended", 1)
        assert answer.pods[0].node is None
    async with scheduler() as runtime:  # nor after a restart
        await until(lambda: measured(runtime, "is_leader") == 1)
        await others.ask(kit.gang("g"))
        await others.until(lambda: others.is_over("g"))
        await others.ask(before.model_copy(update={"pods": before.pods[:1]}))
        await others.until(lambda: others.states("g") == ["lost"])
        assert others.decisions["g"].epoch == 2
        assert await is_open(runtime, "g") is False
        assert await runtime.pool.fetchval("SELECT count(*) FROM gang WHERE gang = 'g'") == 0
        assert {pod for pod, _ in await held(runtime)} == {"h-w-0"}
        assert measured(runtime, "nodes_lost_total") == 0
