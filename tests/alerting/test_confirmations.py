"""Addresses to confirm get one mail each, whatever is repeated, and none that is of no use."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from muster.codes import confirmation_code
from muster.contracts.confirmations import Confirmation
from muster.contracts.jobs import JobState
from muster.contracts.notices import SettingChanged

STATES = "SELECT state, count(*) FROM delivery GROUP BY state ORDER BY state"
KEPT = "SELECT setting FROM subscription ORDER BY setting"


def a_confirmation(ident: str = "c1", *, minutes: int = 60) -> Confirmation:
    until = datetime.fromtimestamp(time.time(), UTC) + timedelta(minutes=minutes)
    return Confirmation(id=ident, user="ada", email="ada@example.org", expires_at=until)


async def ask(cluster: Any, confirmation: Confirmation, revision: int = 1) -> None:
    """What REST publishes when a user sets their address."""
    setting = f"confirmation/{confirmation.id}"
    value = confirmation.model_dump(mode="json", by_alias=True)
    changed = SettingChanged(setting=setting, revision=revision, value=value)
    await cluster.publish("receivers-changed", setting, changed)


async def test_an_address_gets_its_code_once(
    cluster: Any, start_mailbox: Callable[..., Any]
) -> None:
    mailbox, confirmation = start_mailbox(), a_confirmation()
    server = {"smtp_host": "127.0.0.1", "smtp_port": mailbox.port}
    async with cluster.alerting(**server):
        await ask(cluster, confirmation)
        await ask(cluster, confirmation, revision=2)
        await cluster.until(STATES, [("sent", 1)])
    async with cluster.alerting(**server):
        await ask(cluster, a_confirmation(minutes=90), revision=3)
        await cluster.until("SELECT revision FROM subscription", [(3,)])
        await ask(cluster, a_confirmation("c2"))
        await cluster.until(STATES, [("sent", 2)])
    assert mailbox.recipients == ["ada@example.org"] * 2
    code = confirmation_code("key", confirmation)
    for part in mailbox.mails[0].iter_parts():
        assert re.search(rf"\b{code}\b", part.get_content())
    assert await cluster.rows("SELECT message FROM event") == [(None,)] * 2


async def test_an_expired_or_ended_confirmation_is_not_mailed(
    cluster: Any, start_mailbox: Callable[..., Any]
) -> None:
    mailbox = start_mailbox()
    away = {"smtp_host": "127.0.0.1", "smtp_port": 9, "pause_failures": 1}
    async with cluster.alerting(**away):
        await ask(cluster, a_confirmation("ended"))
        await cluster.until("SELECT attempts, lease FROM delivery", [(1, None)])
        await cluster.publish("receivers-changed", "confirmation/ended", None)
        await cluster.until("SELECT state, why FROM delivery", [("given-up", "unsubscribed")])
        await cluster.until(KEPT, [])
    async with cluster.alerting(smtp_host="127.0.0.1", smtp_port=mailbox.port):
        await ask(cluster, a_confirmation("expired", minutes=-1))
        await cluster.until(STATES, [("given-up", 2)])
    assert mailbox.mails == []


async def test_without_a_key_no_code_is_mailed(
    cluster: Any, start_mailbox: Callable[..., Any]
) -> None:
    mailbox = start_mailbox()
    server = {"smtp_host": "127.0.0.1", "smtp_port": mailbox.port}
    async with cluster.alerting(**server, webhook_key=""):
        await ask(cluster, a_confirmation())
        reason = "the webhook key is empty: set MUSTER_WEBHOOK_KEY"
        await cluster.until("SELECT state, reason FROM delivery", [("waiting", reason)])
    assert mailbox.mails == []


async def test_an_address_to_confirm_gets_no_alerts(
    cluster: Any, start_mailbox: Callable[..., Any]
) -> None:
    mailbox = start_mailbox()
    async with cluster.alerting(smtp_host="127.0.0.1", smtp_port=mailbox.port):
        await ask(cluster, a_confirmation())
        await cluster.subscribe(email="eve@example.org")
        await cluster.until(KEPT, [("confirmation/c1",), ("subscription/s1",)])
        await cluster.job("j1", 1, JobState.FAILED)
        await cluster.until(STATES, [("sent", 2)])
    assert sorted(mailbox.recipients) == ["ada@example.org", "eve@example.org"]
