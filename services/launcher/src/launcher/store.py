"""All SQL of the Launcher: jobs with their tasks, in sets; and jobs with a due timer."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import asyncpg
from muster.bounded import ByUser
from muster.db import Connection
from pydantic import TypeAdapter

from launcher.domain.model import Job, JobWithTasks, Task, TaskKey, wake_at
from launcher.domain.states import JobPhase

_JOB = TypeAdapter(Job)
_TASK = TypeAdapter(Task)


async def load(conn: Connection, ids: Sequence[str]) -> dict[str, JobWithTasks]:
    """The known ones of these jobs, locked until the transaction ends."""
    jobs = [_job(row) for row in await conn.fetch(_LOAD_JOBS, ids)]
    if not jobs:
        return {}
    tasks: dict[str, dict[TaskKey, Task]] = {job.id: {} for job in jobs}
    for row in await conn.fetch(_LOAD_TASKS, list(tasks)):
        task = _TASK.validate_json(row["state"])
        tasks[row["job"]][task.key] = task
    return {job.id: JobWithTasks(job, _in_order(job, tasks[job.id]), stored=job) for job in jobs}


def _job(row: asyncpg.Record) -> Job:
    """The job, from its specification and the rest of it, both as JSON texts."""
    spec, state = row["spec"], row["state"]
    return _JOB.validate_json(f'{{"spec":{spec},{state[1:]}')


def _in_order(job: Job, found: Mapping[TaskKey, Task]) -> Mapping[TaskKey, Task]:
    if len(found) < 2:
        return found
    keys = ((role.name, index) for role in job.spec.task_roles for index in range(role.instances))
    return {key: found[key] for key in keys if key in found}


async def save(conn: Connection, jobs_with_tasks: Sequence[JobWithTasks]) -> None:
    """Write these jobs and those of their tasks that changed."""
    jobs = [_job_values(job_with_tasks) for job_with_tasks in jobs_with_tasks]
    tasks = [
        _task_values(job_with_tasks.job.id, job_with_tasks.tasks[key])
        for job_with_tasks in jobs_with_tasks
        for key in sorted(job_with_tasks.changed)
    ]
    columns = [*zip(*jobs, strict=True), *(zip(*tasks, strict=True) if tasks else _NO_TASKS)]
    await conn.execute(_SAVE, *map(list, columns))


def _job_values(job_with_tasks: JobWithTasks) -> tuple[object, ...]:
    job = job_with_tasks.job
    state = _JOB.dump_json(job, exclude=_SPEC, exclude_defaults=True).decode()
    spec = None if job_with_tasks.stored else job.spec.model_dump_json()
    return (job.id, spec, state, job.phase.value, wake_at(job_with_tasks), job.completed_at)


def _task_values(job: str, task: Task) -> tuple[object, ...]:
    state = _TASK.dump_json(task, exclude_defaults=True).decode()
    node = task.placement.node if task.placement else None
    return (job, task.role, task.index, task.phase.value, node, state)


async def take_due(
    conn: Connection, now: datetime, limit: int, held: Sequence[str] = ()
) -> list[str]:
    """Jobs with a timer that is due, locked. It skips ``held`` ones, and those that another replica
    has locked.
    """
    return [row["id"] for row in await conn.fetch(_TAKE_DUE, now, limit, list(held))]


async def next_due(conn: Connection, held: Sequence[str] = ()) -> datetime | None:
    """When the next timer of all but the ``held`` jobs is due."""
    found: datetime | None = await conn.fetchval(_NEXT_DUE, list(held))
    return found


async def postpone(conn: Connection, ident: str, until: datetime) -> None:
    """Look at the timers of this job no earlier."""
    await conn.execute(_POSTPONE, ident, until)


async def count_open(conn: Connection) -> dict[JobPhase, int]:
    """How many jobs are in each phase that is not final."""
    return {JobPhase(row["phase"]): row["count"] for row in await conn.fetch(_COUNT_OPEN)}


async def gpus_of_users(conn: Connection) -> ByUser:
    """The GPUs that users' open jobs ask for, all tasks together, by phase."""
    rows = await conn.fetch(_GPUS_OF_USERS)
    return {(row["virtual_cluster"], row["user_name"], row["phase"]): row["gpus"] for row in rows}


