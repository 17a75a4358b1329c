"""All SQL of the Launcher: jobs with their tasks, in sets; and whose time has come."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg
from muster.contracts.gangs import PodRelease
from muster.contracts.jobs import JobSpec, Retries
from muster.contracts.model import Model, Reason
from muster.contracts.verdicts import Verdict
from muster.db import Connection
from muster.states import JobPhase, TaskPhase
from pydantic import TypeAdapter

from launcher.domain.model import Job, Life, Outcome, Placement, StopCause, Task, TaskKey, wake_at

_OUTCOME = TypeAdapter(Outcome)
_PLACEMENT = TypeAdapter(Placement)


async def load(conn: Connection, ids: Sequence[str]) -> dict[str, Life]:
    """The known ones of these jobs, locked until the transaction ends."""
    jobs = [_job(row) for row in await conn.fetch(_LOAD_JOBS, ids)]
    if not jobs:
        return {}
    tasks: dict[str, dict[TaskKey, Task]] = {job.id: {} for job in jobs}
    for row in await conn.fetch(_LOAD_TASKS, list(tasks)):
        task = _task(row)
        tasks[row["job"]][task.key] = task
    return {job.id: Life(job, _in_order(job, tasks[job.id]), stored=job) for job in jobs}


def _in_order(job: Job, found: Mapping[TaskKey, Task]) -> dict[TaskKey, Task]:
    keys = ((role.name, index) for role in job.spec.task_roles for index in range(role.instances))
    return {key: found[key] for key in keys if key in found}


async def save(conn: Connection, lives: Sequence[Life]) -> None:
    """Write these jobs and those of their tasks that changed."""
    jobs = [_job_values(life) for life in lives]
    await conn.execute(_SAVE_JOBS, *map(list, zip(*jobs, strict=True)))
    tasks = [
        _task_values(life.job.id, life.tasks[key]) for life in lives for key in sorted(life.changed)
    ]
    if tasks:
        await conn.execute(_SAVE_TASKS, *map(list, zip(*tasks, strict=True)))


async def take_due(conn: Connection, now: datetime, limit: int) -> list[str]:
    """Jobs with a timer that is due, locked; those that others are at are passed over."""
    return [row["id"] for row in await conn.fetch(_TAKE_DUE, now, limit)]


async def next_due(conn: Connection) -> datetime | None:
    """When the next timer of all is due."""
    found: datetime | None = await conn.fetchval(_NEXT_DUE)
    return found


async def postpone(conn: Connection, ident: str, until: datetime) -> None:
    """Look at the timers of this job no earlier."""
    await conn.execute("UPDATE job SET wake_at = $2 WHERE id = $1", ident, until)


async def count_open(conn: Connection) -> dict[JobPhase, int]:
    """How many jobs are in each phase that is not final."""
    return {JobPhase(row["phase"]): row["count"] for row in await conn.fetch(_COUNT_OPEN)}


async def forget(conn: Connection, days: int, limit: int) -> int:
    """Delete jobs that ended so many days ago; returns how many."""
    return len(await conn.fetch(_FORGET, float(days), limit))


def _json(value: Model | None) -> str | None:
    return None if value is None else value.model_dump_json(exclude_defaults=True)


def _job_values(life: Life) -> tuple[object, ...]:
    job = life.job
    return (
        job.id,
        job.name,
        job.user,
        job.submitted_at,
        job.spec.model_dump_json(),
        job.phase.value,
        job.attempt,
        job.newest_attempt,
        _json(job.retries),
        job.accountable,
        job.streak,
        job.stop_requested_by,
        None if job.outcome is None else _OUTCOME.dump_json(job.outcome).decode(),
        _json(job.reason),
        job.dead_letter,
        job.retry_at,
        job.deadline_at,
        job.quiet_at,
        job.status_unsaid,
        job.gang_unsaid,
        job.created_at,
        job.launched_at,
        job.completed_at,
        job.attempt_created_at,
        job.attempt_launched_at,
        job.attempt_completed_at,
        wake_at(life),
    )


def _job(row: asyncpg.Record) -> Job:
    values: dict[str, Any] = {name: row[name] for name in _PLAIN_JOB}
    outcome, reason = row["outcome"], row["reason"]
    return Job(
        user=row["user_name"],
        spec=JobSpec.model_validate_json(row["spec"]),
        phase=JobPhase(row["phase"]),
        retries=Retries.model_validate_json(row["retries"]),
        outcome=None if outcome is None else _OUTCOME.validate_json(outcome),
        reason=None if reason is None else Reason.model_validate_json(reason),
        **values,
    )


def _task_values(job: str, task: Task) -> tuple[object, ...]:
    return (
        job,
        task.role,
        task.index,
        task.phase.value,
        task.attempt,
        task.accountable,
        task.streak,
        None if task.placement is None else _PLACEMENT.dump_json(task.placement).decode(),
        None if task.stop is None else task.stop.value,
        task.created_at,
        task.launched_at,
        task.completed_at,
        task.retry_at,
        task.exit_code,
        _json(task.verdict),
        _json(task.release),
    )


def _task(row: asyncpg.Record) -> Task:
    values: dict[str, Any] = {name: row[name] for name in _PLAIN_TASK}
    placement, stop, verdict, release = (
        row["placement"],
        row["stop"],
        row["verdict"],
        row["release"],
    )
    return Task(
        phase=TaskPhase(row["phase"]),
        placement=None if placement is None else _PLACEMENT.validate_json(placement),
        stop=None if stop is None else StopCause(stop),
        verdict=None if verdict is None else Verdict.model_validate_json(verdict),
        release=None if release is None else PodRelease.model_validate_json(release),
        **values,
    )


_JOB_COLUMNS = {
    "id": "text",
    "name": "text",
    "user_name": "text",
    "submitted_at": "timestamptz",
    "spec": "jsonb",
    "phase": "text",
    "attempt": "integer",
    "newest_attempt": "integer",
    "retries": "jsonb",
    "accountable": "integer",
    "streak": "integer",
    "stop_requested_by": "text",
    "outcome": "jsonb",
    "reason": "jsonb",
    "dead_letter": "text",
    "retry_at": "timestamptz",
    "deadline_at": "timestamptz",
    "quiet_at": "timestamptz",
    "status_unsaid": "boolean",
    "gang_unsaid": "boolean",
    "created_at": "timestamptz",
    "launched_at": "timestamptz",
    "completed_at": "timestamptz",
    "attempt_created_at": "timestamptz",
    "attempt_launched_at": "timestamptz",
    "attempt_completed_at": "timestamptz",
    "wake_at": "timestamptz",
}
_TASK_COLUMNS = {
    "job": "text",
    "role": "text",
    "index": "integer",
    "phase": "text",
    "attempt": "integer",
    "accountable": "integer",
    "streak": "integer",
    "placement": "jsonb",
    "stop": "text",
    "created_at": "timestamptz",
    "launched_at": "timestamptz",
    "completed_at": "timestamptz",
    "retry_at": "timestamptz",
    "exit_code": "integer",
    "verdict": "jsonb",
    "release": "jsonb",
}
_MADE_JOB = {"user_name", "phase", "wake_at"} | {c for c, t in _JOB_COLUMNS.items() if t == "jsonb"}
_PLAIN_JOB = tuple(c for c in _JOB_COLUMNS if c not in _MADE_JOB)
_MADE_TASK = {"job", "phase", "stop"} | {c for c, t in _TASK_COLUMNS.items() if t == "jsonb"}
_PLAIN_TASK = tuple(c for c in _TASK_COLUMNS if c not in _MADE_TASK)


def _select(columns: Mapping[str, str]) -> str:
    """The columns of a query; JSON comes as text, for pydantic to read."""
    return ", ".join(f"{c}::text AS {c}" if t == "jsonb" else c for c, t in columns.items())


def _upsert(table: str, columns: Mapping[str, str], key: str, fixed: Sequence[str]) -> str:
    """Insert rows given as one array a column, or update all but ``fixed`` columns."""
    arrays = ", ".join(
        f"${n}::{'text' if kind == 'jsonb' else kind}[]"
        for n, kind in enumerate(columns.values(), 1)
    )
    values = ", ".join(f"n.{c}::jsonb" if t == "jsonb" else f"n.{c}" for c, t in columns.items())
    names = ", ".join(columns)
    changes = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in fixed)
    return (
        f"INSERT INTO {table} ({names})"  # noqa: S608 - names of columns, not values
        f" SELECT {values} FROM unnest({arrays}) AS n ({names})"
        f" ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )


_LOAD_JOBS = f"SELECT {_select(_JOB_COLUMNS)} FROM job WHERE id = ANY($1) ORDER BY id FOR UPDATE"  # noqa: S608
_LOAD_TASKS = f"SELECT {_select(_TASK_COLUMNS)} FROM task WHERE job = ANY($1)"  # noqa: S608
_SAVE_JOBS = _upsert(
    "job", _JOB_COLUMNS, "id", ("id", "name", "user_name", "submitted_at", "spec", "created_at")
)
_SAVE_TASKS = _upsert("task", _TASK_COLUMNS, "job, role, index", ("job", "role", "index"))
_TAKE_DUE = """
    SELECT id FROM job WHERE wake_at <= $1 ORDER BY wake_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_NEXT_DUE = "SELECT min(wake_at) FROM job WHERE wake_at IS NOT NULL"
_COUNT_OPEN = """
    SELECT phase, count(*) FROM job WHERE phase NOT IN ('succeeded', 'failed', 'stopped')
    GROUP BY phase
"""
_FORGET = """
    DELETE FROM job WHERE id IN (
        SELECT id FROM job
        WHERE phase IN ('succeeded', 'failed', 'stopped')
          AND completed_at < now() - $1 * interval '1 day'
        LIMIT $2
    ) RETURNING id
"""
