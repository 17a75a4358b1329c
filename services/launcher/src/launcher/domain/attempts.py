"""The life of an attempt: its request, the ends of its pods, its outcome, its end, its retry."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from muster.contracts.gangs import GangEnd
from muster.contracts.pods import PodStatus
from muster.contracts.verdicts import Fault, Verdict
from muster.ids import gang_name

from launcher.domain.messages import (
    GANG_RELEASED,
    GANG_REQUESTED,
    ended_message,
    gang_message,
    no_gang_message,
    stop_message,
)
from launcher.domain.model import ACTIVE, DONE, ENDING, LIVE, Outcome, StopCause, Task
from launcher.domain.policy import (
    Attempt,
    account,
    attributed,
    completion,
    ended_text,
    is_requeued,
    next_attempt,
    retry,
)
from launcher.domain.states import JobEvent, JobPhase, TaskEvent, TaskPhase
from launcher.domain.turn import Turn
from launcher.domain.verdicts import (
    UNEXPLAINED,
    drained,
    end_by,
    is_loss,
    is_refunded,
    is_taken,
    stop_verdict,
)


@dataclass(frozen=True, slots=True)
class End:
    """How a pod ended. ``verdict`` None with a failure: its agent gave no reason."""

    succeeded: bool
    verdict: Verdict | None
    exit_code: int | None = None
    at: datetime | None = None


def begin(turn: Turn) -> None:
    """Ask for the pods of a new attempt."""
    turn.put_anew(
        Task(role.name, index, created_at=turn.now)
        for role in turn.job.spec.task_roles
        for index in range(role.instances)
    )
    turn.set_job(
        outcome=None,
        reason=None,
        dead_letter=None,
        gang_class=None,
        lender=None,
        retry_at=None,
        deadline_at=None,
        attempt_created_at=turn.now,
        attempt_launched_at=None,
        attempt_completed_at=None,
        attempt_gpu_s=0.0,
    )
    ask(turn, turn.tasks())


def begin_next(turn: Turn) -> None:
    """The next attempt, under a number that was never used."""
    number = max(turn.job.newest_attempt + 1, turn.unused_number)
    retries = account(turn.job.retries, turn.job.outcome)
    ended = ended_text(turn.job.outcome)
    turn.move_job(
        JobEvent.BEGUN, attempt=number, newest_attempt=number, retries=retries, ended=ended
    )
    begin(turn)


def begin_task(turn: Turn, task: Task) -> None:
    """The next attempt of a task that may start singly, or that its gang does not need."""
    is_gang = turn.job.spec.gang
    if task.is_drained:
        turn.set_job(reason=None)  # the drain is no reason why its next attempt waits
    unused = turn.unused_number if turn.may_be_forgotten() else 0
    begun = turn.move_task(
        task,
        TaskEvent.BEGUN,
        attempt=max(task.attempt + 1, unused),
        retries=task.retries + 1,
        placement=None,
        placed_at=None,
        stop=None,
        is_drained=False,
        launched_at=None,
        completed_at=None,
        retry_at=None,
        exit_code=None,
        verdict=None,
        release=task.release if is_gang else None,  # of the same gang
        checkpointed_at=None,
        reason=None,
        address=None,
    )
    ask(turn, turn.tasks() if is_gang else [begun])


def ask(turn: Turn, tasks: Iterable[Task]) -> None:
    """Request these tasks' pods: together, or each for itself."""
    job_with_tasks = turn.job_with_tasks
    if turn.job.spec.gang:
        gang = gang_name(turn.job.id, turn.job.attempt)
        turn.set_job(gang_unpublished=False)
        turn.publish(gang_message(job_with_tasks, gang, tasks, GANG_REQUESTED))
        return
    for task in tasks:
        turn.publish(
            gang_message(job_with_tasks, job_with_tasks.gang(task), (task,), GANG_REQUESTED)
        )


def ran(turn: Turn, task: Task, message: PodStatus) -> Task:
    """The task's pod has run, and so the attempt has."""
    limit = turn.job.spec.time_limit_s
    turn.move_job(
        JobEvent.RAN,
        reason=None if task.stop is None else turn.job.reason,
        launched_at=turn.job.launched_at or turn.now,
        attempt_launched_at=turn.now,
        deadline_at=turn.now + timedelta(seconds=limit) if limit else None,
    )
    launched_at = message.started_at or turn.now
    return turn.move_task(task, TaskEvent.RAN, launched_at=launched_at, address=message.address)


def saved(turn: Turn, task: Task, at: datetime) -> None:
    """The task's pod reports that its gang's work is saved. The Scheduler, which chooses the gangs
    to preempt, gets it with the next message where other pods may report the same.
    """
    if task.checkpointed_at is not None and at <= task.checkpointed_at:
        return
    noted = turn.note_saved(task, at)
    if turn.job.spec.gang:
        turn.set_job(gang_unpublished=True)
    else:
        turn.publish(
            gang_message(
                turn.job_with_tasks, turn.job_with_tasks.gang(noted), (noted,), GANG_REQUESTED
            )
        )


