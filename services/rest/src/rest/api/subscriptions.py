"""Subscriptions to alerts. People may subscribe to their own jobs, owners of a virtual cluster to
all jobs there, admins to all and to nodes.
"""

import secrets
import time
from dataclasses import asdict
from datetime import UTC, datetime
from datetime import time as clock
from typing import Annotated, Literal
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from fastapi import Path, Query
from fastapi.responses import JSONResponse, Response
from muster.contracts.subscriptions import (
    ACCOUNT,
    EVENT_SEVERITIES,
    NO_DIGEST,
    AlertEvent,
    DeliveryOrder,
    Digest,
    DigestEvery,
    LeastSeverity,
    OrderKind,
    QuietHours,
    ReceiverKind,
    SealedReceiver,
    Subscription,
    SubscriptionFilter,
)
from muster.db import Connection, transaction
from muster.errors import Problem, Rejected, Transient
from muster.ids import new_id
from muster.receiver_secrets import ReceiverSecret, seal_receiver
from muster.webhook_secrets import signing_secret
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rest.api import texts
from rest.api.context import Address, Context, Here, User
from rest.api.paging import Paging
from rest.api.router import new_router
from rest.api.tokens import Done
from rest.domain.callers import Caller, check_owner
from rest.domain.emails import check_receiver
from rest.domain.storages import unknown_hints
from rest.domain.throttle import TooManyRequests
from rest.store import accounts, audit, subscriptions
from rest.store.accounts import LockedAccount

router = new_router("/alerts/subscriptions", tag="alerts")

OWN_ACCOUNT = "account"
"""In place of a subscription's id."""

MAX_SUBSCRIPTIONS = 100
"""Of one owner."""

MAX_ORDERS, ORDERS_S = 10, 60
"""Tests and replays of one subscription in so many seconds."""

MAX_PUBLISHED = 1000
"""Of one owner, with those that are published as removed."""

ADMIN_EVENTS = frozenset(
    (
        AlertEvent.NODE_LOST,
        AlertEvent.NODE_RETURNED,
        AlertEvent.NODE_REMOVED,
        AlertEvent.NODE_NAME_CLASH,
        AlertEvent.REMEDIATION_REQUESTED,
        AlertEvent.RECORD_REJECTED,
        AlertEvent.ACCOUNTING_DRIFTED,
        AlertEvent.USAGE_REPORTED,
    )
)

Ident = Annotated[str, Path(max_length=64, description="The subscription's id.")]
Event = Literal[
    "job-started",
    "job-finished",
    "job-failed",
    "job-retried",
    "job-stuck",
    "job-unstuck",
    "node-lost",
    "node-returned",
    "node-removed",
    "node-name-clash",
    "remediation-requested",
    "record-rejected",
    "accounting-drifted",
    "usage-reported",
    "alert-raised",
    "alert-resolved",
]
RECEIVERS = ("webhookUrl", "email", "slack", "teams", "pagerduty", "ntfy")
"""The fields that name a receiver."""
Clock = Annotated[str, Field(pattern=texts.CLOCK, examples=["22:00"])]
SecretUrl = Annotated[str, Field(max_length=2048, pattern=texts.HTTPS_URL)]
Names = Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=100)]


class Filter(BaseModel):
    """Which jobs; an empty list takes all. ``jobNames`` are shell patterns."""

    model_config = ConfigDict(extra="forbid")

    users: Names = []
    virtualClusters: Names = []
    jobNames: Names = []


class SlackReceiver(BaseModel):
    """A channel of Slack, or of what takes its format: its incoming webhook. The address is a
    secret: it is stored sealed, and no answer has it.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(max_length=2048, pattern=texts.URL)]


class TeamsReceiver(BaseModel):
    """A channel of Microsoft Teams: its workflow's address. The address is a secret: it is stored
    sealed, and no answer has it.
    """

    model_config = ConfigDict(extra="forbid")

    url: SecretUrl


class PagerDutyReceiver(BaseModel):
    """A service of PagerDuty's: its integration key (Events API v2), which no answer has. ``url``:
    where another region takes events.
    """

    model_config = ConfigDict(extra="forbid")

    routingKey: Annotated[str, Field(pattern=texts.ROUTING_KEY)]
    url: SecretUrl = "https://events.pagerduty.com/v2/enqueue"


class NtfyReceiver(BaseModel):
    """A topic of ntfy: its address, and an access token where the server asks for one. No answer
    has them.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(max_length=2048, pattern=texts.TOPIC_URL)]
    token: Annotated[str, Field(max_length=200, pattern=texts.PRINTABLE)] = ""


