"""Mail addresses are confirmed before Muster mails alerts to them, from REST over the bus and
Alerting to a real mail server and back.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from alerting.app import build as build_alerting
from alerting.settings import AlertingSettings
from mail_server import Mailbox, running_mailbox
from muster.codes import confirmation_code
from muster.contracts.confirmations import Confirmation
from muster.contracts.jobs import JobChange, JobState, JobStatus
from muster.contracts.notices import RESYNC_SETTING, SettingChanged
from muster.contracts.topics import Service
from muster.service import running

KEY = "a-key-of-this-test"
ME = "/api/v2/users/me"
CONFIRM = f"{ME}/email/confirm"
SUBSCRIPTIONS = "/api/v2/alerts/subscriptions"
WEBHOOK = {"events": ["job-failed"], "webhookUrl": "https://example.org/hook"}

Alerting = Callable[[str], AbstractAsyncContextManager[None]]


def mailing(email: str) -> dict[str, Any]:
    return {"events": ["job-failed"], "email": email}


def admins(username: str, **fields: object) -> dict[str, Any]:
    return {"data": {"username": username} | fields}


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with running_mailbox() as made:
        yield made


@pytest.fixture
def alerting(database_url: str, mailbox: Mailbox) -> Alerting:
    """Alerting on the database of the test's REST; it mails to the mailbox."""

    @asynccontextmanager
    async def start(bootstrap: str) -> AsyncIterator[None]:
        settings = AlertingSettings(
            database_url=database_url,
            kafka_bootstrap=bootstrap,
            webhook_key=KEY,
            smtp_host="127.0.0.1",
            smtp_port=mailbox.port,
            smtp_tls="none",
            fetch_wait_busy_ms=10,
            fetch_wait_idle_ms=10,
            delivery_poll_s=0.05,
        )
        async with running(Service.ALERTING, settings, 0, build_alerting):
            yield

    return start


async def mails(rest: Any, mailbox: Mailbox, count: int) -> list[str]:
    """The texts of the mails, once there are so many."""

    async def number() -> int:
        return len(mailbox.mails)

    await rest.eventually(number, count)
    bodies = [mail.get_body(("plain",)) for mail in mailbox.mails]
    return [body.get_content() for body in bodies if body is not None]


def code_in(text: str) -> str:
    found = re.search(r"muster users confirm ([A-Z2-7]{32})\b", text)
    assert found is not None, text
    return found[1]


async def code_of(rest: Any, username: str) -> str:
    """The newest code of a user, as Alerting makes it."""
    row = await rest.runtime.pool.fetchrow(
        'SELECT id, username AS "user", email, expires_at FROM confirmation'
        " WHERE username = $1 ORDER BY id DESC LIMIT 1",
        username,
    )
    return confirmation_code(KEY, Confirmation(**dict(row)))


async def shown(client: Any, username: str) -> tuple[str, bool]:
    user = (await client.get(f"/api/v2/users/{username}")).json()
    return user["email"], user["emailConfirmed"]


