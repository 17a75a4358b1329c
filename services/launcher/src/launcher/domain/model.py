"""The Launcher's state of a job: the job, its tasks in the present attempt, and the policy.

All values are frozen: a decision makes new ones, and the tasks that it changed are noted so that
only they are written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from muster.contracts.gangs import GangClass, PodRelease
from muster.contracts.jobs import GpuTime, JobSpec, Retries, TaskRoleSpec, Trigger
from muster.contracts.model import Reason
from muster.contracts.verdicts import Verdict
from muster.ids import PodName, gang_name

from launcher.domain.states import JOB, JobPhase, TaskPhase

TaskKey = tuple[str, int]
"""Role and index."""

LIVE = frozenset({TaskPhase.PLACED, TaskPhase.RUNNING, TaskPhase.STOPPING})
"""The task's pod was asked to run, and its end is not known."""
DONE = frozenset({TaskPhase.SUCCEEDED, TaskPhase.FAILED, TaskPhase.STOPPED})
HOLDING = frozenset({TaskPhase.WAITING, *LIVE})
"""The task's pod is wanted or held: it is in its gang's message."""
ACTIVE = frozenset({JobPhase.WAITING, JobPhase.RUNNING})
"""The outcome of the attempt is open."""
FINAL = JOB.final
ENDING = frozenset({JobPhase.COMPLETING, JobPhase.STOPPING})


class StopCause(StrEnum):
    """Why a task's pod was asked to stop. The values are the reasons that agents read."""

    USER = "stopped"
    COMPLETION = "completed"
    PREEMPTION = "preempted"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod was placed, and with what. ``secrets_key``: its agent's, if its job needs one."""

    node: str
    address: str = ""
    log_url: str | None = None
    journal: str = ""
    gpus: tuple[int, ...] = ()
    ports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    secrets_key: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A task in the present job attempt.

    ``attempt`` is its number, ``retries`` counts those so far, ``accountable`` those on the user's
    account, ``streak`` the last ones in a row that cost nothing. ``stop``: why its pod must stop.
    ``release``: from when on what its ended pod held is free. ``checkpointed_at``: when its pod
    last reported that its gang's work is saved. ``reason``: why its placed pod does not run yet.
    ``placed_at``: since when it holds its GPUs. ``address``: of its pod, where that has one of its
    own. ``is_drained``: it was preempted for no other gang, but for the drain of a node.
    """

    role: str
    index: int
    phase: TaskPhase = TaskPhase.WAITING
    attempt: int = 0
    retries: int = 0
    accountable: int = 0
    streak: int = 0
    placement: Placement | None = None
    stop: StopCause | None = None
    created_at: datetime | None = None
    launched_at: datetime | None = None
    completed_at: datetime | None = None
    retry_at: datetime | None = None
    exit_code: int | None = None
    verdict: Verdict | None = None
    release: PodRelease | None = None
    checkpointed_at: datetime | None = None
    reason: Reason | None = None
    placed_at: datetime | None = None
    address: str | None = None
    is_drained: bool = False

    @property
    def key(self) -> TaskKey:
        return (self.role, self.index)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job attempt ends; ``verdict`` is None where it succeeds."""

    verdict: Verdict | None
    trigger: Trigger | None


@dataclass(frozen=True)
class Job:
    """The job itself.

    ``newest_attempt``: the highest number of an attempt that was ever used, or reported after a
    restored backup; numbers are never used again. ``gang_class``: how the attempt's one gang holds
    its GPUs; ``lender``: the virtual cluster that lends them. ``streak``: the last retries in a row
    that the policy does not count. ``deadline_at``: when the attempt reaches its time limit.
    ``quiet_at``: when changes that users can wait for are published (``status_unpublished``,
    ``gang_unpublished``). ``kill_at``: when stopping pods are killed. ``forget_at``: when placed
    tasks that may have run before a restore end, unless an agent reports them by then.
    ``follows``: the gang of the attempt before, if the platform failed it. ``gpu_time``: of all its
    pods that have ended. ``attempt_gpu_s``: what of it this attempt's pods held, and was not
    refunded. ``ended``: how the attempt before ended.
    """

    id: str
    name: str
    user: str
    submitted_at: datetime
    spec: JobSpec
    phase: JobPhase = JOB.start
    attempt: int = 0
    newest_attempt: int = 0
    retries: Retries = Retries()  # noqa: RUF009 - frozen
    accountable: int = 0
    streak: int = 0
    stop_requested_by: str | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    gang_class: GangClass | None = None
    lender: str | None = None
    dead_letter: str | None = None
    retry_at: datetime | None = None
    deadline_at: datetime | None = None
    quiet_at: datetime | None = None
    kill_at: datetime | None = None
    forget_at: datetime | None = None
    status_unpublished: bool = False
    gang_unpublished: bool = False
    created_at: datetime | None = None
    launched_at: datetime | None = None
    completed_at: datetime | None = None
    attempt_created_at: datetime | None = None
    attempt_launched_at: datetime | None = None
    attempt_completed_at: datetime | None = None
    follows: str | None = None
    gpu_time: GpuTime = GpuTime()  # noqa: RUF009 - frozen
    attempt_gpu_s: float = 0.0
    ended: str | None = None

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL

    def having(self, **changes: Any) -> "Job":
        """This job with some fields changed: ``dataclasses.replace``, whose cost grows with the
        number of fields, is a fifth of all work here.
        """
        if not changes.keys() <= self.__dict__.keys():
            raise TypeError(f"a job has no {changes.keys() - self.__dict__.keys()}")
        job = object.__new__(Job)
        job.__dict__.update(self.__dict__, **changes)
        return job

    def role(self, name: str) -> TaskRoleSpec:
        return next(role for role in self.spec.task_roles if role.name == name)

    def is_surplus(self, task: Task) -> bool:
        """The gang does not need the task."""
        least = self.role(task.role).min_instances if self.spec.gang else None
        return least is not None and task.index >= least


