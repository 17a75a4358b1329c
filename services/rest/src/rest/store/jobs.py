"""Jobs: written with their submission, changed by the Launcher's words, read by people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import asyncpg
from muster.contracts.jobs import Execution, JobSpec, JobState, JobStatus
from muster.contracts.model import Reason
from muster.db import Connection, Pool, transaction

from rest.domain.jobs import JobRow
from rest.domain.listing import ORDER_FIELDS, Listing
from rest.domain.views import ListedJob, WholeJob

TRIGRAM = 3
"""Characters of a keyword from which on an index finds it."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be written, as its file asks for it."""

    id: str
    username: str
    name: str
    virtual_cluster: str
    priority_class: str | None
    total_tasks: int
    total_gpus: int
    total_task_roles: int
    config: str
    spec: str
    warnings: str
    address: str


@dataclass(frozen=True, slots=True)
class StoppableJob:
    """What a stop must know of a job."""

    id: str
    username: str
    name: str
    execution: Execution
    state: JobState
    submitted_at: datetime
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class TaggedJob:
    """What a change of tags must know of a job."""

    id: str
    tags: tuple[str, ...]


async def insert_jobs(conn: Connection, jobs: Sequence[NewJob]) -> dict[str, datetime]:
    """Write jobs and their audit entries; returns the ids of those whose name was free, with their
    time of submission, which is the transaction's.
    """
    ordered = sorted(jobs, key=lambda job: (job.username, job.name))
    columns = [[getattr(job, field.name) for job in ordered] for field in fields(NewJob)]
    return {row["id"]: row["submitted_at"] for row in await conn.fetch(_INSERT, *columns)}


async def find_written(conn: Connection, ids: Sequence[str]) -> frozenset[str]:
    """Those of these jobs that are there."""
    rows = await conn.fetch("SELECT id FROM job WHERE id = ANY($1::text[])", list(ids))
    return frozenset(row["id"] for row in rows)


async def load_jobs(conn: Connection, ids: Sequence[str]) -> Mapping[str, JobRow]:
    """The rows of jobs, locked in the order of their ids."""
    rows = await conn.fetch(_LOAD, list(ids))
    return {
        row["id"]: JobRow(
            row["id"], Execution(row["execution"]), JobState(row["state"]), row["attempt"]
        )
        for row in rows
    }


async def save_jobs(conn: Connection, jobs: Sequence[JobRow]) -> None:
    """Write what has become of jobs; the latest message about a retried attempt stays."""
    updated = [(job, job.status) for job in jobs if job.status is not None]
    if updated:
        ids = [job.id for job, _ in updated]
        await conn.execute(_KEEP_ATTEMPTS, ids, [job.attempt for job, _ in updated])
        columns = zip(*(_status_columns(job, status) for job, status in updated), strict=True)
        await conn.execute(_SAVE, *map(list, columns))
    not_updated = [job for job in jobs if job.status is None]
    if not_updated:
        reasons = [_dump(job.reason) for job in not_updated]
        await conn.execute(_SAVE_REASON, [job.id for job in not_updated], reasons)


def _status_columns(job: JobRow, status: JobStatus) -> tuple[object, ...]:
    return (
        job.id,
        job.state.value.upper(),
        status.attempt,
        status.retries.user,
        status.retries.platform,
        status.retries.resource,
        status.retry_at,
        status.created_at,
        status.launched_at,
        status.completed_at,
        status.verdict.code if status.verdict else None,
        _dump(job.reason),
        status.model_dump_json(exclude_none=True),
    )


def _dump(reason: Reason | None) -> str | None:
    return None if reason is None else reason.model_dump_json(exclude_none=True)


async def lock_job(conn: Connection, username: str, name: str) -> StoppableJob | None:
    """A job, locked."""
    row = await conn.fetchrow(_LOCK, username, name)
    if row is None:
        return None
    return StoppableJob(
        row["id"],
        row["username"],
        row["name"],
        Execution(row["execution"]),
        JobState(row["state"]),
        row["submitted_at"],
        JobSpec.model_validate_json(row["spec"]),
    )


async def mark_stopping(conn: Connection, job: str, by: str) -> None:
    """The job shall stop; users see it at once."""
    await conn.execute(_MARK_STOPPING, job, by)


async def lock_tags(conn: Connection, username: str, name: str) -> TaggedJob | None:
    """A job's tags, locked."""
    row = await conn.fetchrow(_LOCK_TAGS, username, name)
    return None if row is None else TaggedJob(row["id"], tuple(row["tags"]))


