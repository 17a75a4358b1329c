"""The list of alerts, as REST shows it."""

import asyncio
import datetime
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from muster.contracts.jobs import JobState
from muster.contracts.model import Reason
from muster.contracts.nodes import NodeLost, NodeReturned

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def right_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 - what other services would publish


async def test_alerts_are_listed_while_they_fire_and_after(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with with_rest(stuck_after_s=0.2) as api:
        await cluster.publish("node-lost", "n1", lost := a_loss("n1"))
        await api.until_alerts([("NodeLost", "firing", "critical")], "name", "state", "severity")
        await cluster.job("j1", 1, JobState.STOPPING)
        await api.until_alerts([("JobStuck",), ("NodeLost",)], "name", state="firing")
        back = NodeReturned(node="n1", lease=lost.lease, at=right_now())
        await cluster.publish("node-returned", "n1", back)
        await api.until_alerts([("NodeLost",)], "name", state="resolved")
        await api.until_alerts([("JobStuck",), ("NodeLost",)], "name")  # firing ones first
        (stuck,) = await api.alerts(severity="warning")
        assert (stuck["source"], stuck["labels"]["job"], stuck["endsAt"]) == (
            "alerting",
            "j1",
            None,
        )
        assert [each["labels"] for each in await api.alerts(node="n1")] == [{"node": "n1"}]
        for job, found in {
            "j1": 1,
            "ada~train": 1,
            "ada~j1": 0,
            "eve~train": 0,
            "train": 0,
        }.items():
            assert len(await api.alerts(job=job)) == found, job


async def test_a_job_that_waits_too_long_is_an_alert_that_its_user_gets(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    late = Reason(code="reserved", text="", numbers={"expectedStart": "2026-01-01T13:00:00Z"})
    async with with_rest(long_wait_s=1e9) as api, await api.log_in("ada") as ada:
        body = {"events": ["alert-raised", "alert-resolved"], "webhookUrl": receiver.url}
        (await ada.post("/api/v2/alerts/subscriptions", json=body)).raise_for_status()
        await cluster.until("SELECT count(*)::int FROM subscription", [(1,)])
        await cluster.job("j1", 1, JobState.WAITING, reason=late, user="eve")
        await cluster.job("j2", 1, JobState.WAITING, reason=late)
        await api.until_alerts([("firing",)] * 2, "state", name="JobWaitsLong")
        await cluster.job("j2", 2, JobState.RUNNING)
        await api.until_alerts([("resolved",)], "state", user="ada")
        bodies = [json.loads(it.body) for it in await receiver.wait_for(2)]
    got = [(it["type"], it["data"]["alerts"][0]["labels"]["job"]) for it in bodies]
    assert got == [("alert.raised", "j2"), ("alert.resolved", "j2")]


async def test_people_see_the_alerts_of_their_own_jobs_only(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with with_rest(stuck_after_s=0.2) as api, await api.log_in("ada") as ada:
        await cluster.publish("node-lost", "n1", a_loss("n1"))
        await cluster.job("j1", 1, JobState.STOPPING)
        await cluster.job("j2", 1, JobState.STOPPING, user="eve")
        await api.until_alerts([("JobStuck",)] * 2, "name", name="JobStuck")
        seen = (await ada.get("/api/v2/alerts")).json()
        assert ([each["labels"]["job"] for each in seen["alerts"]], seen["total"]) == (["j1"], 1)
        others = await ada.get("/api/v2/alerts", params={"user": "eve"})
        note = "You see the alerts of your own jobs{}. Administrators see all."
        assert others.json() == {"alerts": [], "total": 0, "note": note.format("")}
        others = await ada.get("/api/v2/alerts", params={"job": "eve~train"})
        assert (others.json()["total"], others.json()["note"]) == (0, note.format(""))
        own = await ada.get("/api/v2/alerts", params={"job": "ada~train"})
        assert (own.json()["total"], own.json()["note"]) == (1, None)
        assert seen["note"] is None
        async with await api.log_in("bob", ownsVirtualCluster=["default"]) as bob:
            seen = (await bob.get("/api/v2/alerts")).json()
            assert {each["labels"]["job"] for each in seen["alerts"]} == {"j1", "j2"}
            of_eve = (await bob.get("/api/v2/alerts", params={"user": "eve"})).json()
            assert [each["labels"]["job"] for each in of_eve["alerts"]] == ["j2"]
            of_node = (await bob.get("/api/v2/alerts", params={"node": "n1"})).json()
            owned = " and of the virtual clusters that you own (default)"
            assert of_eve["note"] == of_node["note"] == note.format(owned)


async def test_only_rest_reads_alerting(cluster: Any, with_rest: Callable[..., Any]) -> None:
    async with with_rest() as api:
        url = api.rest.settings.alerting_url
        async with httpx2.AsyncClient() as stranger:
            assert (await stranger.get(f"{url}/alerts")).status_code == 401


async def test_without_alerting_the_list_says_so(with_rest: Callable[..., Any]) -> None:
    async with with_rest(alerting_url="http://127.0.0.1:1") as api:
        answer = await api.admin.get("/api/v2/alerts")
    assert (answer.status_code, answer.json()["message"]) == (
        503,
        "Alerting does not answer; try again later.",
    )


def a_loss(node: str) -> NodeLost:
    return NodeLost(node=node, lease=2, since=right_now(), silent_s=30, pods=("p1",))


async def test_a_mute_holds_messages_back_until_it_ends(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    path = "/api/v2/alerts/mutes"
    until = (right_now() + datetime.timedelta(hours=1)).isoformat()
    async with with_rest() as api, await api.log_in("ada") as ada:
        await api.subscribe(receiver.url, "node-lost", "job-failed", "alert-raised")
        late = await api.admin.post(
            path, json={"alert": "NodeLost", "until": "2020-01-01T00:00:00Z"}
        )
        assert (late.status_code, late.json()["errors"][0]["path"]) == (400, "until")
        wanted = {"alert": "NodeLost", "until": until}
        mute = (await api.admin.post(path, json=wanted)).json()
        assert (mute["owner"], mute["by"], mute["note"]) == (None, "admin", None)
        mistyped = await api.admin.post(path, json={"alert": "NodeLots", "until": until})
        assert (mistyped.status_code, "mean NodeLost" in mistyped.json()["note"]) == (201, True)
        await api.admin.delete(f"{path}/{mistyped.json()['id']}")
        own = (await ada.post(path, json={"job": "ada~train", "until": until})).json()
        assert own["owner"] == "ada"  # the admin's messages about it go out
        assert (await ada.delete(f"{path}/{mute['id']}")).status_code == 403
        assert (await api.admin.get(path)).json()["total"] == 2
        assert [it["id"] for it in (await ada.get(path)).json()["mutes"]] == [own["id"]]
        number = 0
        for is_muted in (True, False):
            heard = True
            async with asyncio.timeout(60):
                while heard is is_muted:  # until Alerting has read what was set
                    number += 1
                    node = f"n{number}"
                    await cluster.publish("node-lost", node, a_loss(node))
                    await cluster.job(f"j{number}", 1, JobState.FAILED)
                    await until_told(receiver, f"j{number}")
                    heard = any(f'"node":"{node}"' in it.body for it in receiver.requests)
            if is_muted:
                assert await api.alerts(node=node)  # it is listed still
                assert (await api.admin.delete(f"{path}/{mute['id']}")).status_code == 200


async def until_told(receiver: Any, job: str) -> None:
    async with asyncio.timeout(60):
        while not any(f'"job":"{job}"' in it.body for it in receiver.requests):
            await asyncio.sleep(0.02)
