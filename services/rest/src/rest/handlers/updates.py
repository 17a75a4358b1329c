"""The Launcher's messages about jobs become the read model; final states never change."""

from dataclasses import replace
from datetime import datetime

from muster.aggregates import Aggregate
from muster.contracts.jobs import Execution, JobRequest, JobStatus
from muster.contracts.model import Reason
from muster.contracts.topics import Kind
from muster.decisions import Decision, Due, Input, MessageRejected, Publish

from rest.domain.jobs import FINAL, JobRow, shown_state
from rest.store.jobs import load_jobs, save_jobs

TOPICS = ("job-updated", "revision-acknowledged")
SUBMITTED = "job-submitted"


def _dead_letter(fault: str, topic: str) -> Reason:
    return Reason(
        code="dead-letter",
        text=f"{fault} An admin finds the reason on {topic}, fixes the cause and runs"
        " `muster events redrive`.",
    )


REJECTED_REASON = _dead_letter("The Launcher rejected the job.", "job-submitted.dead-letter")


def jobs_aggregate() -> Aggregate[JobRow]:
    """How messages about jobs are applied."""
    return Aggregate(
        of=lambda _kind, job: job, load=load_jobs, decide=decide_update, save=save_jobs
    )


def decide_update(job: str, row: JobRow | None, given: Input, _now: datetime) -> Decision[JobRow]:
    """What a record about a job changes in the read model."""
    match given:
        case JobStatus():
            return _apply(job, row, given)
        case MessageRejected():
            if row is None or row.state in FINAL:
                return Decision(row)
            return Decision(replace(row, reason=REJECTED_REASON))
        case Due():
            return Decision(row)
        case _:
            raise TypeError(f"{type(given).__name__} is no message on a job")


def _apply(job: str, row: JobRow | None, status: JobStatus) -> Decision[JobRow]:
    if row is None or _is_forgotten(row, status):
        return Decision(row, () if status.state in FINAL else (_stop(job, status),))
    state = shown_state(status.state, row.execution)
    changed = JobRow(row.id, row.execution, state, status.attempt, status, _reason(status))
    # A Launcher that has forgotten the job must not begin it again. One that has not knows it.
    return Decision(changed, (_stop(job, status, only_if_missed=True),) if state in FINAL else ())


def _reason(status: JobStatus) -> Reason | None:
    if status.dead_letter is None or status.state in FINAL:
        return status.reason
    return _dead_letter(status.dead_letter, "the topic's dead-letter topic")


def _is_forgotten(row: JobRow, status: JobStatus) -> bool:
    """Whether the job has ended here, and the Launcher tells of something before that; without
    tasks where it never knew the job.
    """
    is_older = status.state is not row.state or status.attempt < row.attempt
    return row.state in FINAL and (is_older or not status.task_roles)


def _stop(job: str, status: JobStatus, *, only_if_missed: bool = False) -> Publish:
    """REST opens jobs: one that it does not know, or that has ended here, must stop."""
    message = JobRequest(
        job=job,
        name=status.name,
        user=status.user,
        execution=Execution.STOP,
        submitted_at=status.submitted_at,
    )
    return Publish(
        Kind.JOB, job, SUBMITTED, job, message, is_open=False, only_if_missed=only_if_missed
    )
