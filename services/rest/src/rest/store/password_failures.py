"""Failed passwords: a count by subject, which starts anew when its time is over."""

from collections.abc import Mapping, Sequence

from muster.db import Connection


async def wait_s(conn: Connection, limits: Mapping[bytes, int]) -> int | None:
    """How long a subject that has its limit must wait, in seconds; None where none has."""
    seconds: int | None = await conn.fetchval(_WAIT, list(limits), list(limits.values()))
    return seconds


async def count(conn: Connection, limits: Mapping[bytes, int], window_s: float) -> bool:
    """Count a failure of each subject; False where one has more than its limit by it. Others who
    count one of them wait for the end of the transaction.
    """
    rows = await conn.fetch(_COUNT, list(limits), window_s)
    return all(row["failures"] <= limits[row["subject"]] for row in rows)


async def forgive(conn: Connection, whole: Sequence[bytes], once: bytes) -> None:
    """Forget all failures of some subjects, and the last one of another."""
    await conn.execute(_LOCK, [*whole, once])
    await conn.execute("DELETE FROM password_failure WHERE subject = ANY($1)", list(whole))
    await conn.execute(
        "UPDATE password_failure SET failures = failures - 1 WHERE subject = $1 AND failures > 0",
        once,
    )


async def forget_over(conn: Connection, most: int) -> int:
    """Remove counts whose time is over, at most so many; how many."""
    done: str = await conn.execute(_FORGET, most)
    return int(done.split()[-1])


_WAIT = """
    SELECT ceil(extract(epoch FROM max(expires_at) - now()))::integer
    FROM password_failure JOIN unnest($1::bytea[], $2::integer[]) AS f (subject, most)
        USING (subject)
    WHERE expires_at > now() AND failures >= most
"""
_COUNT = """
    INSERT INTO password_failure AS f (subject, failures, expires_at)
    SELECT subject, 1, now() + $2 * interval '1 s' FROM unnest($1::bytea[]) AS s (subject)
    ORDER BY subject
    ON CONFLICT (subject) DO UPDATE SET
        failures = CASE WHEN f.expires_at > now() THEN f.failures + 1 ELSE 1 END,
        expires_at = CASE WHEN f.expires_at > now() THEN f.expires_at ELSE excluded.expires_at END
    RETURNING subject, failures
"""
_FORGET = """
    DELETE FROM password_failure WHERE subject IN (
        SELECT subject FROM password_failure WHERE expires_at <= now()
        LIMIT $1 FOR UPDATE SKIP LOCKED
    )
"""
_LOCK = """
    SELECT FROM password_failure WHERE subject = ANY($1::bytea[]) ORDER BY subject FOR UPDATE
"""
