"""A failed job reaches each kind of receiver, whose address is in no log, table or record."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alerting.domain.events import Severity
from alerting.domain.messages import Message
from alerting.domain.rendering.pagerduty import why_late
from muster.contracts.alerts import MUTE_SETTING, AlertsReceived, Mute, ReceivedAlert
from muster.contracts.jobs import JobState
from muster.contracts.nodes import NodeLost, NodeReturned
from muster.contracts.notices import SettingChanged
from muster.contracts.subscriptions import (
    DeliveryOrder,
    OrderKind,
    ReceiverKind,
    SealedReceiver,
    Subscription,
)
from muster.contracts.verdicts import Behavior, Fault, Verdict
from muster.receiver_secrets import ReceiverSecret, seal_receiver

TABLES = ("subscription", "event", "delivery", "receiver")
VERDICT = Verdict(
    code=1,
    phrase="UserCode",
    rule="r",
    fault=Fault.USER,
    behavior=Behavior.PERMANENT,
    cause="the command failed",
    evidence="RuntimeError: <no> more memory",
)


def sealed(kind: ReceiverKind, url: str, token: str = "") -> SealedReceiver:
    secret = ReceiverSecret(subscription=f"to-{kind}", url=url, token=token)
    return SealedReceiver(kind=kind, host="127.0.0.1", sealed=seal_receiver("key", secret))


@pytest.mark.parametrize(
    ("kind", "token", "shows"),
    [
        (ReceiverKind.SLACK, "", lambda body: body["blocks"][2]["text"]["text"]),
        (ReceiverKind.TEAMS, "", lambda body: body["attachments"][0]["content"]["body"][2]["text"]),
        (
            ReceiverKind.PAGERDUTY,
            "marker-key",
            lambda body: body["payload"]["custom_details"]["line"],
        ),
        (ReceiverKind.NTFY, "marker-token", lambda body: body["message"]),
    ],
)
async def test_a_failed_job_reaches_each_kind_of_receiver(
    cluster: Any,
    start_receiver: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    kind: ReceiverKind,
    token: str,
    shows: Callable[[Any], str],
) -> None:
    receiver = await start_receiver(status=500, body=b"no such marker-path")
    to = sealed(kind, f"{receiver.url}/marker-path", token)
    await cluster.subscribe(id=f"to-{kind}", receiver=to)
    async with cluster.alerting(job_url="https://muster.example/jobs/{job}"):
        await cluster.job("j1", 1, JobState.FAILED, verdict=VERDICT)
        await cluster.until("SELECT count(*) FROM delivery WHERE reason IS NOT NULL", [(1,)])
        receiver.status, receiver.body = 204, b""
        await cluster.rows("UPDATE delivery SET next_at = now()")  # time passes
        await cluster.until("SELECT state FROM delivery", [("sent",)])
    first, second = (json.loads(request.body) for request in receiver.requests)
    assert first == second
    shown = shows(second)
    assert "no" in shown
    assert "more memory" in shown
    assert "https://muster.example/jobs/ada~train" in receiver.requests[1].body
    kept = [await cluster.rows(f"SELECT t::text FROM {name} AS t") for name in TABLES]
    everything = str(kept) + "".join(capsys.readouterr())
    assert "marker-path" not in everything
    assert not token or token not in everything


START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def an_alert(severity: str, *, over: bool = False) -> ReceivedAlert:
    return ReceivedAlert(
        fingerprint=severity,
        name="GpuHot",
        severity=severity,
        summary="It is hot",
        labels={"node": "n1"},
        starts_at=START,
        ends_at=START + timedelta(hours=1) if over else None,
    )


@pytest.fixture
async def pages(cluster: Any, start_receiver: Callable[..., Any]) -> Any:
    """A receiver of PagerDuty's kind for all that is a warning at least."""
    receiver = await start_receiver(status=202)
    to = sealed(ReceiverKind.PAGERDUTY, receiver.url, "marker-key")
    both = {"events": ("alert-raised", "alert-resolved"), "receiver": to}
    await cluster.subscribe(id=f"to-{to.kind}", **both, least_severity="warning")
    return receiver


