"""Gangs of which the Scheduler's books are, or were, wrong."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import asyncpg
from muster.db import Connection

from alerting.domain.drifts import DriftWatch, due_at
from alerting.domain.policy import Policy
from alerting.store.rows import upsert, upsert_sql

COLUMNS = ("gang", "newest_at", "heard_at", "since", "due_at")
_DRIFTS = "SELECT * FROM drift_watch WHERE gang = ANY($1) ORDER BY gang FOR UPDATE"
_DUE = """
    SELECT * FROM drift_watch WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_SAVE = upsert_sql("drift_watch", COLUMNS, ["gang"])


async def load_drifts(conn: Connection, gangs: Iterable[str]) -> dict[str, DriftWatch]:
    """The watches of these gangs, locked."""
    wanted = sorted(set(gangs))
    return _drifts(await conn.fetch(_DRIFTS, wanted)) if wanted else {}


async def due_drifts(conn: Connection, now: datetime, limit: int) -> dict[str, DriftWatch]:
    """Watches whose time has come and that nobody else handles now, locked."""
    return _drifts(await conn.fetch(_DUE, now, limit))


async def save_drifts(
    conn: Connection, watches: Sequence[DriftWatch], known: Sequence[str], policy: Policy
) -> None:
    """Write watches."""
    rows = [
        {
            "gang": it.gang,
            "newest_at": it.newest_at,
            "heard_at": it.heard_at,
            "since": it.since,
            "due_at": due_at(it, policy),
        }
        for it in watches
    ]
    await upsert(conn, _SAVE, rows, known)


def _drifts(rows: Sequence[asyncpg.Record]) -> dict[str, DriftWatch]:
    return {
        row["gang"]: DriftWatch(row["gang"], row["newest_at"], row["heard_at"], row["since"])
        for row in rows
    }
