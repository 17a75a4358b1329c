"""Nodes that are silent, lost, back and removed, over a real database and a broker."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.db import Connection
from muster.service import Runtime
from scheduler import store
from scheduler.settings import SchedulerSettings
from scheduler.store.nodes import KnownNode
from scheduler.watch import Watch
from scheduler_watched import until

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

LEASE_S = 2.0
DEADLINE_S = 60.0

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def held(runtime: Runtime) -> set[tuple[str, int, str]]:
    """Which pod holds which GPU, as the database has it."""
    rows = await runtime.pool.fetch("SELECT node, gpu, pod FROM held_gpu")
    return {(row["node"], row["gpu"], row["pod"]) for row in rows}


@pytest.fixture
def settings(settings: SchedulerSettings) -> SchedulerSettings:
    """With short leases."""
    return settings.model_copy(update={"lease_timeout_s": LEASE_S})


async def test_a_silent_node_is_lost_and_its_gpus_count_again_from_its_lease(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler() as runtime:
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        del others.alive["n0"]
        await others.until(lambda: others.states("a") == ["lost"])
        await others.until(lambda: others.lost)
        assert (others.lost[0].node, others.lost[0].pods) == ("n0", ("a-w-0",))
        lease = others.lost[0].lease
        await others.ask(kit.gang("a"))
        await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
        await others.until(lambda: others.states("b") == ["waiting"])
        await others.report(kit.report("n0", gpus=1, revision=2))
        await others.until(lambda: others.returned)
        assert await held(runtime) == set()  # what nobody wants needs no row: the node is not used
        assert others.states("b") == ["waiting"]
        await others.report(
            kit.report("n0", gpus=1, revision=3, lease=lease, holding={"a-w-0": (0,)})
        )
        await others.ask(kit.gang("c", *kit.pods("c", 1, gpus=1), age=1))
        await others.until(lambda: others.states("c") == ["waiting"])
        assert others.states("b") == ["waiting"]
        await others.report(kit.report("n0", gpus=1, revision=4, lease=lease))
        await others.until(lambda: others.states("b") == ["placed"])
        assert await held(runtime) == {("n0", 0, "b-w-0")}


async def test_a_bus_that_is_away_loses_no_node(
    kit: Kit, scheduler: RunScheduler, others: Others, fresh_broker: EmbeddedBroker
) -> None:
    async with scheduler():
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        alive = dict(others.alive)
        others.alive.clear()
        fresh_broker.kill()
        await asyncio.sleep(3 * LEASE_S)  # the time is the test
        fresh_broker.start()
        others.alive.update(alive)
        await others.report(kit.report("n0", gpus=2, revision=2, holding={"a-w-0": (0,)}))
        await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
        await others.until(lambda: others.states("b") == ["placed"])
        assert others.states("a") == ["placed"]
        assert others.lost == []


async def lost(kit: Kit, others: Others, node: str) -> None:
    """A node with a pod falls silent, is lost, and the Launcher lets go of the pod."""
    await others.report(kit.report(node, gpus=1))
    await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
    await others.until(lambda: others.states("a") == ["placed"])
    del others.alive[node]
    await others.until(lambda: others.states("a") == ["lost"])
    await others.ask(kit.gang("a"))
    await others.until(lambda: others.is_over("a"))


async def test_a_lost_node_that_is_removed_counts_no_more_until_it_speaks(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler() as runtime:
        await lost(kit, others, "n0")
        assert await runtime.pool.fetchval("SELECT count(*) FROM placement") == 0
        await others.remove("n0")
        await others.report(kit.report("n1", gpus=1))
        await others.ask(kit.gang("two", *kit.pods("two", 2, gpus=1)))
        await others.until(lambda: others.states("two") == ["refused", "refused"])
        assert others.decisions["two"].reason.code == "too-large"
    async with scheduler() as runtime:
        await others.ask(kit.gang("too", *kit.pods("too", 2, gpus=1)))
        await others.until(lambda: others.states("too") == ["refused", "refused"])
        await others.report(kit.report("n0", gpus=1, revision=2))
        await others.until(lambda: others.returned)
        lease = others.returned[0].lease
        await others.report(kit.report("n0", gpus=1, revision=3, lease=lease))
        await until(lambda: healthy_gpus(runtime) == 2)
        await others.ask(kit.gang("three", *kit.pods("three", 2, gpus=1)))
        await others.until(lambda: others.states("three") == ["placed", "placed"])


def healthy_gpus(runtime: Runtime) -> float | None:
    return runtime.registry.get_sample_value("muster_scheduler_gpus", {"state": "healthy"})


async def test_a_node_that_was_lost_for_long_is_removed_for_everybody(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler(lost_kept_days=1e-9, lost_repeat_s=0.1):
        await lost(kit, others, "n0")
        await others.until(lambda: others.removed == {"n0"})


async def test_a_loss_is_not_told_before_it_is_committed(
    kit: Kit, scheduler: RunScheduler, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads next may know nothing of it."""
    save_nodes, publish, say = store.nodes.save_nodes, Watch.publish, Watch._publish_all
    is_writing, may_write, told, said = asyncio.Event(), asyncio.Event(), 0, 0

    async def slow(conn: Connection, nodes: Sequence[KnownNode]) -> None:
        if any(node.is_lost for node in nodes):
            is_writing.set()
            await may_write.wait()
        await save_nodes(conn, nodes)

    async def notices(watch: Watch, known: dict[str, KnownNode]) -> None:
        nonlocal told
        await publish(watch, known)
        told += 1

    async def publishing(*given: Any) -> None:
        nonlocal said
        said += 1
        await say(*given)

    monkeypatch.setattr(store.nodes, "save_nodes", slow)
    monkeypatch.setattr(Watch, "publish", notices)
    monkeypatch.setattr(Watch, "_publish_all", publishing)
    async with scheduler(deciding_timeout_s=60.0):
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        del others.alive["n0"]
        async with asyncio.timeout(DEADLINE_S):
            await is_writing.wait()
            before = told
            while told < before + 3:
                await asyncio.sleep(0.02)
        assert said == 0
        may_write.set()
        await others.until(lambda: others.lost)
