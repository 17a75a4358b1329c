"""Which subscription is notified, when a delivery is retried, and when a receiver is paused."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from alerting.domain.deliveries import (
    SCHEDULE_S,
    Answer,
    Attempt,
    DeliveryPolicy,
    Done,
    Failed,
    GivenUp,
    GiveUp,
    Gone,
    Next,
    Receiver,
    Retry,
    Sent,
    deliveries,
    is_owner_told,
    next_attempt,
    other_channel,
    owners_at_share,
    receiver_after,
)
from alerting.domain.events import Event, JobLabels, Severity
from hypothesis import given
from hypothesis import strategies as st
from muster.contracts.subscriptions import (
    AlertEvent,
    Digest,
    DigestEvery,
    QuietHours,
    Subscription,
    SubscriptionFilter,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = DeliveryPolicy()
JOB = JobLabels("ada", "default", "train-7")


def an_event(name: AlertEvent = AlertEvent.JOB_FAILED, job: JobLabels | None = JOB) -> Event:
    return Event(f"{name}/j1", name, NOW, Severity.INFO, "title", "text", "job/j1", {}, job)


def a_subscription(**fields: Any) -> Subscription:
    notice = {"id": "s1", "owner": "ada", "events": ("job-failed",), "email": "ada@example.org"}
    return Subscription(**{**notice, **fields})


@pytest.mark.parametrize(
    ("fields", "is_notified"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"least_severity": "info"}, True),
        ({"least_severity": "from-the-future"}, True),
        ({"least_severity": "warning"}, True),
        ({"least_severity": "critical"}, False),
        ({"events": ("job-finished", "from-the-future")}, False),
        ({"filter": SubscriptionFilter(users=("bob", "ada"))}, True),
        ({"filter": SubscriptionFilter(users=("bob",))}, False),
        ({"filter": SubscriptionFilter(virtual_clusters=("vip",))}, False),
        ({"filter": SubscriptionFilter(job_names=("eval-*", "train-*"))}, True),
        ({"filter": SubscriptionFilter(job_names=("TRAIN-*",))}, False),
    ],
)
def test_only_a_subscription_that_matches_is_notified(
    fields: dict[str, Any], is_notified: bool
) -> None:
    assert bool(deliveries([a_subscription(**fields)], an_event(), now=NOW)) == is_notified


MAIL = "ada@example.org"
ACCOUNT = {"id": "account/ada", "events": (), "email": MAIL}
OTHER = {"id": "s2", "events": ("node-lost",), "email": None}


@pytest.mark.parametrize(
    ("known", "reached"),
    [
        ([ACCOUNT], ["account/ada"]),
        ([ACCOUNT, {"email": MAIL.upper()}], ["s1"]),  # the same address by a subscription
        ([ACCOUNT, {"email": "else@example.org"}], ["account/ada", "s1"]),
        ([ACCOUNT, OTHER | {"webhook_url": "https://one"}], ["account/ada"]),
        ([OTHER | {"webhook_url": "https://one"}], ["s2"]),  # there is no address
        ([{**OTHER, "id": it, "webhook_url": "https://one"} for it in ("s3", "s4")], ["s3"]),
        ([OTHER | {"webhook_url": "https://one", "enabled": False}], []),
        ([ACCOUNT | {"id": "account/bob", "owner": "bob"}], []),
        ([OTHER | {"webhook_url": "https://one", "owner": "bob"}], []),
    ],
)
def test_what_a_job_file_asks_for_reaches_its_user_once(
    known: list[dict[str, Any]], reached: list[str]
) -> None:
    subscriptions = [a_subscription(**fields) for fields in known]
    asked = replace(an_event(), is_asked=True)
    made = deliveries(subscriptions, asked, now=NOW, own=subscriptions)
    assert sorted(it.subscription for it in made) == reached


def test_what_is_preset_goes_to_the_address_of_the_users_account_alone() -> None:
    """A webhook that was subscribed for something else gets no surprise."""
    both = [a_subscription(**ACCOUNT), a_subscription(**OTHER, webhook_url="https://one")]
    preset = replace(an_event(AlertEvent.ALERT_RAISED), is_preset=True)
    made = [deliveries(some, preset, now=NOW, own=some) for some in (both, both[1:])]
    assert [[it.subscription for it in each] for each in made] == [[ACCOUNT["id"]], []]


def test_a_filter_of_jobs_lets_events_of_nodes_pass() -> None:
    asked = a_subscription(events=("node-lost",), filter=SubscriptionFilter(users=("bob",)))
    assert deliveries([asked], an_event(AlertEvent.NODE_LOST, job=None), now=NOW)


def test_an_event_makes_one_delivery_for_each_subscription_whatever_repeats_come() -> None:
    both = [a_subscription(), a_subscription(id="s2")]
    first, second = (deliveries(both, an_event(), now=NOW) for _ in range(2))
    assert first == second
    assert len({delivery.id for delivery in first}) == 2


def test_an_end_counts_as_much_as_the_alert_that_it_ends() -> None:
    critical = a_subscription(events=tuple(AlertEvent), least_severity="critical")

    def resolved(severity: str) -> Event:
        data: dict[str, Any] = {"alerts": [{"severity": "info"}, {"severity": severity}]}
        event = an_event(AlertEvent.ALERT_RESOLVED, job=None)
        return replace(event, data=data)

    for event, is_notified in (
        (an_event(AlertEvent.NODE_RETURNED, job=None), True),
        (an_event(AlertEvent.JOB_UNSTUCK), False),
        (resolved("critical"), True),
        (resolved("warning"), False),
    ):
        assert bool(deliveries([critical], event, now=NOW)) == is_notified, event.name


def daily(at: str, zone: str = "Europe/Berlin") -> Digest:
    return Digest(every=DigestEvery.DAY, at=time.fromisoformat(at), time_zone=zone)


HOURLY = Digest(every=DigestEvery.HOUR, time_zone="Asia/Kathmandu")  # 5 h 45 min ahead of UTC


@pytest.mark.parametrize(
    ("digest", "now", "at"),
    [
        (HOURLY, "2026-01-15T10:14:59.5+00:00", "2026-01-15T10:15:00+00:00"),
        (HOURLY, "2026-01-15T10:15:00+00:00", "2026-01-15T11:15:00+00:00"),
        (daily("08:00"), "2026-01-15T06:59:59+00:00", "2026-01-15T07:00:00+00:00"),
        (daily("08:00"), "2026-01-15T07:00:00+00:00", "2026-01-16T07:00:00+00:00"),
        (daily("08:00"), "2026-03-28T12:00:00+00:00", "2026-03-29T06:00:00+00:00"),  # summer begins
        (daily("02:30"), "2026-03-28T12:00:00+00:00", "2026-03-29T01:30:00+00:00"),  # is no time
        (daily("08:00", "Not/Here"), "2026-01-15T06:59:59+00:00", None),
        (Digest(every=DigestEvery.UNKNOWN), "2026-01-15T06:59:59+00:00", None),
    ],
)
def test_a_digest_is_sent_at_the_next_of_its_times(
    digest: Digest, now: str, at: str | None
) -> None:
    (made,) = deliveries(
        [a_subscription(digest=digest)], an_event(), now=datetime.fromisoformat(now)
    )
    assert made.not_before == (at and datetime.fromisoformat(at))
    assert made.in_digest == (at is not None)


def test_a_digest_waits_for_the_end_of_quiet_hours_and_critical_events_for_nothing() -> None:
    events = ("job-failed", "node-lost")
    asked = a_subscription(digest=daily("23:00"), quiet_hours=NIGHT, events=events)
    (made,) = deliveries([asked], an_event(), now=datetime(2026, 1, 15, 12, tzinfo=UTC))
    assert (made.not_before, made.in_digest) == (datetime(2026, 1, 16, 6, tzinfo=UTC), True)
    critical = an_event(AlertEvent.NODE_LOST, job=None)
    (made,) = deliveries([asked], critical, now=NOW)
    assert (made.not_before, made.in_digest) == (None, False)


def test_a_script_gets_its_message_at_once() -> None:
    events = ("remediation-requested",)
    asked = a_subscription(digest=daily("23:00"), quiet_hours=NIGHT, events=events)
    event = an_event(AlertEvent.REMEDIATION_REQUESTED, job=None)
    (made,) = deliveries([asked], event, now=datetime(2026, 1, 15, 23, tzinfo=UTC))
    assert (made.not_before, made.in_digest) == (None, False)


NIGHT = QuietHours(start=time(22), end=time(7), time_zone="Europe/Berlin")
NOON = QuietHours(start=time(12), end=time(13, 30), time_zone="UTC")


@pytest.mark.parametrize(
    ("hours", "now", "until"),
    [
        (NIGHT, "2026-01-15T20:59:59+00:00", None),
        (NIGHT, "2026-01-15T21:00:00+00:00", "2026-01-16T06:00:00+00:00"),
        (NIGHT, "2026-01-16T05:59:59+00:00", "2026-01-16T06:00:00+00:00"),
        (NIGHT, "2026-01-16T06:00:00+00:00", None),
        (NIGHT, "2026-03-28T22:00:00+00:00", "2026-03-29T05:00:00+00:00"),  # summer begins
        (NIGHT, "2026-07-15T20:30:00+00:00", "2026-07-16T05:00:00+00:00"),
        (NOON, "2026-01-15T12:00:00+00:00", "2026-01-15T13:30:00+00:00"),
        (NOON, "2026-01-15T13:30:00+00:00", None),
        (NOON.model_copy(update={"time_zone": "No/Where"}), "2026-01-15T12:00:00+00:00", None),
    ],
)
def test_quiet_hours_end_by_the_clock_of_their_time_zone(
    hours: QuietHours, now: str, until: str | None
) -> None:
    asked = a_subscription(quiet_hours=hours)
    (made,) = deliveries([asked], an_event(), now=datetime.fromisoformat(now))
    assert made.not_before == (None if until is None else datetime.fromisoformat(until))


def test_a_critical_event_is_sent_in_quiet_hours_too() -> None:
    asked = a_subscription(quiet_hours=NIGHT, events=("node-lost",))
    event = an_event(AlertEvent.NODE_LOST, job=None)
    (made,) = deliveries([asked], event, now=datetime(2026, 1, 15, 23, tzinfo=UTC))
    assert made.not_before is None


def follow(answer: Answer, attempts: int, age_s: float = 0.0, jitter: float = 0.0) -> Next:
    attempt = Attempt(attempts, NOW - timedelta(seconds=age_s))
    return next_attempt(attempt, answer, now=NOW, jitter=jitter, policy=POLICY)


def test_retries_keep_the_schedule_of_standard_webhooks() -> None:
    assert SCHEDULE_S == (0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
    waits = []
    for attempts in range(1, 10):
        answer = follow(Failed("HTTP 500"), attempts)
        assert isinstance(answer, Retry)
        waits.append((answer.at - NOW).total_seconds())
    assert waits == list(SCHEDULE_S[1:])
    assert follow(Failed("HTTP 500"), 10) == GivenUp(GiveUp.ATTEMPTS_USED, "HTTP 500")


@given(st.integers(1, 9), st.floats(0, 1, exclude_max=True), st.floats(0, 1e9))
def test_jitter_and_receivers_only_lengthen_a_wait_and_within_bounds(
    attempts: int, jitter: float, asked_s: float
) -> None:
    answer = follow(Failed("HTTP 429", retry_after_s=asked_s), attempts, jitter=jitter)
    assert isinstance(answer, Retry)
    wait_s = (answer.at - NOW).total_seconds()
    assert wait_s >= SCHEDULE_S[attempts]
    assert wait_s <= max(SCHEDULE_S[attempts] * 1.1, POLICY.retry_after_max_s) + 1e-3


def test_what_ends_a_delivery() -> None:
    assert follow(Sent(), 1) == Done()
    assert follow(Gone("HTTP 410"), 1) == GivenUp(GiveUp.GONE, "HTTP 410")
    assert follow(Failed("no", can_retry=False), 1) == GivenUp(GiveUp.REFUSED, "no")
    old = follow(Failed("HTTP 500"), 1, age_s=POLICY.give_up_after_s)
    assert old == GivenUp(GiveUp.EXPIRED, "HTTP 500")


AGAIN = Retry(NOW)
GAVE_UP = GivenUp(GiveUp.ATTEMPTS_USED, "HTTP 500")


def after(
    receiver: Receiver, answer: Answer, follows: Next = AGAIN, policy: DeliveryPolicy = POLICY
) -> Receiver:
    return receiver_after(receiver, answer, follows, now=NOW, policy=policy)


def test_a_receiver_that_keeps_failing_is_paused_ever_longer_and_forgiven_at_once() -> None:
    receiver = Receiver("s1", "1")
    pauses = []
    for _ in range(20):
        receiver = after(receiver, Failed("HTTP 500"))
        pauses.append(receiver.paused_until and (receiver.paused_until - NOW).total_seconds())
    assert pauses[:8] == [None, None, None, None, 5, 10, 20, 40]
    assert pauses[-1] == POLICY.pause_max_s
    assert after(receiver, Sent()) == Receiver("s1", "1")


def test_one_refused_message_is_not_held_against_its_receiver() -> None:
    receiver = Receiver("s1", "1", failures=4)
    failed = Failed("HTTP 413", can_retry=False, is_receivers=False)
    assert after(receiver, failed, GAVE_UP) == receiver


def test_a_receiver_that_is_gone_is_disabled() -> None:
    known = Receiver("s1", "1")
    receiver = after(known, Gone("HTTP 410"))
    assert receiver.disabled == "HTTP 410"
    assert is_owner_told(known, receiver, POLICY)
    failing, gone = (replace(it, given_up=POLICY.told_at) for it in (known, receiver))
    assert is_owner_told(failing, gone, POLICY), "also who was told of failures"
    assert not is_owner_told(gone, replace(gone, failures=9), POLICY)
    again = replace(known, was_disabled=True)
    assert not is_owner_told(again, after(again, Gone("410")), POLICY, is_ordered=True)
    assert is_owner_told(again, after(again, Gone("410")), POLICY), "a changed address is gone too"
    assert is_owner_told(known, receiver, POLICY, is_ordered=True), "nobody was told before"


def test_an_owner_is_told_once_before_failures_disable_a_receiver_and_then() -> None:
    receiver, told = Receiver("s1", "1"), []
    while receiver.disabled is None:
        for follows in (AGAIN, GAVE_UP):  # only what is given up counts
            known, receiver = receiver, after(receiver, Failed("HTTP 500"), follows)
            told += [receiver.given_up] * is_owner_told(known, receiver, POLICY)
    assert (told, receiver.given_up) == ([15, 20], 20)
    assert "20 deliveries in a row" in receiver.disabled
    lowered = replace(POLICY, disable_after=8, told_before=2)
    known = Receiver("s1", "1", given_up=7)  # as of a time with other limits
    assert is_owner_told(known, after(known, Failed("HTTP 500"), GAVE_UP, lowered), lowered)
    of_mail = replace(POLICY, can_disable=False)
    known = Receiver("s1", "1", given_up=99)
    assert after(known, Failed("HTTP 500"), GAVE_UP, of_mail).disabled is None
    assert after(receiver, Sent(), Done()).given_up == 0


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([ACCOUNT, {"id": "a", "webhook_url": "https://one", "email": None}], "account/ada"),
        ([{"id": "b"}, {"id": "c"}], "b"),
        ([{"id": "b", "webhook_url": "https://it", "email": None}], None),  # the same receiver
        ([{"id": "b", "enabled": False}, {"id": "c", "owner": "bob"}, {"id": "troubled"}], None),
    ],
)
def test_an_owner_is_told_over_another_channel(
    others: list[dict[str, Any]], told: str | None
) -> None:
    failing = a_subscription(webhook_url="https://it", email=None)
    known = [failing, *(a_subscription(**fields) for fields in others)]
    found = other_channel(failing, known, {"s1", "troubled"})
    assert (found and found.id) == told


@given(st.integers(1, 64), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=300))
def test_owners_share_the_slots_of_a_lane(slots: int, turns: list[tuple[bool, int]]) -> None:
    """Each turn one of ten owners takes a slot where it may, or one of its deliveries ends."""
    under_way: Counter[str] = Counter()
    for takes, number in turns:
        owner, free = f"owner-{number}", slots - under_way.total()
        if not takes:
            under_way[owner] = max(0, under_way[owner] - 1)
            under_way += Counter()
            continue
        may = free > 0 and owner not in owners_at_share(under_way, slots)
        if free > 0 and under_way[owner] == 0:
            assert may, "an owner that has none gets any free slot"
        if may:
            assert free > 1 or under_way[owner] == 0, "the last slot is for an owner who has none"
            under_way[owner] += 1
        assert max(under_way.values(), default=0) <= (slots + 1) // 2, "nobody has more than half"
        assert under_way.total() <= slots
