"""Subscriptions to alerts: which alerts people want."""

from typing import Any

from muster.contracts.subscriptions import Subscription
from muster.db import Connection, Pool


async def insert_subscription(conn: Connection, subscription: Subscription) -> None:
    """Make one."""
    await conn.execute(
        "INSERT INTO subscription (id, owner, content) VALUES ($1, $2, $3)",
        subscription.id,
        subscription.owner,
        _content(subscription),
    )


async def update_subscription(conn: Connection, subscription: Subscription) -> None:
    """Change one."""
    await conn.execute(
        "UPDATE subscription SET content = $2, revision = revision + 1, changed_at = now()"
        " WHERE id = $1",
        subscription.id,
        _content(subscription),
    )


async def remove_subscription(conn: Connection, ident: str) -> None:
    """Remove one; it is published as removed for a while."""
    await conn.execute(
        "UPDATE subscription SET removed_at = now(), revision = revision + 1 WHERE id = $1", ident
    )


async def remove_of_owner(conn: Connection, owner: str) -> int:
    """Remove all of one owner, and return how many."""
    return len(await conn.fetch(f"{_REMOVE} RETURNING id", owner))


async def remove_other_mails(conn: Connection, owner: str, email: str) -> int:
    """Remove an owner's subscriptions that mail to another address than this one, and return how
    many.
    """
    sql = f"{_REMOVE} AND content->>'email' <> $2 RETURNING id"
    return len(await conn.fetch(sql, owner, email))


async def remove_not_owned(conn: Connection, owner: str, virtual_clusters: list[str]) -> int:
    """Remove an owner's subscriptions to others' jobs in other virtual clusters than these, and
    return how many.
    """
    return len(await conn.fetch(_REMOVE_NOT_OWNED, owner, virtual_clusters))


async def can_notify(pool: Pool, owner: str) -> bool:
    """Whether a user has a confirmed mail address, or a subscription that is on."""
    sql = """
        SELECT EXISTS (SELECT FROM account
                       WHERE username = $1 AND email_confirmed AND email <> '')
        OR EXISTS (SELECT FROM subscription WHERE owner = $1 AND removed_at IS NULL
                   AND (content->>'enabled')::boolean)
    """
    async with pool.acquire() as conn:
        return bool(await conn.fetchval(sql, owner))


async def find_owner(conn: Connection, ident: str) -> str | None:
    """Whose it is, which never changes."""
    sql = "SELECT owner FROM subscription WHERE id = $1 AND removed_at IS NULL"
    owner: str | None = await conn.fetchval(sql, ident)
    return owner


async def lock_subscription(conn: Connection, ident: str) -> Subscription | None:
    """One, locked."""
    content = await conn.fetchval(
        "SELECT content FROM subscription WHERE id = $1 AND removed_at IS NULL FOR UPDATE", ident
    )
    return None if content is None else Subscription.model_validate(content)


async def list_subscriptions(
    conn: Connection, owner: str | None, offset: int, limit: int
) -> list[Subscription]:
    """Those of one owner, or of all, oldest first, after the first ``offset``."""
    rows = await conn.fetch(
        f"SELECT content {_OF_OWNER} ORDER BY id OFFSET $2 LIMIT $3", owner, offset, limit
    )
    return [Subscription.model_validate(row["content"]) for row in rows]


async def count_listed(conn: Connection, owner: str | None) -> int:
    """How many an owner has, or all have."""
    count: int = await conn.fetchval(f"SELECT count(*) {_OF_OWNER}", owner)
    return count


async def count_subscriptions(conn: Connection, owner: str) -> tuple[int, int]:
    """How many an owner has, and how many are published, removed ones included."""
    row = await conn.fetchrow(
        "SELECT count(*) FILTER (WHERE removed_at IS NULL), count(*) FROM subscription"
        " WHERE owner = $1",
        owner,
    )
    assert row is not None
    return row[0], row[1]


async def forget_removed(conn: Connection, days: int) -> None:
    """Forget what was removed long enough ago."""
    await conn.execute(
        "DELETE FROM subscription WHERE removed_at < now() - $1 * interval '1 day'", float(days)
    )


_REMOVE = """
    UPDATE subscription SET removed_at = now(), revision = revision + 1
    WHERE owner = $1 AND removed_at IS NULL
"""
_REMOVE_NOT_OWNED = f"""
    {_REMOVE}
    AND content->'filter'->'users' <> jsonb_build_array($1::text)
    AND NOT content->'filter'->'virtualClusters' <@ to_jsonb($2::text[])
    RETURNING id
"""
_OF_OWNER = "FROM subscription WHERE removed_at IS NULL AND ($1::text IS NULL OR owner = $1)"


def _content(subscription: Subscription) -> dict[str, Any]:
    return subscription.model_dump(mode="json", by_alias=True)
