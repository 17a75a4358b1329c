"""Deliveries: made once for each subscription and event, taken by one worker at a time, and at
their end for good.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.contracts.subscriptions import DeliveryOrder, OrderKind, Subscription
from muster.db import Connection, fetch

from alerting.domain.deliveries import (
    Channel,
    Delivery,
    Done,
    GivenUp,
    GiveUp,
    Next,
    Receiver,
    Retry,
    delivery_id,
)
from alerting.domain.deliveries import channel as channel_of
from alerting.domain.events import Event
from alerting.domain.messages import Message, message_of, test_message
from alerting.store.rows import plain, text


@dataclass(frozen=True, slots=True)
class Listed:
    """A subscription's owner and version."""

    owner: str
    version: str


TracedEvent = tuple[Event, str | None]
"""An event, and the trace in which it happened."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A delivery that a worker has taken, with what is to be sent. ``now`` is the database's.
    ``due_at``: its place in the order. ``late_s``: for how long this attempt could have been made,
    without the waits for a receiver that failed or was paused.
    ``message``: None for a mail that confirms an address, whose text has a secret. ``is_ordered``:
    of a test or a replay.
    """

    id: str
    subscription: str
    owner: str
    attempts: int
    created_at: datetime
    due_at: datetime
    late_s: float
    now: datetime
    lease: str
    event_key: str
    message: dict[str, Any] | None
    traceparent: str | None
    is_ordered: bool


_ADD_EVENTS = """
    INSERT INTO event (key, name, at, message, traceparent)
    SELECT key, name, at, message, traceparent
    FROM jsonb_populate_recordset(NULL::event, $1::jsonb)
    ON CONFLICT (key) DO NOTHING
"""
_ADD_CONFIRMATIONS = """
    INSERT INTO event (key, name, at)
    SELECT key, 'email-confirmation', now()
    FROM unnest($1::text[]) AS k (key) ON CONFLICT (key) DO NOTHING
"""
_ADD_RECEIVERS = """
    INSERT INTO receiver (subscription, channel, version, owner)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    ON CONFLICT (subscription) DO UPDATE
    SET channel = excluded.channel, version = excluded.version, owner = excluded.owner,
        failures = 0, paused_until = NULL, disabled = NULL, given_up = 0,
        was_disabled = receiver.was_disabled OR receiver.disabled IS NOT NULL
    WHERE (receiver.version, receiver.owner) <> (excluded.version, excluded.owner)
"""
_ADD_DELIVERIES = """
    INSERT INTO delivery
        (id, subscription, channel, event_key, next_at, digest_at, state, why, reason, ended_at)
    SELECT n.id, n.subscription, n.channel, n.event_key, coalesce(n.not_before, now()),
        CASE WHEN n.in_digest AND r.disabled IS NULL THEN n.not_before END,
        CASE WHEN r.disabled IS NULL THEN 'waiting' ELSE 'given-up' END,
        CASE WHEN r.disabled IS NOT NULL THEN 'gone' END, r.disabled,
        CASE WHEN r.disabled IS NOT NULL THEN now() END
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::boolean[])
        AS n (id, subscription, channel, event_key, not_before, in_digest)
    LEFT JOIN receiver AS r ON r.subscription = n.subscription
    ON CONFLICT DO NOTHING
"""
"""For a disabled receiver they are given up at once, so that its owner can replay them."""


async def add_deliveries(
    conn: Connection,
    events: Sequence[TracedEvent],
    deliveries: Sequence[Delivery],
    listed: Mapping[str, Listed],
) -> None:
    """Write new deliveries; existing ones stay as they are. ``listed``: the subscriptions; a new
    version resets its receiver's failures.
    """
    if not deliveries:
        return
    asked = {it.event.key for it in deliveries}
    rows = {event.key: _event_row(event, trace) for event, trace in events if event.key in asked}
    await conn.execute(_ADD_EVENTS, [plain(rows[key]) for key in sorted(rows)])
    channels = {it.subscription: it.channel.value for it in deliveries}
    await _note_receivers(conn, channels, listed)
    ordered = sorted(deliveries, key=lambda it: it.id)
    columns = [
        (it.id, it.subscription, it.channel.value, it.event.key, it.not_before, it.in_digest)
        for it in ordered
    ]
    await conn.execute(_ADD_DELIVERIES, *map(list, zip(*columns, strict=True)))