async def save_tags(conn: Connection, job: str, tags: Sequence[str]) -> None:
    """Write a job's tags."""
    await conn.execute("UPDATE job SET tags = $2 WHERE id = $1", job, list(tags))


async def find_job(pool: Pool | Connection, username: str, name: str) -> WholeJob | None:
    """A job with the Launcher's latest message."""
    row = await pool.fetchrow(_FIND, username, name)
    if row is None:
        return None
    return WholeJob(_listed(row), row["reason"], row["status"], row["warnings"], row["spec"])


async def is_there(conn: Connection, username: str, name: str) -> bool:
    """Whether there is such a job."""
    sql = "SELECT EXISTS (SELECT FROM job WHERE username = $1 AND name = $2)"
    found: bool = await conn.fetchval(sql, username, name)
    return found


async def newest_names(conn: Connection, most: int) -> list[str]:
    """The names of the newest jobs, as ``user~name``."""
    sql = "SELECT username || '~' || name AS job FROM job ORDER BY submitted_at DESC, id LIMIT $1"
    return [row["job"] for row in await conn.fetch(sql, most)]


async def find_attempt(pool: Pool, job: str, attempt: int) -> dict[str, Any] | None:
    """The latest message about a job attempt that was retried."""
    status: dict[str, Any] | None = await pool.fetchval(
        "SELECT status FROM job_attempt WHERE job = $1 AND attempt = $2", job, attempt
    )
    return status


async def list_attempts(pool: Pool, job: str) -> list[int]:
    """The numbers of the newest 20 attempts that were retried."""
    rows = await pool.fetch(
        "SELECT attempt FROM job_attempt WHERE job = $1 ORDER BY attempt DESC LIMIT 20", job
    )
    return [row["attempt"] for row in rows]


async def find_config(pool: Pool, username: str, name: str) -> str | None:
    """The file of a job as it was sent."""
    config: str | None = await pool.fetchval(_CONFIG, username, name)
    return config


async def list_jobs(pool: Pool, listing: Listing) -> tuple[list[ListedJob], int | None]:
    """One page of jobs, and how many there are on all pages where that is asked."""
    where, args = conditions(listing)
    order = ORDER_FIELDS[listing.order]
    direction = "DESC" if listing.is_descending else "ASC"
    page = f"OFFSET ${len(args) + 1} LIMIT ${len(args) + 2}"
    sql = f"{_LIST} {where} ORDER BY {order} {direction}, id {direction} {page}"
    async with transaction(pool) as conn:
        # A rare keyword wants the index of keywords, a frequent one that of the order.
        await conn.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        rows = await conn.fetch(sql, *args, listing.offset, listing.limit)
        total = (
            await conn.fetchval(f"{_COUNT} {where}", *args) if listing.with_total_count else None
        )
    return [_listed(row) for row in rows], total


def conditions(listing: Listing) -> tuple[str, list[object]]:
    """The WHERE clause of what is asked, and its arguments."""
    asked: list[tuple[str, object]] = [
        ("username = ANY({})", listing.usernames),
        ("virtual_cluster = ANY({})", listing.virtual_clusters),
        ("state = ANY({})", listing.states),
        ("coalesce(priority_class, 'default') = ANY({})", listing.priorities),
        (_HAS_KEYWORD, listing.keyword),
        # As the index job_tags has it, which leaves out jobs without tags.
        ("cardinality(tags) > 0 AND tags && {}", listing.tags),
        ("NOT tags && {}", listing.no_tags),
    ]
    if listing.keyword is not None and len(listing.keyword) >= TRIGRAM:
        asked.append((_HAS_TRIGRAMS, listing.keyword))
    given = [(text, value) for text, value in asked if value is not None]
    texts = [text.replace("{}", f"${n}") for n, (text, _) in enumerate(given, start=1)]
    return f"WHERE {' AND '.join(texts)}" if texts else "", [value for _, value in given]


_LISTED = tuple(field.name for field in fields(ListedJob))


def _listed(row: asyncpg.Record) -> ListedJob:
    return ListedJob(*(row[name] for name in _LISTED))


async def forget_answers(conn: Connection, hours: int, most: int) -> int:
    """Forget Idempotency-Keys that are too old, at most so many; how many."""
    done: str = await conn.execute(
        "DELETE FROM idempotency WHERE (username, key) IN (SELECT username, key FROM idempotency"
        " WHERE made_at < now() - $1 * interval '1 hour' ORDER BY made_at LIMIT $2)",
        float(hours),
        most,
    )
    return int(done.split()[-1])


