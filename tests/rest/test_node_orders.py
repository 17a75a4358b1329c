"""Operators cordon and drain nodes; REST publishes the orders on settings-changed."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from muster.contracts.node_orders import NodeOrder, Order
from muster.contracts.nodes import FOREIGN, Gpu, NodeReport, PodOnNode
from muster.contracts.notices import SettingChanged
from muster.db import transaction
from rest.store import node_orders

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAIT_S = 60


def order(node: str) -> str:
    return f"/api/v2/cluster/nodes/{node}/order"


async def report(
    bootstrap: str, node: str, *, is_healthy: bool = True, pods: Sequence[str] = ()
) -> None:
    gpu = Gpu(index=0, uuid="u", model="m", memory_mb=1, is_healthy=is_healthy, problem="hot")
    node_report = NodeReport(
        node=node,
        revision=1,
        journal="j",
        boot="b",
        at=NOW,
        address="127.0.0.1",
        version="1",
        cpu=8,
        memory_mb=1024,
        gpus=(gpu,),
        pods=tuple(PodOnNode(pod=pod) for pod in pods),
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    value = node_report.model_dump_json().encode()
    await producer.send_and_wait("node-reported", value, key=node.encode())
    await producer.stop()


async def settings_of(bootstrap: str, node: str) -> Any:
    """A reader of a node's settings; ends when the consumer is stopped."""
    consumer = AIOKafkaConsumer(
        "settings-changed",
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
    )
    await consumer.start()

    async def next_value() -> SettingChanged | None:
        async with asyncio.timeout(WAIT_S):
            while True:
                record = await consumer.getone()
                if record.key == f"node/{node}".encode():
                    value = record.value
                    return None if value is None else SettingChanged.model_validate_json(value)

    return consumer, next_value


async def test_an_order_stands_is_shown_published_and_revoked(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap, settings_repeat_s=0.2) as rest:
        await report(bootstrap, "n1", is_healthy=False)

        async def nodes() -> list[str]:
            answer = await rest.client.get("/api/v2/cluster/nodes")
            return [node["name"] for node in answer.json()["nodes"]]

        await rest.eventually(nodes, ["n1"])
        consumer, next_value = await settings_of(bootstrap, "n1")
        revisions = []
        for value in ("cordon", "drain", "none"):
            answer = await rest.client.put(order("n1"), json={"value": value})
            assert answer.status_code == 202
            shown = (await rest.client.get("/api/v2/cluster/nodes/n1")).json()
            stands = (None, None) if value == "none" else (value, "admin")
            assert (shown["order"], shown["orderedBy"]) == stands
            assert (shown["orderedAt"] is None) is (value == "none")
            listed = (await rest.client.get("/api/v2/cluster/nodes")).json()["nodes"]
            assert listed[0] == shown
            while (published := await next_value()) is None or published.value["order"] != value:
                pass
            given = NodeOrder.model_validate(published.value)
            assert (given.node, given.order, given.by) == ("n1", Order(value), "admin")
            again = await next_value()
            assert again == published
            revisions.append(published.revision)
        assert revisions == [revisions[0] + n for n in range(3)]
        entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
        acts = [(e["action"], e["object"]) for e in entries if e["action"].startswith("node.")]
        assert acts == [("node.uncordon", "n1"), ("node.drain", "n1"), ("node.cordon", "n1")]
        async with transaction(rest.runtime.pool) as conn:
            await node_orders.forget_over(conn, 0)
        while await next_value() is not None:
            pass
        assert (await rest.client.put(order("n1"), json={"value": "drain"})).status_code == 202
        while (published := await next_value()) is None:
            pass
        assert published.revision > revisions[-1], (
            "a reader of earlier orders takes no lower revision"
        )
        await consumer.stop()


async def test_the_same_order_again_changes_nothing(start_rest: Any, fresh_broker: Any) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        await report(bootstrap, "n1")

        async def status() -> int:
            return int((await rest.client.put(order("n1"), json={"value": "drain"})).status_code)

        await rest.eventually(status, 202)
        rows = await rest.runtime.pool.fetch("SELECT revision FROM node_order")
        assert await status() == 202
        assert await rest.runtime.pool.fetch("SELECT revision FROM node_order") == rows
        entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
        assert [e["action"] for e in entries].count("node.drain") == 1
        nodes = (await rest.client.get("/api/v2/cluster/nodes")).json()["nodes"]
        assert nodes[0]["order"] == "drain"


