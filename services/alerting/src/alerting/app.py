"""The wiring of Alerting: settings, subscriptions, listener, lanes; nothing is decided here."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime

import structlog
from muster.consumer import Consumer
from muster.contracts.model import Model
from muster.contracts.subscriptions import (
    SUBSCRIPTION_SETTING,
    AlertEvent,
    DeliveryOrder,
    ReceiverKind,
    Subscription,
)
from muster.contracts.topics import Service
from muster.db import Pool, is_transient, transaction
from muster.readers import Follower
from muster.records import Received
from muster.service import Runtime, run_service
from muster.service_keys import ALERTING
from muster.settings import read
from muster.token_guard import TokenGuard

from alerting.alertmanagers import posting
from alerting.api.routes import delivery_routes, routes
from alerting.domain.deliveries import Answer, Channel, Failed, GivenUp, GiveUp, new_orders
from alerting.domain.messages import Message, confirmation_message
from alerting.domain.rendering import FORMS, pagerduty
from alerting.domain.rendering.forms import Link, Sending
from alerting.domain.rendering.mail import render
from alerting.handlers import RECEIVED_TOPICS, KnownSettings, Listener, Notified
from alerting.lanes import RUN_S, Lane, LaneLimits, Sender
from alerting.metrics import AlertingMetrics
from alerting.receivers.http import HttpMessage, HttpReceiver, private_authority
from alerting.receivers.mail import MailMessage, MailReceiver
from alerting.recorder import RecordLimits
from alerting.reported import REPORTED, ReportedNodes
from alerting.rules import SETTINGS
from alerting.settings import AlertingSettings
from alerting.store import alerts, deliveries
from alerting.store.deliveries import Claim, Listed
from alerting.subscriptions import Entry, Subscriptions
from alerting.timers import Timers

_log = structlog.get_logger()

TOPICS_FOLLOWED = ("receivers-changed", REPORTED, SETTINGS)

LINGER_S = 0.1
"""A notification may wait this long: larger batches cost the database less."""


@asynccontextmanager
async def build(runtime: Runtime) -> AsyncIterator[None]:
    """Set Alerting up; its tasks run until the stop."""
    settings = runtime.settings
    assert isinstance(settings, AlertingSettings)
    metrics = AlertingMetrics(runtime.registry)
    subscriptions = Subscriptions(settings.webhook_key, metrics)
    await _remember(runtime, subscriptions)
    tls = private_authority(settings.webhook_ca_file)
    async with AsyncExitStack() as stack:
        over_http = await stack.enter_async_context(HttpReceiver(settings.http_limits(), tls=tls))
        mails = MailReceiver(settings.mail_server())
        senders = (
            http_sender(runtime.pool, subscriptions, over_http, settings.link),
            mail_sender(subscriptions, mails, settings.link),
        )
        lanes = [_lane(runtime, settings, subscriptions, metrics, sender) for sender in senders]
        known = KnownSettings()
        _listen(runtime, subscriptions, known, metrics, lanes)
        guard = TokenGuard(ALERTING, settings.service_key, runtime.metrics)
        runtime.routes.extend(routes(runtime.pool, guard, known.rules))
        policy, most = settings.delivery_policy(), settings.replay_most
        runtime.routes.extend(delivery_routes(runtime.pool, guard, policy, most))
        yield


def _listen(
    runtime: Runtime,
    subscriptions: Subscriptions,
    known: KnownSettings,
    metrics: AlertingMetrics,
    lanes: Sequence[Lane],
) -> None:
    settings = runtime.settings
    assert isinstance(settings, AlertingSettings)

    def wake() -> None:
        for lane in lanes:
            lane.wake()

    def after(notified: Notified) -> None:
        for event, _ in notified.events:
            metrics.events.labels(event.name).inc()
            _log.info("notified", event_key=event.key, title=event.title)
        for alert, _ in notified.alerts:
            how = "fires" if alert.ends_at is None else "is resolved"
            _log.info(f"an alert {how}", alert=alert.fingerprint, summary=alert.summary)
        metrics.given_up.labels("any", GiveUp.EXPIRED).inc(notified.expired)
        if notified.deliveries:
            wake()
        if notified.alerts:
            nodes.changed.set()  # rules may act on them
            post_alerts()

    nodes = ReportedNodes()
    post_alerts = posting(runtime, settings, metrics)
    takers = {REPORTED: nodes.on_record, SETTINGS: known.on_record}

    def on_record(record: Received, model: Model | None) -> None:
        takers.get(record.topic, subscriptions.on_record)(record, model)

    def known_nodes() -> ReportedNodes | None:
        # A topic that is read again from its start shows an old state for a moment.
        return nodes if follower.caught_up.is_set() else None

    async def keep() -> None:
        await _keep_subscriptions(runtime, subscriptions, metrics, wake)

    follower = runtime.follow(TOPICS_FOLLOWED, on_record)
    listener = Listener(subscriptions, known_nodes, known, settings.policy())
    timers = Timers(runtime, listener, nodes, metrics, after)
    consumer = runtime.consumer(RECEIVED_TOPICS, listener.receive, after, LINGER_S)
    runtime.spawn("consumer", consume_after(follower, consumer, settings.subscriptions_wait_s))
    runtime.spawn("timers", timers.run)
    runtime.spawn("subscriptions", keep)
    for lane in lanes:
        runtime.spawn("lane", lane.run)


def _lane(
    runtime: Runtime,
    settings: AlertingSettings,
    subscriptions: Subscriptions,
    metrics: AlertingMetrics,
    sender: Sender,
) -> Lane:
    is_webhook = sender.channel is Channel.WEBHOOK
    slots = settings.webhook_slots if is_webhook else settings.mail_slots
    attempt_s = settings.webhook_timeout_s if is_webhook else settings.smtp_timeout_s
    limits = LaneLimits(
        slots=slots,
        receiver_slots=settings.receiver_slots,
        poll_s=settings.delivery_poll_s,
        lease_s=settings.delivery_lease_s,
        run_s=min(RUN_S, (settings.delivery_lease_s - attempt_s) / 2),
        stop_s=settings.shutdown_s / 2,
        record=RecordLimits(
            room=slots,
            retry_first_s=settings.retry_first_s,
            retry_longest_s=settings.retry_longest_s,
            policy=replace(settings.delivery_policy(), can_disable=is_webhook),
        ),
    )
    return Lane(sender, runtime.pool, subscriptions, limits, metrics)


def http_sender(
    pool: Pool, subscriptions: Subscriptions, over_http: HttpReceiver, link: Link
) -> Sender:
    """Sends a claimed delivery in the form of its receiver's kind."""

    async def why_late(message: Message, subscription: Subscription) -> str | None:
        incident = pagerduty.incident_of(message)
        if incident is None:
            return None
        async with pool.acquire() as conn:
            firing = await alerts.most_severe(conn, incident)
        return pagerduty.why_late(message, firing, subscription)

    async def send(entry: Entry, claim: Claim) -> Answer | GivenUp:
        kind = entry.subscription.kind
        form = FORMS.get(kind)
        if form is None or claim.message is None:
            return Failed(f"this version of Muster knows no receiver of kind {kind}")
        message = Message.from_json(claim.message)
        if kind is ReceiverKind.PAGERDUTY:
            why = await why_late(message, entry.subscription)
            if why is not None:
                return GivenUp(GiveUp.EXPIRED, why)
        try:
            target = subscriptions.target(entry)
        except ValueError as error:
            return Failed(str(error), is_receivers=False)
        if kind is ReceiverKind.WEBHOOK:
            message = with_code(message, subscriptions)
        sending = Sending(claim.id, claim.now, link(message.job))
        return await over_http.send(HttpMessage(form, message, target, sending))

    return Sender(Channel.WEBHOOK, send)


