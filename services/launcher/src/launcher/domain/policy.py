"""When a job attempt ends and how, and whether it is retried.

FrameworkController's completion and retry policies, with two additions. A failure while the
platform was preempting or losing another task of the attempt counts as the platform's. And retries
without a bound wait longer each time, so that a broken node does not cause a loop.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.contracts.jobs import Retries, TaskRoleSpec, Trigger
from muster.contracts.verdicts import Behavior, Fault, Verdict

from launcher.domain.model import DONE, JobWithTasks, Outcome, Policy, StopCause, Task
from launcher.domain.states import JobPhase, TaskPhase
from launcher.domain.verdicts import (
    DEADLINE,
    UNEXPLAINED,
    is_drained,
    is_loss,
    is_taken,
    waits_again,
)

ALWAYS = -2
"""A retry count that retries whatever the end, success too."""
ANY_FAILURE = -1

TRIGGER_CHARACTERS = 900
"""Of a trigger's message; muster.protocol.sizes counts on it."""
ENDED_CHARACTERS = 300


def completion(job_with_tasks: JobWithTasks, ended: Task) -> Outcome | None:
    """The outcome of the attempt now that ``ended`` has ended; None while it is open.

    As many failed tasks of a role as its ``min_failed_instances`` fail the attempt with the last
    one's verdict; as many succeeded as ``min_succeeded_instances`` make it succeed, whatever else
    runs; below 1 disables a bound. Where none is met the end of all tasks makes it succeed: unless
    none did, and some never ran or were taken by the platform. Bounds bear no broken gang: a pod
    that is preempted, or fails before it ran, fails the attempt. The attempt does not wait for
    tasks without a place that the gang does not need, and their preemption or loss fails nothing.
    """
    is_surplus = job_with_tasks.job.is_surplus(ended)
    if job_with_tasks.job.spec.gang and ended.phase is TaskPhase.FAILED and not is_surplus:
        if ended.stop is StopCause.PREEMPTION:
            return Outcome(ended.verdict, _trigger(ended, _preempted(job_with_tasks)))
        if ended.launched_at is None:
            return Outcome(ended.verdict, _trigger(ended, "failed before its gang was whole"))
    role = job_with_tasks.job.role(ended.role)
    present = [task for task in job_with_tasks.tasks.values() if _is_present(job_with_tasks, task)]
    count = sum(task.role == ended.role and task.phase is ended.phase for task in present)
    is_given_up = _is_given_up(job_with_tasks, ended)
    is_failed = ended.phase is TaskPhase.FAILED and not is_given_up
    if is_failed and 1 <= role.min_failed_instances <= count:
        bound = f"failed: {count} of minFailedInstances {role.min_failed_instances}"
        return Outcome(ended.verdict or UNEXPLAINED, _trigger(ended, bound))
    if ended.phase is TaskPhase.SUCCEEDED or is_given_up:
        succeeded = _have_succeeded(role, present)
        if succeeded:
            return Outcome(None, _trigger(ended, succeeded))
    if any(task.phase not in DONE for task in present):
        return None
    return _all_done(job_with_tasks.tasks.values(), ended)


def _have_succeeded(role: TaskRoleSpec, present: Iterable[Task]) -> str | None:
    """How the role's bound is met, if it is. Tasks without a place that it does not need don't
    count.
    """
    phases = [task.phase for task in present if task.role == role.name]
    count, least = phases.count(TaskPhase.SUCCEEDED), role.min_succeeded_instances
    if count < 1 or least < 1 or count < min(least, len(phases)):
        return None
    rest = "" if count >= least else ", and no more had a place"
    return f"succeeded: {count} of minSucceededInstances {least}{rest}"


def _is_present(job_with_tasks: JobWithTasks, task: Task) -> bool:
    """It counts: the gang needs it, or has it."""
    return not (_is_given_up(job_with_tasks, task) or _is_spare(job_with_tasks, task))


def _is_given_up(job_with_tasks: JobWithTasks, task: Task) -> bool:
    """The platform preempted or lost it, and the gang does not need it."""
    return (
        task.phase is TaskPhase.FAILED
        and is_taken(task.verdict)
        and job_with_tasks.job.is_surplus(task)
    )


def _is_spare(job_with_tasks: JobWithTasks, task: Task) -> bool:
    """It has no place, and the gang does not need it."""
    return task.phase in _UNPLACED and job_with_tasks.job.is_surplus(task)


_UNPLACED = (TaskPhase.WAITING, TaskPhase.BACKOFF)


def _preempted(job_with_tasks: JobWithTasks) -> str:
    why = f": {job_with_tasks.job.reason.text}" if job_with_tasks.job.reason else ""
    return f"was preempted, and its gang with it{why}"


def _all_done(tasks: Iterable[Task], ended: Task) -> Outcome:
    found = list(tasks)
    if all(task.phase is TaskPhase.STOPPED for task in found):  # by what a backup has forgotten
        return Outcome(DEADLINE, _trigger(ended, "was stopped, and so were all"))
    taken = next((task for task in found if _never_did(task)), None)
    if taken is not None and not any(task.phase is TaskPhase.SUCCEEDED for task in found):
        return Outcome(
            taken.verdict, _trigger(taken, "never ran to its end, and no task succeeded")
        )
    return Outcome(None, _trigger(ended, "was the last to end, and no bound was met"))


def _never_did(task: Task) -> bool:
    """It never ran, or not to its end."""
    never_ran = task.phase is TaskPhase.FAILED and task.launched_at is None
    return never_ran or is_loss(task.verdict)


