"""The service over a real database and a Kafka-protocol broker; a Launcher and agents are
played.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

import asyncpg
import pytest
from cli.embedded.process import free_port
from muster.contracts.gangs import GangEnd
from muster.contracts.nodes import Gpu
from muster.service import Runtime
from muster.service_keys import agent
from scheduler_answers import asking
from scheduler_watched import until
from service_auth import ServiceAuth

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def held(runtime: Runtime) -> set[tuple[str, int, str]]:
    """Which pod holds which GPU, as the database has it."""
    rows = await runtime.pool.fetch("SELECT node, gpu, pod FROM held_gpu")
    return {(row["node"], row["gpu"], row["pod"]) for row in rows}


async def test_a_gang_is_placed_released_and_over(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler() as runtime:
        await others.report(kit.report("n0", gpus=4))
        await others.ask(kit.gang("g", *kit.pods("g", 2, gpus=2, ports={"http": 1})))
        await others.until(lambda: others.states("g") == ["placed", "placed"])
        message = others.decisions["g"]
        assert message.epoch == 1
        assert sorted(gpu for pod in message.pods for gpu in pod.gpus) == [0, 1, 2, 3]
        assert {pod.journal for pod in message.pods} == {"journal-of-n0"}
        await others.ask(kit.gang("h", *kit.pods("h", 1, gpus=1)))
        await others.until(lambda: others.states("h") == ["waiting"])
        assert others.decisions["h"].reason is not None
        await others.ask(kit.gang("g"))
        await others.until(lambda: others.is_over("g"))
        await others.until(lambda: others.states("h") == ["placed"])
        assert {pod for _, _, pod in await held(runtime)} == {"h-w-0"}
        await others.ask(kit.gang("big", *kit.pods("big", 1, gpus=5)))
        await others.until(lambda: others.states("big") == ["refused"])


async def test_metrics_say_what_waits_for_what_and_what_is_kept(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    def value(name: str, *labels: str) -> float | None:
        names = ("virtual_cluster", "state" if name.startswith("virtual") else "reason")
        found = dict(zip(names, labels, strict=False))
        return runtime.registry.get_sample_value(f"muster_scheduler_{name}", found)

    async with scheduler() as runtime:
        await others.report(kit.report("n0", gpus=4))
        await others.ask(kit.gang("g", *kit.pods("g", 2, gpus=2)))
        await others.until(lambda: others.states("g") == ["placed", "placed"])
        await others.ask(kit.gang("h", *kit.pods("h", 3, gpus=1)))
        await others.until(lambda: others.states("h") == ["waiting"] * 3)
        await until(lambda: value("waiting_gpus", "default", "quota") == 3)
        assert value("virtual_cluster_gpus", "default", "quota") == 4
        assert value("virtual_cluster_gpus", "default", "charged") == 4
        assert value("requeued_gangs_total", "default") == 0
        await others.ask(kit.gang("g").model_copy(update={"end": GangEnd.REQUEUED}))
        await others.until(lambda: others.is_over("g"))
        await until(lambda: value("requeued_gangs_total", "default") == 1)
        await until(lambda: value("waiting_gpus", "default", "quota") is None)
        assert value("waiting_gpus", "default", "reservation") == 3  # for the next attempt


async def test_a_restart_loses_nothing_and_says_nothing_again(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler():
        await others.report(kit.report("n0", gpus=2))
        await others.ask(kit.gang("a", *kit.pods("a", 2, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed", "placed"])
        await others.ask(kit.gang("b", *kit.pods("b", 2, gpus=1), age=1))
        await others.until(lambda: others.states("b") == ["waiting", "waiting"])
    before = dict(others.decisions)
    async with scheduler() as runtime:
        await others.ask(kit.gang("c", *kit.pods("c", 2, gpus=1), age=2))
        await others.until(lambda: others.states("c") == ["waiting", "waiting"])
        assert {gang: others.decisions[gang].pods for gang in "ab"} == {
            gang: before[gang].pods for gang in "ab"
        }
        assert others.topics.count(("placement-deferred", "b")) >= 1
        await others.ask(kit.gang("a"))
        await others.until(lambda: others.states("b") == ["placed", "placed"])
        assert {pod for _, _, pod in await held(runtime)} == {"b-w-0", "b-w-1"}


async def test_lost_connections_cost_no_decision_and_make_no_second(
    kit: Kit, scheduler: RunScheduler, others: Others, database_url: str
) -> None:
    async with scheduler():
        await others.report(kit.report("n0", gpus=12))
        admin = await asyncpg.connect(database_url)
        for number in range(12):
            name = f"g{number}"
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'muster-scheduler' AND datname = current_database()"
            )
        names = [f"g{number}" for number in range(12)]
        await others.until(lambda: all(others.states(name) == ["placed"] for name in names))
        said = {(p.node, p.gpus[0], p.pod) for n in names for p in others.decisions[n].pods}
        rows = await admin.fetch("SELECT node, gpu, pod FROM scheduler.held_gpu")
        assert {(row["node"], row["gpu"], row["pod"]) for row in rows} == said
        assert len({gpu for _, gpu, _ in said}) == 12
        await admin.close()


async def test_the_queue_and_reasons_are_told_over_http_to_those_who_may(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    port = free_port()
    async with scheduler(port):
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a")[-1:] == ["placed"])
        for age, name in enumerate("bc", start=1):
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1), age=age))
        await others.until(lambda: others.states("c") == others.states("b") == ["waiting"])
        async with asking(port) as client:
            assert (await client.get("/queue", auth=None)).status_code == 401
            theirs = ServiceAuth(agent("node-1"))
            assert (await client.get("/queue", auth=theirs)).status_code == 401
            queue = (await client.get("/queue?limit=1")).json()
            assert (queue["total"], [gang["gang"] for gang in queue["gangs"]]) == (2, ["b"])
            why = (await client.get("/jobs/c/why")).json()
            (gang,) = why["gangs"]
            assert (gang["state"], gang["position"], gang["ahead"]) == ("waiting", 2, ["b"])
            assert gang["reason"]["code"] == "quota"
            assert gang["reason"]["numbers"]["cellsLeft"] == 0
            assert (await client.get("/gangs/a")).json()["state"] == "placed"
            assert (await client.get("/jobs/nobody/why")).status_code == 404
            for odd in ("-1", "²", "9" * 5000, "x"):
                assert len((await client.get(f"/queue?limit={odd}")).json()["gangs"]) == 2
            (node,) = (await client.get("/nodes")).json()["nodes"]
            assert (node["state"], node["gpusFree"], node["pods"]) == ("alive", 0, ["a-w-0"])
            assert "muster_scheduler_is_leader 1.0" in (await client.get("/metrics")).text


async def test_a_report_that_makes_no_sense_hurts_nobody(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler():
        odd = Gpu(index=-1, uuid="u", model="T", memory_mb=1)
        await others.report(kit.report("n0", gpus=1))
        await others.report(kit.report("odd", gpus=(odd,)))
        await others.report(kit.report("odd", revision=2, at=datetime(2026, 1, 1)))  # noqa: DTZ001
        await others.ask(kit.gang("g", *kit.pods("g", 1, gpus=1)))
        await others.until(lambda: others.states("g") == ["placed"])
        assert others.decisions["g"].pods[0].node == "n0"


async def test_a_gang_that_was_refused_is_forgotten_when_it_is_let_go(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler() as runtime:
        await others.report(kit.report("n0", gpus=1))
        await others.ask(kit.gang("two", *kit.pods("two", 2, gpus=1)))
        await others.until(lambda: others.states("two") == ["refused", "refused"])
        await others.ask(kit.gang("two"))
        await others.until(lambda: others.is_over("two"))
        assert await runtime.pool.fetchval("SELECT count(*) FROM gang") == 0
