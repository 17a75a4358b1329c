"""The deliveries of an event, one for each subscription; their retries; pauses of receivers.

The schedule is the example of Standard Webhooks 1.0. A receiver that fails repeatedly is paused, so
that it does not delay others; one that answers 410 Gone is disabled.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import assert_never

from muster.contracts.subscriptions import (
    ACCOUNT,
    AlertEvent,
    DeliveryOrder,
    LeastSeverity,
    OrderKind,
    ReceiverKind,
    Subscription,
    SubscriptionFilter,
)

from alerting.domain.events import RANKS, SEVERITIES, Event, Severity
from alerting.domain.quiet import HOURLY, digest_at, quiet_until

SCHEDULE_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds before each attempt, from the last one: the example of Standard Webhooks 1.0."""

ALERTS = (AlertEvent.ALERT_RAISED, AlertEvent.ALERT_RESOLVED)
"""A filter for jobs takes no alerts about anything else: users get those of their own jobs only."""

EVERY_SEVERITY = frozenset({LeastSeverity.INFO, LeastSeverity.UNKNOWN})

JITTER = 0.1
"""A delay is stretched by up to this part of itself."""


class Channel(StrEnum):
    """The ways to reach a person or a system; each has its own lane of deliveries. WEBHOOK is for
    every kind of receiver over HTTP.
    """

    WEBHOOK = "webhook"
    MAIL = "mail"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one subscription. ``id`` is the same for every repeat of the event.
    ``not_before``: None, it may be sent at once. ``in_digest``: it is then sent in a digest.
    """

    id: str
    subscription: str
    channel: Channel
    event: Event
    not_before: datetime | None = None
    in_digest: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The receiver does not have it, as far as is known.

    ``can_retry``: another attempt may help. ``retry_after_s``: what the receiver asked for.
    ``is_receivers``: the receiver is at fault, not the one message.
    """

    reason: str
    can_retry: bool = True
    retry_after_s: float = 0.0
    is_receivers: bool = True


@dataclass(frozen=True, slots=True)
class Gone:
    """The receiver is gone (410)."""

    reason: str


Answer = Sent | Failed | Gone


@dataclass(frozen=True, slots=True)
class Attempt:
    """The ``number``-th to make a delivery, from 1, which was wanted at ``created_at``."""

    number: int
    created_at: datetime


class GiveUp(StrEnum):
    """Why a delivery is not tried again."""

    ATTEMPTS_USED = "attempts-used"
    REFUSED = "refused"
    GONE = "gone"
    EXPIRED = "expired"
    UNSUBSCRIBED = "unsubscribed"


@dataclass(frozen=True, slots=True)
class Done:
    """Recorded as sent: never sent again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """To be tried again, not before ``at``."""

    at: datetime


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Never tried again, and why."""

    why: GiveUp
    reason: str


Next = Done | Retry | GivenUp


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """Bounds of deliveries, in seconds but for the counts.

    ``give_up_after_s``: the age at which a delivery is no longer tried. ``retry_after_max_s``: the
    longest wait that a receiver can ask for. ``pause_failures``: failures in a row after which a
    receiver is paused, for ``pause_s``, doubling to ``pause_max_s``. ``disable_after``: deliveries
    in a row, given up by its fault, after which it is disabled; its owner is told ``told_before``
    deliveries earlier. ``can_disable``: mail addresses are not disabled: a mail server that is down
    would look like their fault.
    """

    give_up_after_s: float = 345_600.0
    retry_after_max_s: float = 36_000.0
    pause_failures: int = 5
    pause_s: float = 5.0
    pause_max_s: float = 300.0
    disable_after: int = 20
    told_before: int = 5
    can_disable: bool = True

    @property
    def told_at(self) -> int:
        """The deliveries, given up in a row, after which an owner is told."""
        return self.disable_after - self.told_before


@dataclass(frozen=True, slots=True)
class Receiver:
    """The health of a subscription's receiver, since the ``version`` of its subscription.
    ``given_up``: deliveries in a row that were given up by its fault. ``was_disabled``: until that
    version, and it has taken nothing since.
    """

    subscription: str
    version: str
    failures: int = 0
    paused_until: datetime | None = None
    disabled: str | None = None
    given_up: int = 0
    was_disabled: bool = False