async def add_confirmations(conn: Connection, entries: Mapping[str, Listed]) -> None:
    """Write the mails that confirm addresses, by the keys of their settings; what was written
    before stays as it is. Their text, which has the code, is made when they are sent.
    """
    if not entries:
        return
    keys = sorted(entries)
    await conn.execute(_ADD_CONFIRMATIONS, keys)
    await _note_receivers(conn, dict.fromkeys(keys, Channel.MAIL.value), entries)
    ids, number = [delivery_id(key, key) for key in keys], len(keys)
    channels, times = [Channel.MAIL.value] * number, [None] * number
    await conn.execute(_ADD_DELIVERIES, ids, keys, channels, keys, times, [False] * number)


_ADD_MESSAGES = """
    INSERT INTO event (key, name, at, message)
    SELECT key, name, at, message FROM jsonb_populate_recordset(NULL::event, $1::jsonb)
    ON CONFLICT (key) DO NOTHING
"""
_FIRST_PLACE = """
    SELECT least(now(), min(next_at) - interval '1 microsecond') FROM delivery
    WHERE subscription = $1 AND state = 'waiting'
"""
"""A test is sent before what waits: each of these might fail and pause the receiver again."""

_NOTE_REPLAY = """
    UPDATE receiver SET replayed = $2
    WHERE subscription = $1 AND (replayed IS NULL OR replayed < $2)
"""
_TO_REPLAY = """
    FROM delivery AS o JOIN event AS e ON e.key = o.event_key
    WHERE o.subscription = $1
    AND (o.id = ANY($2) OR (o.state <> 'digested' AND e.at >= $3 AND e.at <= $4))
"""
_REPLAY = f"""
    WITH picked AS (
        SELECT o.id, e.at, e.written_at {_TO_REPLAY}
        AND o.state <> 'waiting' AND (o.replay IS NULL OR o.replay < $5)
        ORDER BY e.at LIMIT $6 FOR UPDATE OF o
    ), placed AS (
        SELECT id, row_number() OVER (ORDER BY written_at DESC, at DESC) AS place FROM picked
    )
    UPDATE delivery AS d SET state = 'waiting', attempts = 0, created_at = now(), replay = $5,
        next_at = now() - place * interval '1 microsecond', digest_at = NULL, lease = NULL,
        lease_until = NULL, why = NULL, reason = NULL, ended_at = NULL
    FROM placed WHERE d.id = placed.id
"""  # noqa: S608 - a part of a statement
"""In the order in which the events came: the oldest is due first."""


async def apply_orders(
    conn: Connection, orders: Sequence[tuple[Subscription, str, DeliveryOrder]], most: int
) -> int:
    """Do what owners have ordered, each once: of a subscription in a version. A replay takes
    ``most`` deliveries at the most. Returns how many deliveries are to be made.
    """
    made = 0
    for subscription, version, order in orders:
        channel = channel_of(subscription).value
        listed = {subscription.id: Listed(subscription.owner, version)}
        await _note_receivers(conn, {subscription.id: channel}, listed)
        if order.kind is OrderKind.TEST:
            key = f"receiver-test/{order.id}"
            message = test_message(key, subscription.owner, order.at)
            place = await conn.fetchval(_FIRST_PLACE, subscription.id)
            done = await write_message(conn, subscription.id, channel, message, place)
        else:
            noted: str = await conn.execute(_NOTE_REPLAY, subscription.id, order.id)
            if noted == "UPDATE 0":
                continue
            picked = (list(order.deliveries), order.since, order.until)
            done = await conn.execute(_REPLAY, subscription.id, *picked, order.id, most)
        made += int(done.split()[-1])
    return made


@dataclass(frozen=True, slots=True)
class ToReplay:
    """What a replay finds: ended deliveries, which it makes once more, and waiting ones, which it
    leaves alone. ``unknown``: those that were named and are none of the subscription's.
    """

    ended: int
    waiting: int
    unknown: Sequence[str]


_FIND_TO_REPLAY = f"""
    SELECT count(*) FILTER (WHERE o.state <> 'waiting') AS ended,
        count(*) FILTER (WHERE o.state = 'waiting') AS waiting,
        array(SELECT unnest($2::text[]) EXCEPT SELECT id FROM delivery WHERE subscription = $1)
            AS unknown
    {_TO_REPLAY}
"""  # noqa: S608 - a part of a statement