def warnings_json(warnings: Sequence[Mapping[str, object]]) -> str:
    """Warnings as they are stored."""
    return json.dumps(list(warnings))


_INSERT = """
    WITH file AS (
        SELECT * FROM unnest(
            $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[],
            $7::integer[], $8::integer[], $9::text[], $10::text[], $11::text[], $12::text[]
        ) AS f (id, username, name, virtual_cluster, priority_class, total_tasks, total_gpus,
                total_task_roles, config, spec, warnings, address)
    ), accepted AS (
        INSERT INTO job (id, username, name, virtual_cluster, priority_class, total_tasks,
                         total_gpus, total_task_roles, submitted_at)
        SELECT id, username, name, virtual_cluster, priority_class, total_tasks, total_gpus,
               total_task_roles, now()
        FROM file
        ON CONFLICT (username, name) DO NOTHING
        RETURNING id, submitted_at
    ), written AS (
        INSERT INTO job_file (job, config, spec, warnings)
        SELECT id, config, spec, warnings::jsonb FROM file JOIN accepted USING (id)
    ), audited AS (
        INSERT INTO audit (username, action, object, address, detail)
        SELECT username, 'job.submit', username || '~' || name, address,
               jsonb_build_object('job', id)
        FROM file JOIN accepted USING (id)
    )
    SELECT id, submitted_at FROM accepted
"""
_LOAD = """
    SELECT id, execution, state, attempt FROM job WHERE id = ANY($1::text[])
    ORDER BY id FOR UPDATE
"""
_KEEP_ATTEMPTS = """
    INSERT INTO job_attempt (job, attempt, status)
    SELECT job.id, job.attempt, job.status
    FROM job JOIN unnest($1::text[], $2::integer[]) AS new (id, attempt) USING (id)
    WHERE new.attempt <> job.attempt AND job.status IS NOT NULL
    ON CONFLICT DO NOTHING
"""
_SAVE = """
    UPDATE job SET
        state = new.state, attempt = new.attempt, retries_user = new.retries_user,
        retries_platform = new.retries_platform, retries_resource = new.retries_resource,
        retry_at = new.retry_at, created_at = new.created_at, launched_at = new.launched_at,
        completed_at = new.completed_at, exit_code = new.exit_code,
        reason = new.reason::jsonb, status = new.status::jsonb
    FROM unnest(
        $1::text[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::integer[],
        $7::timestamptz[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[],
        $11::integer[], $12::text[], $13::text[]
    ) AS new (id, state, attempt, retries_user, retries_platform, retries_resource, retry_at,
               created_at, launched_at, completed_at, exit_code, reason, status)
    WHERE job.id = new.id
"""
_SAVE_REASON = """
    UPDATE job SET reason = new.reason::jsonb
    FROM unnest($1::text[], $2::text[]) AS new (id, reason) WHERE job.id = new.id
"""
_LOCK = """
    SELECT job.id, username, name, execution, state, submitted_at, spec
    FROM job JOIN job_file ON job_file.job = job.id
    WHERE username = $1 AND name = $2 FOR UPDATE OF job
"""
_LOCK_TAGS = "SELECT id, tags FROM job WHERE username = $1 AND name = $2 FOR UPDATE"
_MARK_STOPPING = """
    UPDATE job SET execution = 'STOP', stop_requested_by = $2, state = 'STOPPING' WHERE id = $1
"""
_FIND = f"""
    SELECT {", ".join(_LISTED)}, reason, status, warnings,
           CASE WHEN status IS NULL THEN spec END AS spec
    FROM job JOIN job_file ON job_file.job = job.id
    WHERE username = $1 AND name = $2
"""  # noqa: S608 - the names of columns, not values
_CONFIG = """
    SELECT config FROM job JOIN job_file ON job_file.job = job.id WHERE username = $1 AND name = $2
"""
_HAS_KEYWORD = """
    (strpos(lower(username), lower({}::text)) > 0 OR strpos(lower(name), lower({}::text)) > 0
     OR strpos(lower(virtual_cluster), lower({}::text)) > 0)
"""
_HAS_TRIGRAMS = "trigrams(username || ' ' || name || ' ' || virtual_cluster) @> trigrams({}::text)"
"""As the index job_trigrams has it: it finds few rows, of which each is then looked at."""
_LIST = f"SELECT {', '.join(_LISTED)} FROM job"  # noqa: S608 - columns
_COUNT = "SELECT count(*) FROM job"
