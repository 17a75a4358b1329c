"""Bounded retention: old rows are deleted, some thousand at a time."""

from muster.db import Connection

from alerting.store.actions import IS_KNOWN

_EXPIRE = """
    UPDATE delivery SET state = 'given-up', why = 'expired', ended_at = now(),
        reason = coalesce(reason, 'its receiver was paused or unknown all the time')
    WHERE id IN (
        SELECT id FROM delivery
        WHERE state = 'waiting' AND created_at < now() - $1 * interval '1 s'
        AND (lease_until IS NULL OR lease_until <= now())
        ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
    )
"""
_STATEMENTS = (
    # Events go with their deliveries, which are all at their end by then (give_up_after_s).
    """
    DELETE FROM event WHERE key IN (
        SELECT key FROM event AS e WHERE written_at < now() - $1 * interval '1 day'
        AND NOT EXISTS (SELECT 1 FROM delivery AS d
                        WHERE d.event_key = e.key AND d.state = 'waiting')
        ORDER BY written_at LIMIT $2
    )
    """,
    """
    DELETE FROM job_watch WHERE job IN (
        SELECT job FROM job_watch WHERE quiet_since < now() - $1 * interval '1 day'
        AND state IN ('SUCCEEDED', 'STOPPED', 'FAILED') ORDER BY quiet_since LIMIT $2
    )
    """,
    # A node that did not return has no time; a time far from now is of a foreign record.
    """
    DELETE FROM node_watch WHERE node IN (
        SELECT node FROM node_watch WHERE lost_since IS NULL AND (returned_at BETWEEN
            now() - $1 * interval '1 day' AND now() + $1 * interval '1 day') IS NOT TRUE
        LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    """,
    """
    DELETE FROM dead_letter_watch WHERE (reader, topic) IN (
        SELECT reader, topic FROM dead_letter_watch
        WHERE since IS NULL AND received_at < now() - $1 * interval '1 day'
        LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    """,
    """
    DELETE FROM drift_watch WHERE gang IN (
        SELECT gang FROM drift_watch
        WHERE since IS NULL AND received_at < now() - $1 * interval '1 day'
        LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    """,
    """
    DELETE FROM clash_watch WHERE (node, address, other_address) IN (
        SELECT node, address, other_address FROM clash_watch
        WHERE since IS NULL AND received_at < now() - $1 * interval '1 day'
        LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    """,
    """
    DELETE FROM recent_event WHERE key IN (
        SELECT key FROM recent_event WHERE at < greatest(now() - interval '1 day', coalesce(
            (SELECT at FROM recent_event ORDER BY at DESC OFFSET 200000 LIMIT 1), '-infinity'))
        AND $1::float8 > 0 ORDER BY at LIMIT $2
    )
    """,
    """
    DELETE FROM rule_match WHERE (fingerprint, event_key) IN (
        SELECT fingerprint, event_key FROM rule_match
        WHERE at < now() - least($1::float8, 2) * interval '1 day' ORDER BY at LIMIT $2
    )
    """,
    f"""
    DELETE FROM action WHERE action IN (
        SELECT action FROM action
        WHERE at < now() - $1 * interval '1 day' AND NOT {IS_KNOWN} LIMIT $2
    )
    """,  # noqa: S608 - a condition of ours
    """
    DELETE FROM alert WHERE (fingerprint, starts_at) IN (
        SELECT fingerprint, starts_at FROM alert WHERE ends_at < now() - $1 * interval '1 day'
        LIMIT $2
    )
    """,
)
_RECEIVERS = """
    DELETE FROM receiver AS r WHERE subscription <> ALL($1)
    AND NOT EXISTS (SELECT 1 FROM delivery AS d
                    WHERE d.subscription = r.subscription AND d.state = 'waiting')
"""


async def expire(conn: Connection, age_s: float, rows: int) -> int:
    """End deliveries that are too old; how many."""
    done: str = await conn.execute(_EXPIRE, age_s, rows)
    return int(done.split()[-1])


async def clean(conn: Connection, *, days: int, rows: int, subscriptions: list[str]) -> int:
    """Delete rows that ended ``days`` ago, and receivers of subscriptions that are gone. Returns
    how many rows the longest deletion had, ``rows`` at the most.
    """
    counts = [
        int((await conn.execute(statement, float(days), rows)).split()[-1])
        for statement in _STATEMENTS
    ]
    await conn.execute(_RECEIVERS, subscriptions)
    return max(counts)