def pod_ended(turn: Turn, task: Task, end: End) -> None:
    """A task's pod has ended: retry the task, or apply the end to the attempt."""
    event, verdict = _judge(turn, task, end)
    changes: dict[str, Any] = {
        "verdict": verdict,
        "exit_code": end.exit_code,
        "completed_at": end.at or turn.now,
    }
    if event is not TaskEvent.STOPPED and _retry_task(turn, task, verdict, changes):
        return
    ended = turn.move_task(task, event, **changes)
    _let_go(turn, ended)
    if turn.job.phase in ACTIVE:
        outcome = completion(turn.job_with_tasks, ended)
        if outcome is not None:
            decide_attempt(turn, outcome)
            return
    if_over(turn)


def _judge(turn: Turn, task: Task, end: End) -> tuple[TaskEvent, Verdict | None]:
    """The event of the end. A pod that was asked to stop may have failed by itself before. In a
    preempted gang the reason may be that its peers went away. A pod that is to be retried has not
    done its work, even if it succeeded.
    """
    verdict = end.verdict or UNEXPLAINED
    comes_back = task.stop is StopCause.PREEMPTION and _is_surplus_yet(turn, task)
    if end.succeeded and not comes_back:
        return TaskEvent.SUCCEEDED, end.verdict
    if task.is_drained:
        return TaskEvent.FAILED, drained(verdict)
    if task.stop is None or is_loss(end.verdict):
        return TaskEvent.FAILED, verdict
    stop = stop_verdict(task.stop, turn.job.stop_requested_by, verdict.symptom)
    if task.stop is StopCause.PREEMPTION:
        return TaskEvent.FAILED, stop
    if end.verdict is not None and verdict.fault is not Fault.STOP:
        return TaskEvent.FAILED, verdict
    return TaskEvent.STOPPED, stop


def _retry_task(
    turn: Turn, task: Task, verdict: Verdict | None, changes: Mapping[str, Any]
) -> bool:
    """Tasks that may start singly have retries of their own, while the attempt goes on. Those that
    their gang does not need are retried after the platform preempted or lost them.
    """
    is_gang = turn.job.spec.gang
    if turn.job.phase not in ACTIVE:
        return False
    if is_gang and not (is_taken(verdict) and _is_surplus_yet(turn, task)):
        return False
    spent = Attempt(
        limit=0 if is_gang else turn.job.role(task.role).task_retry_count,
        spent=task.accountable,
        streak=task.streak,
        ran=_since(turn.now, task.launched_at),
        seed=turn.job_with_tasks.pod(task),
    )
    again = retry(None if verdict is None or verdict.code == 0 else verdict, spent, turn.policy)
    if again is None:
        return False
    waiting = turn.move_task(
        task,
        TaskEvent.RETRY_DUE,
        accountable=task.accountable + again.is_counted,
        streak=again.streak,
        retry_at=turn.now + again.delay,
        **changes,
    )
    _let_go(turn, waiting)
    if not again.delay:
        begin_task(turn, waiting)
    return True


def _is_surplus_yet(turn: Turn, task: Task) -> bool:
    """The gang does not need the task, and the tasks that it needs have not succeeded yet: those of
    the task's role, where it needs some of it.
    """
    job = turn.job
    if not job.is_surplus(task):
        return False
    needed = [other for other in turn.tasks() if not job.is_surplus(other)]
    of_role = [other for other in needed if other.role == task.role]
    return any(other.phase not in DONE for other in of_role or needed)


def _let_go(turn: Turn, task: Task) -> None:
    """Its pod is no longer wanted: at once where it is its own gang, else with the next message."""
    if turn.job.spec.gang:
        turn.set_job(gang_unpublished=True)
    else:
        end = _end_of(turn, task)
        turn.publish(
            gang_message(
                turn.job_with_tasks, turn.job_with_tasks.gang(task), (task,), GANG_RELEASED, end
            )
        )


def _end_of(turn: Turn, task: Task) -> GangEnd:
    """How a task that started singly ended. A task that the attempt no longer needed ends as the
    attempt does.
    """
    if task.phase is TaskPhase.SUCCEEDED:
        return GangEnd.SUCCEEDED
    outcome = turn.job.outcome
    if task.phase is TaskPhase.STOPPED and outcome is not None:
        return end_by(outcome.verdict)
    return end_by(task.verdict)


