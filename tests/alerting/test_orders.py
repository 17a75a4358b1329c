"""Owners see their deliveries and why one failed, test a receiver, and replay what has ended."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.jobs import JobState
from rest_double import Ran, run_cli
from standardwebhooks.webhooks import Webhook

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

SUBSCRIPTIONS = "/api/v2/alerts/subscriptions"
DEADLINE_S = 60.0


async def subscribed(client: Any, url: str, **fields: Any) -> str:
    body = {"events": ["job-failed"], "webhookUrl": url, **fields}
    answer = await client.post(SUBSCRIPTIONS, json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def until_deliveries(
    client: Any, ident: str, wanted: list[tuple[Any, ...]], *names: str
) -> list[dict[str, Any]]:
    """The deliveries, once these fields have these values."""
    path, found = f"{SUBSCRIPTIONS}/{ident}/deliveries", None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = (await client.get(path)).json()
                found = [tuple(each[it] for it in names) for each in answer["deliveries"]]
                if found == wanted:
                    deliveries: list[dict[str, Any]] = answer["deliveries"]
                    return deliveries
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"{found}, not {wanted}")


async def test_an_owner_sees_deliveries_and_why_one_failed_and_replays_it(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=413)
    async with with_rest() as api, await api.log_in("ada") as ada, await api.log_in("eve") as eve:
        ident = await subscribed(ada, receiver.url)
        await cluster.until("SELECT count(*) FROM subscription", [(1,)])
        await cluster.job("j1", 1, JobState.FAILED)
        await cluster.job("j2", 1, JobState.FAILED)
        (failed, _) = await until_deliveries(
            ada, ident, [("job-failed", "given-up", 1, "refused", "HTTP 413")] * 2,
            "type", "state", "attempts", "why", "reason",
        )  # fmt: skip
        assert failed["title"] == "Job ada~train FAILED"
        for path in ("deliveries", "test", "replay"):
            method = "GET" if path == "deliveries" else "POST"
            body = {"deliveries": [failed["id"]]} if path == "replay" else None
            answer = await eve.request(method, f"{SUBSCRIPTIONS}/{ident}/{path}", json=body)
            assert answer.status_code == 403, path
        receiver.status = 204
        body = {"deliveries": [failed["id"]]}
        replayed = await ada.post(f"{SUBSCRIPTIONS}/{ident}/replay", json=body)
        assert replayed.status_code == 202
        await cluster.until(
            "SELECT state, count(*)::int FROM delivery GROUP BY state ORDER BY state",
            [("given-up", 1), ("sent", 1)],
        )
        body = {"since": "2025-01-01T00:00:00Z"}
        assert (await ada.post(f"{SUBSCRIPTIONS}/{ident}/replay", json=body)).status_code == 202
        await receiver.wait_for(5)
        await until_deliveries(ada, ident, [("sent", None)] * 2, "state", "reason")
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(set(ids)) == 2, "a replay has the id of the first time"
    assert ids.count(failed["id"]) == 3


async def test_a_waiting_delivery_says_when_it_is_tried_next_and_is_not_replayed(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any], tmp_path: Path
) -> None:
    receiver = await start_receiver(status=503, extra="retry-after: 3600\r\n")
    async with with_rest() as api:

        async def muster(*words: str, text: str = "") -> Ran:
            return await asyncio.to_thread(run_cli, tmp_path, *words, text=text, MUSTER_URL=api.url)

        assert (await muster("login", "admin", text="correct-horse\n")).code == 0
        ident = await subscribed(api.admin, receiver.url)
        await cluster.until("SELECT count(*) FROM subscription", [(1,)])
        await cluster.job("j1", 1, JobState.FAILED)
        names = ("state", "attempts", "reason")
        await until_deliveries(api.admin, ident, [("waiting", 1, "HTTP 503")], *names)
        path = f"{SUBSCRIPTIONS}/{ident}"
        (waits,) = (await api.admin.get(f"{path}/deliveries")).json()["deliveries"]
        at = waits["nextAt"][:19].replace("T", " ")
        shown = (await muster("subscriptions", "deliveries", ident)).out
        assert f"  next attempt {at}: HTTP 503" in shown
        words = ("subscriptions", "replay", ident)
        for asked in (("--since", "2025-01-01T00:00:00Z"), ("--delivery", waits["id"])):
            ran = await muster(*words, *asked)
            text = "No ended delivery was found: nothing is sent again."
            assert ran.out.startswith(f"{text} Deliveries that wait are left alone: 1. See: ")
    assert len(receiver.requests) == 1


async def test_a_replay_has_the_order_of_the_events(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    async with with_rest(receiver_slots=1) as api:
        ident = await subscribed(api.admin, receiver.url)
        await cluster.until("SELECT count(*) FROM subscription", [(1,)])
        for number in range(1, 7):
            await cluster.job(f"j{number}", 1, JobState.FAILED)
            await receiver.wait_for(number)
        await until_deliveries(api.admin, ident, [("sent",)] * 6, "state")
        body = {"since": "2025-01-01T00:00:00Z"}
        await api.admin.post(f"{SUBSCRIPTIONS}/{ident}/replay", json=body)
        ids = [request.headers["webhook-id"] for request in await receiver.wait_for(12)]
    assert ids[:6] == ids[6:]


async def test_an_order_counts_once_whatever_repeats_come(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    async with with_rest(settings_repeat_s=0.1) as api:
        ident = await subscribed(api.admin, receiver.url)
        answer = await api.admin.post(f"{SUBSCRIPTIONS}/{ident}/test")
        event = answer.json()["event"]
        await until_deliveries(api.admin, ident, [(event, "sent")], "event", "state")
    async with with_rest(settings_repeat_s=0.1) as api:  # reads all orders anew
        await cluster.job("j1", 1, JobState.FAILED)
        await receiver.wait_for(2)
        await until_deliveries(api.admin, ident, [("sent",)] * 2, "state")
    types = [json.loads(request.body)["type"] for request in receiver.requests]
    assert types == ["receiver.test", "job.failed"]


async def test_a_change_of_a_subscription_repeats_no_replay(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    asked = {"events": ["job-failed"], "webhookUrl": receiver.url}
    async with with_rest() as api:
        ident = await subscribed(api.admin, receiver.url)
        body = {"since": "2025-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
        answer = await api.admin.post(f"{SUBSCRIPTIONS}/{ident}/replay", json=body)
        assert answer.status_code == 202
        await cluster.until("SELECT count(*) FROM receiver", [(1,)])
        await cluster.job("j1", 1, JobState.FAILED)
        await until_deliveries(api.admin, ident, [("sent",)], "state")
        answer = await api.admin.put(f"{SUBSCRIPTIONS}/{ident}", json=asked | {"enabled": False})
        assert answer.status_code == 200, answer.text
        await cluster.until("SELECT value ->> 'enabled' FROM subscription", [("false",)])
        assert await cluster.rows("SELECT replay FROM delivery") == [(None,)]
    assert len(receiver.requests) == 1


async def test_a_test_tries_a_disabled_receiver_again(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=410)
    async with with_rest() as api:
        ident = await subscribed(api.admin, receiver.url)
        path = f"{SUBSCRIPTIONS}/{ident}"
        await api.admin.post(f"{path}/test")
        await until_deliveries(api.admin, ident, [("given-up", "gone")], "state", "why")
        health = (await api.admin.get(f"{path}/deliveries")).json()["receiver"]
        assert health["disabled"] == "HTTP 410"
        receiver.status = 204
        await api.admin.post(f"{path}/test")
        states = [("sent",), ("given-up",)]
        await until_deliveries(api.admin, ident, states, "state")
        health = (await api.admin.get(f"{path}/deliveries")).json()["receiver"]
        assert (health["failures"], health["givenUp"], health["disabled"]) == (0, 0, None)


async def test_only_another_content_enables_a_disabled_receiver(
    cluster: Any, start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=410)
    disabled = "SELECT disabled FROM receiver"
    async with cluster.alerting():
        await cluster.subscribe(1, webhook_url=receiver.url)
        await cluster.until("SELECT revision::int FROM subscription", [(1,)])
        await cluster.job("j1", 1, JobState.FAILED)
        await cluster.until(disabled, [("HTTP 410",)])
    await cluster.subscribe(1_795_877_937_081, webhook_url=receiver.url)  # over a new bus
    async with cluster.alerting():
        await cluster.job("j2", 1, JobState.FAILED)
        await cluster.until("SELECT state FROM delivery", [("given-up",)] * 2)
        assert len(receiver.requests) == 1
        receiver.status = 204
        path = f"{receiver.url}/mended"
        await cluster.subscribe(1_795_877_937_082, webhook_url=path)
        await cluster.until("SELECT value ->> 'webhookUrl' FROM subscription", [(path,)])
        await cluster.job("j3", 1, JobState.FAILED)
        await receiver.wait_for(2)
        await cluster.until(disabled, [(None,)])


async def test_a_replay_sends_what_came_while_a_receiver_was_disabled(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver(status=410)
    async with with_rest() as api:
        ident = await subscribed(api.admin, receiver.url, digest={"every": "hour"})
        await api.admin.post(f"{SUBSCRIPTIONS}/{ident}/test")
        await until_deliveries(api.admin, ident, [("gone",)], "why")
        await cluster.job("j1", 1, JobState.FAILED)
        left = ("given-up", "gone", "HTTP 410")
        names = ("type", "state", "why", "reason")
        wanted = [("job-failed", *left), ("receiver-test", *left)]
        await until_deliveries(api.admin, ident, wanted, *names)
        receiver.status = 204
        body = {"since": "2025-01-01T00:00:00Z"}
        await api.admin.post(f"{SUBSCRIPTIONS}/{ident}/replay", json=body)
        await until_deliveries(api.admin, ident, [("sent",)] * 2, "state")
    types = [json.loads(it.body)["type"] for it in receiver.requests]
    assert types == ["receiver.test", "receiver.test", "job.failed"]


async def test_an_owner_is_told_by_mail_before_a_receiver_is_disabled_and_then(
    cluster: Any, with_rest: Callable[..., Any], start_mailbox: Callable[..., Any], tmp_path: Path
) -> None:
    mailbox = start_mailbox()
    settings = {"disable_after": 3, "disable_notice": 1, "smtp_port": mailbox.port}
    async with with_rest(smtp_host="127.0.0.1", **settings) as api, await api.log_in("ada") as ada:
        address = {"data": {"username": "ada", "email": "ada@example.org"}}
        assert (await api.admin.put("/api/v2/users", json=address)).status_code == 201
        ident = await subscribed(ada, "http://10.1.1.1/hook")  # a private address is refused
        await cluster.until("SELECT count(*)::int FROM subscription", [(2,)])
        for number in range(1, 4):
            await cluster.job(f"j{number}", 1, JobState.FAILED)
            await until_deliveries(ada, ident, [("given-up",)] * number, "state")
            wanted: list[tuple[Any, ...]] = [("receiver-failing", "sent")] * (number - 1)
            await until_deliveries(ada, "account", wanted, "type", "state")
        first, last = mailbox.mails
        assert f"muster subscriptions test {ident}" in first.get_body(("plain",)).get_content()
        assert last["Subject"].split()[-4:] == ["subscription", ident, "is", "disabled"]
        (listed,) = (await ada.get(SUBSCRIPTIONS)).json()["subscriptions"]
        assert (listed["health"]["givenUp"], listed["health"]["disabledAfter"]) == (3, 3)
        assert listed["health"]["disabled"].startswith("3 deliveries in a row were given up")

        async def muster(*words: str, text: str = "") -> Ran:
            return await asyncio.to_thread(run_cli, tmp_path, *words, text=text, MUSTER_URL=api.url)

        assert (await muster("login", "ada", text="correct-horse\n")).code == 0
        assert f"{ident}  ada    disabled" in (await muster("subscriptions")).out


async def test_a_receiver_that_stays_disabled_is_told_once_however_often_it_is_tested(
    cluster: Any, with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver, other = await start_receiver(status=410), await start_receiver()
    async with with_rest() as api:
        ident = await subscribed(api.admin, receiver.url)
        told = await subscribed(api.admin, other.url)
        await cluster.until("SELECT count(*)::int FROM subscription", [(2,)])

        async def order(what: str, number: int, body: object = None) -> None:
            """Carried out, and answered by the receiver."""
            answer = await api.admin.post(f"{SUBSCRIPTIONS}/{ident}/{what}", json=body)
            assert answer.status_code == 202, answer.text
            await receiver.wait_for(number)
            ended = f"SELECT count(*)::int FROM delivery WHERE subscription = '{ident}'"
            await cluster.until(f"{ended} AND state = 'waiting'", [(0,)])

        for number in range(1, 4):
            await order("test", number)
        first = "SELECT id FROM delivery WHERE subscription = $1 ORDER BY created_at LIMIT 1"
        ((delivery,),) = await cluster.rows(first, ident)
        await order("replay", 4, {"deliveries": [delivery]})
        await until_deliveries(api.admin, told, [("receiver-failing", "sent")], "type", "state")
        receiver.status = 204
        await order("test", 5)
        receiver.status = 410
        await order("test", 6)
        wanted = [("receiver-failing", "sent")] * 2
        await until_deliveries(api.admin, told, wanted, "type", "state")


async def test_orders_are_bounded_and_checked(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any]
) -> None:
    receiver = await start_receiver()
    async with with_rest() as api:
        ident = await subscribed(api.admin, receiver.url)
        path = f"{SUBSCRIPTIONS}/{ident}"
        for body in ({}, {"deliveries": ["x"]}, {"since": "2026-01-01T00:00:00"}):
            assert (await api.admin.post(f"{path}/replay", json=body)).status_code == 400
        codes = [(await api.admin.post(f"{path}/test")).status_code for _ in range(11)]
        assert codes == [202] * 10 + [429]


async def test_the_command_line_rotates_a_webhooks_secret(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any], tmp_path: Path
) -> None:
    receiver = await start_receiver()
    async with with_rest() as api:

        async def muster(*words: str, text: str = "") -> Ran:
            return await asyncio.to_thread(run_cli, tmp_path, *words, text=text, MUSTER_URL=api.url)

        assert (await muster("login", "admin", text="correct-horse\n")).code == 0
        made = await muster("subscriptions", "add", "job-failed", "--webhook", receiver.url)
        ident = made.out.strip()
        (first,) = (await muster("subscriptions", "secrets", ident)).out.splitlines()
        assert first in made.err
        newest, former = (await muster("subscriptions", "rotate", ident)).out.splitlines()
        assert (newest != first, former) == (True, first)
        await muster("subscriptions", "test", ident)
        made = await muster("subscriptions", "add", "job-failed", "--email", "ada@example.org")
        refused = await muster("subscriptions", "rotate", made.out.strip())
        assert (refused.code, "it is no webhook" in refused.err) == (4, True)
    (request,) = receiver.requests
    assert len(request.headers["webhook-signature"].split()) == 2
    for secret in (newest, former):
        Webhook(secret).verify(request.body, dict(request.headers))


async def test_the_command_line_subscribes_tests_lists_and_replays(
    with_rest: Callable[..., Any], start_receiver: Callable[..., Any], tmp_path: Path
) -> None:
    receiver = await start_receiver(status=403, body=b"broken")
    async with with_rest() as api:

        async def muster(*words: str, text: str = "") -> Ran:
            return await asyncio.to_thread(run_cli, tmp_path, *words, text=text, MUSTER_URL=api.url)

        assert (await muster("login", "admin", text="correct-horse\n")).code == 0
        url = receiver.url + "/topic"
        quiet = ("--quiet", "22:00-07:00@Europe/Berlin", "--severity", "warning")
        words = ("add", "job-failed", "--to", "ntfy", *quiet)
        made = await muster("subscriptions", *words, text=f"{url}\n")
        assert made.code == 0, made.err
        ident = made.out.strip()
        failed = await muster("subscriptions", "test", ident)
        assert (failed.code, "HTTP 403: broken" in failed.err) == (1, True)
        receiver.status = 200
        tested = await muster("subscriptions", "test", ident)
        assert tested.out == "The receiver has the test message.\n"
        listed = await muster("subscriptions", "deliveries", ident, "-o", "json")
        (newest, _) = json.loads(listed.out)["deliveries"]
        replayed = await muster("subscriptions", "replay", ident, "--delivery", newest["id"])
        see = f" See: muster subscriptions deliveries {ident}\n"
        assert (replayed.code, replayed.out) == (0, f"1 ended delivery is sent again.{see}")
        await receiver.wait_for(3)
        none = f"No ended delivery was found: nothing is sent again.{see}"
        later = await muster("subscriptions", "replay", ident, "--since", "2100-01-01T00:00:00Z")
        assert (later.code, later.out) == (0, none)
        unknown = f"msg_{'0' * 32}"
        refused = await muster("subscriptions", "replay", ident, "--delivery", unknown)
        assert refused.code == 4
        assert f"Subscription {ident} has no delivery {unknown}." in refused.err
        shown = await muster("subscriptions", "deliveries", ident)
        assert "HTTP 403: broken" in shown.out
        listed = await muster("subscriptions")
        assert "ntfy (127.0.0.1)" in listed.out
        assert url not in listed.out
        assert (await muster("subscriptions", "remove", ident)).code == 0
    assert json.loads(receiver.requests[-1].body)["topic"] == "topic"
