"""Mutes of alerts and jobs, until a time."""

from muster.contracts.alerts import Mute
from muster.db import Connection

_STANDING = "FROM mute WHERE removed_at IS NULL AND until_at > now()"
_SHOWN = f"{_STANDING} AND ($1::text IS NULL OR owner = $1)"


async def insert_mute(conn: Connection, mute: Mute) -> None:
    """Make one."""
    content = mute.model_dump(mode="json", by_alias=True)
    sql = "INSERT INTO mute (id, owner, content, until_at) VALUES ($1, $2, $3, $4)"
    await conn.execute(sql, mute.id, mute.owner, content, mute.until)


async def list_mutes(conn: Connection, owner: str | None, offset: int, limit: int) -> list[Mute]:
    """Those of an owner, or all, oldest first."""
    sql = f"SELECT content {_SHOWN} ORDER BY id OFFSET $2 LIMIT $3"
    return [
        Mute.model_validate(row["content"]) for row in await conn.fetch(sql, owner, offset, limit)
    ]


async def count_mutes(conn: Connection, owner: str | None) -> int:
    """How many there are."""
    found: int = await conn.fetchval(f"SELECT count(*) {_SHOWN}", owner)
    return found


async def count_of_owner(conn: Connection, owner: str | None) -> tuple[int, int]:
    """How many stand that are an owner's, or everybody's, and how many are published, those that
    are over included. Others who count wait for the end of the transaction.
    """
    key = f"rest: mutes of {owner or '(everybody)'}"
    await conn.execute("SELECT pg_advisory_xact_lock(hashtext($1))", key)
    row = await conn.fetchrow(
        "SELECT count(*) FILTER (WHERE removed_at IS NULL AND until_at > now()), count(*)"
        " FROM mute WHERE owner IS NOT DISTINCT FROM $1",
        owner,
    )
    assert row is not None
    return row[0], row[1]


async def lock_mute(conn: Connection, ident: str) -> Mute | None:
    """One that stands, locked."""
    content = await conn.fetchval(f"SELECT content {_STANDING} AND id = $1 FOR UPDATE", ident)
    return None if content is None else Mute.model_validate(content)


async def remove_mute(conn: Connection, ident: str) -> None:
    """End one; it is published as removed for a while."""
    sql = "UPDATE mute SET removed_at = now(), revision = revision + 1 WHERE id = $1"
    await conn.execute(sql, ident)


async def forget_over(conn: Connection, days: int) -> None:
    """Forget what has been over for long enough."""
    sql = """
        DELETE FROM mute WHERE least(removed_at, until_at) < now() - $1 * interval '1 day'
    """
    await conn.execute(sql, float(days))
