"""SQL of what was committed since one looked last, whatever the order of commits was.

Triggers note each gang, node, key of run times, reservation, user's usage, preemption and kind of
expectation that is written, with the transaction. A transaction that a snapshot did not see is
found by the next one: so nothing is missed, and nothing found twice.
"""

import json
from dataclasses import dataclass

from muster.db import Connection

from scheduler.domain.core.holdings import UserKey
from scheduler.domain.run_times import Key

NOTHING = "1:1:"
"""The snapshot that has seen nothing."""


@dataclass(frozen=True, slots=True)
class Changed:
    """``seen``: the snapshot up to which these are the changes."""

    seen: str
    gangs: frozenset[str]
    nodes: frozenset[str]
    run_times: frozenset[Key] = frozenset()
    reservations: frozenset[str] = frozenset()
    usage: frozenset[UserKey] = frozenset()
    preemptions: frozenset[int] = frozenset()
    calibration: frozenset[str] = frozenset()


async def snapshot(conn: Connection) -> str:
    """What can be seen now."""
    seen: str = await conn.fetchval("SELECT pg_current_snapshot()::text")
    return seen


async def since(conn: Connection, seen: str) -> Changed | None:
    """What has changed since that snapshot; None where it is not kept any more. In a transaction
    that is repeatable, rows that are read beside it are of the same moment.
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
        frozenset(names.get("calibration", ())),
    )


def _user(virtual_cluster: str, is_opportunistic: bool, user: str) -> UserKey:
    return virtual_cluster, is_opportunistic, user


async def forget(conn: Connection, before: str) -> None:
    """Delete what that snapshot has seen for certain, whoever still wants to know it.

    After a backup was restored into another server, whose transactions have lower ids, what the one
    before has left there is as if of transactions to come: it goes too.
    """
    # One statement, or who froze before the commit would keep others from the leader's row; and
    # counted, so that what takes long comes before that row is held.
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
