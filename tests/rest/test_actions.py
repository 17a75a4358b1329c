"""REST carries out what Alerting requests because of alerts, and takes it back."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from muster.codes import script_code
from muster.contracts.alerts import ActionRequested, Do, Outcome
from muster.contracts.node_orders import Order
from muster.db import transaction
from rest.handlers.act import REQUESTS_HOLD
from rest.handlers.maintain import clean_up
from rest.settings import RestSettings
from rest.store import actions, node_orders
from rest.store.actions import Action
from rest_double import run_cli

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def requested(action: str, node: str, at: datetime, do: Do = Do.CORDON) -> ActionRequested:
    return ActionRequested(
        action=action, do=do, target=node, rule="r", alert="a", summary="it is bad", at=at
    )


async def send(bootstrap: str, *requests: ActionRequested) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for each in requests:
        value = each.model_dump_json().encode()
        await producer.send_and_wait("action-requested", value, key=each.action.encode())
    await producer.stop()


async def test_a_start_carries_out_no_old_request(start_rest: Any, fresh_broker: Any) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        now = await rest.runtime.pool.fetchval("SELECT now()")
        async with transaction(rest.runtime.pool) as conn:
            for node in ("n1", "n2"):
                await node_orders.give_order(conn, node, Order.NONE, "admin")
        old = now - REQUESTS_HOLD - timedelta(minutes=1)
        await send(bootstrap, requested("1", "n1", old), requested("2", "n2", now))

        async def answered() -> list[str]:
            rows = await rest.runtime.pool.fetch("SELECT target FROM alert_action")
            return [row["target"] for row in rows]

        await rest.eventually(answered, ["n2"])
        async with transaction(rest.runtime.pool) as conn:
            (standing,) = (await node_orders.standing_orders(conn)).items()
        assert standing[0] == "n2"
        assert (standing[1].order, standing[1].by) == (Order.CORDON, "(alerting)")
        assert standing[1].reason == "rule r: it is bad"


async def test_a_rule_tags_a_job_with_its_name(start_rest: Any, fresh_broker: Any) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        await rest.submit("idle")
        at = await rest.runtime.pool.fetchval("SELECT now()")
        await send(bootstrap, requested("1", "admin~idle", at, Do.TAG_JOB))

        async def tags() -> list[str]:
            found: list[str] = (await rest.shown("idle"))["tags"]
            return found

        await rest.eventually(tags, ["r"])


async def test_a_job_that_a_rule_stops_says_which_rule_it_was(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        await rest.submit("idle")
        job = await rest.job_id("idle")
        at = await rest.runtime.pool.fetchval("SELECT now()")
        await send(bootstrap, requested("1", "admin~idle", at, Do.STOP_JOB))

        async def stopped_by() -> str | None:
            found: str | None = (await rest.messages(job))[-1].stop_requested_by
            return found

        await rest.eventually(stopped_by, "The alert rule r")


async def test_a_persons_order_stands_although_an_action_gave_the_same(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        pool = rest.runtime.pool
        async with transaction(pool) as conn:
            await node_orders.give_order(conn, "n1", Order.NONE, "admin")

        async def send_now(do: Do) -> None:
            await send(bootstrap, requested("1", "n1", await pool.fetchval("SELECT now()"), do))

        async def outcome() -> str | None:
            found: str | None = await pool.fetchval("SELECT outcome FROM alert_action")
            return found

        async def reason() -> str | None:
            async with transaction(pool) as conn:
                return (await node_orders.standing_orders(conn))["n1"].reason

        await send_now(Do.CORDON)
        await rest.eventually(outcome, "done")
        assert await reason() == "rule r: it is bad"
        path = "/api/v2/cluster/nodes/n1/order"
        assert (await rest.client.put(path, json={"value": "cordon"})).status_code == 202
        assert await reason() is None
        await send_now(Do.UNDO)
        await rest.eventually(outcome, "undone")
        async with transaction(pool) as conn:
            assert await node_orders.lock_order(conn, "n1") == (Order.CORDON, "admin")


KEY = "a-key-of-this-test"
"""MUSTER_WEBHOOK_KEY of the fixture."""


async def begin(pool: Any, action: str, do: Do = Do.REMEDIATE, timeout_s: float = 600.0) -> str:
    """Let a script begin; its code."""
    async with transaction(pool) as conn:
        await actions.take(conn, requested(action, "n1", NOW, do))
        asked = Action(action, do, "n1", Outcome.RUNNING, "")
        return script_code(KEY, action, await actions.start(conn, asked, timeout_s))


async def test_a_script_answers_by_the_code_of_its_action_alone(rest: Any, tmp_path: Path) -> None:
    pool = rest.runtime.pool
    one, two = await begin(pool, "one"), await begin(pool, "two")
    release = await begin(pool, "release", Do.RELEASE)
    late = await begin(pool, "late", timeout_s=0.0)
    altered = ("B" if one[0] == "A" else "A") + one[1:]
    told = {"succeeded": True, "text": "GPU 0 was reset"}

    async def ask(method: str, path: str, code: str) -> int:
        given = {"json": told} if method == "POST" else {}
        async with rest.with_token(code) as client:
            answer = await client.request(method, f"/api/v2/alerts/actions{path}", **given)
            return int(answer.status_code)

    wrong = [("one", two), ("one", altered), ("none", one), ("release", release), ("late", late)]
    assert [await ask("POST", f"/{action}/answer", code) for action, code in wrong] == [401] * 5
    assert [await ask("POST", "/one/undo", one), await ask("GET", "", one)] == [401] * 2
    assert [await ask("POST", "/one/answer", one) for _ in range(2)] == [200, 409]
    server = {"MUSTER_URL": rest.url, "MUSTER_TOKEN": two}
    words = ("alerts", "answer", "two", "--failed", "--- FAIL: GPU 0")
    ran = await asyncio.to_thread(run_cli, tmp_path, *words, **server)
    assert (ran.code, ran.out) == (0, "--- FAIL: GPU 0\n"), ran.err
    await begin(pool, "three")
    assert (await rest.client.post("/api/v2/alerts/actions/three/answer", json=told)).is_success
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
    ends = ("node.remediate.succeeded", "node.remediate.failed")
    done = {it["detail"]["action"]: it for it in entries if it["action"] in ends}
    assert {key: it["username"] for key, it in done.items() if key != "late"} == {
        "one": "(alerting)",
        "two": "(alerting)",
        "three": "admin",
    }


async def test_without_a_key_no_code_is_right(start_rest: Any) -> None:
    async with start_rest(webhook_key="") as rest:
        code = await begin(rest.runtime.pool, "one")
        path, by_code = "/api/v2/alerts/actions/one/answer", {"Authorization": f"Bearer {code}"}
        answer = await rest.client.post(path, json={"succeeded": True}, headers=by_code)
        assert answer.status_code == 401


async def test_an_action_is_known_for_longer_than_its_request(rest: Any) -> None:
    pool = rest.runtime.pool
    settings = RestSettings(database_url="postgresql://unused")
    days = settings.topic_retention_days
    async with transaction(pool) as conn:
        for action in ("undone", "refused"):
            await actions.take(conn, requested(action, "n1", NOW))
        await actions.finish(conn, "undone", Outcome.DONE, "")
        old = f"now() - {days + 10} * interval '1 day'"
        await conn.execute(f"UPDATE alert_action SET answered_at = {old}")
        await actions.note_undone(conn, "undone", "admin", "")

    async def left(age_days: float) -> list[str]:
        await pool.execute(
            "UPDATE alert_action SET answered_at = answered_at - $1 * interval '1 day'", age_days
        )
        async with pool.acquire() as conn:
            await clean_up(conn, settings)
        rows = await pool.fetch("SELECT action FROM alert_action")
        return [row["action"] for row in rows]

    assert await left(0) == ["undone"]
    assert await left(days + 0.5) == ["undone"]
    assert await left(1) == []
