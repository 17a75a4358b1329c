"""Digests: the deliveries that wait for one become one delivery of their own."""

from muster.db import Connection

from alerting.domain.deliveries import delivery_id
from alerting.domain.messages import Message, digest_message
from alerting.store.deliveries import write_message

KEY = "alerting: digests"
"""One replica at a time makes digests: two would make two of one."""

MOST = 5_000
"""The most deliveries in one digest; the rest is in the next one, some seconds later."""

_DUE = """
    SELECT DISTINCT subscription FROM delivery
    WHERE state = 'waiting' AND digest_at <= now() ORDER BY subscription LIMIT $1
"""
_PARTS = """
    SELECT d.id, d.channel, e.message, now() AS now FROM delivery AS d
    JOIN event AS e ON e.key = d.event_key
    WHERE d.subscription = $1 AND d.state = 'waiting' AND d.digest_at <= now()
    ORDER BY e.at, d.id LIMIT $2 FOR UPDATE OF d
"""
_TAKE = """
    UPDATE delivery SET state = 'digested', digest = $2, ended_at = now() WHERE id = ANY($1)
"""


async def make_digests(conn: Connection, limit: int) -> int:
    """Make those that are due, of so many subscriptions at the most; how many were made."""
    if not await conn.fetchval("SELECT pg_try_advisory_xact_lock(hashtext($1))", KEY):
        return 0
    due = [row["subscription"] for row in await conn.fetch(_DUE, limit)]
    for subscription in due:
        await _make(conn, subscription)
    return len(due)


async def _make(conn: Connection, subscription: str) -> None:
    parts = await conn.fetch(_PARTS, subscription, MOST)
    if not parts:  # they have ended meanwhile
        return
    first = parts[0]
    key = f"digest/{subscription}/{first['id']}"
    messages = [Message.from_json(row["message"]) for row in parts]
    message = digest_message(key, subscription, messages, first["now"])
    await write_message(conn, subscription, first["channel"], message)
    ident = delivery_id(subscription, key)
    await conn.execute(_TAKE, [row["id"] for row in parts], ident)
