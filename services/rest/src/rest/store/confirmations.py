"""Codes that are mailed to addresses: who asked for them, for which address, and until when."""

import asyncpg
from muster.contracts.confirmations import Confirmation
from muster.db import Connection


async def wait_s(conn: Connection, username: str, email: str, most: int) -> int | None:
    """The wait in seconds until one more code may be mailed; None: now. In an hour ``most`` codes
    go out for one user, and as many to one address, for all callers. A caller that comes
    meanwhile waits for the end of the transaction.
    """
    await conn.execute(_LOCK)
    seconds: int | None = await conn.fetchval(_WAIT, username, email, most - 1)
    return seconds


async def insert(conn: Connection, ident: str, username: str, email: str, life_s: int) -> None:
    """Make one; it is valid for ``life_s``."""
    await conn.execute(_INSERT, ident, username, email, life_s)


async def find_open(conn: Connection, username: str) -> Confirmation | None:
    """The one of a user that is still valid."""
    row = await conn.fetchrow(_OPEN, username)
    return None if row is None else of_row(row)


def of_row(row: asyncpg.Record) -> Confirmation:
    """A row as it is published."""
    return Confirmation(
        id=row["id"], user=row["username"], email=row["email"], expires_at=row["expires_at"]
    )


async def end_of_user(conn: Connection, username: str) -> None:
    """End those of a user: their codes are valid no more. As `wait_s` may follow, it locks the same
    first.
    """
    await conn.execute(_LOCK)
    await conn.execute(f"{_END} username = $1", username)


async def end_expired(conn: Connection) -> None:
    """End those that have expired, so that Alerting stops mailing them."""
    await conn.execute(f"{_END} expires_at <= now()")


async def forget_ended(conn: Connection, days: int) -> None:
    """Forget those that ended long enough ago; the hour in which they count is over."""
    await conn.execute(
        "DELETE FROM confirmation WHERE ended_at < now() - $1 * interval '1 day'", float(days)
    )


_LOCK = "LOCK TABLE confirmation IN SHARE ROW EXCLUSIVE MODE"
_WAIT = """
    SELECT ceil(extract(epoch FROM max(made_at) + interval '1 hour' - now()))::integer FROM (
        (SELECT made_at FROM confirmation WHERE username = $1
         ORDER BY made_at DESC OFFSET $3 LIMIT 1)
        UNION ALL
        (SELECT made_at FROM confirmation WHERE lower(email) = lower($2)
         ORDER BY made_at DESC OFFSET $3 LIMIT 1)
    ) AS last WHERE made_at > now() - interval '1 hour'
"""
_INSERT = """
    INSERT INTO confirmation (id, username, email, expires_at)
    VALUES ($1, $2, $3, now() + $4 * interval '1 s')
"""
_OPEN = """
    SELECT * FROM confirmation
    WHERE username = $1 AND ended_at IS NULL AND expires_at > now()
"""
_END = """
    UPDATE confirmation SET ended_at = now(), revision = revision + 1 WHERE ended_at IS NULL AND
"""
