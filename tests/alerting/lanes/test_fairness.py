"""Lanes are bounded and fair: a receiver that is slow costs its neighbours nothing."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from alerting.domain.deliveries import Answer, DeliveryPolicy, Failed, Sent
from alerting.domain.messages import Message
from alerting.domain.rendering import FORMS
from alerting.domain.rendering.forms import Sending, Target
from alerting.receivers.http import HttpLimits, HttpMessage, HttpReceiver
from alerting.store.deliveries import CLAIM, Claim, apply_orders
from muster.addresses import networks_of
from muster.contracts.subscriptions import DeliveryOrder, OrderKind, ReceiverKind
from muster.db import transaction
from muster.webhook_secrets import signing_secret

pytestmark = pytest.mark.postgres


async def test_each_event_is_delivered_once_to_each_subscription(post: Any) -> None:
    post.subscribe("a", "b")
    for _ in range(3):
        await post.notify("j1", "j2")
    async with post.lane(post.sends), post.lane(post.sends):
        await post.until(post.counted("sent"), 4)
        await post.notify("j1", "j2")
        await post.notify("j3")
        await post.until(post.counted("sent"), 6)
    assert len(post.sent) == len(set(post.sent)) == 6


async def test_receivers_that_hang_delay_no_other(post: Any) -> None:
    post.subscribe("good", "hangs-1", "hangs-2")

    async def behave(claim: Claim) -> Answer:
        if claim.subscription != "good":
            await asyncio.Event().wait()
        return Sent()

    await post.notify(*(f"j{n}" for n in range(50)))
    async with post.lane(behave, slots=5):
        await post.until(post.counted("sent"), 50)
    assert all(it.startswith("good:") for it in post.sent)


async def test_a_receiver_has_few_slots_and_all_of_them_are_used(post: Any) -> None:
    post.subscribe("a", "b")
    under_way: list[str] = []
    four, go_on = asyncio.Event(), asyncio.Event()

    async def behave(claim: Claim) -> Answer:
        if claim.subscription != "c":
            under_way.append(claim.subscription)
            if len(under_way) == 4:
                four.set()
            await go_on.wait()
        return Sent()

    await post.notify(*(f"j{n}" for n in range(10)))
    async with post.lane(behave):
        await four.wait()
        post.subscribe("c")
        await post.notify("late")  # when it is sent to c, the lane has looked for more
        await post.until(post.counted("sent"), 1)
        assert sorted(under_way) == ["a", "a", "b", "b"]
        go_on.set()
        await post.until(post.counted("sent"), 23)


@pytest.mark.parametrize("works", [100, 48])
async def test_a_receiver_that_takes_its_runs_in_time_gets_longer_ones(
    post: Any, works: int
) -> None:
    """And more slots, up to a quarter of the lane. A failure ends that."""
    post.subscribe("a")
    runs: Counter[str] = Counter()
    under_way: list[Claim] = []
    most = 0

    async def behave(claim: Claim) -> Answer:
        nonlocal most
        runs[claim.lease] += 1
        under_way.append(claim)
        most = max(most, len(under_way))
        is_well = runs.total() <= works
        await asyncio.sleep(0)
        under_way.remove(claim)
        return Sent() if is_well else Failed("HTTP 500", retry_after_s=3600.0)

    await post.notify(*(f"j{n}" for n in range(100)))
    async with post.lane(behave, slots=12):
        tried = "SELECT count(*) FROM delivery WHERE state = 'sent' OR reason IS NOT NULL"
        await post.until(tried, 100)
    assert (list(runs.values())[:2], most) == ([16, 32], 3)
    assert list(runs.values())[2] == 52 if works == 100 else max(list(runs.values())[3:]) <= 2


async def test_a_lane_has_no_more_under_way_than_its_slots(post: Any) -> None:
    post.subscribe(*(f"s{n}" for n in range(9)))
    under_way: list[str] = []
    full = asyncio.Event()

    async def behave(claim: Claim) -> Answer:
        under_way.append(claim.subscription)
        assert len(under_way) <= post.limits.slots
        if len(under_way) == post.limits.slots:
            full.set()
        await full.wait()
        under_way.remove(claim.subscription)
        return Sent()

    await post.notify("j1", "j2", "j3")
    async with post.lane(behave):
        await post.until(post.counted("sent"), 27)


async def test_thousands_of_deliveries_stay_rows(post: Any) -> None:
    post.subscribe("away")
    tasks: list[int] = []

    async def behave(_claim: Claim) -> Answer:
        tasks.append(len(asyncio.all_tasks()))
        return Failed("ConnectError")

    await post.notify(*(f"j{n}" for n in range(3000)))
    async with post.lane(behave, policy=DeliveryPolicy(pause_failures=5, pause_s=3600)):
        await post.until("SELECT failures >= 5 FROM receiver WHERE paused_until IS NOT NULL", True)
    assert await post.pool.fetchval(post.counted("waiting")) == 3000
    assert len(tasks) <= 5 + post.limits.receiver_slots
    assert max(tasks) <= 10


async def test_claiming_costs_what_is_due_and_not_what_waits(post: Any) -> None:
    post.subscribe("a")
    await post.notify(*(f"j{n}" for n in range(2000)))
    async with transaction(post.pool) as conn:
        await conn.execute("ANALYZE delivery")
        terms = ("webhook", [], [], 8, "me", 60.0, 16, {"a": 256})
        plan = await conn.fetch(f"EXPLAIN {CLAIM}", *terms)
    text = "\n".join(row[0] for row in plan)
    assert "delivery_waiting" in text
    assert "Seq Scan on delivery" not in text


@pytest.mark.parametrize("backlog", [0, 40])
async def test_a_test_is_sent_before_what_waits_for_a_receiver_that_fails(
    post: Any, backlog: int
) -> None:
    post.subscribe("a")
    if backlog:
        await post.notify(*(f"j{n}" for n in range(backlog)))
        await post.pool.execute("UPDATE delivery SET next_at = now() - interval '1 hour'")
        await post.pool.execute("UPDATE receiver SET failures = 9, paused_until = 'infinity'")
    order = DeliveryOrder(id="1", at=datetime(2026, 1, 1, tzinfo=UTC), kind=OrderKind.TEST)
    async with transaction(post.pool) as conn:
        assert await apply_orders(conn, [(post.by_id["a"], "2", order)], 10) == 1
    policy = DeliveryPolicy(pause_failures=1, pause_s=300)
    tried = "SELECT reason FROM delivery WHERE event_key = 'receiver-test/1'"
    async with post.lane(post.fails, receiver_slots=1, policy=policy):
        await post.until(tried, "HTTP 500")


async def test_an_owner_with_many_receivers_that_hang_delays_no_other_owner(post: Any) -> None:
    post.subscribe(*(f"hangs-{n}" for n in range(20)), owner="mallory")
    post.subscribe("good", owner="ada")
    under_way: list[str] = []

    async def behave(claim: Claim) -> Answer:
        if claim.subscription != "good":
            under_way.append(claim.subscription)
            await asyncio.Event().wait()
        return Sent()

    await post.notify(*(f"j{n}" for n in range(10)))
    async with post.lane(behave):
        await post.until(post.counted("sent"), 10)
        await post.notify("late")
        await post.until(post.counted("sent"), 11)
    assert all(it.startswith("good:") for it in post.sent)
    assert len(under_way) == post.limits.slots // 2


async def test_a_quick_receiver_waits_for_no_slow_one_of_another_owner_over_http(
    post: Any, start_receiver: Callable[..., Any]
) -> None:
    slow, quick = await start_receiver(is_hanging=True), await start_receiver()
    post.subscribe(*(f"slow-{n}" for n in range(20)), owner="mallory")
    post.subscribe("quick", owner="ada")
    limits = HttpLimits(allowed=networks_of("127.0.0.0/8"))
    form = FORMS[ReceiverKind.WEBHOOK]
    async with HttpReceiver(limits) as way:

        async def behave(claim: Claim) -> Answer:
            url = quick.url if claim.subscription == "quick" else slow.url
            secret = signing_secret("key", claim.subscription, 1)
            assert claim.message is not None
            message, target = Message.from_json(claim.message), Target(url, secrets=(secret,))
            sending = Sending(claim.id, claim.now)
            return await way.send(HttpMessage(form, message, target, sending))

        await post.notify(*(f"j{n}" for n in range(5)))
        async with post.lane(behave):
            await slow.wait_for(1)
            await quick.wait_for(5)
            await post.until(post.counted("sent"), 5)