@dataclass(frozen=True, slots=True)
class JobWithTasks:
    """A job with its tasks.

    ``changed``: the tasks that differ from what is stored. ``stored``: the job as it is stored,
    None where it is new.
    """

    job: Job
    tasks: Mapping[TaskKey, Task]
    changed: frozenset[TaskKey] = frozenset()
    stored: Job | None = None

    def pod(self, task: Task) -> str:
        """The name of the task's present pod."""
        return str(PodName(self.job.id, self.job.attempt, task.role, task.index, task.attempt))

    def gang(self, task: Task) -> str:
        """The gang that the task's pod belongs to: a pod that may start singly is its own."""
        return gang_name(self.job.id, self.job.attempt) if self.job.spec.gang else self.pod(task)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A pod that gets secrets: its name, its task role, and the public key of its agent."""

    pod: str
    role: str
    key: str


Reseal = Callable[[str, str, Sequence[Receiver]], Sequence[str] | None]
"""Of a job's id, its sealed secrets and pods: the secrets that each pod gets, sealed to its agent.
The same arguments give the same result. None: no key opens the secrets.
"""


def no_keys(_job: str, _sealed: str, _receivers: Sequence[Receiver]) -> None:
    """The ``Reseal`` of a Launcher without keys."""


def wake_at(job_with_tasks: JobWithTasks) -> datetime | None:
    """When a timer of the job is due next."""
    job = job_with_tasks.job
    times = [job.quiet_at, job.forget_at]
    if job.phase is JobPhase.RUNNING:
        times.append(job.deadline_at)
    if job.phase is JobPhase.BACKOFF:
        times.append(job.retry_at)
    if not job.spec.gang or any(role.min_instances is not None for role in job.spec.task_roles):
        times += [t.retry_at for t in job_with_tasks.tasks.values() if t.phase is TaskPhase.BACKOFF]
    return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class Policy:
    """The constants of the Launcher's decisions.

    ``stop_grace``: from the ask to stop until the kill (OpenPAI's default is 600 s).
    ``preempt_grace_longest``: a preempted pod has until the Scheduler's deadline, but not longer.
    ``lost_grace``: the same for a pod whose node was lost and came back. ``backoff_*``: the
    wait before a retry that costs nothing doubles from the first to the longest, and starts anew
    after an attempt that ran for ``backoff_reset``. ``conflict_*``: FrameworkController's range for
    conflicts over resources. ``quiet``: how long details may wait to be published; ``quiet_new``:
    the same for the wait of a new job, which its submitter knows already. ``start_longest``: an
    older submission may be of a job that has ended and is deleted. ``resync``: how long agents have
    to report a pod that may have run before a restore. ``requeue_longest``: the Scheduler keeps the
    places of a failed attempt for one that begins within so long. ``reseal`` seals the secrets of
    jobs to agents.
    """

    stop_grace: timedelta = timedelta(seconds=30)
    preempt_grace_longest: timedelta = timedelta(hours=1)
    lost_grace: timedelta = timedelta(seconds=5)
    backoff_first: timedelta = timedelta(seconds=1)
    backoff_longest: timedelta = timedelta(minutes=5)
    backoff_reset: timedelta = timedelta(minutes=10)
    conflict_shortest: timedelta = timedelta(seconds=60)
    conflict_longest: timedelta = timedelta(seconds=900)
    quiet: timedelta = timedelta(seconds=0.4)
    quiet_new: timedelta = timedelta(seconds=2)
    start_longest: timedelta = timedelta(days=8)
    resync: timedelta = timedelta(seconds=5)
    requeue_longest: timedelta = timedelta(seconds=30)
    reseal: Reseal = no_keys
