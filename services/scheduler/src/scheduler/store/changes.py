"""SQL of the changes committed since the last read, in whatever order they were committed.

Triggers note each written gang, node, key of run times, reservation, user's usage and preemption,
with its transaction. The next read finds transactions that the last snapshot
did not see. So no change is missed, and none is found twice.
"""

import json
from dataclasses import dataclass

from muster.db import Connection

from scheduler.domain.core.model import UserKey
from scheduler.domain.run_times import Key

NOTHING = "1:1:"
"""The snapshot that sees no transaction."""


@dataclass(frozen=True, slots=True)
class Changed:
    """``seen``: the snapshot up to which this lists the changes."""

    seen: str
    gangs: frozenset[str]
    nodes: frozenset[str]
    run_times: frozenset[Key] = frozenset()
    reservations: frozenset[str] = frozenset()
    usage: frozenset[UserKey] = frozenset()
    preemptions: frozenset[int] = frozenset()


async def snapshot(conn: Connection) -> str:
    """The present snapshot."""
    seen: str = await conn.fetchval("SELECT pg_current_snapshot()::text")
    return seen


async def since(conn: Connection, seen: str) -> Changed | None:
    """The changes since that snapshot; None if they are no longer kept. In a repeatable-read
    transaction, rows that are read with it are of the same moment.
    """
    row = await conn.fetchrow(
        "SELECT pg_current_snapshot()::text AS seen,"
        " changes_from <= pg_snapshot_xmin($1::text::pg_snapshot) AS is_kept FROM leader",
        seen,
    )
    assert row is not None
    if not row["is_kept"]:
        return None
    names: dict[str, set[str]] = {}
    for each in await conn.fetch(
        "SELECT what, name FROM change WHERE xid >= pg_snapshot_xmin($1::text::pg_snapshot)"
        " AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)",
        seen,
    ):
        names.setdefault(each["what"], set()).add(each["name"])
    return Changed(
        row["seen"],
        frozenset(names.get("gang", ())),
        frozenset(names.get("node", ())),
        frozenset(Key(*json.loads(name)) for name in names.get("run-time", ())),
        frozenset(names.get("reservation", ())),
        frozenset(_user(*json.loads(name)) for name in names.get("usage", ())),
        frozenset(map(int, names.get("preemption", ()))),
    )


def _user(virtual_cluster: str, is_opportunistic: bool, user: str) -> UserKey:
    return virtual_cluster, is_opportunistic, user


async def forget(conn: Connection, before: str) -> None:
    """Delete the changes that this snapshot has seen, whether or not a standby has read them.

    A backup that is restored into another server brings changes with higher transaction ids than
    the server's own. Those are deleted too.
    """
    # One statement: a process that froze before the commit would block the leader's row.
    # The count comes first, so that the slow part precedes the lock on that row.
    await conn.execute(
        "WITH gone AS (DELETE FROM change WHERE"
        " xid < least(pg_snapshot_xmin($1::text::pg_snapshot),"
        " pg_snapshot_xmin(pg_current_snapshot()))"
        " OR xid >= pg_snapshot_xmax(pg_current_snapshot()) RETURNING 1),"
        " counted AS (SELECT count(*) FROM gone)"
        " UPDATE leader SET changes_from = CASE"
        " WHEN changes_from >= pg_snapshot_xmax(pg_current_snapshot())"
        " THEN pg_snapshot_xmin(pg_current_snapshot())"
        " ELSE greatest(changes_from, least(pg_snapshot_xmin($1::text::pg_snapshot),"
        " pg_snapshot_xmin(pg_current_snapshot()))) END FROM counted",
        before,
    )