def deliveries(
    subscriptions: Iterable[Subscription],
    event: Event,
    *,
    now: datetime,
    own: Iterable[Subscription] = (),
) -> tuple[Delivery, ...]:
    """The deliveries that an event makes: for the subscriptions that want it, and where the job's
    file asks for it, over the channels of the job's user that do not get it yet. What is preset
    goes to the address of this user's account, each full hour. ``own``: the subscriptions of this
    user, and that of their account.
    """
    found = [it for it in subscriptions if wants(it, event)]
    if event.job is not None and (event.is_asked or event.is_preset):
        reached = {_address(it) for it in found}
        for each in channels_of(event.job.user, own):
            if not event.is_asked and not each.id.startswith(ACCOUNT):
                continue
            if _address(each) not in reached:
                reached.add(_address(each))
                found.append(each if event.is_asked else _hourly(each))
    return tuple(_delivery(it, event, now) for it in found)


def _hourly(account: Subscription) -> Subscription:
    return account.model_copy(update={"digest": HOURLY})


def channels_of(owner: str, subscriptions: Iterable[Subscription]) -> list[Subscription]:
    """Where an owner is reached beside what they subscribe to: at the confirmed mail address of
    their account, and without one at the receivers of their subscriptions.
    """
    own = [it for it in subscriptions if it.owner == owner and it.enabled]
    return [it for it in own if it.id.startswith(ACCOUNT)] or own


def other_channel(
    failing: Subscription, subscriptions: Iterable[Subscription], troubled: Collection[str]
) -> Subscription | None:
    """Where an owner is told about a receiver of theirs: the first other one that works.
    ``troubled``: the ids of those that fail.
    """
    others = (
        it
        for it in subscriptions
        if it.owner == failing.owner
        and it.enabled
        and it.id not in troubled
        and _address(it) != _address(failing)
    )
    return min(others, key=lambda it: (not it.id.startswith(ACCOUNT), it.id), default=None)


def _address(subscription: Subscription) -> str:
    """The same for subscriptions with one receiver, as far as that can be known."""
    return subscription.webhook_url or (subscription.email or subscription.id).lower()


def _delivery(subscription: Subscription, event: Event, now: datetime) -> Delivery:
    """It waits for the next digest and for the end of quiet hours. A critical event is sent at
    once, and so is the end of a critical alert: it would be told too late. A script has little
    time.
    """
    made = Delivery(
        delivery_id(subscription.id, event.key), subscription.id, channel(subscription), event
    )
    if weight(event) is Severity.CRITICAL or event.name is AlertEvent.REMEDIATION_REQUESTED:
        return made
    digest, quiet = subscription.digest, subscription.quiet_hours
    at = None if digest is None else digest_at(digest, now)
    until = None if quiet is None else quiet_until(quiet, at or now)
    return replace(made, not_before=until or at, in_digest=at is not None)


def weight(event: Event) -> Severity:
    """How much an event matters: the end of an alert as much as the alert."""
    of_alerts = event.data.get("alerts")
    if event.name is AlertEvent.ALERT_RESOLVED and isinstance(of_alerts, Sequence):
        named = {it.get("severity") for it in of_alerts if isinstance(it, Mapping)}
        return next((it for it in reversed(Severity) if it.value in named), event.severity)
    return SEVERITIES.get(event.name, event.severity)


def wants(subscription: Subscription, event: Event) -> bool:
    """Whether a subscription asks for an event. What few pass is asked first: each event is held
    against each subscription.
    """
    if not subscription.enabled or event.name not in subscription.events:
        return False
    if event.job is None:
        if event.name in ALERTS and subscription.filter != SubscriptionFilter():
            return False
    elif not _passes(subscription.filter, event):
        return False
    least = least_rank(subscription)
    if subscription.kind is ReceiverKind.PAGERDUTY and event.rest is not None:
        # An incident is over when all of its alerts are that this subscription asks for.
        return RANKS[weight(event)] >= least > RANKS[event.rest]
    return RANKS[weight(event)] >= least


def least_rank(subscription: Subscription) -> int:
    """The rank of the least severity that it asks for."""
    asked = subscription.least_severity
    return 0 if asked in EVERY_SEVERITY else RANKS[Severity(asked.value)]


def channel(subscription: Subscription) -> Channel:
    """The way to a subscription's receiver."""
    return Channel.MAIL if subscription.kind is ReceiverKind.MAIL else Channel.WEBHOOK