def _trigger(task: Task, what: str) -> Trigger:
    message = f"{task.role}[{task.index}] {what}"[:TRIGGER_CHARACTERS]
    return Trigger(message=message, role=task.role, index=task.index)


def attributed(job_with_tasks: JobWithTasks, outcome: Outcome) -> Outcome:
    """The outcome of an ended attempt, attributed to the right party.

    Peers of a task whose node dies often fail first, and look like failures of the user's.
    """
    verdict = outcome.verdict
    if verdict is None or verdict.behavior is not Behavior.UNKNOWN:
        return outcome
    taken = next((task for task in job_with_tasks.tasks.values() if is_loss(task.verdict)), None)
    if taken is None or taken.verdict is None:
        return outcome
    seen = f"{outcome.trigger.message if outcome.trigger else 'A task failed'} ({verdict.phrase})"
    loss = taken.verdict.model_copy(update={"symptom": seen, "evidence": verdict.evidence})
    return Outcome(loss, _trigger(taken, "was lost or preempted, and the attempt failed with it"))


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt is due. ``is_counted``: it spends one of the counted retries. ``streak``: how
    many in a row no count bounds.
    """

    delay: timedelta
    is_counted: bool
    streak: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the retry policy looks at: retries allowed and spent, and how long the attempt ran.

    ``seed`` spreads the waits of different attempts; one attempt's wait is always the same.
    """

    limit: int
    spent: int
    streak: int
    ran: timedelta
    seed: str


def retry(verdict: Verdict | None, attempt: Attempt, policy: Policy) -> Retry | None:
    """Whether an attempt that ended with ``verdict`` (None: well) is followed by another.

    A limit of -2 retries always and looks at nothing (OpenPAI turns the fancy policy off for it).
    A preempted or forgotten attempt is requested again at once: it waits in the Scheduler's queue,
    at its age. Else transient failures are retried and not counted, permanent ones never; the
    others at -1 always, at n while fewer than n were spent.
    """
    if waits_again(verdict):
        streak = 0 if attempt.ran >= policy.backoff_reset else attempt.streak
        return Retry(timedelta(0), is_counted=False, streak=streak)
    if attempt.limit == ALWAYS:
        return _unbounded(verdict, attempt, policy, is_counted=verdict is not None)
    if verdict is None:
        return None
    match verdict.behavior:
        case Behavior.TRANSIENT | Behavior.TRANSIENT_CONFLICT:
            return _unbounded(verdict, attempt, policy, is_counted=False)
        case Behavior.PERMANENT:
            return None
        case _:
            if attempt.limit == ANY_FAILURE:
                return _unbounded(verdict, attempt, policy, is_counted=True)
            if attempt.spent < attempt.limit:
                return Retry(timedelta(0), is_counted=True, streak=0)
            return None


def _unbounded(
    verdict: Verdict | None, attempt: Attempt, policy: Policy, *, is_counted: bool
) -> Retry:
    streak = 1 if attempt.ran >= policy.backoff_reset else attempt.streak + 1
    if verdict is not None and verdict.behavior is Behavior.TRANSIENT_CONFLICT:
        span = policy.conflict_longest - policy.conflict_shortest
        share = zlib.crc32(attempt.seed.encode()) / 2**32
        return Retry(policy.conflict_shortest + span * share, is_counted, streak)
    doublings = min(streak - 1, 32)
    return Retry(
        min(policy.backoff_first * 2**doublings, policy.backoff_longest), is_counted, streak
    )


def next_attempt(
    job_with_tasks: JobWithTasks, outcome: Outcome, now: datetime, policy: Policy
) -> Retry | None:
    """Whether an attempt that ends now with this outcome is followed by another."""
    job = job_with_tasks.job
    launched_at = job.attempt_launched_at
    spent = Attempt(
        limit=job.spec.job_retry_count,
        spent=job.accountable,
        streak=job.streak,
        ran=timedelta(0) if launched_at is None else now - launched_at,
        seed=f"{job.id}-{job.attempt}",
    )
    return retry(outcome.verdict, spent, policy)


def is_requeued(
    job_with_tasks: JobWithTasks, outcome: Outcome, now: datetime, policy: Policy
) -> bool:
    """The platform failed a gang, or drained its node, and the next attempt follows soon: the
    Scheduler keeps the places of the pods that did not fail for it, and others for the rest.
    """
    job, outcome = job_with_tasks.job, attributed(job_with_tasks, outcome)
    is_policy = waits_again(outcome.verdict) and not is_drained(outcome.verdict)
    is_failure = is_taken(outcome.verdict) and not is_policy
    if not (is_failure and job.spec.gang and job.phase is JobPhase.COMPLETING):
        return False
    again = next_attempt(job_with_tasks, outcome, now, policy)
    return again is not None and again.delay <= policy.requeue_longest


def ended_text(outcome: Outcome | None) -> str | None:
    """How an attempt ended, for those who read of the next one."""
    if outcome is None or outcome.verdict is None:
        return None
    verdict = outcome.verdict
    return f"{verdict.phrase} (code {verdict.code}): {verdict.cause}"[:ENDED_CHARACTERS]


def account(retries: Retries, outcome: Outcome | None) -> Retries:
    """The retries so far with one more, by the cause of the last attempt's end."""
    verdict = outcome.verdict if outcome else None
    if verdict is not None and verdict.behavior is Behavior.TRANSIENT_CONFLICT:
        return retries.model_copy(update={"resource": retries.resource + 1})
    if verdict is not None and verdict.fault is Fault.PLATFORM:
        return retries.model_copy(update={"platform": retries.platform + 1})
    return retries.model_copy(update={"user": retries.user + 1})
