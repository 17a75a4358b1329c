"""The answers about jobs and the cluster as the OpenAPI document shows them (OpenPAI's names).

Endpoints render them straight from values; tests compare both.
"""

from typing import Any

from muster.contracts.reports import UsageLine
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Shown(BaseModel):
    """An answer. `...Time` is in milliseconds since 1970, `...At` the same in ISO 8601."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)


class ShownProblem(Shown):
    """Something about a file, with its place."""

    path: str
    message: str
    line: int | None = None
    column: int | None = None


class Submitted(Shown):
    """The job is accepted. ``name`` is ``user~name``."""

    message: str
    name: str
    warnings: list[ShownProblem]


class RetryDetails(Shown):
    """Retries, by whose account they went."""

    user: int
    platform: int
    resource: int


class JobListItem(Shown):
    """A job in a list."""

    debug_id: str
    name: str
    username: str
    state: str
    sub_state: str
    execution_type: str
    tags: list[str]
    retries: int
    retry_details: RetryDetails
    retry_delay_time: int | None
    retry_at: str | None
    submission_time: int
    submitted_at: str
    created_time: int | None
    created_at: str | None
    launched_time: int | None
    launched_at: str | None
    completed_time: int | None
    completed_at: str | None
    app_exit_code: int | None
    virtual_cluster: str
    total_gpu_number: int
    total_task_number: int
    total_task_role_number: int
    job_priority: str | None


class JobList(Shown):
    """A page of jobs, and how many there are on all pages."""

    total_count: int
    data: list[JobListItem]


class ShownReason(Shown):
    """Why something waits."""

    code: str
    text: str
    numbers: dict[str, int | float | str | None] = {}


class ExitSpec(Shown):
    """How something ended, and why."""

    code: int
    phrase: str
    type: str
    behavior: str
    rule: str
    cause: str
    symptom: str
    outcome: str
    evidence: str | None


class ExitMessages(Shown):
    """The services' messages about the end."""

    container: str | None
    runtime: str | None
    launcher: str | None


class ShownJobStatus(Shown):
    """A job's state and that of its attempt. ``gangClass``: whether it holds its GPUs as
    guaranteed, downgraded or opportunistic, while it is placed; ``lender``: the virtual cluster
    that lends them, if they are not of its own.
    """

    username: str
    state: str
    sub_state: str
    execution_type: str
    retries: int
    retry_details: RetryDetails
    retry_delay_time: int | None
    retry_at: str | None
    submission_time: int
    submitted_at: str
    created_time: int | None
    created_at: str | None
    launched_time: int | None
    launched_at: str | None
    completed_time: int | None
    completed_at: str | None
    virtual_cluster: str
    reason: ShownReason | None
    gang_class: str | None
    lender: str | None
    app_id: str
    app_progress: int
    attempt_id: int
    attempt_state: str
    app_created_time: int | None
    app_created_at: str | None
    app_launched_time: int | None
    app_launched_at: str | None
    app_completed_time: int | None
    app_completed_at: str | None
    app_exit_code: int | None
    app_exit_spec: ExitSpec | None
    app_exit_diagnostics: str | None
    app_exit_messages: ExitMessages
    app_exit_trigger_message: str | None
    app_exit_trigger_task_role_name: str | None
    app_exit_trigger_task_index: int | None
    app_exit_type: str | None


class ShownTask(Shown):
    """A task and its current attempt. Without containers the container is the pod. ``reason``: what
    a placed task waits for on its node, as an image; null: for nothing that may last.
    ``container_ip``: its pod's own address on Kubernetes, once it runs alone; else its node's.
    """

    task_index: int
    task_uid: str | None
    task_state: str
    reason: ShownReason | None
    container_id: str | None
    container_ip: str | None
    container_node_name: str | None
    container_ports: dict[str, str]
    container_gpus: int | None
    gpus: list[int]
    container_log: str | None
    container_exit_code: int | None
    container_exit_spec: ExitSpec | None
    container_exit_diagnostics: str | None
    retries: int
    accountable_retries: int
    created_time: int | None
    created_at: str | None
    launched_time: int | None
    launched_at: str | None
    completed_time: int | None
    completed_at: str | None
    attempt_id: int
    attempt_state: str
    current_attempt_launched_time: int | None
    current_attempt_launched_at: str | None
    current_attempt_completed_time: int | None
    current_attempt_completed_at: str | None


class TaskRoleName(Shown):
    """The name of a task role. ``minInstances``: so many of its tasks, the first ones, are enough
    for the job to run; null: it needs all.
    """

    name: str
    min_instances: int | None


class ShownTaskRole(Shown):
    """The tasks of one role."""

    task_role_status: TaskRoleName
    task_statuses: list[ShownTask]


class JobDetail(Shown):
    """A job, or one attempt of it."""

    debug_id: str
    name: str
    tags: list[str]
    job_priority: str | None
    warnings: list[ShownProblem]
    job_status: ShownJobStatus
    task_roles: dict[str, ShownTaskRole]


class TaskAttempts(Shown):
    """A task's attempts as far as they are known, newest first."""

    task_index: int
    task_role_name: str
    attempts: list[ShownTask]


class LogLocation(Shown):
    """A log and where it is read, with the same Authorization."""

    name: str
    uri: str