def owners_at_share(under_way: Mapping[str, int], slots: int) -> frozenset[str]:
    """The owners that get no further slot of a lane now. ``under_way``: deliveries by owner.

    An owner may have as many deliveries under way as slots are free. A single owner thus gets half
    of the slots, n busy ones soon 1/(n+1) each, and the last free slot goes to an owner that has
    none: receivers that hang delay no other owner's.
    """
    free = slots - sum(under_way.values())
    return frozenset(owner for owner, count in under_way.items() if count >= free)


ORDER_LIFE_S = 3_600
"""An older order is not carried out: a database may have lost what it knew of it."""


def new_orders(subscription: Subscription, now: datetime) -> tuple[DeliveryOrder, ...]:
    """Orders that may still have to be carried out; each is carried out once."""
    oldest = now - timedelta(seconds=ORDER_LIFE_S)
    known = (OrderKind.TEST, OrderKind.REPLAY)
    return tuple(it for it in subscription.orders if it.at >= oldest and it.kind in known)


def delivery_id(subscription: str, event_key: str) -> str:
    """The id of a delivery: one for each subscription and event, however often it is repeated."""
    digest = hashlib.sha256(f"{subscription}\0{event_key}".encode()).hexdigest()
    return f"msg_{digest[:32]}"


def next_attempt(
    attempt: Attempt, answer: Answer, *, now: datetime, jitter: float, policy: DeliveryPolicy
) -> Next:
    """What follows an attempt. ``jitter`` is from [0, 1)."""
    match answer:
        case Sent():
            return Done()
        case Gone(reason):
            return GivenUp(GiveUp.GONE, reason)
        case Failed(reason, can_retry=False):
            return GivenUp(GiveUp.REFUSED, reason)
        case Failed(reason, retry_after_s=asked_s):
            if attempt.number >= len(SCHEDULE_S):
                return GivenUp(GiveUp.ATTEMPTS_USED, reason)
            wait_s = SCHEDULE_S[attempt.number] * (1 + JITTER * jitter)
            wait_s = max(wait_s, min(asked_s, policy.retry_after_max_s))
            at = now + timedelta(seconds=wait_s)
            if at > attempt.created_at + timedelta(seconds=policy.give_up_after_s):
                return GivenUp(GiveUp.EXPIRED, reason)
            return Retry(at)
        case _:
            assert_never(answer)


def receiver_after(
    receiver: Receiver,
    answer: Answer,
    after: Next,
    *,
    now: datetime,
    policy: DeliveryPolicy,
) -> Receiver:
    """A receiver's health after an answer, and what follows it."""
    match answer:
        case Sent():
            return Receiver(receiver.subscription, receiver.version)
        case Gone(reason):
            return replace(receiver, disabled=reason)
        case Failed(is_receivers=False):
            return receiver
        case Failed(reason):
            failures = receiver.failures + 1
            given_up = receiver.given_up + isinstance(after, GivenUp)
            found = replace(receiver, failures=failures, given_up=given_up)
            if policy.can_disable and given_up >= policy.disable_after:
                why = f"{given_up} deliveries in a row were given up, the last one with: {reason}"
                return replace(found, disabled=why)
            over = failures - policy.pause_failures
            if over < 0:
                return found
            pause_s = min(policy.pause_s * 2.0 ** min(over, 30), policy.pause_max_s)
            return replace(found, paused_until=now + timedelta(seconds=pause_s))
        case _:
            assert_never(answer)


def is_owner_told(
    before: Receiver, after: Receiver, policy: DeliveryPolicy, *, is_ordered: bool = False
) -> bool:
    """Whether an owner is told now: once before failures disable a receiver, and when it is
    disabled. Where the limits were lowered, or it is gone, there was no notice before. A test or a
    replay that a disabled receiver does not take either (``is_ordered``) is no news.
    """
    if is_ordered and before.was_disabled:
        return False
    is_disabled = before.disabled is None and after.disabled is not None
    return is_disabled or before.given_up < policy.told_at <= after.given_up


def _passes(asked: SubscriptionFilter, event: Event) -> bool:
    job = event.job
    if job is None:
        return True
    return (
        (not asked.users or job.user in asked.users)
        and (not asked.virtual_clusters or job.virtual_cluster in asked.virtual_clusters)
        and (not asked.job_names or any(fnmatchcase(job.name, it) for it in asked.job_names))
    )