def with_code(message: Message, subscriptions: Subscriptions) -> Message:
    """A message to a script, with the code of its answer. Without a key an administrator answers
    for it.
    """
    action, until = message.data.get("action"), message.data.get("until")
    is_to_script = message.name == AlertEvent.REMEDIATION_REQUESTED
    if not is_to_script or not isinstance(action, str) or not isinstance(until, str):
        return message
    try:
        code = subscriptions.script_code(action, datetime.fromisoformat(until))
    except ValueError as error:
        _log.warning("a script gets no code", action=action, reason=str(error))
        return message
    return replace(message, data={**message.data, "code": code})


def mail_sender(subscriptions: Subscriptions, mails: MailReceiver, link: Link) -> Sender:
    """Sends a claimed delivery as a mail."""

    async def send(entry: Entry, claim: Claim) -> Answer:
        confirmation = entry.confirmation
        if confirmation is None:
            assert claim.message is not None
            message = Message.from_json(claim.message)
        elif confirmation.expires_at <= claim.now:
            return Failed("the code has expired", can_retry=False, is_receivers=False)
        else:
            try:
                code = subscriptions.code(confirmation)
            except ValueError as error:
                return Failed(str(error), is_receivers=False)
            message = confirmation_message(confirmation, code, claim.now)
        to = entry.subscription.email or ""
        letter = render(message, link(message.job))
        return await mails.send(MailMessage(claim.id, to, letter, claim.now))

    return Sender(Channel.MAIL, send)