async def forget(conn: Connection, days: int, limit: int) -> int:
    """Delete jobs that ended this many days ago; returns how many."""
    return len(await conn.fetch(_FORGET, float(days), limit))


async def forget_unreceived(conn: Connection, repeats: int, limit: int) -> int:
    """Stop republishing messages on ended pods that no agent has acknowledged in ``repeats``
    repeats: the exchange forgets these subjects. Returns how many. An agent that comes back
    publishes its live pods, and is answered.
    """
    return len(await conn.fetch(_FORGET_UNRECEIVED, repeats, limit))


_SPEC = {"spec"}
_NO_TASKS: list[tuple[()]] = [()] * 6
_LOAD_JOBS = """
    SELECT spec::text AS spec, state::text AS state FROM job
    WHERE id = ANY($1) ORDER BY id FOR UPDATE
"""
_LOAD_TASKS = "SELECT job, state::text AS state FROM task WHERE job = ANY($1)"
_SAVE = """
    WITH made AS (
        INSERT INTO job (id, spec, state, phase, wake_at, completed_at)
        SELECT n.id, n.spec::jsonb, n.state::jsonb, n.phase, n.wake_at, n.completed_at
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[],
                    $6::timestamptz[]) AS n (id, spec, state, phase, wake_at, completed_at)
        WHERE n.spec IS NOT NULL
    ), changed AS (
        UPDATE job AS j
        SET state = n.state::jsonb, phase = n.phase, wake_at = n.wake_at,
            completed_at = n.completed_at
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[],
                    $6::timestamptz[]) AS n (id, spec, state, phase, wake_at, completed_at)
        WHERE n.spec IS NULL AND j.id = n.id
    )
    INSERT INTO task (job, role, index, phase, node, state)
    SELECT n.job, n.role, n.index, n.phase, n.node, n.state::jsonb
    FROM unnest($7::text[], $8::text[], $9::integer[], $10::text[], $11::text[], $12::text[])
        AS n (job, role, index, phase, node, state)
    ON CONFLICT (job, role, index)
    DO UPDATE SET phase = excluded.phase, node = excluded.node, state = excluded.state
"""
_TAKE_DUE = """
    SELECT id FROM job WHERE wake_at <= $1 AND id <> ALL($3::text[])
    ORDER BY wake_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_NEXT_DUE = "SELECT min(wake_at) FROM job WHERE wake_at IS NOT NULL AND id <> ALL($1::text[])"
_POSTPONE = "UPDATE job SET wake_at = $2 WHERE id = $1"
_COUNT_OPEN = """
    SELECT phase, count(*) FROM job WHERE phase NOT IN ('succeeded', 'failed', 'stopped')
    GROUP BY phase
"""
_GPUS_OF_USERS = """
    SELECT virtual_cluster, user_name, phase, sum(gpus)::bigint AS gpus FROM job
    WHERE phase NOT IN ('succeeded', 'failed', 'stopped')
    GROUP BY virtual_cluster, user_name, phase
"""
_FORGET = """
    DELETE FROM job WHERE id IN (
        SELECT id FROM job
        WHERE phase IN ('succeeded', 'failed', 'stopped')
          AND completed_at < now() - $1 * interval '1 day'
        LIMIT $2
    ) RETURNING id
"""
_FORGET_UNRECEIVED = """
    DELETE FROM subject WHERE (kind, subject) IN (
        SELECT kind, subject FROM subject
        WHERE repeat_at IS NOT NULL AND kind = 'pod' AND NOT is_open AND repeats >= $1
        LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING subject
"""
