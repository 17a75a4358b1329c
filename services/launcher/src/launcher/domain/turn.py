"""One decision in the making: the job's new state, and the messages to publish.

A turn lives for one call of ``decide``, and no other code sees it. Of several messages on one
subject only the last is published: each is complete.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from muster.contracts.gangs import GangClass
from muster.contracts.topics import Kind
from muster.decisions import Decision, Publish
from muster.errors import Broken
from muster.ids import gang_name, parse_pod

from launcher.domain.messages import GANG_RELEASED, GANG_REQUESTED, gang_message, job_message
from launcher.domain.model import (
    ACTIVE,
    DONE,
    ENDING,
    HOLDING,
    LIVE,
    JobWithTasks,
    Policy,
    Task,
    TaskKey,
)
from launcher.domain.policy import is_requeued
from launcher.domain.states import (
    JOB,
    JOB_SHOWN,
    TASK,
    Illegal,
    JobEvent,
    Moved,
    Stale,
    TaskEvent,
    TaskPhase,
)
from launcher.domain.verdicts import is_refunded


class Turn:
    """The job while one input is applied."""

    def __init__(
        self,
        job_with_tasks: JobWithTasks,
        now: datetime,
        policy: Policy,
        *,
        unused_number: int = 0,
        is_new: bool = False,
    ) -> None:
        self._before = job_with_tasks
        self._is_new = is_new
        self._tasks = dict(job_with_tasks.tasks)
        self._changed = set(job_with_tasks.changed)
        self._has_put = self._has_noted = False
        self._published: dict[tuple[Kind, str], Publish] = {}
        self.job = job_with_tasks.job
        self.now = now
        self.policy = policy
        self.unused_number = unused_number

    @property
    def job_with_tasks(self) -> JobWithTasks:
        """The job as it is now; not to be kept across a change."""
        return JobWithTasks(self.job, self._tasks)

    def task(self, key: TaskKey) -> Task:
        """The task as it is now."""
        return self._tasks[key]

    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._tasks.values())

    def task_of(self, pod: str) -> Task | None:
        """The task whose present pod this is; None where the pod is of another attempt.

        Raises ValueError where ``pod`` is no pod's name.
        """
        name = parse_pod(pod)
        self.note_attempt(name.job_attempt)
        task = self._tasks.get((name.role, name.index))
        is_present = name.job_attempt == self.job.attempt
        return task if is_present and task and task.attempt == name.task_attempt else None

    def may_be_forgotten(self) -> bool:
        """The attempt began before a restore of the database: its later state may be lost."""
        return self.job.attempt < self.unused_number

    def may_have_run(self, task: Task) -> bool:
        """The task waits, and has waited since before a restore: its pod may run on an unknown
        node.
        """
        is_old = self.may_be_forgotten() and task.attempt < self.unused_number
        return is_old and task.phase is TaskPhase.WAITING

    def doubtful(self) -> list[Task]:
        """Tasks that may have run and can't wait on: they have a place, or their gang has begun
        without them.
        """
        if self.job.phase not in ACTIVE or not self.may_be_forgotten():
            return []
        tasks = self.tasks()
        has_begun = self.job.spec.gang and any(task.phase in LIVE | DONE for task in tasks)
        return [
            task
            for task in tasks
            if self.may_have_run(task)
            and (task.placement is not None or (has_begun and not self.job.is_surplus(task)))
        ]

    def note_attempt(self, attempt: int) -> None:
        """An attempt of this number exists somewhere: it is never given again."""
        if attempt > self.job.newest_attempt:
            self.set_job(newest_attempt=attempt)

    def set_job(self, **changes: Any) -> None:
        self.job = self.job.having(**changes)

    def put(self, task: Task) -> None:
        before = self._tasks.get(task.key)
        if before is not None and before.phase in HOLDING and task.phase not in HOLDING:
            self._count_gpus(before, task)
        self._tasks[task.key] = task
        self._changed.add(task.key)
        self._has_put = True

    def note_saved(self, task: Task, at: datetime) -> Task:
        """Store when the task's pod last saved its work: users don't see it."""
        noted = replace(task, checkpointed_at=at)
        self._tasks[task.key] = noted
        self._changed.add(task.key)
        self._has_noted = True
        return noted

    def _count_gpus(self, held: Task, ended: Task) -> None:
        """A pod has ended, and holds its GPUs no longer."""
        since = held.placed_at or held.launched_at  # of before an upgrade
        if held.placement is None or since is None or not held.placement.gpus:
            return
        gpu_s = max(0.0, (self.now - since).total_seconds()) * len(held.placement.gpus)
        time = self.job.gpu_time
        self.set_job(
            gpu_time=time.model_copy(update={"held_s": time.held_s + gpu_s}),
            attempt_gpu_s=self.job.attempt_gpu_s + gpu_s,
        )
        if is_refunded(ended.verdict):
            self.refund(gpu_s)

    def refund(self, gpu_s: float) -> None:
        """So much of this attempt's GPU time was lost by the platform's fault."""
        time = self.job.gpu_time
        self.set_job(
            gpu_time=time.model_copy(update={"refunded_s": time.refunded_s + gpu_s}),
            attempt_gpu_s=self.job.attempt_gpu_s - gpu_s,
        )

    def put_anew(self, tasks: Iterable[Task]) -> None:
        """These are the tasks of the next attempt."""
        for task in tasks:
            self.put(task)

    def publish(self, publish: Publish) -> None:
        self._published[publish.kind, publish.subject] = publish

    def move_job(self, event: JobEvent, **changes: Any) -> bool:
        """Whether the event moved the job. Raises Broken where it can't happen."""
        match JOB.advance(self.job.phase, event):
            case Moved(to):
                self.set_job(phase=to, **changes)
                return True
            case Stale():
                return False
            case Illegal():
                raise Broken(f"job {self.job.id} is {self.job.phase}, where '{event}' can't be")

    def move_task(self, task: Task, event: TaskEvent, **changes: Any) -> Task:
        """The task after the event. Raises Broken where it can't happen."""
        match TASK.advance(task.phase, event):
            case Moved(to):
                moved = replace(task, phase=to, **changes)
                self.put(moved)
                return moved
            case Stale():
                return task
            case Illegal():
                raise Broken(f"task {task.key} is {task.phase}, where '{event}' can't be")

    def flush(self) -> None:
        """Publish what could wait until now."""
        self.set_job(quiet_at=None)
        if self.job.gang_unpublished:
            self.publish_held()
        if self.job.status_unpublished and not self.job.is_final:
            self._publish_status()

    def publish_held(self) -> None:
        """The gang holds only what has not ended. One that is requeued releases its cells at once,
        so that nobody else gets some of them before the next attempt.
        """
        self.set_job(gang_unpublished=False)
        if self.job.gang_class is GangClass.GUARANTEED and self.job.outcome is not None:
            job, outcome = self.job_with_tasks, self.job.outcome
            if is_requeued(job, outcome, self.now, self.policy):
                return
        if self.job.phase in ACTIVE | ENDING and self.job.spec.gang:
            gang = gang_name(self.job.id, self.job.attempt)
            is_whole = all(task.phase in HOLDING for task in self._tasks.values())
            topic = GANG_REQUESTED if is_whole else GANG_RELEASED
            self.publish(gang_message(self.job_with_tasks, gang, self._tasks.values(), topic))

    def decision(self) -> Decision[JobWithTasks]:
        """The turn's decision."""
        was_final = self._before.job.is_final and not self._is_new
        if not was_final and self._is_loud():
            self._publish_status()
        elif not was_final and self._is_changed():
            self.set_job(status_unpublished=True)
        self._set_quiet()
        if not self.doubtful():
            self.set_job(forget_at=None)
        elif self.job.forget_at is None:
            self.set_job(forget_at=self.now + self.policy.resync)
        if self.job == self._before.job and not (self._has_put or self._has_noted):
            return Decision(None if self._is_new else self._before, tuple(self._published.values()))
        stored = self._before.stored
        job_with_tasks = JobWithTasks(self.job, self._tasks, frozenset(self._changed), stored)
        return Decision(job_with_tasks, tuple(self._published.values()))

    def _is_loud(self) -> bool:
        """Something changed that users wait for."""
        old, new = self._before.job, self.job
        if JOB_SHOWN[old.phase] is not JOB_SHOWN[new.phase]:
            return True
        return (old.attempt, old.retry_at, old.dead_letter) != (
            new.attempt,
            new.retry_at,
            new.dead_letter,
        )

    def _is_changed(self) -> bool:
        return (
            self._is_new
            or self._has_put
            or self.job.reason != self._before.job.reason
            or self.job.gang_class is not self._before.job.gang_class
            or self.job.lender != self._before.job.lender
            or self.job.phase is not self._before.job.phase
        )

    def _publish_status(self) -> None:
        self.set_job(status_unpublished=False)
        self.publish(job_message(self.job_with_tasks))

    def _set_quiet(self) -> None:
        if self.job.is_final or not (self.job.status_unpublished or self.job.gang_unpublished):
            self.set_job(quiet_at=None, status_unpublished=False, gang_unpublished=False)
            return
        quiet = self.policy.quiet_new if self._is_new else self.policy.quiet
        at = self.now + quiet
        if self.job.quiet_at is None or at < self.job.quiet_at:
            self.set_job(quiet_at=at)
