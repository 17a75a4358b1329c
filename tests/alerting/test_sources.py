"""Alerts of nodes' agents and of Alertmanager: found, notified once, listed, resolved."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alerting.domain import health
from alerting.domain.external import SAME
from documents.monitoring.rules import GPU
from muster.contracts.jobs import JobState
from muster.contracts.nodes import Gpu, NodeReport, ProblemKind

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

TOKEN = "a-token-of-this-test"
PATH = "/api/v2/alerts/alertmanager"
EVENTS = ("alert-raised", "alert-resolved")
NEVER = "0001-01-01T00:00:00Z"
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def test_alerts_of_a_nodes_health_follow_its_reports_at_once_after_a_start(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    hung = "The GPU driver has not answered for 10 s."
    docs = "https://git.example/muster/docs"
    async with with_rest(alert_settle_s=600.0, docs_url=f"{docs}/") as api:
        await api.subscribe(receiver.url, *EVENTS)
        await cluster.publish("node-reported", "n1", report(1, [None, ("it fell off", "xid")]))
        await api.until_alerts([("GpuXid", "critical")], "name", "severity", source="node")
        bad = [(hung, "driver")] * 8
        await cluster.publish("node-reported", "n2", report(1, bad, node="n2", disk="No room."))
        names = [("GpuDriverDown",), ("GpuXid",), ("NodeDiskFull",)]
        await _until(api, lambda it: sorted((each["name"],) for each in it) == names)
        await cluster.publish("node-reported", "n1", report(2, [None, None]))
        await cluster.publish("node-reported", "n2", None)
        await api.until_alerts([], "name", state="firing")
        bodies = [json.loads(it.body) for it in await receiver.wait_for(4)]
    grouped = sorted((it["type"], it["data"]["count"]) for it in bodies)
    assert grouped == [
        ("alert.raised", 1),
        ("alert.raised", 2),  # of one node: one message
        ("alert.resolved", 1),
        ("alert.resolved", 2),
    ]
    (first,) = [it for it in bodies if it["data"]["title"] == "GPU 1 of node n1: it fell off"]
    assert first["data"]["alerts"][0]["runbook"] == f"{docs}/runbook.md#nodes"


async def test_a_preset_that_is_switched_off_begins_no_more(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    off = """
presetsOff: [JobStuck, NodeDiskFull]
rules: [{name: Adopted, event: job-failed, summary: Adopted}, {name: Counted, event: job-stuck}]
"""
    async with with_rest(stuck_after_s=0.2) as api:
        await api.subscribe(receiver.url, *EVENTS, "job-stuck", "job-unstuck")
        await cluster.job("j1", 1, JobState.STOPPING)
        await api.until_alerts([("firing",)], "state", name="JobStuck")
        answer = await api.admin.put("/api/v2/alerts/rules", content=off)
        assert answer.status_code == 202, answer.text
        await api.until_fails_fire("Adopted", cluster)
        await cluster.job("j2", 1, JobState.STOPPING)
        await api.until_alerts([("firing",)], "state", name="Counted")
        await cluster.job("j2", 2, JobState.STOPPED)
        await cluster.job("j1", 2, JobState.STOPPED)
        await api.until_alerts([("resolved",)], "state", name="JobStuck")
        bad = [("it fell off", "xid")]
        await cluster.publish("node-reported", "n1", report(1, bad, disk="No room."))
        await api.until_alerts([("GpuXid",)], "name", node="n1")
        bodies = [json.loads(it.body) for it in await receiver.wait_for(5)]
    found = [(it["type"], it["data"]["title"], it["data"].get("job")) for it in bodies]
    assert sorted(found) == [
        ("alert.raised", "Adopted", None),
        ("alert.raised", "Counted: Job ada~train is stuck", None),
        ("alert.raised", "GPU 0 of node n1: it fell off", None),
        ("job.stuck", "Job ada~train is stuck", "j1"),
        ("job.unstuck", "Job ada~train makes progress again", "j1"),
    ]


async def test_alertmanagers_alerts_are_known_by_fingerprint_and_start(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    async with with_rest(alertmanager_token=TOKEN) as api:
        await api.subscribe(receiver.url, *EVENTS)

        async def send(*alerts: dict[str, Any], token: str = TOKEN, **fields: Any) -> int:
            body = {"version": "4", "groupKey": "g", "alerts": alerts} | fields
            headers = {"Authorization": f"Bearer {token}"}
            answer = await api.admin.post(PATH, json=body, headers=headers)
            return int(answer.status_code)

        assert await send(alert("a"), token="another") == 401
        assert await send(alert("a"), version="3") == 400
        for _ in range(2):
            assert await send(alert("a"), alert("b", severity="fatal")) == 200
        shown = [("a", "firing", "warning"), ("b", "firing", "critical")]
        fields = ("alert", "state", "severity")
        await _until(api, lambda it: sorted(tuple(e[f] for f in fields) for e in it) == shown)
        ends = (START + timedelta(minutes=5)).isoformat()
        assert await send(alert("a", ends)) == 200
        assert await send(alert("a")) == 200  # late
        assert await send(alert("c", ends)) == 200  # nobody knew it
        later = (START + timedelta(hours=1)).isoformat()
        assert await send(alert("b", starts=later, severity="fatal")) == 200
        (again,) = await _until(api, lambda it: [e for e in it if e["startsAt"][:19] == later[:19]])
        assert (again["alert"], again["state"]) == ("b", "firing")
        assert [it["alert"] for it in await api.alerts(state="firing")] == ["b"]
        resolved = sorted(it["alert"] for it in await api.alerts(state="resolved"))
        assert resolved == ["a", "b", "c"]
        bodies = [json.loads(it.body) for it in await receiver.wait_for(4)]
    found = [(it["type"], [e["alert"] for e in it["data"]["alerts"]]) for it in bodies]
    assert sorted(found) == [
        ("alert.raised", ["b"]),
        ("alert.raised", ["b", "a"]),  # the most severe first
        ("alert.resolved", ["a"]),
        ("alert.resolved", ["b"]),
    ]


async def test_alerts_of_one_rule_of_prometheus_are_told_apart(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    summary, long = "Filesystem has less than 5% space left.", "x" * 4096
    texts = {
        "a": {"summary": summary, "description": "Only 3.1%\n of /home on n1 are free."},
        "b": {"summary": summary},
        "c": {},
        "d": {"description": "/ of n4 is full"},
        "e": {"summary": long, "description": long},
        "f": {"summary": long, "description": "y" * 4096},
    }
    sent = [
        alert(it, instance=f"{it}:9100", empty="", job=long if it == "c" else "node")
        | {"annotations": texts[it]}
        for it in texts
    ]
    async with with_rest(alertmanager_token=TOKEN) as api:
        await api.subscribe(receiver.url, *EVENTS)
        body = {"version": "4", "groupKey": "g", "alerts": sent}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        (await api.admin.post(PATH, json=body, headers=headers)).raise_for_status()
        await api.until_alerts([(it,) for it in texts], "alert")
        listed = {it["alert"]: it["summary"] for it in await api.alerts()}
        (request,) = await receiver.wait_for(1)
    about = "Filesystem has less than 5% space left"
    begin = f"GpuHot (instance c:9100, job {long}"[: len("GpuHot (") + 399]
    assert listed == {
        "a": f"{about}: Only 3.1% of /home on n1 are free.",
        "b": f"{about} (instance b:9100, job node)",
        "c": f"{begin}…)",
        "d": "/ of n4 is full",
        "e": f"{long[:699]}…",
        "f": f"{long[:299]}…: {'y' * 399}…",
    }
    told = json.loads(request.body)["data"]
    assert told["title"] == f"{f'GpuHot: {long}'[:149]}… (and 5 more)"
    assert told["text"].splitlines()[3:] == [
        f"warning: {listed['c']}.",
        f"warning: GpuHot: {listed['b']}.",
        f"warning: GpuHot: {listed['a']}",
    ]


async def test_a_bad_gpu_is_one_message_where_prometheus_finds_it_too(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    hot, twin = {"alertname": "GpuHot", "node": "n1"}, {"alertname": "GpuXidFatal", "node": "n1"}
    ends = (START + timedelta(minutes=5)).isoformat()
    async with with_rest(alertmanager_token=TOKEN) as api:
        await api.subscribe(receiver.url, *EVENTS)

        async def send(*alerts: dict[str, Any]) -> None:
            body = {"version": "4", "groupKey": "g", "alerts": alerts}
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = await api.admin.post(PATH, json=body, headers=headers)
            assert answer.status_code == 200, answer.text

        await cluster.publish("node-reported", "n1", report(1, [("it fell off", "xid")]))
        await api.until_alerts([("GpuXid",)], "name", state="firing")
        await send(alert("a", **twin), alert("b", **hot))
        await send(alert("c", **twin | {"node": "n2"}))  # Muster has no alert there
        await api.until_alerts([("a",), ("b",), ("c",)], "alert", source="alertmanager")
        await cluster.publish("node-reported", "n1", report(2, [None]))
        await api.until_alerts([("GpuXid",)], "name", state="resolved")
        await send(alert("a", ends, **twin), alert("b", ends, **hot))
        await api.until_alerts([("c",)], "alert", state="firing")
        bodies = [json.loads(it.body) for it in await receiver.wait_for(5)]
    found = [(it["type"], [e["name"] for e in it["data"]["alerts"]]) for it in bodies]
    assert sorted(found) == [
        ("alert.raised", ["GpuHot"]),
        ("alert.raised", ["GpuXid"]),
        ("alert.raised", ["GpuXidFatal"]),
        ("alert.resolved", ["GpuHot"]),
        ("alert.resolved", ["GpuXid"]),
    ]


@pytest.mark.parametrize(
    "starts", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00"]
)
async def test_an_alert_from_the_edge_of_the_calendar_ends_nothing(
    with_rest: Callable[..., Any], starts: str
) -> None:
    rules = "actions: [{name: later, alerts: [GpuHot], do: drain, afterSeconds: 600}]"
    async with with_rest(alertmanager_token=TOKEN) as api:
        assert (await api.admin.put("/api/v2/alerts/rules", content=rules)).status_code == 202
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for each in (alert("a", starts=starts), alert("b")):
            body = {"version": "4", "groupKey": "g", "alerts": [each]}
            answer = await api.admin.post(PATH, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        async with asyncio.timeout(60):
            while "b" not in await _acted_on(api):
                await asyncio.sleep(0.05)


async def _acted_on(api: Any) -> set[str]:
    """The alerts that rules act on."""
    answer = (await api.admin.get("/api/v2/alerts/actions")).json()
    return {it["alert"] for it in answer["actions"]}


def test_the_rules_of_prometheus_with_a_counterpart_exist() -> None:
    assert SAME.keys() <= {rule.name for rule in GPU.rules}
    assert {name for names in SAME.values() for name in names} <= health.NAMES


async def test_a_storm_of_alerts_is_taken_whole_and_its_users_see_theirs(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    """A refusal would lose them: Alertmanager drops what gets a 4xx."""
    receiver = await start_receiver()
    mine = {"username": "ada", "job_name": "train"}
    async with (
        with_rest(alertmanager_token=TOKEN) as api,
        await api.log_in("ada") as ada,
        ada.stream("GET", "/api/v2/events", params={"type": "alert-raised"}) as stream,
    ):
        lines = stream.aiter_lines()
        await _data(lines)
        await api.subscribe(receiver.url, *EVENTS)
        storm = [alert(f"a{number}", node_name=f"n{number}") for number in range(1200)]
        body = {"version": "4", "groupKey": "g", "truncatedAlerts": 7}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        alerts = {"alerts": [*storm, alert("mine", **mine)]}
        answer = await api.admin.post(PATH, json=body | alerts, headers=headers)
        assert (answer.status_code, "left out 7" in answer.json()["message"]) == (200, True)
        event = await _data(lines)
        assert (event["data"]["alert"], event["data"]["labels"]["username"]) == ("mine", "ada")
        await _until(api, lambda it: len(it) == 1201)
        (hers,) = (await ada.get("/api/v2/alerts")).json()["alerts"]
        assert hers["alert"] == "mine"
        assert [it["alert"] for it in await api.alerts(node="n7")] == ["a7"]
        bodies = [json.loads(it.body) for it in await receiver.wait_for(4)]
    assert sorted(it["data"]["count"] for it in bodies) == [1, 200, 500, 500]
    assert all("left out 7 alerts" in it["data"]["text"] for it in bodies)


async def test_the_token_is_checked_before_the_body_is_read(with_rest: Callable[..., Any]) -> None:
    async with with_rest(alertmanager_token=TOKEN) as api:
        host, port = api.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nhost: rest\r\nauthorization: Bearer another\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: 9\r\n\r\n".encode())
        async with asyncio.timeout(60):
            assert b" 401 " in await reader.readline()  # though the body never comes
        writer.close()


async def _data(lines: Any) -> Any:
    """The next event of a stream of events, or None where the stream begins."""
    async with asyncio.timeout(60):
        while not (line := await anext(lines)).startswith("data: "):
            if line == ": following":
                return None
    return json.loads(line.removeprefix("data: "))


async def _until(api: Any, look: Callable[[Any], Any]) -> Any:
    async with asyncio.timeout(60):
        while not (found := look(await api.alerts())):
            await asyncio.sleep(0.05)
    return found


def report(
    revision: int,
    gpus: list[tuple[str, str] | None],
    node: str = "n1",
    disk: str | None = None,
) -> NodeReport:
    return NodeReport(
        node=node,
        revision=revision,
        journal="j",
        boot="b",
        at=datetime.now(UTC),  # noqa: TID251 - as an agent reports
        address="10.0.0.1",
        version="1",
        cpu=8,
        memory_mb=1024,
        is_healthy=disk is None,
        problem=disk,
        problem_kind=ProblemKind.DISK if disk else None,
        gpus=tuple(
            Gpu(
                index=index,
                uuid=f"GPU-{index}",
                model="H100",
                memory_mb=1024,
                is_healthy=each is None,
                problem=each and each[0],
                problem_kind=each and ProblemKind(each[1]),
            )
            for index, each in enumerate(gpus)
        ),
    )


def alert(
    fingerprint: str,
    ends: str = NEVER,
    starts: str = START.isoformat(),
    severity: str = "warning",
    **labels: str,
) -> dict[str, Any]:
    about = labels or {"node": "n1"}
    return {
        "status": "firing" if ends == NEVER else "resolved",
        "labels": {"alertname": "GpuHot", "severity": severity, **about},
        "annotations": {"summary": f"GPU {fingerprint} is hot", "runbook_url": "https://r"},
        "startsAt": starts,
        "endsAt": ends,
        "generatorURL": "",
        "fingerprint": fingerprint,
    }