async def come(cluster: Any, *alerts: ReceivedAlert, firing: int) -> None:
    """Alerts with one cause, until so many fire."""
    group = AlertsReceived(group="g", at=START, alerts=alerts)
    await cluster.publish("alerts-received", group.group, group)
    await cluster.until("SELECT count(*)::int FROM alert WHERE ends_at IS NULL", [(firing,)])


def actions(receiver: Any) -> list[str]:
    bodies = [json.loads(request.body) for request in receiver.requests]
    assert len({it["dedup_key"] for it in bodies}) == 1
    return sorted(it["event_action"] for it in bodies)


SENT = "SELECT DISTINCT state FROM delivery"


async def test_an_incident_is_over_with_the_last_alert_that_its_subscription_asks_for(
    cluster: Any, pages: Any
) -> None:
    async with cluster.alerting():
        await come(cluster, *map(an_alert, ("critical", "warning", "info")), firing=3)
        await cluster.until(SENT, [("sent",)])
        await come(cluster, an_alert("critical", over=True), firing=2)
        await come(cluster, an_alert("warning", over=True), firing=1)
        await come(cluster, an_alert("info", over=True), firing=0)
        await cluster.until(SENT, [("sent",)])
    assert actions(pages) == ["resolve", "trigger"]


async def test_an_alert_that_begins_as_another_of_its_cause_ends_is_paged(
    cluster: Any, pages: Any
) -> None:
    async with cluster.alerting():
        await come(cluster, an_alert("info"), firing=1)
        await come(cluster, an_alert("info", over=True), an_alert("critical"), firing=1)
        await cluster.until(SENT, [("sent",)])
    assert actions(pages) == ["trigger"]


async def test_an_incident_is_not_opened_after_the_end_of_its_alerts(
    cluster: Any, pages: Any
) -> None:
    pages.status = 503
    async with cluster.alerting():
        await come(cluster, an_alert("critical"), firing=1)
        await cluster.until("SELECT count(*) FROM delivery WHERE reason IS NOT NULL", [(1,)])
        pages.status = 202
        await come(cluster, an_alert("critical", over=True), firing=0)
        await cluster.until("SELECT count(*) FROM delivery WHERE state = 'sent'", [(1,)])
        await cluster.rows("UPDATE delivery SET next_at = now()")  # time passes
        await cluster.until(
            "SELECT reason FROM delivery WHERE state <> 'sent'", [("its alerts are over",)]
        )
    assert actions(pages) == ["resolve", "trigger"]


async def lose(cluster: Any, node: str, lease: int) -> None:
    loss = NodeLost(node=node, lease=lease, since=clock(), silent_s=30, pods=())
    await cluster.publish("node-lost", node, loss)


async def come_back(cluster: Any, node: str, lease: int) -> None:
    back = NodeReturned(node=node, lease=lease, at=clock())
    await cluster.publish("node-returned", node, back)


def clock() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - as the Scheduler's


