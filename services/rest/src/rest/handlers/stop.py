"""A stop: users see STOPPING at once, the same transaction has the message to the Launcher."""

import structlog
from muster.contracts.jobs import Execution, JobRequest
from muster.contracts.topics import Kind, Service
from muster.db import Transaction
from muster.decisions import Publish
from muster.errors import Rejected
from muster.relay import Relay
from muster.subjects import publish_all

from rest.domain.callers import Caller, check_owner
from rest.domain.jobs import check_startable, check_stoppable
from rest.handlers.order import By
from rest.handlers.updates import SUBMITTED
from rest.store import accounts, audit
from rest.store.jobs import StoppableJob, lock_job, mark_stopping
from rest.store.node_orders import ALERTING

_log = structlog.get_logger()


def no_job(username: str, name: str) -> Rejected:
    """There is no such job."""
    return Rejected("NoJobError", f"There is no job {username}~{name}.")


async def set_execution(
    relay: Relay,
    caller: Caller,
    address: str,
    target: tuple[str, str, Execution],
) -> StoppableJob:
    """Stop a job; or find it started. ``target``: its user, its name, what is wanted. Returns the
    job as it was before.

    Raises Rejected: no such job, not the caller's, over, or stopped before.
    """
    username, name, wanted = target
    async with relay.transaction() as opened:
        conn = opened.conn
        await accounts.check_rights(conn, caller)
        job = await lock_job(conn, username, name)
        if job is None:
            raise no_job(username, name)
        check_owner(caller, username, f"The job {username}~{name}")
        refusal = _refusal(job, wanted)
        if refusal is not None:
            raise Rejected("ConflictJobError", refusal)
        if wanted is Execution.START or job.execution is Execution.STOP:
            return job
        await _stop_job(opened, job, By(caller.username, address))
    return job


async def stop_for_alert(opened: Transaction, username: str, name: str, by: By) -> None:
    """Stop a job because of an alert. Raises Rejected where there is none, or it is over."""
    job = await lock_job(opened.conn, username, name)
    if job is None:
        raise no_job(username, name)
    refusal = _refusal(job, Execution.STOP)
    if refusal is not None:
        raise Rejected("ConflictJobError", refusal)
    if job.execution is not Execution.STOP:
        await _stop_job(opened, job, by)


async def _stop_job(opened: Transaction, job: StoppableJob, by: By) -> None:
    conn, full_name = opened.conn, f"{job.username}~{job.name}"
    await mark_stopping(conn, job.id, by.username)
    await publish_all(opened, Service.REST, [_stop(job, _asker(by))])
    detail = {"job": job.id} | (by.detail or {})
    await audit.record(conn, [audit.Entry(by.username, "job.stop", full_name, by.address, detail)])
    _log.info("a job is asked to stop", job=job.id, name=full_name, by=by.username)


def _asker(by: By) -> str:
    """Whom the job's user is told of. A name that is no person's says nothing: the rule does."""
    rule = by.detail.get("rule") if by.detail is not None else None
    return f"The alert rule {rule}" if by.username == ALERTING and rule else by.username


def _refusal(job: StoppableJob, wanted: Execution) -> str | None:
    full_name = f"{job.username}~{job.name}"
    if wanted is Execution.START:
        return check_startable(full_name, job.state, job.execution)
    return check_stoppable(full_name, job.state)


def _stop(job: StoppableJob, by: str) -> Publish:
    message = JobRequest(
        job=job.id,
        name=job.name,
        user=job.username,
        execution=Execution.STOP,
        submitted_at=job.submitted_at,
        stop_requested_by=by,
        spec=job.spec,
    )
    return Publish(Kind.JOB, job.id, SUBMITTED, job.id, message)
