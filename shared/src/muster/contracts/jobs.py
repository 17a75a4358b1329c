"""The two messages on a job: what the user wants (REST) and the job's state (Launcher)."""

from datetime import datetime

from pydantic import Field

from muster.contracts.gangs import GangClass
from muster.contracts.model import Model, OpenEnum, Reason, StateMessage
from muster.contracts.storages import StorageMount
from muster.contracts.verdicts import Verdict


class JobState(OpenEnum):
    """The states that users see; OpenPAI's."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    UNKNOWN = "unknown"


class JobChange(OpenEnum):
    """Changes of a job's state that its user can be notified of; OpenPAI's names."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    RETRIED = "retried"
    UNKNOWN = "unknown"


class TaskState(OpenEnum):
    """The states of one task, as users see them."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    UNKNOWN = "unknown"


class Execution(OpenEnum):
    """What the user wants of the job."""

    START = "START"
    STOP = "STOP"
    UNKNOWN = "unknown"


class TaskRoleSpec(Model):
    """One task role, rendered and ready to run.

    ``min_failed_instances`` and ``min_succeeded_instances``: the number of tasks that ends the
    attempt, -1 for never. ``min_instances``: the gang starts and continues with this many tasks,
    the first ones; None: all. ``ports`` is label → count, ``resources`` name → count of what else
    nodes count, for each task. ``gpu_types``: in order of preference, empty: any.
    ``pin``: only in the pinned cell that the virtual cluster calls so. ``group``: tasks that start
    singly are put near those of the same group. ``image``: where its container image is, as the
    job file names it, ``image_pull_policy`` Kubernetes' name for when nodes pull it; empty: as the
    node has it. ``command`` is one shell script.
    """

    name: str
    image: str = ""
    image_pull_policy: str = ""
    instances: int
    min_failed_instances: int = 1
    min_succeeded_instances: int = -1
    min_instances: int | None = None
    task_retry_count: int = 0
    cpu: int
    memory_mb: int
    gpus: int
    gpu_types: tuple[str, ...] = ()
    pin: str | None = None
    group: str | None = None
    shm_mb: int | None = None
    ports: dict[str, int] = {}
    resources: dict[str, int] = {}
    command: str


class JobSpec(Model):
    """The contents of the job file, checked and rendered, and its user.

    ``user_number``: of the user's account, from 1 on and never given again; REST sets it.
    ``priority``: 0 to 1000 is guaranteed, -1 is opportunistic. ``lazy_preemption``: whether it is
    downgraded before it is preempted for a job of its own virtual cluster, None: as the policy.
    ``job_retry_count``: user failures that are retried, 0 or more. ``gang``: all tasks start
    together; without it each task is its own gang and ``task_retry_count`` counts (-2 always, even
    success; -1 any failure). ``time_limit_s``: the job attempt is ended after this many seconds
    of running; none by default. ``expected_s``: its expected run time, None: unknown.
    ``min_run_s``: how long it is protected from preemption. ``checkpoint_s``: how often it saves
    its work. ``borrow``: it may use idle quota of other virtual clusters. ``secrets``: the secrets
    that it uses (``muster.contracts.secrets.JobSecrets``), sealed to the Launcher. ``mounts``: the
    storages that its tasks mount; REST sets them. ``notify``: the changes that its user wants to be
    notified of, whatever they subscribe to. ``node``: a preflight job runs only on this node, even
    if it is cordoned or drained; REST sets it.
    """

    user_number: int = 0
    virtual_cluster: str = "default"
    priority: int = 10
    lazy_preemption: bool | None = None
    job_retry_count: int = 0
    gang: bool = True
    time_limit_s: int | None = None
    expected_s: int | None = None
    min_run_s: int | None = None
    checkpoint_s: int | None = None
    borrow: bool = False
    secrets: str | None = None
    mounts: tuple[StorageMount, ...] = ()
    notify: tuple[JobChange, ...] = ()
    node: str | None = None
    task_roles: tuple[TaskRoleSpec, ...]


class JobRequest(StateMessage):
    """REST on a job: its whole specification, or the request to stop it.

    ``spec`` is left out only where REST does not know the job and so wants it stopped.
    """

    job: str
    name: str
    user: str
    execution: Execution
    submitted_at: datetime
    stop_requested_by: str | None = None
    spec: JobSpec | None = None


class Retries(Model):
    """Retries so far, by the cause of the failure."""

    user: int = 0
    platform: int = 0
    resource: int = 0


class GpuTime(Model):
    """GPU seconds that pods held which have ended: ``held_s`` in all; of these ``refunded_s`` in
    attempts that failed by the platform's fault, or for a drain. A preemption is none.
    """

    held_s: float = 0.0
    refunded_s: float = 0.0


class TaskStatus(Model):
    """One task and its current (or last) attempt. Fields without a value are left out. ``reason``:
    what the task waits for on its node, where that may last. ``address``: its pod's own, where that
    has one, else its node's. ``placed_at``: since when it holds its GPUs.
    """

    index: int
    state: TaskState
    reason: Reason | None = None
    attempt: int = 0
    pod: str | None = None
    node: str | None = None
    address: str | None = None
    log_url: str | None = None
    gpus: tuple[int, ...] = ()
    ports: dict[str, tuple[int, ...]] = {}
    retries: int = 0
    accountable_retries: int = 0
    created_at: datetime | None = None
    placed_at: datetime | None = None
    launched_at: datetime | None = None
    completed_at: datetime | None = None
    exit_code: int | None = None
    verdict: Verdict | None = None


class TaskRoleStatus(Model):
    """The tasks of one role. ``min_instances``: the gang needs this many of them, the first ones;
    None: all.
    """

    name: str
    min_instances: int | None = None
    tasks: tuple[TaskStatus, ...]


class Trigger(Model):
    """Which task ended the attempt, and by which rule."""

    message: str
    role: str | None = None
    index: int | None = None


class JobStatus(StateMessage):
    """Launcher on a job: its state, its tasks, why it waits, its verdict.

    ``gang_class``: how the gang of all its tasks holds its GPUs, where they are one gang;
    ``lender``: the virtual cluster that lends them, if they are not of its own. ``gpu_time``: of
    all its pods that have ended, in all attempts. ``ended``: how the attempt before ended.
    ``dead_letter``: a service rejected a record about this job; it names the place. ``notify``: see
    JobSpec.
    """

    job: str
    name: str
    user: str
    virtual_cluster: str
    state: JobState
    attempt: int = 0
    retries: Retries = Retries()
    retry_at: datetime | None = None
    reason: Reason | None = None
    gang_class: GangClass | None = None
    lender: str | None = None
    submitted_at: datetime
    created_at: datetime | None = None
    launched_at: datetime | None = None
    completed_at: datetime | None = None
    attempt_created_at: datetime | None = None
    attempt_launched_at: datetime | None = None
    attempt_completed_at: datetime | None = None
    task_roles: tuple[TaskRoleStatus, ...] = Field(default=())
    gpu_time: GpuTime = GpuTime()
    verdict: Verdict | None = None
    trigger: Trigger | None = None
    ended: str | None = None
    dead_letter: str | None = None
    notify: tuple[JobChange, ...] = ()