async def find_to_replay(
    conn: Connection,
    subscription: str,
    named: Sequence[str],
    since: datetime | None,
    until: datetime | None,
) -> ToReplay:
    """What a replay of named deliveries, or of the events of a time, finds now."""
    picked = (list(named), since, until)
    return (await fetch(ToReplay, conn, _FIND_TO_REPLAY, subscription, *picked))[0]


async def add_message(
    conn: Connection, subscription: Subscription, version: str, message: Message
) -> None:
    """Write a message that is no event's, for one subscription."""
    listed = {subscription.id: Listed(subscription.owner, version)}
    channel = channel_of(subscription).value
    await _note_receivers(conn, {subscription.id: channel}, listed)
    await write_message(conn, subscription.id, channel, message)


async def write_message(
    conn: Connection,
    subscription: str,
    channel: str,
    message: Message,
    not_before: datetime | None = None,
) -> str:
    """Write a message and its delivery, for a receiver that is known; PostgreSQL's answer."""
    key = message.key
    row = {"key": key, "name": message.name, "at": message.at, "message": message.to_json()}
    await conn.execute(_ADD_MESSAGES, [plain(row)])
    ident = delivery_id(subscription, key)
    columns = ([ident], [subscription], [channel], [key], [not_before], [False])
    done: str = await conn.execute(_ADD_DELIVERIES, *columns)
    return done


@dataclass(frozen=True, slots=True)
class ShownDelivery:
    """A delivery as its owner sees it. ``title``: None for a mail that confirms an address."""

    id: str
    event: str
    name: str
    title: str | None
    at: datetime
    state: str
    attempts: int
    next_at: datetime
    ended_at: datetime | None
    why: str | None
    reason: str | None


_LIST = """
    SELECT d.id, d.event_key AS event, e.name, e.message ->> 'title' AS title, e.at, d.state,
        d.attempts, d.next_at, d.ended_at, d.why, d.reason
    FROM delivery AS d JOIN event AS e ON e.key = d.event_key
    WHERE d.subscription = $1 AND ($2::text IS NULL OR d.state = $2)
    ORDER BY e.at DESC, d.id OFFSET $3 LIMIT $4
"""
_COUNT = """
    SELECT count(*) FROM delivery WHERE subscription = $1 AND ($2::text IS NULL OR state = $2)
"""


async def list_deliveries(
    conn: Connection, subscription: str, state: str | None, offset: int, limit: int
) -> tuple[list[ShownDelivery], int]:
    """A subscription's deliveries, those of the newest events first, and how many there are."""
    found = await fetch(ShownDelivery, conn, _LIST, subscription, state, offset, limit)
    total: int = await conn.fetchval(_COUNT, subscription, state)
    return found, total


async def _note_receivers(
    conn: Connection, channels: Mapping[str, str], listed: Mapping[str, Listed]
) -> None:
    """Create the rows of receivers; a new version resets a receiver's failures."""
    ids = sorted(channels)
    rows = [(it, channels[it], listed[it].version, listed[it].owner) for it in ids]
    await conn.execute(_ADD_RECEIVERS, *map(list, zip(*rows, strict=True)))


def _event_row(event: Event, traceparent: str | None) -> dict[str, object]:
    return {
        "key": event.key,
        "name": event.name.value,
        "at": event.at,
        "message": message_of(event).to_json(),
        "traceparent": traceparent,
    }


CLAIM = """
    WITH due AS (
        SELECT DISTINCT ON (r.owner) r.subscription, r.owner, d.next_at
        FROM receiver r CROSS JOIN LATERAL (
            SELECT next_at FROM delivery
            WHERE subscription = r.subscription AND state = 'waiting' AND digest_at IS NULL
            AND next_at <= clock_timestamp()
            AND (lease_until IS NULL OR lease_until <= clock_timestamp())
            ORDER BY next_at LIMIT 1
        ) AS d
        WHERE r.channel = $1 AND r.disabled IS NULL
        AND (r.paused_until IS NULL OR r.paused_until <= clock_timestamp())
        AND r.subscription <> ALL($2) AND r.owner <> ALL($3)
        ORDER BY r.owner, d.next_at
    ), picked AS (
        SELECT taken.id FROM (SELECT subscription FROM due ORDER BY next_at LIMIT $4) AS asked
        CROSS JOIN LATERAL (
            SELECT id FROM delivery
            WHERE subscription = asked.subscription AND state = 'waiting' AND digest_at IS NULL
            AND next_at <= clock_timestamp()
            AND (lease_until IS NULL OR lease_until <= clock_timestamp())
            ORDER BY next_at LIMIT coalesce(($8::jsonb ->> asked.subscription)::integer, $7)
            FOR UPDATE SKIP LOCKED
        ) AS taken
    )
    UPDATE delivery AS d SET attempts = d.attempts + 1, lease = $5,
        lease_until = clock_timestamp() + $6 * interval '1 s'
    FROM event AS e, receiver AS r
    WHERE d.id = ANY(ARRAY(SELECT id FROM picked)) AND e.key = d.event_key
    AND r.subscription = d.subscription
    RETURNING d.id, d.subscription, r.owner, d.attempts, d.created_at,
        d.next_at AS due_at, clock_timestamp() AS now, d.lease, d.event_key, e.message,
        e.traceparent, d.replay IS NOT NULL OR e.name = 'receiver-test' AS is_ordered,
        extract(epoch FROM
            clock_timestamp() - greatest(d.next_at, d.created_at, r.free_at))::float8 AS late_s
"""


