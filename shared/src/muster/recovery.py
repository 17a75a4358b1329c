"""What an operator does to the exchange: bring dead letters back, and recover from a backup.

Both work on one service's schema, in bounded transactions, while the service runs or not; its relay
publishes what they write.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from muster.contracts.topics import Kind, Service
from muster.db import Connection
from muster.exchange import Exchange, resync, speak
from muster.subjects import Subjects

ROWS = 500
"""Subjects of one transaction."""


async def redrive(conn: Connection, me: Service) -> int:
    """Say again, as new, every word that the other side could not handle; returns how many."""
    return await _say_again(conn, me, _REFUSED, speak)


async def resync_all(conn: Connection, me: Service) -> int:
    """After a restored backup: say every open subject's last word again; returns how many."""
    return await _say_again(conn, me, _OPEN, resync)


async def _say_again(
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
            subjects = Subjects(conn, me, now)
            await subjects.load(keys)
            for key in keys:
                subjects.say_again(key, how)
            await subjects.save()
        count += len(rows)
        after = (rows[-1]["kind"], rows[-1]["subject"])


_REFUSED = """
    SELECT kind, subject FROM subject WHERE refused > 0 AND word IS NOT NULL
    AND (kind, subject) > ($1, $2) ORDER BY kind, subject LIMIT $3
"""
_OPEN = """
    SELECT kind, subject FROM subject WHERE is_open AND word IS NOT NULL
    AND (kind, subject) > ($1, $2) ORDER BY kind, subject LIMIT $3
"""