def _check_zone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError("there is no such time zone; write it like Europe/Berlin")
    return name


class Quiet(BaseModel):
    """The time of each day in which only critical events are sent, by the clock of a time zone of
    the IANA's. What comes meanwhile is sent at its end.
    """

    model_config = ConfigDict(extra="forbid")

    start: Clock
    end: Clock
    timeZone: Annotated[str, Field(max_length=64)]

    @field_validator("timeZone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return _check_zone(name)

    @model_validator(mode="after")
    def _have_a_length(self) -> "Quiet":
        if self.start == self.end:
            raise ValueError("start and end are the same; leave quietHours out for none")
        return self


class DigestRequest(BaseModel):
    """Events are sent together as one message: each full hour, or each day ``at`` a time of the
    time zone. Critical ones are sent at once all the same.
    """

    model_config = ConfigDict(extra="forbid")

    every: Literal["hour", "day"]
    at: Clock | None = None
    timeZone: Annotated[str, Field(max_length=64)] = "UTC"

    @field_validator("timeZone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return _check_zone(name)

    @model_validator(mode="after")
    def _has_a_time(self) -> "DigestRequest":
        self.digest()
        return self

    def digest(self) -> Digest:
        """The same for Alerting. Raises ValueError where the time does not fit."""
        at = None if self.at is None else clock.fromisoformat(self.at)
        every, zone = DigestEvery(self.every), self.timeZone
        try:
            return Digest(every=every, at=at, time_zone=zone)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


class SubscriptionRequest(BaseModel):
    """A subscription to be made or changed. It has one receiver. ``email`` is the confirmed address
    of the owner's account; an admin's own names any address. A change without a receiver keeps the
    one whose address is a secret.
    """

    model_config = ConfigDict(extra="forbid")

    events: Annotated[list[Event], Field(min_length=1, max_length=20)]
    filter: Filter = Filter()
    leastSeverity: Literal["info", "warning", "critical"] = "info"
    quietHours: Quiet | None = None
    digest: DigestRequest | None = None
    enabled: bool = True
    webhookUrl: Annotated[str | None, Field(max_length=2048, pattern=texts.URL)] = None
    email: Annotated[str | None, Field(max_length=320, pattern=texts.MAIL)] = None

    slack: SlackReceiver | None = None
    teams: TeamsReceiver | None = None
    pagerduty: PagerDutyReceiver | None = None
    ntfy: NtfyReceiver | None = None

    @model_validator(mode="after")
    def _has_one_receiver(self) -> "SubscriptionRequest":
        if sum(getattr(self, it) is not None for it in RECEIVERS) > 1:
            raise ValueError(f"give one receiver: {', '.join(RECEIVERS)}")
        return self

    def secret(self, subscription: str) -> tuple[ReceiverKind, ReceiverSecret] | None:
        """The receiver whose address is a secret."""
        if self.slack is not None:
            kind, url, token = ReceiverKind.SLACK, self.slack.url, ""
        elif self.teams is not None:
            kind, url, token = ReceiverKind.TEAMS, self.teams.url, ""
        elif self.pagerduty is not None:
            kind, url = ReceiverKind.PAGERDUTY, self.pagerduty.url
            token = self.pagerduty.routingKey
        elif self.ntfy is not None:
            kind, url, token = ReceiverKind.NTFY, self.ntfy.url, self.ntfy.token
        else:
            return None
        return kind, ReceiverSecret(subscription=subscription, url=url, token=token)


class ShownReceiver(BaseModel):
    """A receiver whose address is a secret: its kind and its host."""

    kind: str
    host: str


class ShownSubscription(BaseModel):
    """A subscription."""

    id: str
    owner: str
    enabled: bool
    events: list[str]
    filter: Filter
    leastSeverity: str
    quietHours: Quiet | None
    digest: DigestRequest | None
    webhookUrl: str | None
    email: str | None
    receiver: ShownReceiver | None
    secretVersions: list[int]


class ReceiverHealth(BaseModel):
    """How a receiver does: failures in a row, the end of its pause, and why it is disabled.
    ``givenUp``: deliveries in a row that were given up. After ``disabledAfter`` of them it is
    disabled, unless it is a mail address.
    """

    failures: int
    pausedUntil: str | None
    givenUp: int
    disabledAfter: int
    disabled: str | None


class Troubled(BaseModel):
    """Alerting's answer: the receivers that fail, and how the others do."""

    receivers: dict[str, ReceiverHealth]
    others: ReceiverHealth

    def of(self, subscription: str) -> ReceiverHealth:
        """How its receiver does."""
        return self.receivers.get(subscription, self.others)


class ListedSubscription(ShownSubscription):
    """A subscription, and how its receiver does: null while Alerting does not answer."""

    health: ReceiverHealth | None


class SubscriptionPage(BaseModel):
    """A page of subscriptions, oldest first, and how many there are on all pages."""

    subscriptions: list[ListedSubscription]
    total: int


class ShownDelivery(BaseModel):
    """One event for one subscription. It waits until ``nextAt``, is sent, is part of a digest (a
    delivery too), or is given up. ``reason``: the last failure. ``why``: the cause of its end, as
    `refused` or `attempts-used`.
    """

    id: str
    event: str
    type: str
    title: str | None
    at: str
    state: Literal["waiting", "sent", "digested", "given-up"]
    attempts: int
    nextAt: str | None
    endedAt: str | None
    why: str | None
    reason: str | None


class DeliveryPage(BaseModel):
    """A page of a subscription's deliveries, and how many there are on all pages."""

    receiver: ReceiverHealth
    deliveries: list[ShownDelivery]
    total: int


class ReplayRequest(BaseModel):
    """Which ended deliveries to make once more: named ones, or those of the events from ``since``
    to ``until`` (without it: to now).
    """

    model_config = ConfigDict(extra="forbid")

    deliveries: Annotated[
        list[Annotated[str, Field(pattern=r"^msg_[0-9a-f]{32}$")]], Field(max_length=100)
    ] = []
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    @model_validator(mode="after")
    def _names_some(self) -> "ReplayRequest":
        if bool(self.deliveries) == (self.since is not None):
            raise ValueError("name deliveries, or the time since when; not both")
        return self


class OrderedTest(BaseModel):
    """An order that Alerting carries out. ``event``: what the test's delivery is about."""

    order: str
    event: str


class OrderedReplay(BaseModel):
    """An order that Alerting carries out. ``ended``: the deliveries that it finds now and makes
    once more; ``waiting``: those that it leaves alone.
    """

    order: str
    ended: int
    waiting: int


class ToReplay(BaseModel):
    """Alerting's answer: what a replay finds. ``unknown``: named, and not there."""

    ended: int
    waiting: int
    unknown: list[str]


class ChangedSubscription(ShownSubscription):
    """A subscription that was made or changed. ``note``: what it takes less than was asked for,
    the names in its filter that no user has, and what has no effect.
    """

    note: str | None


class CreatedSubscription(ChangedSubscription):
    """A subscription that was made. ``secrets`` sign its webhooks, newest first."""

    secrets: list[str]


class Secrets(BaseModel):
    """The secrets that sign a webhook's deliveries (Standard Webhooks), newest first."""

    secrets: list[str]


def _shown(subscription: Subscription) -> ShownSubscription:
    content = subscription.model_dump(mode="json", by_alias=True)
    if (quiet := subscription.quiet_hours) is not None:
        content["quietHours"] |= {"start": f"{quiet.start:%H:%M}", "end": f"{quiet.end:%H:%M}"}
    if (digest := subscription.digest) is not None and digest.at is not None:
        content["digest"] |= {"at": f"{digest.at:%H:%M}"}
    return ShownSubscription.model_validate(content)


@router.get("", response_model=SubscriptionPage)
async def list_subscriptions(here: Here, caller: User, page: Paging) -> SubscriptionPage:
    """One's own subscriptions; an admin sees all."""
    owner = None if caller.is_admin else caller.username
    async with here.pool.acquire() as conn:
        found = await subscriptions.list_subscriptions(conn, owner, page.offset, page.limit)
        total = await subscriptions.count_listed(conn, owner)
    health = await _health(here, owner)
    listed = [
        ListedSubscription(**_shown(each).model_dump(), health=health and health.of(each.id))
        for each in found
    ]
    return SubscriptionPage(subscriptions=listed, total=total)


async def _health(here: Context, owner: str | None) -> Troubled | None:
    """Which receivers fail; None where Alerting does not tell."""
    try:
        answer = await here.peers.ask_alerting("/receivers", {"owner": owner} if owner else {})
        return Troubled.model_validate(answer)
    except (Rejected, Transient, ValidationError):
        return None


@router.post("", status_code=201, response_model=CreatedSubscription)
async def create_subscription(
    request: SubscriptionRequest, here: Here, caller: User, address: Address
) -> CreatedSubscription:
    """Subscribe. A name that no virtual cluster has is refused, and so are other users' names,
    unless one owns all virtual clusters of the filter. `note` names those that no user has.
    """
    await here.virtual_clusters.check(request.filter.virtualClusters)
    unknown = await _unknown_users(here, request)
    ident = new_id(time.time_ns() // 1_000_000, secrets.randbits(80))
    async with transaction(here.pool) as conn:
        # Before the account is shared: two who share it can't both lock it.
        await _check_count(here, conn, caller.username)
        owner = await accounts.check_rights(conn, caller)
        receiver = _receiver(here, ident, request, None)
        wanted = _subscription(ident, caller.username, owner, request, receiver)
        signing = _secrets(here, wanted)
        await subscriptions.insert_subscription(conn, wanted)
        await _note(conn, caller, "subscription.create", ident, address)
    here.publisher.wake()
    shown = _shown(wanted).model_dump()
    note = _hints(request, wanted, unknown)
    return CreatedSubscription(**shown, note=note, secrets=signing)


@router.get("/{ident}", response_model=ShownSubscription)
async def get_subscription(ident: Ident, here: Here, caller: User) -> ShownSubscription:
    """One subscription."""
    async with transaction(here.pool) as conn:
        return _shown(await _find(conn, caller, ident))


@router.get("/{ident}/secrets", response_model=Secrets)
async def get_subscription_secrets(ident: Ident, here: Here, caller: User) -> Secrets:
    """The secrets that sign a webhook's deliveries; only for its owner."""
    async with transaction(here.pool) as conn:
        found = await _find(conn, caller, ident)
    if found.owner != caller.username:
        raise Rejected("ForbiddenUserError", "Only the owner of a subscription sees its secrets.")
    return Secrets(secrets=_secrets(here, found))


@router.put("/{ident}", response_model=ChangedSubscription)
async def change_subscription(
    ident: Ident, request: SubscriptionRequest, here: Here, caller: User, address: Address
) -> ChangedSubscription:
    """Change a subscription, whole. Its owner's rights decide what it may have, also where an admin
    changes it. Names are checked as for a new one.
    """
    await here.virtual_clusters.check(request.filter.virtualClusters)
    unknown = await _unknown_users(here, request)
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        # Locked in the order of a change of the account, which ends its subscriptions.
        owner = await _lock_owner(conn, ident)
        before = await _find(conn, caller, ident)
        receiver = _receiver(here, ident, request, before)
        after = _subscription(ident, before.owner, owner, request, receiver)
        kept = {"secret_versions": before.secret_versions, "orders": before.orders}
        after = after.model_copy(update=kept)
        await subscriptions.update_subscription(conn, after)
        await _note(conn, caller, "subscription.change", ident, address)
    here.publisher.wake()
    note = _hints(request, after, unknown)
    return ChangedSubscription(**_shown(after).model_dump(), note=note)


@router.post("/{ident}/secrets/rotate", response_model=Secrets)
async def rotate_subscription_secrets(
    ident: Ident, here: Here, caller: User, address: Address
) -> Secrets:
    """Make a new secret. Until the next rotation both sign, so that a receiver can change in
    peace.
    """
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        before = await _find(conn, caller, ident)
        if before.owner != caller.username:
            message = "Only the owner of a subscription changes its secrets."
            raise Rejected("ForbiddenUserError", message)
        newest = before.secret_versions[0]
        after = before.model_copy(update={"secret_versions": (newest + 1, newest)})
        await subscriptions.update_subscription(conn, after)
        await _note(conn, caller, "subscription.rotate", ident, address)
    here.publisher.wake()
    return Secrets(secrets=_secrets(here, after))


@router.get("/{ident}/deliveries", response_model=DeliveryPage)
async def list_deliveries(
    ident: Ident,
    here: Here,
    caller: User,
    page: Paging,
    state: Annotated[
        Literal["waiting", "sent", "digested", "given-up"] | None,
        Query(description="Only such deliveries."),
    ] = None,
) -> Response:
    """The deliveries of the last days: the newest events first, why one failed, and how the
    receiver does. `account` stands for the mail address of one's own account.
    """
    if ident == OWN_ACCOUNT:
        ident = f"{ACCOUNT}{caller.username}"
    else:
        async with transaction(here.pool) as conn:
            await _find(conn, caller, ident)
    query = {"subscription": ident, **asdict(page)} | ({} if state is None else {"state": state})
    answer = await here.peers.ask_alerting("/deliveries", query)
    if answer is None:
        raise Transient("Alerting's answer can't be read. Check its version and log.")
    return JSONResponse(answer)


@router.post("/{ident}/test", status_code=202, response_model=OrderedTest)
async def test_subscription(
    ident: Ident, here: Here, caller: User, address: Address
) -> OrderedTest:
    """Send a test message. A paused or disabled receiver is tried again. `event` names its
    delivery in the list of deliveries.
    """
    order = _new_order(OrderKind.TEST)
    await _order(here, caller, ident, address, order)
    return OrderedTest(order=order.id, event=f"receiver-test/{order.id}")


@router.post("/{ident}/replay", status_code=202, response_model=OrderedReplay)
async def replay_deliveries(
    ident: Ident, request: ReplayRequest, here: Here, caller: User, address: Address
) -> OrderedReplay:
    """Make ended deliveries once more, with the ids that they had: those that are named, or those
    of the events in a time. A paused or disabled receiver is tried again. A named delivery that is
    not there is refused.
    """
    order = _new_order(OrderKind.REPLAY)
    if request.since is None:
        order = order.model_copy(update={"deliveries": tuple(request.deliveries)})
    else:
        span = {"since": request.since, "until": request.until or order.at}
        order = order.model_copy(update=span)
    async with transaction(here.pool) as conn:
        await _find(conn, caller, ident)
    found = await _to_replay(here, ident, order)
    await _order(here, caller, ident, address, order)
    return OrderedReplay(order=order.id, ended=found.ended, waiting=found.waiting)


async def _to_replay(here: Context, ident: str, order: DeliveryOrder) -> ToReplay:
    """What a replay finds. Raises Rejected where a named delivery is not there."""
    query = {"subscription": ident, "named": ",".join(order.deliveries)}
    if order.since is not None and order.until is not None:
        query |= {"since": order.since.isoformat(), "until": order.until.isoformat()}
    answer = await here.peers.ask_alerting("/deliveries/replay", query)
    try:
        found = ToReplay.model_validate(answer)
    except ValidationError as error:
        raise Transient("Alerting's answer can't be read. Check its version and log.") from error
    if found.unknown:
        missing = ", ".join(sorted(found.unknown))
        message = f"Subscription {ident} has no delivery {missing[:200]}."
        raise Rejected("NoDeliveryError", message)
    return found


def _new_order(kind: OrderKind) -> DeliveryOrder:
    at_s = time.time()
    ident = new_id(int(at_s * 1000), secrets.randbits(80))
    return DeliveryOrder(id=ident, at=datetime.fromtimestamp(at_s, UTC), kind=kind)


async def _order(
    here: Context, caller: Caller, ident: str, address: str, order: DeliveryOrder
) -> None:
    """Keep an order in its subscription, which Alerting reads. Raises TooManyRequests where the
    owner gives many.
    """
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        before = await _find(conn, caller, ident)
        if len(before.orders) == MAX_ORDERS:
            wait_s = ORDERS_S - (order.at - before.orders[0].at).total_seconds()
            if wait_s > 0:
                message = f"A subscription takes {MAX_ORDERS} tests and replays in {ORDERS_S} s."
                raise TooManyRequests(message, int(wait_s) + 1)
        orders = (*before.orders, order)[-MAX_ORDERS:]
        await subscriptions.update_subscription(conn, before.model_copy(update={"orders": orders}))
        await _note(conn, caller, f"subscription.{order.kind}", ident, address)
    here.publisher.wake()


@router.delete("/{ident}", response_model=Done)
async def delete_subscription(ident: Ident, here: Here, caller: User, address: Address) -> Done:
    """Unsubscribe."""
    async with transaction(here.pool) as conn:
        await accounts.check_rights(conn, caller)
        await _find(conn, caller, ident)
        await subscriptions.remove_subscription(conn, ident)
        await _note(conn, caller, "subscription.remove", ident, address)
    here.publisher.wake()
    return Done(message="The subscription is removed.")


async def _check_count(here: Context, conn: Connection, owner: str) -> None:
    """Raises Rejected where an owner may have no more. Others who count meanwhile wait."""
    await accounts.lock_to_change(conn, owner)
    count, published = await subscriptions.count_subscriptions(conn, owner)
    message = None
    if count >= MAX_SUBSCRIPTIONS:
        message = f"You have {MAX_SUBSCRIPTIONS} subscriptions, the limit; remove one."
    elif published >= MAX_PUBLISHED:
        message = (
            f"You have made {MAX_PUBLISHED} subscriptions, the limit; each removed one counts for"
            f" {here.settings.removed_days} days after its removal (MUSTER_REMOVED_DAYS)."
        )
    if message is not None:
        raise Rejected("InvalidParametersError", message)


async def _find(conn: Connection, caller: Caller, ident: str) -> Subscription:
    found = await subscriptions.lock_subscription(conn, ident)
    if found is None:
        raise _no_subscription(ident)
    check_owner(caller, found.owner, "The subscription")
    return found


async def _lock_owner(conn: Connection, ident: str) -> LockedAccount:
    owner = await subscriptions.find_owner(conn, ident)
    account = None if owner is None else await accounts.lock_account(conn, owner)
    if account is None:
        raise _no_subscription(ident)
    return account


def _no_subscription(ident: str) -> Rejected:
    return Rejected("NoSubscriptionError", f"There is no subscription {ident[:64]}.")


def _subscription(
    ident: str,
    owner: str,
    account: LockedAccount,
    request: SubscriptionRequest,
    receiver: SealedReceiver | None,
) -> Subscription:
    """The subscription. Raises Rejected where its owner, with this account, may not have it."""
    events = tuple(AlertEvent(event) for event in dict.fromkeys(request.events))
    filter_ = SubscriptionFilter(
        users=tuple(request.filter.users),
        virtual_clusters=tuple(request.filter.virtualClusters),
        job_names=tuple(request.filter.jobNames),
    )
    if not account.is_admin:
        forbidden = sorted(event.value for event in ADMIN_EVENTS.intersection(events))
        if forbidden:
            problem = Problem(
                "events", f"{', '.join(forbidden)}: only admins can subscribe to these"
            )
            message = "Only admins can subscribe to events of the cluster."
            raise Rejected("ForbiddenUserError", message, (problem,))
        check_receiver(account.confirmed_email, request.email)
        if not _is_of_owned(filter_, account):
            _check_users(filter_, owner)
            filter_ = filter_.model_copy(update={"users": (owner,)})
    kind = None if receiver is None else receiver.kind
    if kind is ReceiverKind.PAGERDUTY and request.digest is not None:
        problem = Problem("digest", NO_DIGEST)
        raise Rejected("InvalidParametersError", "PagerDuty takes no digests.", (problem,))
    return Subscription(
        id=ident,
        owner=owner,
        enabled=request.enabled,
        events=events,
        filter=filter_,
        least_severity=LeastSeverity(request.leastSeverity),
        quiet_hours=None if request.quietHours is None else _quiet(request.quietHours),
        digest=None if request.digest is None else request.digest.digest(),
        webhook_url=request.webhookUrl,
        email=request.email,
        receiver=receiver,
    )


def _check_users(asked: SubscriptionFilter, owner: str) -> None:
    """Raises Rejected where it names others, whose jobs the owner's rights do not cover."""
    others = [name for name in asked.users if name != owner]
    if others:
        fix = f"{', '.join(others)[:200]}: leave these out, or name only virtual clusters of yours"
        message = (
            f"A subscription of {owner} takes the jobs of {owner} only, or those in virtual"
            f" clusters that {owner} owns."
        )
        raise Rejected("ForbiddenUserError", message, (Problem("filter.users", fix),))


async def _unknown_users(here: Context, request: SubscriptionRequest) -> list[str]:
    """Hints about users whose jobs it asks for; they may be made later."""
    unknown = await accounts.without_account(here.pool, set(request.filter.users))
    return unknown_hints(unknown, (), None)


def _hints(request: SubscriptionRequest, made: Subscription, unknown: list[str]) -> str | None:
    """What of a subscription may not be meant."""
    hints = (*unknown, _narrowed(request, made), _too_severe(made), _unfiltered(request))
    return " ".join(it for it in hints if it) or None


def _too_severe(made: Subscription) -> str | None:
    """What to know about a least severity that no event of it has."""
    ranks = {severity: rank for rank, severity in enumerate(LeastSeverity)}
    found = {it: EVENT_SEVERITIES.get(it, LeastSeverity.CRITICAL) for it in made.events}
    if any(ranks[it] >= ranks[made.least_severity] for it in found.values()):
        return None
    named = ", ".join(f"{event} ({severity})" for event, severity in found.items())
    return f"It gets nothing: these are less severe than {made.least_severity}: {named}."


def _unfiltered(request: SubscriptionRequest) -> str | None:
    """What to know about a filter of jobs beside events that are about none."""
    named = ", ".join(it for it in dict.fromkeys(request.events) if it in ADMIN_EVENTS)
    if not named or request.filter == Filter():
        return None
    return f"The filter has no effect on events that are about no job: {named}."


def _narrowed(request: SubscriptionRequest, made: Subscription) -> str | None:
    """What to know about a filter by virtual clusters that takes the owner's jobs only."""
    if request.filter.users or not made.filter.users or not made.filter.virtual_clusters:
        return None
    named = ", ".join(made.filter.virtual_clusters)
    return f"It takes only jobs of {made.owner} in {named}: {made.owner} does not own all of these."


def _is_of_owned(asked: SubscriptionFilter, account: LockedAccount) -> bool:
    """Whether it takes only jobs in virtual clusters that the account owns."""
    named = set(asked.virtual_clusters)
    return bool(named) and named <= set(account.owned_virtual_clusters)


def _quiet(asked: Quiet) -> QuietHours:
    start, end = clock.fromisoformat(asked.start), clock.fromisoformat(asked.end)
    return QuietHours(start=start, end=end, time_zone=asked.timeZone)


def _receiver(
    here: Context, ident: str, request: SubscriptionRequest, before: Subscription | None
) -> SealedReceiver | None:
    """The receiver, sealed where its address is a secret; None for a webhook or a mail address.
    Raises Rejected where there is none.
    """
    secret = request.secret(ident)
    if secret is not None:
        kind, opens = secret
        try:
            sealed = seal_receiver(here.settings.webhook_key.get_secret_value(), opens)
        except ValueError as error:
            message = "Receivers can't be kept here: MUSTER_WEBHOOK_KEY is not set."
            raise Rejected("NotConfiguredError", message) from error
        return SealedReceiver(kind=kind, host=urlsplit(opens.url).hostname or "", sealed=sealed)
    if request.webhookUrl is not None or request.email is not None:
        return None
    if before is not None and before.receiver is not None:
        return before.receiver
    message = "A subscription needs a receiver."
    problem = Problem("webhookUrl", f"give one receiver: {', '.join(RECEIVERS)}")
    raise Rejected("InvalidParametersError", message, (problem,))


def _secrets(here: Context, subscription: Subscription) -> list[str]:
    """Derived, never stored; none for e-mail."""
    if subscription.webhook_url is None:
        return []
    key = here.settings.webhook_key.get_secret_value()
    if not key:
        message = "Webhooks can't be signed here: MUSTER_WEBHOOK_KEY is not set."
        raise Rejected("NotConfiguredError", message)
    return [
        signing_secret(key, subscription.id, version) for version in subscription.secret_versions
    ]


async def _note(conn: Connection, caller: Caller, action: str, what: str, address: str) -> None:
    await audit.record(conn, [audit.Entry(caller.username, action, what, address)])