def consume_after(
    follower: Follower, consumer: Consumer, wait_s: float
) -> Callable[[], Awaitable[None]]:
    """The consumer, once the subscriptions on the bus were read: events before that would reach no
    receiver.
    """

    async def run() -> None:
        try:
            async with asyncio.timeout(wait_s):
                await follower.caught_up.wait()
        except TimeoutError:
            _log.warning("subscriptions on the bus were not read yet; the kept ones count")
        await consumer.run()

    return run


async def _remember(runtime: Runtime, subscriptions: Subscriptions) -> None:
    async with runtime.pool.acquire() as conn:
        for setting in await alerts.load_subscriptions(conn):
            subscriptions.learn(setting)


async def _keep_subscriptions(
    runtime: Runtime,
    subscriptions: Subscriptions,
    metrics: AlertingMetrics,
    wake: Callable[[], None],
) -> None:
    """Store changed subscriptions; waiting deliveries of removed ones are dropped.

    A new address to confirm gets its mail.
    """
    settings = runtime.settings
    assert isinstance(settings, AlertingSettings)
    while True:
        await subscriptions.changed.wait()
        changes = subscriptions.take_changes()
        removed = [
            it.removeprefix(SUBSCRIPTION_SETTING) for it, kept in changes.items() if kept is None
        ]
        to_confirm = {
            key: Listed(entry.subscription.owner, entry.version)
            for key in changes
            if (entry := subscriptions.entry(key)) is not None and entry.confirmation is not None
        }
        try:
            async with transaction(runtime.pool) as conn:
                await alerts.keep_subscriptions(conn, changes)
                await deliveries.add_confirmations(conn, to_confirm)
                orders = new_orders_of(subscriptions, changes, await conn.fetchval("SELECT now()"))
                ordered = await deliveries.apply_orders(conn, orders, settings.replay_most)
                dropped = await deliveries.drop_waiting(
                    conn, removed, GiveUp.UNSUBSCRIBED, "the subscription was removed"
                )
        except Exception as error:
            if not is_transient(error):
                raise
            subscriptions.put_back(changes)
            await asyncio.sleep(settings.retry_longest_s)
        else:
            metrics.given_up.labels("any", GiveUp.UNSUBSCRIBED).inc(dropped)
            if to_confirm or ordered:
                wake()


def new_orders_of(
    subscriptions: Subscriptions, changes: Collection[str], now: datetime
) -> list[tuple[Subscription, str, DeliveryOrder]]:
    """The orders of changed subscriptions, oldest first."""
    found = [subscriptions.entry(it.removeprefix(SUBSCRIPTION_SETTING)) for it in changes]
    return [
        (entry.subscription, entry.version, order)
        for entry in found
        if entry is not None
        for order in new_orders(entry.subscription, now)
    ]


def main() -> None:
    """Run the service until SIGTERM or SIGINT."""
    settings = read(AlertingSettings)
    run_service(Service.ALERTING, settings, settings.http_port, build)
