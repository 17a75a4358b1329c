"""Idempotency-Keys: who sent what under a key, and what was answered."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster.db import Connection, Pool


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a user, with the digest of the body that came with it."""

    username: str
    key: str
    body_digest: bytes


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a key; ``answer`` is JSON."""

    body_digest: bytes
    job: str
    answer: str


async def claim(conn: Connection, keys: Sequence[Key]) -> dict[tuple[str, str], Known]:
    """Take keys in this transaction; returns what is known of those that were taken before."""
    if not keys:
        return {}
    ordered = sorted(keys, key=lambda key: (key.username, key.key))
    users, names = [key.username for key in ordered], [key.key for key in ordered]
    digests = [key.body_digest for key in ordered]
    taken = await conn.fetch(_CLAIM, users, names, digests)
    mine = {(row["username"], row["key"]) for row in taken}
    others = [key for key in ordered if (key.username, key.key) not in mine]
    if not others:
        return {}
    rows = await conn.fetch(_KNOWN, [key.username for key in others], [key.key for key in others])
    return {
        (row["username"], row["key"]): Known(row["body_digest"], row["job"], row["answer"])
        for row in rows
    }


async def find(pool: Pool, key: Key) -> Known | None:
    """What the user was answered under this key."""
    row = await pool.fetchrow(_KNOWN, [key.username], [key.key])
    return None if row is None else Known(row["body_digest"], row["job"], row["answer"])


async def keep(conn: Connection, answers: Sequence[tuple[Key, str, str]]) -> None:
    """Remember the job and the answer of each key."""
    if answers:
        await conn.execute(
            _KEEP,
            [key.username for key, _, _ in answers],
            [key.key for key, _, _ in answers],
            [job for _, job, _ in answers],
            [answer for _, _, answer in answers],
        )


async def release(conn: Connection, keys: Sequence[Key]) -> None:
    """Release keys whose submission was rejected: the user may fix it and send it again."""
    if keys:
        await conn.execute(_RELEASE, [key.username for key in keys], [key.key for key in keys])


_CLAIM = """
    INSERT INTO idempotency (username, key, body_digest)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])
    ON CONFLICT DO NOTHING
    RETURNING username, key
"""
_KNOWN = """
    SELECT username, key, body_digest, job, answer FROM idempotency
    WHERE (username, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""
_KEEP = """
    UPDATE idempotency AS i SET job = a.job, answer = a.answer
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS a (username, key, job, answer)
    WHERE i.username = a.username AND i.key = a.key
"""
_RELEASE = """
    DELETE FROM idempotency
    WHERE (username, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""