async def test_an_address_is_confirmed_with_the_code_that_it_gets(
    start_rest: Any, fresh_broker: Any, alerting: Alerting, mailbox: Mailbox
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with (
        start_rest(kafka_bootstrap=bootstrap) as rest,
        alerting(bootstrap),
        await rest.make_user("ann") as ann,
        await rest.make_user("bob") as bob,
    ):
        changed = await ann.put(ME, json={"email": "ann@example.org"})
        assert (changed.status_code, "a code to ann@example.org" in changed.json()["message"]) == (
            201,
            True,
        )
        assert await shown(ann, "ann") == ("ann@example.org", False)
        early = await ann.post(SUBSCRIPTIONS, json=mailing("ann@example.org"))
        assert (early.status_code, early.json()["code"]) == (409, "UnconfirmedEmailError")
        (text,) = await mails(rest, mailbox, 1)
        assert (mailbox.recipients, "The user ann" in text) == (["ann@example.org"], True)
        code = code_in(text)
        for client, wrong in ((ann, f"{code[:-1]}?"), (ann, ""), (bob, code)):
            refused = await client.post(CONFIRM, json={"code": wrong})
            assert (refused.status_code, refused.json()["code"]) == (400, "WrongCodeError")
        assert await shown(ann, "ann") == ("ann@example.org", False)
        assert (await ann.post(CONFIRM, json={"code": f" {code}\n"})).status_code == 200
        assert await shown(rest.client, "ann") == ("ann@example.org", True)
        assert await shown(bob, "ann") == ("", False)
        again = await ann.post(CONFIRM, json={"code": code})
        assert (again.status_code, again.json()["code"]) == (400, "WrongCodeError")
        made = await ann.post(SUBSCRIPTIONS, json=mailing("ann@example.org"))
        assert made.status_code == 201
        # The code is nowhere but in the mail.
        pool = rest.runtime.pool
        for table in ("confirmation", "audit", "alerting.event", "alerting.subscription"):
            rows = await pool.fetch(f"SELECT t::text FROM {table} AS t")
            assert all(code not in row["t"] for row in rows)

        async def known_to_alerting() -> int:
            sql = "SELECT count(*) FROM alerting.subscription WHERE setting LIKE 'confirmation/%'"
            count: int = await pool.fetchval(sql)
            return count

        await rest.eventually(known_to_alerting, 0)


async def test_a_confirmation_is_published_above_the_revisions_before_a_restore(
    start_rest: Any, fresh_broker: Any
) -> None:
    bootstrap = fresh_broker.bootstrap
    async with (
        start_rest(kafka_bootstrap=bootstrap) as rest,
        await rest.make_user("ann") as ann,
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
    ):
        await ann.put(ME, json={"email": "ann@example.org"})
        asked = SettingChanged(setting=RESYNC_SETTING, revision=7, value={})
        value = asked.model_dump_json().encode()
        await producer.send_and_wait("settings-changed", value, key=RESYNC_SETTING.encode())

        async def is_above() -> bool:
            is_lifted: bool = await rest.runtime.pool.fetchval(
                "SELECT revision > 7 FROM confirmation"
            )
            return is_lifted

        await rest.eventually(is_above, True)


async def test_a_foreign_address_gets_no_more_mails_than_the_limit(
    start_rest: Any, fresh_broker: Any, alerting: Alerting, mailbox: Mailbox
) -> None:
    bootstrap, foreign = fresh_broker.bootstrap, "foreign@example.org"
    async with (
        start_rest(kafka_bootstrap=bootstrap, confirmation_mails_per_hour=2) as rest,
        alerting(bootstrap),
        await rest.make_user("ann") as ann,
        await rest.make_user("bob") as bob,
    ):
        for count in (1, 2):
            assert (await ann.put(ME, json={"email": foreign})).status_code == 201
            await mails(rest, mailbox, count)
        for client, email in ((ann, foreign), (ann, "a@b.c"), (bob, "FOREIGN@example.org")):
            refused = await client.put(ME, json={"email": email})
            assert (refused.status_code, refused.json()["code"]) == (429, "TooManyRequestsError")
            assert 0 < int(refused.headers["retry-after"]) <= 3600
        assert await shown(bob, "bob") == ("", False)
        for client in (ann, bob):
            sneaked = await client.post(SUBSCRIPTIONS, json=mailing(foreign))
            assert sneaked.status_code == 409
        assert (await bob.put(ME, json={"email": "bob@example.org"})).status_code == 201
        await mails(rest, mailbox, 3)
        assert mailbox.recipients == [foreign, foreign, "bob@example.org"]
        await rest.runtime.pool.execute("UPDATE confirmation SET made_at = made_at - interval '1h'")
        assert (await ann.put(ME, json={"email": foreign})).status_code == 201


async def test_an_expired_or_replaced_code_is_refused(rest: Any) -> None:
    async with await rest.make_user("ann") as ann:
        await ann.put(ME, json={"email": "old@example.org"})
        replaced = await code_of(rest, "ann")
        await ann.put(ME, json={"email": "ann@example.org"})
        code = await code_of(rest, "ann")
        assert (await ann.post(CONFIRM, json={"code": replaced})).status_code == 400
        pool = rest.runtime.pool
        await pool.execute("UPDATE confirmation SET expires_at = now() WHERE ended_at IS NULL")
        expired = await code_of(rest, "ann")
        for over in (code, expired):
            assert (await ann.post(CONFIRM, json={"code": over})).status_code == 400
        assert await shown(ann, "ann") == ("ann@example.org", False)
        await ann.put(ME, json={"email": "ann@example.org"})
        last = await code_of(rest, "ann")
        set_by_admin = admins("ann", email="other@example.org")
        assert (await rest.client.put("/api/v2/users", json=set_by_admin)).status_code == 201
        assert (await ann.post(CONFIRM, json={"code": last})).status_code == 400
        assert await shown(ann, "ann") == ("other@example.org", True)


async def test_a_new_address_ends_the_subscriptions_to_the_old_one(rest: Any) -> None:
    async with await rest.make_user("ann", email="ann@example.org") as ann:

        async def receivers() -> set[str]:
            found = (await ann.get(SUBSCRIPTIONS)).json()["subscriptions"]
            return {each["email"] or each["webhookUrl"] for each in found}

        for body in (WEBHOOK, mailing("ann@example.org")):
            assert (await ann.post(SUBSCRIPTIONS, json=body)).status_code == 201
        both = {WEBHOOK["webhookUrl"], "ann@example.org"}
        assert (await ann.put(ME, json={"email": "ann@example.org"})).status_code == 201
        same = admins("ann", email="ann@example.org")
        assert (await rest.client.put("/api/v2/users", json=same)).status_code == 201
        assert (await shown(ann, "ann"), await receivers()) == (("ann@example.org", True), both)
        changed = await ann.put(ME, json={"email": "ann@example.com"})
        assert changed.json()["message"].startswith("It is changed. 1 subscription ended. Muster")
        (entry,) = (await rest.client.get("/api/v2/audit?limit=1")).json()["entries"]
        assert entry["detail"]["endedSubscriptions"] == 1
        assert await receivers() == {WEBHOOK["webhookUrl"]}
        hook = (await ann.get(SUBSCRIPTIONS)).json()["subscriptions"][0]["id"]
        for email in ("ann@example.org", "ann@example.com"):
            turned = await ann.put(f"{SUBSCRIPTIONS}/{hook}", json=mailing(email))
            assert (turned.status_code, turned.json()["code"]) == (409, "UnconfirmedEmailError")
        await ann.post(CONFIRM, json={"code": await code_of(rest, "ann")})
        turned = await ann.put(f"{SUBSCRIPTIONS}/{hook}", json=mailing("ann@example.com"))
        assert turned.status_code == 200
        none = await ann.put(ME, json={"email": ""})
        assert none.json()["message"] == "It is changed. 1 subscription ended."
        assert (await shown(ann, "ann"), await receivers()) == (("", False), set())


async def test_an_admin_names_any_address(rest: Any) -> None:
    made = await rest.client.post(SUBSCRIPTIONS, json=mailing("on-call@example.org"))
    assert made.status_code == 201
    own = admins("admin", email="admin@example.org")
    assert (await rest.client.put("/api/v2/users", json=own)).status_code == 201
    assert (await rest.client.get(SUBSCRIPTIONS)).json()["total"] == 1


async def test_what_is_no_address_is_refused(rest: Any) -> None:
    async with await rest.make_user("ann") as ann:
        for email in ("ann", "a b@c.d", "a@b.c,d@e.f", "a@b.c\r\nBcc: x@y.z", "a@b.c\n"):
            assert (await ann.put(ME, json={"email": email})).status_code == 400
        assert await shown(ann, "ann") == ("", False)


async def test_without_a_key_only_admins_set_addresses(start_rest: Any) -> None:
    async with start_rest(webhook_key="") as rest, await rest.make_user("ann") as ann:
        refused = await ann.put(ME, json={"email": "ann@example.org"})
        assert (refused.status_code, refused.json()["code"]) == (501, "NotConfiguredError")
        assert (await ann.post(CONFIRM, json={"code": ""})).status_code == 400
        given = admins("ann", email="ann@example.org")
        assert (await rest.client.put("/api/v2/users", json=given)).status_code == 201
        assert await shown(ann, "ann") == ("ann@example.org", True)


async def test_removing_a_user_ends_their_code(rest: Any) -> None:
    async with await rest.make_user("ann") as ann:
        await ann.put(ME, json={"email": "ann@example.org"})
    assert (await rest.client.delete("/api/v2/users/ann")).status_code == 200
    pool = rest.runtime.pool
    assert await pool.fetchval("SELECT bool_and(ended_at IS NOT NULL) FROM confirmation")
    assert not await pool.fetchval("SELECT email_confirmed FROM account WHERE username = 'ann'")


async def test_expired_codes_are_ended_and_later_forgotten(start_rest: Any) -> None:
    async with start_rest(maintenance_s=0.05) as rest, await rest.make_user("ann") as ann:
        await ann.put(ME, json={"email": "ann@example.org"})
        pool = rest.runtime.pool
        await pool.execute("UPDATE confirmation SET expires_at = now()")

        async def ended() -> int:
            sql = "SELECT revision FROM confirmation WHERE ended_at IS NOT NULL"
            revision: int = await pool.fetchval(sql)
            return revision

        await rest.eventually(ended, 2)
        await pool.execute("UPDATE confirmation SET ended_at = now() - interval '2 days'")

        async def kept() -> int:
            count: int = await pool.fetchval("SELECT count(*) FROM confirmation")
            return count

        await rest.eventually(kept, 0)


async def test_a_confirmed_address_gets_what_job_files_ask_for(
    start_rest: Any, fresh_broker: Any, alerting: Alerting, mailbox: Mailbox
) -> None:
    """From REST's answer at the submission to the mail server, without a subscription."""
    bootstrap = fresh_broker.bootstrap
    asked = "extras: {jobStatusChangeNotification: {failed: true}}\n"
    async with (
        start_rest(kafka_bootstrap=bootstrap) as rest,
        alerting(bootstrap),
        await rest.make_user("ann") as ann,
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
    ):

        async def warned(name: str) -> list[str]:
            file = rest.job_file(name) + asked
            answer = await ann.post("/api/v2/jobs", content=file)
            assert answer.status_code == 202, answer.text
            return [it["path"] for it in answer.json()["warnings"]]

        assert "extras.jobStatusChangeNotification" in await warned("early")
        changed = await rest.client.put("/api/v2/users", json=admins("ann", email="ann@one.org"))
        assert changed.status_code == 201, changed.text
        assert "extras.jobStatusChangeNotification" not in await warned("late")

        async def known() -> list[str]:
            rows = await rest.runtime.pool.fetch(
                "SELECT value->>'email' AS email FROM alerting.subscription"
            )
            return [row["email"] for row in rows]

        await rest.eventually(known, ["ann@one.org"])
        now = await rest.runtime.pool.fetchval("SELECT now()")
        for state in (JobState.SUCCEEDED, JobState.FAILED):  # only one of them is asked for
            status = JobStatus(
                job=f"j-{state}",
                name="late",
                user="ann",
                virtual_cluster="default",
                state=state,
                submitted_at=now,
                revision=1,
                notify=(JobChange.FAILED,),
            )
            value = status.model_dump_json().encode()
            await producer.send_and_wait("job-updated", value, key=status.job.encode())
        (text,) = await mails(rest, mailbox, 1)
        assert "FAILED" in text
        assert mailbox.recipients == ["ann@one.org"]
        await rest.client.put("/api/v2/users", json=admins("ann", email=""))
        await rest.eventually(known, [])