class LogLocations(Shown):
    """The logs of a task attempt."""

    locations: list[LogLocation]


class ShownGpu(BaseModel):
    """A GPU of a node."""

    model_config = ConfigDict(extra="allow")

    index: int
    model: str
    simulated: bool


class ShownNode(BaseModel):
    """A node as it was last reported. ``order``: cordon or drain, where an operator or a rule wants
    it. ``orderReason``: the rule and its alert; null where a person has ordered it.
    ``missingLimits``: memory, swap, cpu or processes, where the node can't limit a pod's.
    ``singleUser``: why users are not separated from one another; null: they are. ``cpuForeign``,
    ``memoryMBForeign``: what pods of others request there, on Kubernetes; it counts as used.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    state: str
    order: str | None
    orderedBy: str | None
    orderedAt: str | None
    orderReason: str | None
    simulated: bool
    missingLimits: list[str]
    singleUser: str | None
    cpuForeign: int
    memoryMBForeign: int
    gpuTotal: int
    gpuUsed: int
    gpuAvailable: int
    gpus: list[ShownGpu]


class Amounts(BaseModel):
    """Resources, also under the names of OpenPAI's first era; null where it is not known."""

    cpu: int | None
    memory: int | None
    gpu: int
    vCores: int | None
    GPUs: int


class ShownVirtualCluster(BaseModel):
    """A virtual cluster. Capacities are percentages: of the cluster's GPUs that it owns, and of its
    own that it uses. ``cells`` (by type and number, and how many of them are bound), ``pins``,
    ``gpus`` and ``gpuTypes`` are as the Scheduler tells them, as of its cycle ``asOf``. Of ``gpus``
    `quota` is `guaranteed` (which its own gangs hold), `lent` (which others' do) and `free`; beside
    it its gangs have `borrowed` and `opportunistic` ones. At most `usable` of the free ones are on
    nodes that take pods.
    """

    capacity: float
    usedCapacity: float
    maxCapacity: float
    dedicated: bool
    status: str
    resourcesUsed: Amounts
    resourcesGuaranteed: Amounts
    resourcesTotal: Amounts
    asOf: int
    cells: list[dict[str, Any]]
    pins: list[str]
    gpus: dict[str, int]
    gpuTypes: list[str]


class TroubledNode(BaseModel):
    """A node that something is wrong with, or that an order stands for."""

    name: str
    state: str
    order: str | None
    orderedBy: str | None
    orderedAt: str | None
    orderReason: str | None
    problem: str | None
    badGpus: list[int]
    gpus: int
    pods: int


class ShownNodes(BaseModel):
    """The nodes, counted. ``ready``: those that take pods, no cordoned, drained or unusable ones.
    ``gpusReady``: their healthy GPUs. ``inTrouble`` has the first of the troubled ones, and those
    of the cluster file that have not reported: they are ``absent``, and not in the ``total``.
    """

    total: int
    ready: int
    gpusReady: int
    troubled: int
    inTrouble: list[TroubledNode]


class ShownCluster(BaseModel):
    """The whole cluster. Virtual clusters are as of the Scheduler's cycle ``asOf``."""

    asOf: int
    virtualClusters: dict[str, ShownVirtualCluster]
    gpuTotal: int
    nodes: ShownNodes


class ShownFigures(Shown):
    """What is used on average; null: not known here, as the network of a task without one of its
    own. ``cpus``: 1 is one CPU. ``gpuPercent``: of the time with a kernel running, all GPUs of the
    task together; ``gpuIdlePercent``: of the looks that found 0 percent.
    """

    cpus: float | None
    memory_bytes: float | None
    gpu_percent: float | None
    gpu_idle_percent: float | None
    gpu_memory_bytes: float | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None
    read_bytes_per_s: float | None
    written_bytes_per_s: float | None


class ShownSeries(Shown):
    """The same in each step, one list for each figure. ``at``: the end of the step."""

    at: list[str]
    cpus: list[float | None]
    memory_bytes: list[float | None]
    gpu_percent: list[float | None]
    gpu_idle_percent: list[float | None]
    gpu_memory_bytes: list[float | None]
    received_bytes_per_s: list[float | None]
    sent_bytes_per_s: list[float | None]
    read_bytes_per_s: list[float | None]
    written_bytes_per_s: list[float | None]


class TaskUsage(Shown):
    """A task. ``gpus``: how many it holds; null: of an earlier attempt of the task."""

    role: str
    index: int
    attempt: int
    node: str
    gpus: int | None
    average: ShownFigures
    series: ShownSeries


class MissingUsage(Shown):
    """A node whose figures are not in the answer."""

    node: str
    reason: str


class JobUsage(Shown):
    """What the tasks of one attempt of a job use, in steps of ``stepS`` seconds."""

    name: str
    attempt: int
    since: str | None
    until: str | None
    step_s: float | None
    tasks: list[TaskUsage]
    missing: list[MissingUsage]


class UsageReport(Shown):
    """GPU-hours of a week. ``missing``: nodes whose agents did not tell."""

    since: str
    until: str
    total: UsageLine
    virtual_clusters: list[UsageLine]
    users: list[UsageLine]
    jobs: list[UsageLine]
    missing: list[str]