async def test_an_order_is_answered_by_what_stands_now_and_what_becomes_of_the_pods(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        await report(bootstrap, "n1", pods=("a-0-w-0-0", "a-0-w-1-0", "b-0-w-0-0", FOREIGN))
        await report(bootstrap, "n2", pods=(FOREIGN,))
        await report(bootstrap, "n3", pods=("c-0-w-0-0",))

        async def nodes() -> list[str]:
            answer = await rest.client.get("/api/v2/cluster/nodes")
            return [node["name"] for node in answer.json()["nodes"]]

        await rest.eventually(nodes, ["n1", "n2", "n3"])

        values = ("cordon", "drain", "drain", "none")

        async def ordered(node: str, value: str) -> str:
            answer = await rest.client.put(order(node), json={"value": value})
            return str(answer.json()["message"])

        assert [await ordered("n1", value) for value in values] == [
            "n1: order cordon (was none); 3 pods of 2 jobs stay.",
            "n1: order drain (was cordon); 3 pods of 2 jobs leave.",
            "n1: order drain (stood before); 3 pods of 2 jobs leave.",
            "n1: order none (was drain); 3 pods of 2 jobs are there;"
            " preempted pods are still being stopped.",
        ]
        assert await ordered("n3", "cordon") == "n3: order cordon (was none); 1 pod of 1 job stays."
        assert await ordered("n2", "drain") == "n2: order drain (was none); no pod is there."


async def test_only_admins_order_and_only_nodes_that_there_are(rest: Any) -> None:
    missing = await rest.client.put(order("n9"), json={"value": "cordon"})
    assert (missing.status_code, missing.json()["code"]) == (404, "NoNodeError")
    for body in ({}, {"value": "stop"}, {"value": "drain", "why": "x"}):
        assert (await rest.client.put(order("n9"), json=body)).status_code == 400
    async with await rest.make_user("ann") as ann:
        refused = await ann.put(order("n9"), json={"value": "cordon"})
        assert (refused.status_code, refused.json()["code"]) == (403, "ForbiddenUserError")


async def test_an_order_about_a_node_that_is_gone_can_be_taken_back(rest: Any) -> None:
    async with transaction(rest.runtime.pool) as conn:
        await node_orders.give_order(conn, "gone", Order.DRAIN, "admin")
        standing = (await node_orders.standing_orders(conn))["gone"]
        assert (standing.order, standing.by, standing.reason) == (Order.DRAIN, "admin", None)
    answer = await rest.client.put(order("gone"), json={"value": "none"})
    assert answer.status_code == 202
    assert answer.json()["message"] == "gone: order none (was drain); the node has not reported."
    async with transaction(rest.runtime.pool) as conn:
        assert await node_orders.standing_orders(conn) == {}
        await node_orders.forget_over(conn, 1)
        assert await node_orders.order_of(conn, "gone") is Order.NONE


async def test_an_order_of_a_restored_backup_is_published_above_earlier_revisions(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        async with transaction(rest.runtime.pool) as conn:
            await node_orders.give_order(conn, "n1", Order.DRAIN, "admin")
        for value in ("cordon", "drain", "cordon"):
            assert (await rest.client.put(order("n1"), json={"value": value})).status_code == 202
        consumer, next_value = await settings_of(bootstrap, "n1")
        last = await rest.runtime.pool.fetchval("SELECT revision FROM node_order")
        while (published := await next_value()) is None or published.revision < last:
            pass
        sql = """UPDATE node_order SET revision = 2, "order" = 'drain' WHERE node = 'n1'"""
        await rest.runtime.pool.execute(sql)
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        while (again := await next_value()) is None or again.revision <= published.revision:
            pass
        assert (published.value["order"], again.value["order"]) == ("cordon", "drain")
        await consumer.stop()


async def test_nodes_in_trouble_or_under_orders_are_listed(
    start_rest: Any, fresh_broker: Any, scheduler: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    scheduler.answers["/virtual-clusters"] = {"asOf": 3, "virtualClusters": {}}
    async with start_rest(kafka_bootstrap=bootstrap, scheduler_url=scheduler.url) as rest:
        for node, is_healthy in (("n1", True), ("n2", False), ("n3", True), ("n4", True)):
            await report(bootstrap, node, is_healthy=is_healthy)

        async def summary() -> dict[str, Any]:
            return dict((await rest.client.get("/api/v2/cluster")).json()["nodes"])

        async def count() -> int:
            return int((await summary())["total"])

        await rest.eventually(count, 4)
        found = await summary()
        assert (found["ready"], found["gpusReady"], found["troubled"]) == (4, 3, 1)
        await rest.client.put(order("n3"), json={"value": "drain"})
        await rest.client.put(order("n4"), json={"value": "cordon"})
        found = await summary()
        assert (found["ready"], found["gpusReady"], found["troubled"]) == (2, 1, 3)
        n2, n3, _ = found["inTrouble"]
        assert (n2["name"], n2["badGpus"], n2["problem"], n2["order"]) == ("n2", [0], "hot", None)
        assert (n3["name"], n3["badGpus"]) == ("n3", [])
        assert (n3["order"], n3["orderedBy"]) == ("drain", "admin")
        rest_of_it = {"cpu": None, "memoryMB": None, "gpus": 4}
        scheduler.answers["/nodes"] = {
            "asOf": 3,
            "nodes": [
                {"node": "n1", "state": "alive", "trouble": "it is not in the cluster file"}
                | rest_of_it,
                {"node": "n9", "state": "absent", "trouble": "it has not reported yet"}
                | rest_of_it,
            ],
        }
        found = await summary()
        assert (found["total"], found["ready"], found["gpusReady"]) == (4, 1, 0)
        assert found["troubled"] == 5
        n9 = found["inTrouble"][-1]
        absent = "The cluster file has it, but it has not reported yet."
        assert (n9["name"], n9["state"], n9["problem"], n9["gpus"]) == ("n9", "absent", absent, 4)
        n1 = found["inTrouble"][0]
        missing = "The Scheduler places nothing there: it is not in the cluster file."
        assert (n1["name"], n1["state"], n1["problem"]) == ("n1", "unusable", missing)
        assert scheduler.last == "/nodes?troubled=true"