@dataclass(frozen=True, slots=True)
class Busy:
    """Subscriptions and owners that get no further slot now."""

    subscriptions: Sequence[str]
    owners: Sequence[str]


@dataclass(frozen=True, slots=True)
class Lease:
    """The name of a worker's lease, and its length."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """Deliveries of so many receivers, and of each up to so many; of some, by name, up to as many
    as ``sizes`` has.
    """

    receivers: int
    each: int
    sizes: Mapping[str, int]


async def claim(
    conn: Connection, channel: Channel, lease: Lease, *, busy: Busy, wanted: Wanted
) -> list[Claim]:
    """Take deliveries that are due, oldest first: of at most one receiver of each owner, and of no
    ``busy`` ones.
    """
    full = (list(busy.subscriptions), list(busy.owners))
    most = (wanted.each, dict(wanted.sizes))
    terms = (channel.value, *full, wanted.receivers, lease.name, lease.seconds, *most)
    found = await fetch(Claim, conn, CLAIM, *terms)
    return sorted(found, key=lambda it: (it.due_at, it.created_at, it.id))


@dataclass(frozen=True, slots=True)
class Result:
    """What follows an attempt; ``reason``: why it failed."""

    claim: Claim
    after: Next
    reason: str


_SENT = """
    UPDATE delivery SET state = 'sent', ended_at = now(), lease = NULL, lease_until = NULL,
        reason = NULL
    WHERE id = ANY($1) AND state <> 'sent'
"""
_RETRY = """
    UPDATE delivery AS d SET next_at = r.at, reason = r.reason, lease = NULL, lease_until = NULL
    FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[]) AS r (id, lease, at, reason)
    WHERE d.id = r.id AND d.lease = r.lease AND d.state = 'waiting'
"""
_GIVE_UP = """
    UPDATE delivery AS d SET state = 'given-up', why = r.why, reason = r.reason, ended_at = now(),
        lease = NULL, lease_until = NULL
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS r (id, lease, why, reason)
    WHERE d.id = r.id AND d.lease = r.lease AND d.state = 'waiting'
"""
_RELEASE = """
    UPDATE delivery AS d SET attempts = d.attempts - 1, lease = NULL, lease_until = NULL
    FROM unnest($1::text[], $2::text[]) AS r (id, lease)
    WHERE d.id = r.id AND d.lease = r.lease AND d.state = 'waiting'
"""


async def record(conn: Connection, results: Sequence[Result]) -> None:
    """Write what follows attempts. A success is final, from any worker; a failure counts only
    while the worker still has the delivery.
    """
    sent: list[str] = []
    retried: list[tuple[str, str, datetime, str]] = []
    ended: list[tuple[str, str, str, str]] = []
    for it in results:
        ident, lease = it.claim.id, it.claim.lease
        match it.after:
            case Done():
                sent.append(ident)
            case Retry(at):
                retried.append((ident, lease, at, text(it.reason)))
            case GivenUp(why, reason):
                ended.append((ident, lease, why.value, text(reason)))
    if sent:
        await conn.execute(_SENT, sent)
    if retried:
        await conn.execute(_RETRY, *map(list, zip(*retried, strict=True)))
    if ended:
        await conn.execute(_GIVE_UP, *map(list, zip(*ended, strict=True)))


async def release(conn: Connection, claims: Sequence[Claim]) -> None:
    """Let go of deliveries that were not tried: their attempts do not count."""
    if claims:
        await conn.execute(_RELEASE, [it.id for it in claims], [it.lease for it in claims])


_COLUMNS = "subscription, version, failures, paused_until, disabled, given_up, was_disabled"
_RECEIVER = f"SELECT {_COLUMNS} FROM receiver WHERE subscription = $1"  # noqa: S608 - columns
_TROUBLED = f"""
    SELECT {_COLUMNS} FROM receiver WHERE ($1::text IS NULL OR owner = $1)
    AND (failures > 0 OR disabled IS NOT NULL) ORDER BY subscription LIMIT $2
