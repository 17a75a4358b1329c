"""GPU time of jobs in a week. What ended pods held is in the Launcher's latest message on a job;
what live ones hold follows from their placements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from muster.db import Connection, fetch

from rest.domain.reports import JobUse, begin_of

AGAIN_S = 600.0
"""After so long another replica takes over a report that is not done."""
WEEKS_KEPT = 53


@dataclass(frozen=True, slots=True)
class Held:
    """GPU seconds of a job in a span of time."""

    job: str
    user: str
    name: str
    virtual_cluster: str
    held_s: float
    refunded_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """What agents know of a job's GPU seconds."""

    known_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0


async def held(conn: Connection, week: date, until: datetime) -> list[Held]:
    """What jobs held from the begin of the week on."""
    return await fetch(Held, conn, _HELD, begin_of(week), until, week)


async def claim(conn: Connection, week: date) -> bool:
    """Whether this replica is the one to make the report of this week."""
    return await conn.fetchval(_CLAIM, week, AGAIN_S) is not None


async def note_held(conn: Connection, week: date, until: datetime) -> int:
    """Keep what jobs held in the week; what is kept already stays. How many jobs are kept."""
    await conn.execute(_NOTE, begin_of(week), until, week)
    kept: int = await conn.fetchval("SELECT count(*) FROM job_usage WHERE week = $1", week)
    return kept


async def note_known(
    conn: Connection, week: date, known: Mapping[str, Known], missing: Sequence[str]
) -> None:
    """Keep what agents know of the week."""
    rows = [(job, it.known_s, it.busy_s, it.idle_s) for job, it in known.items()]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    await conn.execute(_KNOWN, week, *columns)
    await conn.execute("UPDATE usage_week SET missing = $2 WHERE week = $1", week, list(missing))


async def finish(conn: Connection, week: date) -> None:
    """The report is made and sent."""
    await conn.execute("UPDATE usage_week SET done_at = now() WHERE week = $1", week)


async def kept(conn: Connection, week: date) -> tuple[list[JobUse], list[str]] | None:
    """The jobs of a week whose report is made, and the nodes that did not tell; None: it is not."""
    missing = await conn.fetchval(_MISSING, week)
    if missing is None:
        return None
    return await jobs_of(conn, week), list(missing)


async def jobs_of(conn: Connection, week: date) -> list[JobUse]:
    """What is kept of the jobs of a week."""
    return await fetch(JobUse, conn, _KEPT, week)


async def forget_old(conn: Connection, limit: int) -> int:
    """Delete old weeks; returns how many rows of jobs."""
    await conn.execute(_FORGET_WEEKS, WEEKS_KEPT)
    return len(await conn.fetch(_FORGET, WEEKS_KEPT, limit))


_USED = """
    SELECT job.id, username, name, virtual_cluster,
           ended.held_s + live.until_s AS held_until_s, ended.refunded_s AS refunded_until_s,
           greatest(0, ended.held_s + live.until_s - coalesce(before.held_until_s, live.since_s))
               AS held_s,
           greatest(0, ended.refunded_s - coalesce(before.refunded_until_s, 0)) AS refunded_s
    FROM job
    CROSS JOIN LATERAL (
        SELECT coalesce((status #>> '{gpuTime,heldS}')::float8, 0) AS held_s,
               coalesce((status #>> '{gpuTime,refundedS}')::float8, 0) AS refunded_s
    ) AS ended
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(
                   gpus * greatest(0, extract(epoch FROM $2::timestamptz - placed_at))
               ), 0)::float8 AS until_s,
               coalesce(sum(
                   gpus * greatest(0, extract(epoch FROM $1::timestamptz - placed_at))
               ), 0)::float8 AS since_s
        FROM jsonb_array_elements(status -> 'taskRoles') AS role,
             jsonb_array_elements(role -> 'tasks') AS task,
             LATERAL (
                 SELECT jsonb_array_length(task -> 'gpus') AS gpus,
                        coalesce(task ->> 'placedAt', task ->> 'launchedAt')::timestamptz
                            AS placed_at
             ) AS its
        WHERE NOT task ? 'completedAt'
    ) AS live
    LEFT JOIN LATERAL (
        SELECT held_until_s, refunded_until_s FROM job_usage
        WHERE job_usage.job = job.id AND week < $3 ORDER BY week DESC LIMIT 1
    ) AS before ON true
    WHERE total_gpus > 0 AND status IS NOT NULL AND submitted_at < $2::timestamptz
      AND (completed_at IS NULL OR completed_at >= $1::timestamptz)
"""
_HELD = f"""
    SELECT id AS job, username AS "user", name, virtual_cluster, held_s, refunded_s
    FROM ({_USED}) AS used WHERE held_s > 0 OR refunded_s > 0
"""  # noqa: S608
_NOTE = f"""
    INSERT INTO job_usage (job, week, held_until_s, refunded_until_s, held_s, refunded_s)
    SELECT id, $3, held_until_s, refunded_until_s, held_s, refunded_s
    FROM ({_USED}) AS used WHERE held_until_s > 0 OR refunded_until_s > 0
    ON CONFLICT DO NOTHING
"""  # noqa: S608
_CLAIM = """
    INSERT INTO usage_week AS known (week) VALUES ($1)
    ON CONFLICT (week) DO UPDATE SET claimed_at = now()
    WHERE known.done_at IS NULL AND known.claimed_at < now() - $2 * interval '1 second'
    RETURNING week
"""
_KNOWN = """
    UPDATE job_usage SET known_s = new.known_s, busy_s = new.busy_s, idle_s = new.idle_s
    FROM unnest($2::text[], $3::float8[], $4::float8[], $5::float8[])
        AS new (job, known_s, busy_s, idle_s)
    WHERE week = $1 AND job_usage.job = new.job
"""
_MISSING = "SELECT missing FROM usage_week WHERE week = $1 AND done_at IS NOT NULL"
_KEPT = """
    SELECT username AS "user", name, virtual_cluster, held_s, refunded_s, known_s, busy_s, idle_s
    FROM job_usage JOIN job ON job.id = job_usage.job
    WHERE week = $1 AND (held_s > 0 OR refunded_s > 0)
"""
_FORGET_WEEKS = "DELETE FROM usage_week WHERE week < now() - $1 * interval '1 week'"
_FORGET = """
    DELETE FROM job_usage WHERE (job, week) IN (
        SELECT job, week FROM job_usage WHERE week < now() - $1 * interval '1 week' LIMIT $2
    ) RETURNING job
"""
