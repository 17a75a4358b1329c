"""The watches of jobs and nodes: loaded locked in one order, saved in one statement each."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from datetime import datetime

import asyncpg
from muster.contracts.jobs import JobState
from muster.db import Connection

from alerting.domain.jobs import Watch
from alerting.domain.jobs import due_at as job_due
from alerting.domain.nodes import Loss, NodeWatch, Return
from alerting.domain.nodes import due_at as node_due
from alerting.domain.policy import Policy
from alerting.store.rows import upsert, upsert_sql

JOB_COLUMNS = (
    "job",
    "revision",
    "content",
    "name",
    '"user"',
    "virtual_cluster",
    "state",
    "attempt",
    "has_reason",
    "dead_letter",
    "rejected_at",
    "quiet_since",
    "stuck_since",
    "has_run",
    "waits_since",
    "expected_start",
    "late_since",
    "due_at",
)
_JOBS = "SELECT * FROM job_watch WHERE job = ANY($1) ORDER BY job FOR UPDATE"
_DUE_JOBS = """
    SELECT * FROM job_watch WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_SAVE_JOBS = upsert_sql("job_watch", JOB_COLUMNS, ["job"])


async def load_jobs(conn: Connection, ids: Iterable[str]) -> dict[str, Watch]:
    """The watches of these jobs, locked."""
    wanted = sorted(set(ids))
    return _jobs(await conn.fetch(_JOBS, wanted)) if wanted else {}


async def due_jobs(conn: Connection, now: datetime, limit: int) -> dict[str, Watch]:
    """Due watches that no other replica handles now, locked."""
    return _jobs(await conn.fetch(_DUE_JOBS, now, limit))


_ENDED_JOBS = """
    SELECT name FROM unnest($1::text[]) AS wanted (name) CROSS JOIN LATERAL (
        SELECT state FROM job_watch AS w
        WHERE w."user" = split_part(wanted.name, '~', 1)
        AND w.name = substr(wanted.name, strpos(wanted.name, '~') + 1)
        ORDER BY job DESC LIMIT 1
    ) AS newest WHERE state IN ('SUCCEEDED', 'STOPPED', 'FAILED')
"""


async def ended_jobs(conn: Connection, names: Collection[str]) -> frozenset[str]:
    """Those of these jobs, as ``user~name``, that have ended."""
    if not names:
        return frozenset()
    return frozenset(row["name"] for row in await conn.fetch(_ENDED_JOBS, sorted(names)))


async def save_jobs(
    conn: Connection, watches: Sequence[Watch], known: Sequence[str], policy: Policy
) -> None:
    """Write watches."""
    rows = [_fields(it) | {"due_at": job_due(it, policy)} for it in watches]
    await upsert(conn, _SAVE_JOBS, rows, known)


_FORGET_JOBS = """
    DELETE FROM job_watch WHERE job IN (
        SELECT job FROM job_watch WHERE quiet_since < now() - $1 * interval '1 day'
        ORDER BY quiet_since LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING *
"""


async def forget_jobs(conn: Connection, days: int, limit: int) -> list[Watch]:
    """Remove the watches of jobs without messages for so many days, open or not; returns them."""
    return list(_jobs(await conn.fetch(_FORGET_JOBS, float(days), limit)).values())


def _jobs(rows: Sequence[asyncpg.Record]) -> dict[str, Watch]:
    found = {}
    for row in rows:
        values = dict(row)
        del values["due_at"]
        found[row["job"]] = Watch(**values | {"state": JobState(row["state"])})
    return found


NODE_COLUMNS = (
    "node",
    "lost_lease",
    "lost_since",
    "received_at",
    "returned_lease",
    "returned_at",
    "due_at",
)
_NODES = "SELECT * FROM node_watch WHERE node = ANY($1) ORDER BY node FOR UPDATE"
_DUE_NODES = """
    SELECT * FROM node_watch WHERE due_at <= $1 OR (due_at IS NOT NULL AND node = ANY($3))
    ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_SAVE_NODES = upsert_sql("node_watch", NODE_COLUMNS, ["node"])


async def load_nodes(conn: Connection, names: Iterable[str]) -> dict[str, NodeWatch]:
    """The watches of these nodes, locked."""
    wanted = sorted(set(names))
    return _nodes(await conn.fetch(_NODES, wanted)) if wanted else {}


async def due_nodes(
    conn: Connection, now: datetime, limit: int, removed: Collection[str]
) -> dict[str, NodeWatch]:
    """Watches that are due, or that wait for removed nodes, and that no other replica handles now,
    locked.
    """
    return _nodes(await conn.fetch(_DUE_NODES, now, limit, list(removed)))


async def save_nodes(
    conn: Connection, watches: Sequence[NodeWatch], known: Sequence[str], policy: Policy
) -> None:
    """Write watches."""
    await upsert(conn, _SAVE_NODES, [_node_row(it, policy) for it in watches], known)


def _node_row(watch: NodeWatch, policy: Policy) -> dict[str, object]:
    loss, ended = watch.loss, watch.ended
    return {
        "node": watch.node,
        "lost_lease": loss and loss.lease,
        "lost_since": loss and loss.since,
        "received_at": loss and loss.received_at,
        "returned_lease": ended and ended.lease,
        "returned_at": ended and ended.at,
        "due_at": node_due(watch, policy),
    }


def _nodes(rows: Sequence[asyncpg.Record]) -> dict[str, NodeWatch]:
    found = {}
    for row in rows:
        lost_since, returned_at = row["lost_since"], row["returned_at"]
        found[row["node"]] = NodeWatch(
            row["node"],
            Loss(row["lost_lease"], lost_since, row["received_at"]) if lost_since else None,
            Return(row["returned_lease"], returned_at) if returned_at else None,
        )
    return found


def _fields(row: Watch) -> dict[str, object]:
    """A flat dataclass as a row; dataclasses.asdict would copy every value deeply."""
    return {it.name: getattr(row, it.name) for it in fields(row)}