def decide_attempt(turn: Turn, outcome: Outcome) -> None:
    """The outcome of the attempt is known: stop the running tasks, and wait for their ends."""
    if turn.move_job(JobEvent.DECIDED, outcome=outcome):
        stop_all(turn, StopCause.COMPLETION)
    if_over(turn)


def stop_job(turn: Turn, by: str | None) -> None:
    """The user wants it stopped."""
    if turn.job.phase is JobPhase.BACKOFF and turn.job.follows is not None:
        turn.publish(no_gang_message(turn.job.follows, turn.job.id))  # nothing is kept for it
    if turn.move_job(JobEvent.STOP_ASKED, stop_requested_by=by, retry_at=None):
        stop_all(turn, StopCause.USER)
    if_over(turn)


def stop_all(turn: Turn, cause: StopCause) -> None:
    """Stop every task: at once where no pod was requested, else with grace."""
    for task in turn.tasks():
        if task.phase in (TaskPhase.WAITING, TaskPhase.BACKOFF):
            verdict = stop_verdict(cause, turn.job.stop_requested_by)
            stopped = turn.move_task(
                task, TaskEvent.STOPPED, verdict=verdict, completed_at=turn.now, retry_at=None
            )
            if task.phase is TaskPhase.WAITING:
                _let_go(turn, stopped)
        elif task.phase in LIVE:
            stop_task(turn, task, cause, turn.policy.stop_grace)


def stop_task(turn: Turn, task: Task, cause: StopCause, grace: timedelta) -> None:
    """Stop the task's pod, once; its end is awaited."""
    if task.phase is not TaskPhase.STOPPING:
        stopping = turn.move_task(task, TaskEvent.STOP_ASKED, stop=cause)
        turn.publish(
            stop_message(turn.job_with_tasks, stopping, cause.value, grace.total_seconds())
        )
        turn.set_job(kill_at=turn.now + grace)


def hurry(turn: Turn, task: Task, grace: timedelta) -> None:
    """The task's pod is stopping, and must stop sooner now: agents only ever shorten a grace."""
    if turn.job.kill_at is not None and turn.now + grace < turn.job.kill_at:
        cause = task.stop or StopCause.COMPLETION
        turn.publish(stop_message(turn.job_with_tasks, task, cause.value, grace.total_seconds()))


def answer_over(turn: Turn, message: PodStatus, is_alive: bool) -> None:
    """The pod has ended for the Launcher: its agent must stop it, or forget its name."""
    grace_s = turn.policy.lost_grace.total_seconds() if is_alive else None
    turn.publish(ended_message(message, grace_s))


def if_over(turn: Turn) -> None:
    """When the last pod of a decided or stopped attempt has ended, the attempt has ended. Where the
    platform failed it, the next attempt follows its gang.
    """
    job = turn.job
    if job.phase not in ENDING or any(task.phase in LIVE for task in turn.tasks()):
        return
    outcome = attributed(turn.job_with_tasks, job.outcome) if job.outcome else None
    if job.spec.gang and job.attempt_completed_at is None and turn.tasks():
        gang = gang_name(job.id, job.attempt)
        end = end_by(outcome.verdict) if outcome else GangEnd.STOPPED
        is_next = outcome and is_requeued(turn.job_with_tasks, outcome, turn.now, turn.policy)
        if is_next:
            end = GangEnd.REQUEUED
        turn.publish(gang_message(turn.job_with_tasks, gang, turn.tasks(), GANG_RELEASED, end))
        turn.set_job(follows=gang if is_next else None)
    if outcome is not None and is_refunded(outcome.verdict):
        turn.refund(job.attempt_gpu_s)
    at = job.attempt_completed_at or turn.now
    turn.set_job(
        gang_unpublished=False, reason=None, kill_at=None, attempt_completed_at=at, outcome=outcome
    )
    _follow(turn, outcome)


def _follow(turn: Turn, outcome: Outcome | None) -> None:
    """End the job with the attempt's result, or plan another attempt."""
    if outcome is None:
        turn.move_job(JobEvent.STOPPED, completed_at=turn.now)
        return
    job, verdict = turn.job, outcome.verdict
    again = next_attempt(turn.job_with_tasks, outcome, turn.now, turn.policy)
    if again is None:
        event = JobEvent.SUCCEEDED if verdict is None else JobEvent.FAILED
        turn.move_job(event, completed_at=turn.now)
    elif job.phase is JobPhase.STOPPING:
        turn.move_job(JobEvent.STOPPED, completed_at=turn.now)
    else:
        turn.set_job(
            accountable=job.accountable + again.is_counted,
            streak=again.streak,
            retry_at=turn.now + again.delay,
        )
        # Also where it is due at once: this attempt's end is published before the next begins.
        turn.move_job(JobEvent.RETRY_DUE)


def _since(now: datetime, then: datetime | None) -> timedelta:
    return now - then if then is not None else timedelta(0)