"""  # noqa: S608 - columns


_LOCK = f"""
    SELECT {_COLUMNS} FROM receiver WHERE subscription = ANY($1) OR subscription = ANY($2)
    AND (failures > 0 OR given_up > 0 OR paused_until IS NOT NULL OR disabled IS NOT NULL
         OR was_disabled)
    ORDER BY subscription FOR UPDATE
"""  # noqa: S608 - columns


async def lock_receivers(
    conn: Connection, failed: Collection[str], sent: Collection[str]
) -> dict[str, Receiver]:
    """The health of receivers that an answer may change, locked: all of ``failed``, and those of
    ``sent`` that have failed before.
    """
    found = await fetch(Receiver, conn, _LOCK, sorted(failed), sorted(sent))
    return {it.subscription: it for it in found}


async def show_receiver(conn: Connection, subscription: str) -> Receiver | None:
    """A receiver's health."""
    found = await fetch(Receiver, conn, _RECEIVER, subscription)
    return found[0] if found else None


async def troubled_receivers(conn: Connection, owner: str | None, most: int) -> list[Receiver]:
    """Those of one owner, or of all, that fail or are disabled."""
    return await fetch(Receiver, conn, _TROUBLED, owner, most)


_DROP = """
    UPDATE delivery SET state = 'given-up', why = $2, reason = $3, ended_at = now()
    WHERE subscription = ANY($1) AND state = 'waiting' AND lease IS NULL
"""


_EXPIRE = """
    UPDATE delivery SET state = 'given-up', why = $2, reason = $3, ended_at = now()
    WHERE event_key = ANY($1) AND state = 'waiting' AND lease IS NULL
"""


async def expire_events(conn: Connection, keys: Sequence[str], reason: str) -> int:
    """Give up what waits of these events and is not under way; how many."""
    done: str = await conn.execute(_EXPIRE, list(keys), GiveUp.EXPIRED.value, reason)
    return int(done.split()[-1])


async def drop_waiting(
    conn: Connection, subscriptions: Sequence[str], why: GiveUp, reason: str
) -> int:
    """Give up what waits for these subscriptions and is not under way; how many."""
    if not subscriptions:
        return 0
    done: str = await conn.execute(_DROP, list(subscriptions), why.value, reason)
    return int(done.split()[-1])


async def save_receiver(conn: Connection, receiver: Receiver) -> int:
    """Write a receiver's health, which a failure has changed, or the first success after it. Where
    it is gone, its deliveries end; returns how many.
    """
    await conn.execute(
        "UPDATE receiver SET failures = $2, paused_until = $3, disabled = $4, given_up = $5,"
        " was_disabled = $6, free_at = greatest($3, clock_timestamp()) WHERE subscription = $1",
        receiver.subscription,
        receiver.failures,
        receiver.paused_until,
        receiver.disabled,
        receiver.given_up,
        receiver.was_disabled,
    )
    if receiver.disabled is None:
        return 0
    return await drop_waiting(conn, [receiver.subscription], GiveUp.GONE, receiver.disabled)


@dataclass(frozen=True, slots=True)
class Counts:
    """Waiting deliveries, and paused and disabled receivers."""

    webhooks: int
    mails: int
    paused: int
    disabled: int


async def counts(conn: Connection) -> Counts:
    """The numbers for the gauges."""
    sql = """
        SELECT count(*) FILTER (WHERE channel = 'webhook') AS webhooks,
               count(*) FILTER (WHERE channel = 'mail') AS mails,
               (SELECT count(*) FROM receiver WHERE paused_until > now()) AS paused,
               (SELECT count(*) FROM receiver WHERE disabled IS NOT NULL) AS disabled
        FROM delivery WHERE state = 'waiting' AND digest_at IS NULL
    """
    return (await fetch(Counts, conn, sql))[0]