async def test_a_replay_leaves_every_incident_as_its_alerts_are(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=202)
    to = sealed(ReceiverKind.PAGERDUTY, receiver.url, "marker-key")
    asked = {"id": f"to-{to.kind}", "events": ("node-lost", "node-returned"), "receiver": to}
    await cluster.subscribe(**asked)
    names = [f"n{number}" for number in range(6)]
    down, events = names[:3], 0

    async def sent(more: int) -> None:
        nonlocal events
        events += more
        states = "SELECT count(*)::int, bool_and(state = 'sent') FROM delivery"
        await cluster.until(states, [(events, True)])

    async with cluster.alerting():
        for node in names:
            await lose(cluster, node, 1)
        await sent(6)
        for node in names:
            await come_back(cluster, node, 1)
        await sent(6)
        for node in down:
            await lose(cluster, node, 2)
        await sent(3)
        first = [json.loads(it.body) for it in receiver.requests]
        replay = DeliveryOrder(
            id="1", at=clock(), kind=OrderKind.REPLAY, since=START, until=clock()
        )
        await cluster.subscribe(revision=2, **asked, orders=(replay,))
        ended = "SELECT count(*)::int FROM delivery WHERE replay = '1' AND state <> 'waiting'"
        await cluster.until(ended, [(15,)])
    again = [json.loads(it.body) for it in receiver.requests[15:]]
    keys = {it["payload"]["source"]: it["dedup_key"] for it in first}
    done = {(it["dedup_key"], it["event_action"]) for it in again}
    assert done == {
        (key, "trigger" if source.removeprefix("node/") in down else "resolve")
        for source, key in keys.items()
    }
    why = "SELECT DISTINCT reason FROM delivery WHERE state <> 'sent' ORDER BY reason"
    assert await cluster.rows(why) == [("its alerts are over",), ("its alerts fire again",)]


def test_an_incident_counts_the_alerts_that_its_subscription_asks_for() -> None:
    event = {"key": "k", "at": START, "title": "", "text": "", "thread": "", "data": {}}
    begun = Message(name="alert-raised", severity=Severity.CRITICAL, alert="a", **event)
    ended = replace(begun, name="alert-resolved", is_over=True)
    asked = Subscription(id="s", owner="o", events=(), email="a@b", least_severity="critical")
    fires, over = "its alerts fire again", "its alerts are over"
    for firing, wanted in {
        None: (over, None),
        Severity.WARNING: (over, None),
        Severity.CRITICAL: (None, fires),
    }.items():
        assert tuple(why_late(it, firing, asked) for it in (begun, ended)) == wanted


async def test_a_mute_keeps_no_incident_open(cluster: Any, pages: Any) -> None:
    mute = Mute(id="m", alert="GpuHot", until=datetime(2100, 1, 1, tzinfo=UTC), by="admin")
    name = f"{MUTE_SETTING}m"
    setting = SettingChanged(setting=name, revision=1, value=mute.model_dump(mode="json"))
    async with cluster.alerting():
        await come(cluster, an_alert("critical"), firing=1)
        await cluster.until(SENT, [("sent",)])
        await cluster.publish("settings-changed", name, setting)
        await come(cluster, an_alert("info"), firing=2)
        await come(cluster, an_alert("info", over=True), firing=1)
        await come(cluster, an_alert("critical", over=True), firing=0)
        await cluster.until("SELECT count(*) FROM delivery WHERE state = 'sent'", [(2,)])
    assert actions(pages) == ["resolve", "trigger"]


async def test_a_receiver_of_another_key_is_not_sent_to_and_says_why(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    to = sealed(ReceiverKind.SLACK, receiver.url)
    await cluster.subscribe(id="to-slack", receiver=to)
    async with cluster.alerting(webhook_key="another"):
        await cluster.job("j1", 1, JobState.FAILED)
        await cluster.until(
            "SELECT reason FROM delivery",
            [("the text is sealed for another key, or was changed",)],
        )
    assert receiver.connections == 0


async def test_in_quiet_hours_a_delivery_waits_for_their_end(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    zone = {"time_zone": "UTC"}
    quiet = {"start": "00:00", "end": "23:59:59.999999", **zone}  # a test at 24:00 would be rare
    await cluster.subscribe(webhook_url=receiver.url, quiet_hours=quiet)
    await cluster.subscribe(id="awake", webhook_url=receiver.url)
    async with cluster.alerting():
        await cluster.job("j1", 1, JobState.FAILED)
        await receiver.wait_for(1)
        waits = (
            "SELECT subscription, attempts, next_at > now() FROM delivery WHERE state = 'waiting'"
        )
        await cluster.until(waits, [("s1", 0, True)])
        await cluster.rows("UPDATE delivery SET next_at = now()")  # the night passes
        await receiver.wait_for(2)
