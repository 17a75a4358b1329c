"""How long parts of a job attempt lasted, when they end: the queue, the start, the run."""

from collections.abc import Iterator
from datetime import datetime
from enum import Enum

from launcher.domain.model import Job


class Span(Enum):
    """A part of a job attempt that has ended.

    ANSWER: from the attempt's begin to the Scheduler's first answer, a placement or a reason.
    QUEUE: to its placement. START: until its first task runs. RUN: from then to its end. The first
    two are of jobs whose tasks start all at once.
    """

    ANSWER = "answer"
    QUEUE = "queue"
    START = "start"
    RUN = "run"


def ended_spans(before: Job | None, job: Job, now: datetime) -> Iterator[tuple[Span, float]]:
    """What has ended by a change of a job, with its seconds. ``before``: as it was stored."""
    begun = job.attempt_created_at
    if begun is None:
        return
    old = before if before and before.attempt == job.attempt else None
    if job.spec.gang:
        if _is_answered(job) and not (old and _is_answered(old)):
            yield Span.ANSWER, _seconds(begun, now)
        if job.gang_class and not (old and old.gang_class):
            yield Span.QUEUE, _seconds(begun, now)
    if job.attempt_launched_at:
        if not (old and old.attempt_launched_at):
            yield Span.START, _seconds(begun, job.attempt_launched_at)
        if job.attempt_completed_at and not (old and old.attempt_completed_at):
            yield Span.RUN, _seconds(job.attempt_launched_at, job.attempt_completed_at)
    if before and not old and before.attempt_launched_at and not before.attempt_completed_at:
        yield Span.RUN, _seconds(before.attempt_launched_at, begun)  # ended by the same change


def _is_answered(job: Job) -> bool:
    return job.gang_class is not None or job.reason is not None


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
