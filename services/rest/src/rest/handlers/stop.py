"""A stop: users see STOPPING at once, the same transaction has the message to the Launcher."""

import structlog
from muster.contracts.jobs import Execution, JobRequest
from muster.contracts.topics import Kind, Service
from muster.decisions import Publish
from muster.errors import Rejected
from muster.relay import Relay
from muster.subjects import publish_all

from rest.domain.callers import Caller, check_owner
from rest.domain.jobs import check_startable, check_stoppable
from rest.handlers.updates import SUBMITTED
from rest.store import audit
from rest.store.jobs import StoppableJob, lock_job, mark_stopping

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
        job = await lock_job(conn, username, name)
        if job is None:
            raise no_job(username, name)
        check_owner(caller, username, f"The job {username}~{name}")
        refusal = _refusal(job, wanted)
        if refusal is not None:
            raise Rejected("ConflictJobError", refusal)
        if wanted is Execution.START or job.execution is Execution.STOP:
            return job
        await mark_stopping(conn, job.id, caller.username)
        await publish_all(opened, Service.REST, [_stop(job, caller)])
        detail = {"job": job.id}
        entry = audit.Entry(caller.username, "job.stop", f"{username}~{name}", address, detail)
        await audit.record(conn, [entry])
    _log.info("a job is asked to stop", job=job.id, name=f"{username}~{name}", by=caller.username)
    return job


def _refusal(job: StoppableJob, wanted: Execution) -> str | None:
    full_name = f"{job.username}~{job.name}"
    if wanted is Execution.START:
        return check_startable(full_name, job.state, job.execution)
    return check_stoppable(full_name, job.state)


def _stop(job: StoppableJob, caller: Caller) -> Publish:
    message = JobRequest(
        job=job.id,
        name=job.name,
        user=job.username,
        execution=Execution.STOP,
        submitted_at=job.submitted_at,
        stop_requested_by=caller.username,
        spec=job.spec,
    )
    return Publish(Kind.JOB, job.id, SUBMITTED, job.id, message)
