"""Alerting as it runs: records in, webhooks and mail out, over a real database, a Kafka-protocol
broker, real HTTP and real SMTP.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from muster.contracts.jobs import JobState
from muster.contracts.nodes import NodeLost, NodeNameClashed, NodeReport, NodeReturned
from muster.contracts.notices import AccountingDrifted, DeadLetter
from muster.contracts.subscriptions import Digest, DigestEvery
from muster.webhook_secrets import signing_secret
from standardwebhooks.webhooks import Webhook

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

DEADLINE_S = 60.0
STATES = "SELECT state, count(*) FROM delivery GROUP BY state ORDER BY state"
AN_HOUR = "retry-after: 3600\r\n"
"""The next attempt comes so late that a slow machine has done all else before."""


def right_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - what other services would publish


async def test_a_failed_job_becomes_a_signed_webhook(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url)
    async with cluster.alerting():
        await cluster.job("j1", 1, JobState.RUNNING)
        await cluster.job("j1", 2, JobState.FAILED)
        await receiver.wait_for(1)
        await cluster.until(STATES, [("sent", 1)])
    (request,) = receiver.requests
    notice = Webhook(signing_secret("key", "s1", 1)).verify(request.body, request.headers)
    assert notice["type"] == "job.failed"
    assert notice["data"]["job"] == "j1"


@pytest.mark.parametrize(("status", "body"), [(301, b""), (503, b"kaputt \xfc")])
async def test_an_alertmanager_takes_alerts_only_with_a_success(
    cluster: Any, start_receiver: Callable[..., Any], status: int, body: bytes
) -> None:
    page = await start_receiver(status=200)
    there = f"location: {page.url}\r\n"
    receiver = await start_receiver(status=status, extra=there, body=body)
    up = "muster_alerting_alertmanager_up"
    where = f"127.0.0.1:{receiver.port}"
    async with cluster.alerting(alertmanager_urls=f"http://{where}") as runtime:
        lost = NodeLost(node="n1", lease=1, since=right_now(), silent_s=60)
        await cluster.publish("node-lost", "n1", lost)
        await receiver.wait_for(1)
        async with asyncio.timeout(DEADLINE_S):
            while runtime.registry.get_sample_value(up, {"alertmanager": where}) != 0:
                await asyncio.sleep(0.02)
    assert page.connections == 0


async def test_a_finished_job_becomes_mail(cluster: Any, start_mailbox: Callable[..., Any]) -> None:
    mailbox = start_mailbox()
    await cluster.subscribe(events=("job-finished",), email="ada@example.org")
    async with cluster.alerting(smtp_host="127.0.0.1", smtp_port=mailbox.port):
        await cluster.job("j1", 1, JobState.SUCCEEDED)
        await cluster.until(STATES, [("sent", 1)])
    assert mailbox.recipients == ["ada@example.org"]
    assert "ada~train" in mailbox.mails[0]["Subject"]


async def test_repeats_are_delivered_once_also_after_a_restart(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url)
    async with cluster.alerting():
        for _ in range(3):
            await cluster.job("j1", 2, JobState.FAILED)
        await cluster.until(STATES, [("sent", 1)])
    async with cluster.alerting():
        await cluster.job("j1", 2, JobState.FAILED)
        await cluster.job("j2", 1, JobState.FAILED)
        await cluster.until(STATES, [("sent", 2)])
    assert len(receiver.requests) == 2


async def test_a_stuck_job_is_notified_and_resolved(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("job-stuck", "job-unstuck"), webhook_url=receiver.url)
    async with cluster.alerting(stuck_after_s=0.3):
        await cluster.job("j1", 1, JobState.STOPPING)
        await receiver.wait_for(1)
        await cluster.job("j1", 2, JobState.STOPPED)
        await receiver.wait_for(2)
        (raised,) = await cluster.received("alert-raised", 1)
        (resolved,) = await cluster.received("alert-resolved", 1)
    types = [json.loads(request.body)["type"] for request in receiver.requests]
    assert types == ["job.stuck", "job.unstuck"]
    assert raised["alert"] == resolved["alert"]
    assert "endsAt" not in raised
    assert resolved["endsAt"] > resolved["startsAt"]


async def test_the_alert_of_a_job_without_messages_ends(cluster: Any) -> None:
    async with cluster.alerting(stuck_after_s=0.1, clean_rows_every_s=0.1, open_job_days=1):
        await cluster.job("j1", 1, JobState.STOPPING)
        await cluster.received("alert-raised", 1)
        # Again and again: a record that is repeated after a rebalance opens the watch anew.
        age = "UPDATE job_watch SET quiet_since = now() - interval '2 days' RETURNING job"
        await cluster.until(age, [])
        (resolved,) = await cluster.received("alert-resolved", 1)
    assert resolved["name"] == "JobStuck"


async def test_timers_survive_a_restart(cluster: Any, start_receiver: Callable[..., Any]) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("job-stuck",), webhook_url=receiver.url)
    async with cluster.alerting(stuck_after_s=1.0, alert_settle_s=3600.0):  # it tells nothing
        await cluster.job("j1", 1, JobState.STOPPING)
        await cluster.until("SELECT job FROM job_watch", [("j1",)])
    async with cluster.alerting(stuck_after_s=1.0):
        await receiver.wait_for(1)


async def test_a_lost_node_is_notified_once_until_it_is_back(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("node-lost", "node-returned"), webhook_url=receiver.url)
    since = right_now()
    lost = NodeLost(node="n1", lease=1, since=since, silent_s=60)
    async with cluster.alerting():
        for _ in range(3):
            await cluster.publish("node-lost", "n1", lost)
        await receiver.wait_for(1)
        back = NodeReturned(node="n1", lease=2, at=since + timedelta(seconds=9))
        await cluster.publish("node-returned", "n1", back)
        await receiver.wait_for(2)
    types = [json.loads(request.body)["type"] for request in receiver.requests]
    assert types == ["node.lost", "node.returned"]


async def test_the_alert_of_a_lost_node_ends_when_the_node_is_removed(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("node-lost", "node-removed"), webhook_url=receiver.url)
    for node in ("n1", "n2"):  # removed before, and known again
        await cluster.publish("node-reported", node, None)
        await cluster.publish("node-reported", node, a_report(node))
    async with cluster.alerting():
        for node in ("n1", "n2"):
            lost = NodeLost(node=node, lease=1, since=right_now(), silent_s=60)
            await cluster.publish("node-lost", node, lost)
        await receiver.wait_for(2)
        await cluster.publish("node-reported", "n1", None)
        await receiver.wait_for(3)
        (resolved,) = await cluster.received("alert-resolved", 1)
        await cluster.until("SELECT node FROM node_watch WHERE due_at IS NOT NULL", [("n2",)])
    types = [json.loads(request.body)["type"] for request in receiver.requests]
    assert types == ["node.lost", "node.lost", "node.removed"]
    assert resolved["labels"] == {"node": "n1"}


async def test_a_drift_is_notified_once_and_is_over_when_the_scheduler_repeats_nothing(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("accounting-drifted",), webhook_url=receiver.url)
    async with cluster.alerting(drift_over_s=1.0):
        since = right_now()
        for second in range(2):
            message = AccountingDrifted(
                gang="g1",
                drifts=("quota of x: accounting has 12, placements have 8",),
                since=since,
                at=since + timedelta(milliseconds=second),
            )
            await cluster.publish("accounting-drifted", "g1", message)
        await receiver.wait_for(1)
        (raised,) = await cluster.received("alert-raised", 1)
        (resolved,) = await cluster.received("alert-resolved", 1)
    (notified,) = [json.loads(request.body) for request in receiver.requests]
    assert (notified["type"], notified["data"]["gang"]) == ("accounting.drifted", "g1")
    assert "placements have 8" in notified["data"]["text"]
    assert raised["labels"] == resolved["labels"] == {"gang": "g1"}


async def test_a_node_name_of_two_machines_is_notified_once_and_is_over_without_repeats(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("node-name-clash",), webhook_url=receiver.url)
    async with cluster.alerting(clash_over_s=1.0):
        since = right_now()
        for second in range(2):
            notice = NodeNameClashed(
                node="n1",
                journal="j1",
                address="10.0.0.1",
                other_journal="j2",
                other_address="10.0.0.2",
                since=since,
                at=since + timedelta(milliseconds=second),
            )
            await cluster.publish("node-name-clashed", "n1", notice)
        await receiver.wait_for(1)
        (raised,) = await cluster.received("alert-raised", 1)
        (resolved,) = await cluster.received("alert-resolved", 1)
    (notified,) = [json.loads(request.body) for request in receiver.requests]
    assert (notified["type"], notified["data"]["node"]) == ("node.name-clash", "n1")
    assert raised["name"] == "NodeNameClash"
    labels = {"node": "n1", "address": "10.0.0.1", "otherAddress": "10.0.0.2"}
    assert raised["labels"] == resolved["labels"] == labels


async def test_nodes_without_messages_leave_no_rows(cluster: Any) -> None:
    far = right_now() + timedelta(days=10_000)
    async with cluster.alerting(clean_rows_every_s=0.1, lost_forget_s=0.1):
        await cluster.publish("node-returned", "odd", NodeReturned(node="odd", lease=1, at=far))
        await cluster.publish(
            "node-lost", "n1", NodeLost(node="n1", lease=1, since=right_now(), silent_s=60)
        )
        await cluster.received("alert-resolved", 1)
        back = NodeReturned(node="n2", lease=1, at=right_now())
        await cluster.publish("node-returned", "n2", back)
        await cluster.until("SELECT node FROM node_watch", [("n2",)])


def a_report(node: str) -> NodeReport:
    return NodeReport(
        node=node,
        revision=1,
        journal="j",
        boot="b",
        at=right_now(),
        address="127.0.0.1",
        version="1",
        cpu=1,
        memory_mb=1,
    )


async def test_a_dead_letter_is_notified_and_makes_its_job_stuck(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(events=("record-rejected", "job-stuck"), webhook_url=receiver.url)
    notice = {"topic": "job-submitted", "partition": 0, "offset": 1, "key": "j1", "headers": {}}
    notice |= {"value": '{"job":"j1","user":"ada\\u0000"', "reader": "launcher", "at": right_now()}
    async with cluster.alerting(stuck_after_s=0.3):
        letter = DeadLetter(**notice, reason="no\x00 such field")
        await cluster.publish("job-submitted.dead-letter", "j1", letter)
        await receiver.wait_for(2)
    types = {json.loads(request.body)["type"] for request in receiver.requests}
    assert types == {"record.rejected", "job.stuck"}


async def test_an_unreadable_record_is_a_dead_letter_and_its_neighbours_are_notified(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url)
    await cluster.publish_raw("job-updated", "j0", b"{")
    await cluster.publish_raw("job-updated.dead-letter", "j0", b"{")
    await cluster.job("j1", 1, JobState.FAILED, name="nul\x00")
    async with cluster.alerting():
        await receiver.wait_for(1)
        await cluster.until(
            "SELECT reader, topic FROM dead_letter_watch", [("alerting", "job-updated")]
        )


async def test_names_that_no_database_takes_are_dead_letters(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url)
    notice = {"topic": "job-submitted", "partition": 0, "offset": 1, "headers": {}, "reason": "odd"}
    for number, job in enumerate(("j\x00", "j\ud800", "j" * 5000)):
        letter = DeadLetter(**notice, value=json.dumps({"job": job}), reader="l", at=right_now())
        await cluster.publish("job-submitted.dead-letter", f"k{number}", letter)
    await cluster.publish(
        "job-submitted.dead-letter", "k", letter.model_copy(update={"reader": "\x00"})
    )
    for number, job in enumerate(("j\x00", "j" * 5000)):
        await cluster.job(job, 1, JobState.FAILED, key=f"k{number}")
    await cluster.job("j1", 1, JobState.FAILED)
    async with cluster.alerting() as runtime:
        await receiver.wait_for(1)
        await cluster.until(
            "SELECT reader, topic FROM dead_letter_watch ORDER BY reader",
            [("alerting", "job-updated"), ("l", "job-submitted")],
        )
    assert (json.loads(receiver.requests[0].body))["data"]["job"] == "j1"
    retries = {"what": "batch"}
    assert not runtime.registry.get_sample_value("muster_transient_failures_total", retries)


async def test_a_removed_subscription_gets_nothing_more(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=500, extra=AN_HOUR)
    await cluster.subscribe(webhook_url=receiver.url)
    async with cluster.alerting():
        await cluster.job("j1", 1, JobState.FAILED)
        await cluster.until("SELECT attempts FROM delivery WHERE lease IS NULL", [(1,)])
        await cluster.publish("receivers-changed", "subscription/s1", None)
        await cluster.until("SELECT setting FROM subscription", [])
        await cluster.until("SELECT state, why FROM delivery", [("given-up", "unsubscribed")])
        await cluster.job("j2", 1, JobState.FAILED)
        await cluster.until("SELECT job FROM job_watch ORDER BY job", [("j1",), ("j2",)])
        await cluster.until(STATES, [("given-up", 1)])
    assert len(receiver.requests) == 1


async def test_subscriptions_are_known_after_the_bus_was_thrown_away(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url)
    async with cluster.alerting():
        await cluster.until("SELECT setting FROM subscription", [("subscription/s1",)])
    cluster.broker.kill()
    cluster.broker.start()
    async with cluster.alerting():
        await cluster.job("j1", 1, JobState.FAILED)
        await receiver.wait_for(1)


async def test_a_notification_is_in_the_trace_of_the_job(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url)
    trace = "ab" * 16
    async with cluster.alerting():
        await cluster.job("j1", 1, JobState.FAILED, traceparent=f"00-{trace}-{'cd' * 8}-01")
        await receiver.wait_for(1)
    ((kept,),) = await cluster.rows("SELECT traceparent FROM event")
    assert kept.split("-")[1] == trace


async def test_a_digest_is_one_message_also_if_alerting_was_away(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    await cluster.subscribe(webhook_url=receiver.url, digest=Digest(every=DigestEvery.HOUR))
    async with cluster.alerting():
        for number in range(3):
            await cluster.job(f"j{number}", 1, JobState.FAILED)
        held = "SELECT state, count(*), bool_and(digest_at > now()) FROM delivery GROUP BY state"
        await cluster.until(held, [("waiting", 3, True)])
    await cluster.rows("UPDATE delivery SET digest_at = now(), next_at = now()")  # the hour passes
    async with cluster.alerting():
        await cluster.until(STATES, [("digested", 3), ("sent", 1)])
        await cluster.job("j9", 1, JobState.FAILED)  # waits for the next one
        await cluster.until(STATES, [("digested", 3), ("sent", 1), ("waiting", 1)])
    (request,) = receiver.requests
    notice = Webhook(signing_secret("key", "s1", 1)).verify(request.body, request.headers)
    assert (notice["type"], notice["data"]["counts"]) == ("digest", {"job-failed": 3})
    parts = await cluster.rows("SELECT DISTINCT digest FROM delivery WHERE state = 'digested'")
    assert parts == await cluster.rows("SELECT id FROM delivery WHERE state = 'sent'")
