"""What can't be sent is tried again, waited for, and given up in the end."""

from typing import Any

import pytest
from alerting.domain.deliveries import Answer, Gone, Sent
from alerting.lanes import UNKNOWN_TRIES
from alerting.store import cleaning
from alerting.store.deliveries import Claim
from muster.db import transaction

pytestmark = pytest.mark.postgres

BUG = "it can't be sent: RuntimeError"


async def test_a_failure_is_tried_again_until_it_is_given_up(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    async with post.lane(post.fails):
        for attempt in range(1, 10):
            await post.until("SELECT attempts FROM delivery WHERE lease IS NULL", attempt)
            assert await post.pool.fetchval("SELECT next_at > now() FROM delivery")
            await post.now_due()
        await post.until("SELECT why FROM delivery", "attempts-used")
    assert await post.pool.fetchval("SELECT reason FROM delivery") == "HTTP 500"
    assert await post.pool.fetchval("SELECT attempts FROM delivery") == 10


async def test_what_cannot_be_sent_stops_no_other(post: Any) -> None:
    post.subscribe("a", "b")
    await post.notify("j1")

    async def behave(claim: Claim) -> Answer:
        if claim.subscription == "a":
            raise RuntimeError("a bug")
        return Sent()

    async with post.lane(behave):
        await post.until(post.counted("sent"), 1)
        await post.until(
            "SELECT reason FROM delivery WHERE lease IS NULL AND subscription = 'a'", BUG
        )
    assert post.sent == ["b:job-failed/j1"]


async def test_a_subscription_that_is_not_known_yet_is_waited_for(post: Any) -> None:
    """Another replica has read it already."""
    post.subscribe("a")
    await post.notify("j1", "j2")
    post.forget("a")
    async with post.lane(post.sends):
        await post.until("SELECT count(*) FROM delivery WHERE attempts > 0 AND lease IS NULL", 2)
        post.subscribe("a")
        await post.now_due()
        await post.until(post.counted("sent"), 2)


async def test_a_subscription_that_nobody_knows_is_waited_for_no_longer_than_its_tries(
    post: Any,
) -> None:
    post.subscribe("a")
    await post.notify("j1")
    post.forget("a")
    async with post.lane(post.sends):
        for attempt in range(1, UNKNOWN_TRIES + 1):
            await post.until(
                f"SELECT attempts >= {attempt} FROM delivery WHERE lease IS NULL", True
            )
            await post.now_due()
        await post.until("SELECT why FROM delivery", "unsubscribed")
    assert post.sent == []


async def test_a_receiver_that_is_gone_gets_nothing_until_its_subscription_changes(
    post: Any,
) -> None:
    post.subscribe("a")
    await post.notify("j1", "j2")

    async def gone(_claim: Claim) -> Answer:
        return Gone("HTTP 410")

    async with post.lane(gone, receiver_slots=1):
        await post.until(post.counted("given-up"), 2)
    await post.notify("j3")
    assert await post.pool.fetchval(post.counted("waiting")) == 0
    await post.notify("j4", version="2")
    async with post.lane(post.sends):
        await post.until(post.counted("sent"), 1)
    assert post.sent == ["a:job-failed/j4"]


async def test_hopeless_deliveries_expire_and_old_ones_are_forgotten(post: Any) -> None:
    post.subscribe("a")
    await post.notify("j1")
    await post.pool.execute("UPDATE delivery SET created_at = now() - interval '4 days'")
    async with transaction(post.pool) as conn:
        assert await cleaning.expire(conn, 345_600.0, 10) == 1
    assert await post.pool.fetchval("SELECT why FROM delivery") == "expired"
    await post.pool.execute("UPDATE event SET written_at = now() - interval '9 days'")
    async with transaction(post.pool) as conn:
        await cleaning.clean(conn, days=8, rows=10, subscriptions=[])
    counts = await post.pool.fetchrow(
        "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM delivery),"
        " (SELECT count(*) FROM receiver)"
    )
    assert tuple(counts or ()) == (0, 0, 0)
