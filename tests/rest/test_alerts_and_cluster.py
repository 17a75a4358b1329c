"""Subscriptions, nodes, the Scheduler's answers; over a real broker where records matter."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from muster.contracts.jobs import JobRequest, JobState, JobStatus
from muster.contracts.model import Model, Reason
from muster.contracts.node_orders import Order
from muster.contracts.nodes import (
    FOREIGN,
    Gpu,
    NodeLost,
    NodeReport,
    NodeReturned,
    PodOnNode,
)
from muster.contracts.notices import RESYNC_SETTING, SettingChanged
from muster.contracts.subscriptions import Subscription
from muster.receiver_secrets import open_receiver
from muster.webhook_secrets import signing_secret
from rest.store.node_orders import give_order
from rest.store.settings import load_published

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBSCRIPTIONS = "/api/v2/alerts/subscriptions"
WEBHOOK = {"events": ["job-failed"], "webhookUrl": "https://example.org/hook"}


async def test_a_subscription_is_made_changed_rotated_and_removed(rest: Any) -> None:
    made = (await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)).json()
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    assert made["secrets"] == [signing_secret("a-key-of-this-test", made["id"], 1)]
    assert (await rest.client.get(path)).json()["webhookUrl"] == WEBHOOK["webhookUrl"]
    changed = await rest.client.put(path, json=WEBHOOK | {"enabled": False})
    assert changed.json()["enabled"] is False
    rotated = (await rest.client.post(f"{path}/secrets/rotate")).json()["secrets"]
    assert rotated[1] == made["secrets"][0] != rotated[0]
    assert (await rest.client.get(f"{path}/secrets")).json()["secrets"] == rotated
    assert (await rest.client.get(SUBSCRIPTIONS)).json()["total"] == 1
    assert (await rest.client.delete(path)).status_code == 200
    assert (await rest.client.get(path)).status_code == 404
    assert (await rest.client.get(SUBSCRIPTIONS)).json()["subscriptions"] == []


async def test_subscriptions_of_an_owner_are_bounded_with_the_removed_ones(
    rest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rest.api.subscriptions.MAX_SUBSCRIPTIONS", 2)
    monkeypatch.setattr("rest.api.subscriptions.MAX_PUBLISHED", 4)
    async with await rest.make_user("ann") as ann:

        async def make() -> httpx2.Response:
            answer: httpx2.Response = await ann.post(SUBSCRIPTIONS, json=WEBHOOK)
            return answer

        made = await asyncio.gather(*(make() for _ in range(6)))
        assert sorted(each.status_code for each in made) == [201] * 2 + [400] * 4
        assert all("remove one" in each.text for each in made if each.status_code == 400)
        for _ in range(2):
            [mine, *_] = (await ann.get(SUBSCRIPTIONS)).json()["subscriptions"]
            assert (await ann.delete(f"{SUBSCRIPTIONS}/{mine['id']}")).status_code == 200
            last = await make()
        assert last.status_code == 201
        [mine, *_] = (await ann.get(SUBSCRIPTIONS)).json()["subscriptions"]
        assert (await ann.delete(f"{SUBSCRIPTIONS}/{mine['id']}")).status_code == 200
        refused = await make()
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidParametersError")
        assert "each removed one counts" in refused.json()["message"]
        assert (await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)).status_code == 201


async def test_orders_of_operators_are_published_before_subscriptions(rest: Any) -> None:
    await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)
    async with rest.runtime.pool.acquire() as conn:
        await give_order(conn, "n1", Order.DRAIN, "admin")
        kinds = [row.setting.partition("/")[0] for row in await load_published(conn)]
    assert kinds == ["node", "subscription"]


async def test_people_subscribe_to_their_own_jobs_only(rest: Any) -> None:
    async with await rest.make_user("ann", email="ann@example.org") as ann:
        mail = {"events": ["job-finished"], "email": "ann@example.org"}
        wide = mail | {"filter": {"users": ["admin"]}}
        refused = await ann.post(SUBSCRIPTIONS, json=wide)
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (403, "filter.users")
        made = (await ann.post(SUBSCRIPTIONS, json=mail | {"filter": {"users": ["ann"]}})).json()
        assert (made["filter"]["users"], made["note"]) == (["ann"], None)
        assert made["secrets"] == []
        nodes = mail | {"events": ["node-lost"]}
        assert (await ann.post(SUBSCRIPTIONS, json=nodes)).status_code == 403
        theirs = (await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)).json()["id"]
        for method, path in (("GET", ""), ("GET", "/secrets"), ("DELETE", "")):
            answer = await ann.request(method, f"{SUBSCRIPTIONS}/{theirs}{path}")
            assert answer.status_code == 403
        secrets = await rest.client.get(f"{SUBSCRIPTIONS}/{made['id']}/secrets")
        assert secrets.status_code == 403
        assert (await ann.get(SUBSCRIPTIONS)).json()["total"] == 1
        assert (await rest.client.get(SUBSCRIPTIONS)).json()["total"] == 2


async def test_a_user_in_a_filter_whom_nobody_knows_is_noted(rest: Any) -> None:
    def of(*users: str) -> dict[str, Any]:
        return WEBHOOK | {"events": ["job-failed"], "filter": {"users": users}}

    made = (await rest.client.post(SUBSCRIPTIONS, json=of("admin", "eve", "bob"))).json()
    assert made["note"] == "Unknown users: bob, eve."
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    notes = [(await rest.client.put(path, json=of(it))).json()["note"] for it in ("eve", "admin")]
    assert notes == ["Unknown users: eve.", None]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {"events": ["job-failed", "job-finished"], "leastSeverity": "critical"},
            "It gets nothing: these are less severe than critical: job-failed (warning),"
            " job-finished (info).",
        ),
        ({"events": ["job-failed", "node-returned"], "leastSeverity": "critical"}, None),
        ({"events": ["alert-raised"], "leastSeverity": "critical"}, None),
        (
            {"events": ["node-lost", "alert-raised"], "filter": {"users": ["eve"]}},
            "Unknown users: eve. The filter has no effect on events that are about no job:"
            " node-lost.",
        ),
        ({"events": ["node-lost"], "filter": {}}, None),
    ],
)
async def test_what_has_no_effect_in_a_subscription_is_noted(
    rest: Any, fields: dict[str, Any], note: str | None
) -> None:
    wanted = WEBHOOK | fields
    made = (await rest.client.post(SUBSCRIPTIONS, json=wanted)).json()
    changed = await rest.client.put(f"{SUBSCRIPTIONS}/{made['id']}", json=wanted)
    assert [made["note"], changed.json()["note"]] == [note, note]


async def test_owners_of_a_virtual_cluster_subscribe_to_everybodys_jobs_there(rest: Any) -> None:
    def wanted(*names: str) -> dict[str, Any]:
        return WEBHOOK | {"events": ["job-failed"], "filter": {"virtualClusters": names}}

    note = "It takes only jobs of ann in vip, default: ann does not own all of these."
    notes: list[str | None] = []
    async with await rest.make_user("ann") as ann:

        async def owns(*names: str) -> None:
            data = {"username": "ann", "ownsVirtualCluster": names}
            assert (await rest.client.put("/api/v2/users", json={"data": data})).status_code == 201

        async def users_of(*names: str) -> list[str]:
            made = await ann.post(SUBSCRIPTIONS, json=wanted(*names))
            assert made.status_code == 201, made.text
            found: list[str] = made.json()["filter"]["users"]
            notes.append(made.json()["note"])
            return found

        await owns("vip", "lab")
        assert await users_of("vip") == []
        assert await users_of("lab", "vip") == []
        for named in ((), ("vip", "default")):  # not only what she owns
            assert await users_of(*named) == ["ann"]
        assert notes == [None, None, None, note]
        nodes = wanted("vip") | {"events": ["node-lost"]}
        assert (await ann.post(SUBSCRIPTIONS, json=nodes)).status_code == 403
        assert (await ann.get("/api/v2/users/ann")).json()["ownsVirtualCluster"] == ["vip", "lab"]
        await owns("vip")
        left = (await ann.get(SUBSCRIPTIONS)).json()["subscriptions"]
        assert sorted(it["filter"]["virtualClusters"] for it in left) == [
            [],
            ["vip"],
            ["vip", "default"],
        ]


async def test_an_admin_gives_a_subscription_no_more_than_its_owner_may_have(rest: Any) -> None:
    own = {"events": ["job-finished"], "email": "ann@example.org"}
    async with await rest.make_user("ann", email="ann@example.org") as ann:
        made = (await ann.post(SUBSCRIPTIONS, json=own | {"enabled": False})).json()
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    nodes = await rest.client.put(path, json=own | {"events": ["node-lost"]})
    assert (nodes.status_code, nodes.json()["code"]) == (403, "ForbiddenUserError")
    foreign = await rest.client.put(path, json=own | {"email": "eve@example.org"})
    assert (foreign.status_code, foreign.json()["code"]) == (409, "UnconfirmedEmailError")
    wide = await rest.client.put(path, json=own | {"filter": {"users": ["admin"]}})
    assert (wide.status_code, wide.json()["code"]) == (403, "ForbiddenUserError")
    same = await rest.client.put(path, json=own)
    assert same.status_code == 200
    shown = (await rest.client.get(path)).json()
    assert (shown["owner"], shown["enabled"], shown["filter"]["users"]) == ("ann", True, ["ann"])


async def test_a_removed_user_gets_no_notification_any_more(
    start_rest: Any, bootstrap: str
) -> None:
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        mail = {"events": ["job-finished"], "email": "ann@example.org"}
        async with await rest.make_user("ann", email="ann@example.org") as ann:
            made = (await ann.post(SUBSCRIPTIONS, json=mail)).json()
        consumer = await reader(bootstrap, "receivers-changed")
        key = f"subscription/{made['id']}"
        assert (await next_record(consumer, key)).value is not None
        assert (await rest.client.delete("/api/v2/users/ann")).status_code == 200
        assert (await next_record(consumer, key)).value is None
        await consumer.stop()


async def test_an_odd_subscription_is_refused(rest: Any) -> None:
    for body in (
        {},
        {"events": ["job-failed"]},
        WEBHOOK | {"email": "a@b.c"},
        WEBHOOK | {"events": ["unknown"]},
        WEBHOOK | {"webhookUrl": "ftp://x/y"},
        WEBHOOK | {"webhookUrl": "http://user:pass@x/y"},
        {"events": ["job-failed"], "email": "a@b.c\r\nBcc: x@y.z"},
    ):
        answer = await rest.client.post(SUBSCRIPTIONS, json=body)
        assert answer.status_code == 400, body
        assert "pass" not in answer.text


async def next_record(consumer: AIOKafkaConsumer, key: str) -> Any:
    """The next record of a key."""
    async with asyncio.timeout(60):
        while True:
            record = await consumer.getone()
            if record.key == key.encode():
                return record


async def reader(bootstrap: str, topic: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20
    )
    await consumer.start()
    return consumer


SECRET_RECEIVERS = [
    ({"slack": {"url": "https://hooks.slack.com/services/T0/marker"}}, "slack", "hooks.slack.com"),
    ({"teams": {"url": "https://flows.example.org/x?sig=marker"}}, "teams", "flows.example.org"),
    ({"pagerduty": {"routingKey": "marker0123456789"}}, "pagerduty", "events.pagerduty.com"),
    (
        {"ntfy": {"url": "http://ntfy.example.org/marker", "token": "tk_marker"}},
        "ntfy",
        "ntfy.example.org",
    ),
]


@pytest.mark.parametrize(("receiver", "kind", "host"), SECRET_RECEIVERS)
async def test_a_receiver_whose_address_is_a_secret_is_kept_and_shown_without_it(
    rest: Any, receiver: dict[str, Any], kind: str, host: str
) -> None:
    body = {"events": ["job-failed"], **receiver}
    made = await rest.client.post(SUBSCRIPTIONS, json=body)
    assert made.status_code == 201, made.text
    assert made.json()["receiver"] == {"kind": kind, "host": host}
    ident = made.json()["id"]
    path = f"{SUBSCRIPTIONS}/{ident}"
    changed = await rest.client.put(path, json={"events": ["job-finished"]})
    assert changed.json()["receiver"] == made.json()["receiver"]
    answers = made.text + changed.text + (await rest.client.get(SUBSCRIPTIONS)).text
    async with rest.runtime.pool.acquire() as conn:
        kept = await conn.fetch("SELECT s::text FROM subscription AS s")
        published = [row.content for row in await load_published(conn)]
        (content,) = [it for it in published if it is not None and it.get("id") == ident]
    assert "marker" not in answers + str(kept) + str(published)
    sealed = Subscription.model_validate(content).receiver
    assert sealed is not None
    opened = open_receiver("a-key-of-this-test", ident, sealed.sealed)
    assert "marker" in opened.url + opened.token
    with pytest.raises(ValueError, match="another subscription"):
        open_receiver("a-key-of-this-test", "other", sealed.sealed)
    with pytest.raises(ValueError, match="another key"):
        open_receiver("another-key", ident, sealed.sealed)


@pytest.mark.parametrize(
    ("receiver", "field"),
    [
        ({}, "webhookUrl"),
        ({**WEBHOOK, "slack": {"url": "https://hooks.slack.com/x"}}, "one receiver"),
        ({"slack": {"url": "ftp://hooks.slack.com/x"}}, "slack.url"),
        ({"teams": {"url": "http://flows.example.org/x"}}, "teams.url"),
        ({"pagerduty": {"routingKey": "short"}}, "pagerduty.routingKey"),
        ({"ntfy": {"url": "https://ntfy.sh/"}}, "ntfy.url"),
    ],
)
async def test_a_wrong_receiver_is_refused_with_its_field(
    rest: Any, receiver: dict[str, Any], field: str
) -> None:
    answer = await rest.client.post(SUBSCRIPTIONS, json={"events": ["job-failed"], **receiver})
    assert answer.status_code == 400
    assert field in answer.text


@pytest.mark.parametrize(
    ("digest", "fault"),
    [
        ({"every": "hour"}, None),
        ({"every": "day", "at": "08:00", "timeZone": "Europe/Berlin"}, None),
        ({"every": "day"}, "a digest of each day needs a time"),
        ({"every": "hour", "at": "08:00"}, "at the full hour; leave `at` out"),
        ({"every": "day", "at": "08:00", "timeZone": "Mars"}, "write it like Europe/Berlin"),
    ],
)
async def test_a_digest_is_kept_and_checked(
    rest: Any, digest: dict[str, str], fault: str | None
) -> None:
    made = await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK | {"digest": digest})
    if fault is not None:
        assert (made.status_code, fault in made.text) == (400, True), made.text
        return
    assert made.json()["digest"] == {"at": None, "timeZone": "UTC"} | digest
    both = {"events": ["job-failed"], "digest": digest, "pagerduty": {"routingKey": "k" * 32}}
    refused = await rest.client.post(SUBSCRIPTIONS, json=both)
    assert (refused.status_code, "leave `digest` out" in refused.text) == (400, True)
    calls = await rest.client.post(SUBSCRIPTIONS, json=both | {"digest": None})
    path = f"{SUBSCRIPTIONS}/{calls.json()['id']}"
    kept = await rest.client.put(path, json={"events": ["job-failed"], "digest": digest})
    assert (kept.status_code, "leave `digest` out" in kept.text) == (400, True)


async def test_severity_and_quiet_hours_are_kept_and_checked(rest: Any) -> None:
    quiet = {"start": "22:00", "end": "07:00", "timeZone": "Europe/Berlin"}
    wanted = WEBHOOK | {"leastSeverity": "warning", "quietHours": quiet}
    made = (await rest.client.post(SUBSCRIPTIONS, json=wanted)).json()
    shown = (await rest.client.get(f"{SUBSCRIPTIONS}/{made['id']}")).json()
    assert (shown["leastSeverity"], shown["quietHours"]) == ("warning", quiet)
    for wrong in ({"start": "24:00"}, {"timeZone": "Europe/Nowhere"}, {"end": "22:00"}):
        body = WEBHOOK | {"quietHours": quiet | wrong}
        answer = await rest.client.post(SUBSCRIPTIONS, json=body)
        assert answer.status_code == 400
        assert "quietHours" in answer.text


async def test_subscriptions_are_published_without_secrets(start_rest: Any, bootstrap: str) -> None:
    async with start_rest(kafka_bootstrap=bootstrap, settings_repeat_s=0.2) as rest:
        consumer = await reader(bootstrap, "receivers-changed")
        made = (await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)).json()
        key = f"subscription/{made['id']}"
        record = await next_record(consumer, key)
        published = SettingChanged.model_validate_json(record.value)
        subscription = Subscription.model_validate(published.value)
        assert (subscription.id, subscription.owner) == (made["id"], "admin")
        assert made["secrets"][0] not in record.value.decode()
        again = await next_record(consumer, key)
        assert again.value == record.value
        await rest.client.delete(f"{SUBSCRIPTIONS}/{made['id']}")
        async with asyncio.timeout(60):
            while (await next_record(consumer, key)).value is not None:
                pass
        assert (await next_record(consumer, key)).value is None
        await consumer.stop()


async def test_subscriptions_of_a_restored_backup_are_published_above_earlier_revisions(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        made = (await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)).json()
        newer = (await rest.client.post(SUBSCRIPTIONS, json=WEBHOOK)).json()
        path = f"{SUBSCRIPTIONS}/{made['id']}"
        old = WEBHOOK | {"webhookUrl": "https://example.org/old"}
        for body in (WEBHOOK, old | {"enabled": False}):
            await rest.client.put(path, json=body)
        key, newer_key = (f"subscription/{each['id']}" for each in (made, newer))
        published = await published_above(bootstrap, key, 2)
        pool = rest.runtime.pool
        await pool.execute("DELETE FROM subscription WHERE id = $1", newer["id"])
        await pool.execute("UPDATE subscription SET revision = 1 WHERE id = $1", made["id"])
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        again = await published_above(bootstrap, key, 3)
        assert again.value == published.value
        await until_removed(bootstrap, newer_key)
        asked = SettingChanged(setting=RESYNC_SETTING, revision=again.revision + 1, value={})
        await publish(bootstrap, [("settings-changed", RESYNC_SETTING, asked)])
        assert (await published_above(bootstrap, key, asked.revision)).value == published.value
        assert (await rest.client.get(path)).json()["webhookUrl"] == old["webhookUrl"]


async def published_above(bootstrap: str, key: str, revision: int) -> SettingChanged:
    """A setting as it is published under a higher revision."""
    consumer = await reader(bootstrap, "receivers-changed")
    try:
        while True:
            record = await next_record(consumer, key)
            published = SettingChanged.model_validate_json(record.value)
            if published.revision > revision:
                return published
    finally:
        await consumer.stop()


async def until_removed(bootstrap: str, key: str) -> None:
    """Wait until a setting is published as removed."""
    consumer = await reader(bootstrap, "receivers-changed")
    while (await next_record(consumer, key)).value is not None:
        pass
    await consumer.stop()


def report(node: str, revision: int, *, gpus: int = 2) -> NodeReport:
    return NodeReport(
        node=node,
        revision=revision,
        journal="j",
        boot="b",
        at=NOW,
        address="127.0.0.1",
        version="1",
        cpu=8,
        memory_mb=1024,
        simulated=True,
        gpus=tuple(
            Gpu(index=n, uuid=str(n), model="Fake", memory_mb=1, simulated=True)
            for n in range(gpus)
        ),
        pods=(PodOnNode(pod="p", cpu=2, memory_mb=512), PodOnNode(pod=FOREIGN, cpu=1)),
    )


async def publish(bootstrap: str, records: list[tuple[str, str, Model | None]]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for topic, key, model in records:
        value = None if model is None else model.model_dump_json().encode()
        await producer.send_and_wait(topic, value, key=key.encode())
    await producer.stop()


async def test_nodes_are_shown_as_they_report(start_rest: Any, fresh_broker: Any) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        await publish(
            bootstrap,
            [
                ("node-reported", "n1", report("n1", 2)),
                ("node-reported", "n1", report("n1", 1, gpus=1)),
                ("node-reported", "n2", report("n2", 1)),
                ("node-lost", "n2", NodeLost(node="n2", lease=1, since=NOW, silent_s=60)),
            ],
        )

        async def states() -> dict[str, Any]:
            nodes = (await rest.client.get("/api/v2/cluster/nodes")).json()["nodes"]
            return {node["name"]: (node["state"], node["gpuTotal"]) for node in nodes}

        await rest.eventually(states, {"n1": ("ready", 2), "n2": ("lost", 2)})
        page = (await rest.client.get("/api/v2/cluster/nodes?offset=1&limit=1")).json()
        assert ([node["name"] for node in page["nodes"]], page["total"]) == (["n2"], 2)
        node = (await rest.client.get("/api/v2/cluster/nodes/n1")).json()
        assert node["simulated"] is True
        assert node["gpus"][0]["simulated"] is True
        assert (node["cpuUsed"], node["cpuForeign"], node["memoryMBUsed"]) == (3, 1, 512)
        assert [pod["pod"] for pod in node["pods"]] == ["p"]
        assert (await rest.client.get("/api/v2/cluster/nodes/n9")).status_code == 404
        await publish(
            bootstrap,
            [
                ("node-returned", "n2", NodeReturned(node="n2", lease=1, at=NOW)),
                ("node-reported", "n1", None),
            ],
        )
        await rest.eventually(states, {"n2": ("ready", 2)})


async def test_nodes_are_shown_as_the_scheduler_uses_them(
    start_rest: Any, fresh_broker: Any, scheduler: Any
) -> None:
    """While it does not answer they are as they report."""
    bootstrap = fresh_broker.bootstrap
    sick = report("n3", 1).model_copy(update={"is_healthy": False, "problem": "No disk."})
    names = ("n1", "n2", "n3", "n4")

    def answered(node: str, trouble: str | None, cpu: int | None = 3) -> dict[str, Any]:
        amounts = {"gpus": 0, "cpu": cpu, "memoryMB": 4096}
        return {"node": node, "state": "alive", "trouble": trouble, "pods": [], **amounts}

    async with start_rest(kafka_bootstrap=bootstrap, scheduler_url=scheduler.url) as rest:
        reports = [report(name, 1) for name in names if name != "n3"] + [sick]
        await publish(bootstrap, [("node-reported", it.node, it) for it in reports])

        async def nodes(query: str = "") -> list[tuple[Any, ...]]:
            page = (await rest.client.get(f"/api/v2/cluster/nodes{query}")).json()["nodes"]
            return [(it["state"], it["problem"], it["cpu"], it["memoryMB"]) for it in page]

        own = (reports[0].cpu, reports[0].memory_mb)
        as_reported = [
            ("ready", None, *own),
            ("ready", None, *own),
            ("unhealthy", "No disk.", *own),
            ("ready", None, *own),
        ]
        await rest.eventually(nodes, as_reported)
        scheduler.answers["/nodes"] = {
            "asOf": 7,
            "nodes": [
                answered("n1", None),
                answered("n2", "it is not in the cluster file; add it there", None),
                answered("n3", "No disk."),
            ],
        }
        missing = "The Scheduler places nothing there: it is not in the cluster file; add it there."
        assert await nodes() == [
            ("ready", None, 3, 4096),
            ("unusable", missing, own[0], 4096),
            ("unhealthy", "No disk.", 3, 4096),
            ("ready", None, *own),
        ]
        assert scheduler.last == "/nodes?first=n1&last=n4"
        assert (await nodes("?offset=1&limit=2"))[0][0] == "unusable"
        assert scheduler.last == "/nodes?first=n2&last=n3"
        assert (await rest.client.get("/api/v2/cluster/nodes/n2")).json()["problem"] == missing
        for odd in (b"standby", b"no json", {"nodes": [{"node": "n1"}]}):
            scheduler.answers["/nodes"] = odd
            assert await nodes() == as_reported


async def test_a_job_goes_over_the_bus_and_back(start_rest: Any, fresh_broker: Any) -> None:
    bootstrap = fresh_broker.bootstrap
    async with start_rest(kafka_bootstrap=bootstrap) as rest:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await rest.submit("bused", traceparent=trace)
        consumer = await reader(bootstrap, "job-submitted")
        record = await next_record(consumer, await rest.job_id("bused"))
        await consumer.stop()
        message = JobRequest.model_validate_json(record.value)
        assert (message.name, message.revision) == ("bused", 1)
        headers = dict(record.headers)
        assert headers["traceparent"].split(b"-")[1] == trace.split("-")[1].encode()
        assert headers["ce_type"] == b"muster.job-submitted.v1"
        running = JobStatus(
            revision=1,
            seen=1,
            job=message.job,
            name="bused",
            user="admin",
            virtual_cluster="default",
            state=JobState.RUNNING,
            submitted_at=NOW,
        )
        await publish(bootstrap, [("job-updated", message.job, running)])

        async def state() -> str:
            content = (await rest.client.get("/api/v2/jobs/admin~bused")).json()
            return str(content["jobStatus"]["state"])

        await rest.eventually(state, "RUNNING")

        async def ready() -> tuple[int, Any]:
            answer = await rest.client.get("/readyz")
            return answer.status_code, answer.json()

        await rest.eventually(ready, (200, {"bus": True, "bus_rights": True, "database": True}))


async def test_the_schedulers_reasons_and_queue_are_passed_on(
    start_rest: Any, scheduler: Any
) -> None:
    answers = scheduler.answers
    answers["/queue"] = {"asOf": 7, "gangs": []}
    async with start_rest(scheduler_url=scheduler.url) as rest:
        await rest.submit("waits")
        job = await rest.job_id("waits")
        assert (await rest.client.get("/api/v2/jobs/admin~waits/why")).json()["scheduler"] is None
        answers[f"/jobs/{job}/why"] = {"asOf": 8, "ahead": 3}
        why = (await rest.client.get("/api/v2/jobs/admin~waits/why")).json()
        assert why["scheduler"] == {"asOf": 8, "ahead": 3}
        for path in ("queue", "cluster/queue"):
            queue = await rest.client.get(f"/api/v2/{path}?limit=5")
            assert queue.json() == answers["/queue"]
        assert scheduler.last == "/queue?offset=0&limit=5"


async def test_the_schedulers_cells_and_gangs_are_passed_on(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers |= {"/cells": {"asOf": 7, "cells": []}, "/gangs": {"asOf": 8, "gangs": []}}
    async with start_rest(scheduler_url=scheduler.url) as rest, await rest.make_user("ann") as ann:
        cells = "/api/v2/cluster/cells"
        assert (await ann.get(cells)).json() == {"asOf": 7, "cells": []}
        assert scheduler.last == "/cells?offset=0&limit=5000"
        await ann.get(f"{cells}?address=r0/n0&virtualCluster=vision&limit=5&offset=10")
        path, _, query = scheduler.last.partition("?")
        assert path == "/cells"
        assert dict(parse_qsl(query)) == {
            "address": "r0/n0",
            "virtualCluster": "vision",
            "limit": "5",
            "offset": "10",
        }
        gangs = "/api/v2/cluster/gangs"
        assert (await ann.get(f"{gangs}?offset=3")).json() == {"asOf": 8, "gangs": []}
        assert scheduler.last == "/gangs?offset=3&limit=5000"
        for odd in ("limit=-1", "limit=50001", "offset=-1", f"address={'a' * 1025}"):
            assert (await ann.get(f"{cells}?{odd}")).status_code == 400, odd
        scheduler.answers.clear()
        answer = await ann.get(f"{cells}?address=r9")
        assert (answer.status_code, answer.json()["code"]) == (404, "NoCellError")
        scheduler.answers["/cells"] = b"standby"
        async with rest.with_token("") as nobody:
            for path in (cells, gangs):
                assert (await ann.get(path)).status_code == 503
                assert (await nobody.get(path)).status_code == 401
    async with start_rest() as rest:
        for path in (cells, gangs, "/api/v2/cluster/queue"):
            assert (await rest.client.get(path)).status_code == 501


async def test_the_schedulers_advice_is_passed_on_to_admins(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers["/advice"] = {"asOf": 7, "moves": []}
    async with start_rest(scheduler_url=scheduler.url) as rest, await rest.make_user("ann") as ann:
        path = "/api/v2/advice"
        assert (await rest.client.get(path)).json() == {"asOf": 7, "moves": []}
        assert scheduler.last == "/advice?cells=1"
        await rest.client.get(f"{path}?level=rack&cells=2&chain=h100-rack")
        assert scheduler.last == "/advice?cells=2&level=rack&chain=h100-rack"
        assert (await ann.get(path)).status_code == 403
        for odd in ("cells=0", "cells=65", f"level={'a' * 256}"):
            assert (await rest.client.get(f"{path}?{odd}")).status_code == 400, odd
        scheduler.answers.clear()
        answer = await rest.client.get(f"{path}?level=shelf")
        assert (answer.status_code, answer.json()["code"]) == (404, "NoCellError")
    async with start_rest() as rest:
        assert (await rest.client.get(path)).status_code == 501


async def test_a_stretch_of_the_schedulers_record_is_passed_on_to_admins(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers["/export"] = b'{"cluster":1}\n{"at":1}\n'
    async with start_rest(scheduler_url=scheduler.url) as rest:
        path = "/api/v2/cluster/export?since=2026-01-01T00:00:00Z"
        answer = await rest.client.get(path)
        assert answer.content == scheduler.answers["/export"]
        assert answer.headers["X-As-Of"] == "7"
        assert scheduler.last == "/export?since=2026-01-01T00%3A00%3A00Z"
        await rest.client.get(path + "&until=7")
        assert scheduler.last.endswith("&until=7")
        assert (await rest.client.get("/api/v2/cluster/export")).status_code == 400
        del scheduler.answers["/export"]
        answer = await rest.client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "NoRecordError")
        scheduler.answers["/export"] = b"standby"
        assert (await rest.client.get(path)).status_code == 503
        async with await rest.make_user("ann") as ann:
            assert (await ann.get(path)).status_code == 403
        scheduler.answers["/export"] = b'{"cluster":1}\n{"at":1}\n'
        rest.runtime.stopping.set()  # it ends in the middle, and does not look whole
        with pytest.raises(httpx2.RemoteProtocolError):
            await rest.client.get(path)
    async with start_rest() as rest:
        assert (await rest.client.get(path)).status_code == 501


async def test_why_answers_what_rest_knows_where_the_scheduler_does_not(
    start_rest: Any, scheduler: Any
) -> None:
    async with start_rest() as rest:
        await rest.submit("waits")
        job = await rest.job_id("waits")
        reason = Reason(code="no-room", text="2 GPUs are wanted, 1 is free.")
        await rest.receive("job-updated", job, rest.status(job, 1, JobState.WAITING, reason=reason))
    scheduler.answers |= {f"/jobs/{job}/why": b"standby", "/queue": b"no json"}
    for address in (scheduler.url, "http://127.0.0.1:1"):
        async with start_rest(scheduler_url=address) as rest:
            for path in ("queue", ""):
                answer = await rest.client.get(f"/api/v2/cluster/{path}".rstrip("/"))
                assert (answer.status_code, answer.json()["code"]) == (503, "UnavailableError")
            answer = await rest.client.get("/api/v2/jobs/admin~waits/why")
            assert answer.status_code == 200
            why = answer.json()
            assert why["reason"]["text"] == reason.text
            assert why["scheduler"] is None
            assert "Scheduler's part of the answer is missing" in why["schedulerProblem"]
    async with start_rest() as rest:
        why = (await rest.client.get("/api/v2/jobs/admin~waits/why")).json()
        assert (why["scheduler"], why["schedulerProblem"]) == (None, None)
