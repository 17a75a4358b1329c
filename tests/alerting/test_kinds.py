"""A failed job reaches each kind of receiver, whose address is in no log, table or record."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from muster.contracts.alerts import AlertsReceived, ReceivedAlert
from muster.contracts.jobs import JobState
from muster.contracts.subscriptions import ReceiverKind, SealedReceiver
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


async def test_an_incident_is_over_with_the_last_alert_that_its_subscription_asks_for(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=202)
    to = sealed(ReceiverKind.PAGERDUTY, receiver.url, "marker-key")
    both = {"events": ("alert-raised", "alert-resolved"), "receiver": to}
    await cluster.subscribe(id=f"to-{to.kind}", **both, least_severity="warning")
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)

    async def alerts(*severities: str, over: bool = False) -> None:
        ended = start + timedelta(hours=1) if over else None
        group = AlertsReceived(
            group="g",
            at=start,
            alerts=tuple(
                ReceivedAlert(
                    fingerprint=each,
                    name="GpuHot",
                    severity=each,
                    summary="It is hot",
                    labels={"node": "n1"},
                    starts_at=start,
                    ends_at=ended,
                )
                for each in severities
            ),
        )
        await cluster.publish("alerts-received", group.group, group)

    def firing(count: int) -> Any:
        return cluster.until("SELECT count(*)::int FROM alert WHERE ends_at IS NULL", [(count,)])

    async with cluster.alerting():
        await alerts("critical", "warning", "info")
        await firing(3)
        await alerts("critical", over=True)
        await firing(2)
        await alerts("warning", over=True)
        await firing(1)
        await alerts("info", over=True)
        await firing(0)
        await cluster.until("SELECT DISTINCT state FROM delivery", [("sent",)])
    bodies = [json.loads(request.body) for request in receiver.requests]
    assert sorted(it["event_action"] for it in bodies) == ["resolve", "trigger"]
    assert len({it["dedup_key"] for it in bodies}) == 1


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
