"""Republishes rejected messages, and resyncs: for an operator, or a start on a restored database.
Both work on one service's schema, in bounded transactions, while the service runs or not. A running
service publishes what they write within seconds.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from muster.contracts.topics import Kind, Service
from muster.db import Connection, Transaction
from muster.exchange import Exchange, next_revision, resync
from muster.subjects import Subjects

ROWS = 500
"""Subjects of one transaction."""


async def redrive(conn: Connection, me: Service) -> int:
    """Publish every rejected message again, under a new revision; returns how many."""
    return await _publish_again(conn, me, _REJECTED, next_revision)


async def resync_all(conn: Connection, me: Service, floor: int = 0) -> int:
    """Publish the latest message of every open subject again, above every revision that was used
    before, and above the ``floor``; returns how many.
    """
    return await _publish_again(conn, me, _OPEN, partial(resync, floor=floor))


async def _publish_again(
    conn: Connection, me: Service, query: str, how: Callable[[Exchange, datetime], Exchange]
) -> int:
    count, after = 0, ("", "")
    while True:
        async with conn.transaction():
            now = await conn.fetchval("SELECT clock_timestamp()")
            rows = await conn.fetch(query, *after, ROWS)
            if not rows:
                return count
            keys: Sequence[tuple[Kind, str]] = [(Kind(r["kind"]), r["subject"]) for r in rows]
            subjects = Subjects(Transaction(conn, now), me)
            await subjects.load(keys)
            for key in keys:
                subjects.publish_again(key, how)
            await subjects.save()
        count += len(rows)
        after = (rows[-1]["kind"], rows[-1]["subject"])


# By the other side, or by the bus.
_REJECTED = """
    SELECT kind, subject FROM subject WHERE rejected > 0 AND message IS NOT NULL
    AND (kind, subject) > ($1, $2) ORDER BY kind, subject LIMIT $3
"""
_OPEN = """
    SELECT kind, subject FROM subject WHERE is_open AND message IS NOT NULL
    AND (kind, subject) > ($1, $2) ORDER BY kind, subject LIMIT $3
"""
