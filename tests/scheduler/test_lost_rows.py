"""The Scheduler's schema is lost while pods run: no pod's name runs elsewhere, over a real database
and a broker.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import pytest
from muster.contracts.gangs import GangRequest, PodDecision
from muster.contracts.nodes import NodeReport, PodOnNode
from muster.service import Runtime
from scheduler_watched import measured, until, until_alive

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def held(runtime: Runtime) -> set[tuple[str, int, str]]:
    """Which pod holds which GPU, as the database has it."""
    rows = await runtime.pool.fetch("SELECT node, gpu, pod FROM held_gpu")
    return {(row["node"], row["gpu"], row["pod"]) for row in rows}


async def lose_schema(database_url: str) -> None:
    """All that the Scheduler has stored is gone; its tables are there again, and empty."""
    conn = await asyncpg.connect(database_url)
    try:
        await conn.execute("DROP SCHEMA scheduler CASCADE")
    finally:
        await conn.close()
    migrate = ("-m", "muster.migrate", "--database-url", database_url)
    migrating = await asyncio.create_subprocess_exec(sys.executable, *migrate)
    assert await migrating.wait() == 0


async def placed(others: Others, message: GangRequest, report: NodeReport) -> None:
    """A gang that has waited for its node: the Launcher has seen more revisions of it than a
    Scheduler publishes that begins anew.
    """
    await others.ask(message)
    await others.until(lambda: "waiting" in others.states(message.gang))
    await others.report(report)
    await others.until(lambda: set(others.states(message.gang)) == {"placed"})


async def ask_again(others: Others, gang: str) -> None:
    """The Launcher's message once more; waits for an answer."""
    await others.ask(others.messages[gang])
    await others.until(lambda: others.decisions[gang].seen >= others.revisions[gang])


async def test_pods_that_run_keep_their_places_when_the_schema_is_lost(
    kit: Kit, scheduler: RunScheduler, others: Others, database_url: str
) -> None:
    async with scheduler() as runtime:
        pods = kit.pods("g", 2, gpus=1, ports={"http": 1, "peer": 2})
        await placed(others, kit.gang("g", *pods), kit.report("n0", gpus=4))
        before = others.decisions["g"].pods
        rows = await held(runtime)
        assert len(rows) == 2
    runs = tuple(map(a_live_pod, before))
    await others.report(kit.report("n0", gpus=4, revision=2, pods=runs))
    await others.report(kit.report("n1", gpus=2))  # where it would go, if it were new
    await lose_schema(database_url)
    async with scheduler() as runtime:
        await until_alive(runtime, 2)
        await ask_again(others, "g")
        await others.until(lambda: others.states("g") == ["placed", "placed"])
        assert others.decisions["g"].pods == before
        assert others.decisions["g"].gang_class.value == "guaranteed"
        assert await held(runtime) == rows
        assert measured(runtime, "adopted_pods_total") == 2
    async with scheduler() as runtime:  # and what was adopted is there after a restart
        await others.ask(kit.gang("h", *kit.pods("h", 2, gpus=2)))
        await others.until(lambda: others.states("h") == ["placed", "placed"])
        await others.ask(kit.gang("g"))
        await others.until(lambda: others.is_over("g"))
        assert others.decisions["h"].epoch == 2
        free = {("n0", gpu) for gpu in range(4)} - {(node, gpu) for node, gpu, _ in rows}
        assert {(node, gpu) for node, gpu, pod in await held(runtime) if pod[0] == "h"} == {
            ("n1", 0),
            ("n1", 1),
            *free,
        }


def a_live_pod(place: PodDecision) -> PodOnNode:
    """As its agent reports it."""
    ports = sorted(port for numbers in place.ports.values() for port in numbers)
    return PodOnNode(pod=place.pod, gpus=place.gpus, ports=tuple(ports))


async def test_a_pod_that_cannot_be_adopted_is_waited_for_until_its_node_drops_it(
    kit: Kit, scheduler: RunScheduler, others: Others, database_url: str
) -> None:
    async with scheduler():
        await placed(others, kit.gang("g", *kit.pods("g", 1, gpus=2)), kit.report("n0", gpus=2))
    ends = (PodOnNode(pod="g-w-0"),)  # its agent ends it, and knows no more of it
    await others.report(kit.report("n0", gpus=2, revision=2, pods=ends))
    await others.report(kit.report("n1", gpus=2))
    await lose_schema(database_url)
    async with scheduler() as runtime:
        await until_alive(runtime, 2)
        await ask_again(others, "g")
        await others.until(lambda: others.states("g") == ["waiting"])
        reason = others.decisions["g"].reason
        assert (reason.code, reason.numbers) == (
            "still-running",
            {"pod": "g-w-0", "node": "n0"},
        )
        await others.ask(kit.gang("h", *kit.pods("h", 1, gpus=2), age=1))
        await others.until(lambda: others.states("h") == ["placed"])
        assert others.states("g") == ["waiting"]
    async with scheduler() as runtime:  # it waits for that after a restart too
        await until(lambda: measured(runtime, "is_leader") == 1)
        await others.ask(kit.gang("h"))
        await others.until(lambda: others.is_over("h"))
        assert others.states("g") == ["waiting"]
        await others.report(kit.report("n0", gpus=2, revision=3))
        await others.until(lambda: others.states("g") == ["placed"])
        assert len(await held(runtime)) == 2
