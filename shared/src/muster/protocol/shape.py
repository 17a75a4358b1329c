"""The job file's shape: OpenPAI's protocol, version 2, as its server enforces it, with Muster's
additions under ``extras.muster``. The JSON Schema for editors is made from these models.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from muster.contracts.images import ImagePullPolicy
from muster.contracts.model import json_name
from muster.contracts.storages import ABSOLUTE_PATH, PATH_CHARACTERS, STORAGE_NAME

MAX_INSTANCES = 10_000
"""Tasks of one role. The size of the job's records (muster.protocol.sizes) is the tighter bound."""

MAX_RETRIES = 1_000_000
MAX_AMOUNT = 2**31 - 1
"""GPUs, CPUs and megabytes of one task; only keeps the numbers within the database's integers."""

MAX_GPUS = 1024
MAX_PORTS = 1000
"""Ports of one label; a node has 10,000 to give."""

MAX_PORT_LABELS = 100
"""Of one task role. With MAX_PORTS it bounds what is made to find out how large a record can be."""

MAX_TIME_LIMIT_S = 10 * 365 * 86_400
"""Of all times that a job may name."""

LOWEST_PRIORITY = -1
HIGHEST_PRIORITY = 1000
"""From opportunistic to the most urgent of the guaranteed jobs."""

MAX_GPU_TYPES = 20
MAX_RESOURCES = 20
"""Of one task role."""

MAX_STORAGES = 20
"""Of one job."""


def _integral(value: object) -> object:
    """``4.0`` is an integer to OpenPAI's server, as it is to JavaScript."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integral)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", min_length=1, max_length=255)]
RoleName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=100)]
PortLabel = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=100)]
SchedulerName = Annotated[str, Field(min_length=1, max_length=100)]
"""Of a GPU type, a pinned cell or a group."""

GpuTypes = Annotated[list[SchedulerName], Field(min_length=1, max_length=MAX_GPU_TYPES)]
Instances = Annotated[Integer, Field(ge=1, le=MAX_INSTANCES)]
Seconds = Annotated[Integer, Field(ge=1, le=MAX_TIME_LIMIT_S)]
Bound = Annotated[Integer, Field(ge=-1, le=MAX_AMOUNT)] | None
ProtocolVersion = Literal[2, "2"]
Commands = Annotated[list[str], Field(min_length=1)]


class Shape(BaseModel):
    """A mapping of the file: nothing is converted, unknown fields are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=json_name,
        hide_input_in_errors=True,
    )


class Described(Shape):
    """What a job and its prerequisites have in common."""

    version: str | int | float = ""
    contributor: str = ""
    description: str = ""


class Auth(Shape):
    """Who pulls a private image."""

    model_config = ConfigDict(extra="ignore")

    username: str = ""
    password: str = ""
    registryuri: str = ""


class DockerImage(Described):
    """An image that tasks run in."""

    protocol_version: ProtocolVersion = 2
    type: Literal["dockerimage"]
    name: Name
    uri: Annotated[str, Field(pattern=r"^\S+$")]
    auth: Auth | None = None


class Asset(Described):
    """A script or an output that tasks use; its own fields are free."""

    model_config = ConfigDict(extra="allow")

    protocol_version: ProtocolVersion = 2
    type: Literal["script", "output"]
    name: Name
    uri: str = ""
    plugin: str = ""
    require: list[str] = []


class Data(Described):
    """Data that tasks use; its own fields are free. ``uri``: `storage://NAME/FOLDER` mounts a
    storage, all else is text.
    """

    model_config = ConfigDict(extra="allow")

    protocol_version: ProtocolVersion = 2
    type: Literal["data"]
    name: Name
    uri: list[str] = []
    plugin: str = ""
    require: list[str] = []


Prerequisite = Annotated[DockerImage | Asset | Data, Field(discriminator="type")]


class Completion(Shape):
    """How many tasks end the job attempt: -1 for never; null and 0 mean the default."""

    min_failed_instances: Bound = None
    min_succeeded_instances: Bound = None


class ContainerOptions(Shape):
    """Options of a task's container."""

    shm_mb: Annotated[Integer, Field(ge=0, le=MAX_AMOUNT)] | None = None
    infiniband: bool = False


class Resources(Shape):
    """What each task gets. ``ports`` is label → count."""

    cpu: Annotated[Integer, Field(ge=0, le=MAX_AMOUNT)]
    memory_mb: Annotated[Integer, Field(ge=0, le=MAX_AMOUNT)]
    gpu: Annotated[Integer, Field(ge=0, le=MAX_GPUS)]
    ports: Annotated[
        dict[PortLabel, Annotated[Integer, Field(ge=0, le=MAX_PORTS)]],
        Field(min_length=1, max_length=MAX_PORT_LABELS),
    ] = {}


class TaskRole(Shape):
    """Tasks that run the same commands. The names are of prerequisites of that type."""

    protocol_version: ProtocolVersion = 2
    instances: Instances = 1
    completion: Completion = Completion()
    task_retry_count: Annotated[Integer, Field(ge=-2, le=MAX_RETRIES)] = 0
    prerequisites: list[str] = []
    docker_image: str
    data: str = ""
    output: str = ""
    script: str = ""
    extra_container_options: ContainerOptions = ContainerOptions()
    resource_per_instance: Resources
    commands: Commands


class DeploymentRole(Shape):
    """Commands around those of a task role."""

    pre_commands: Commands = []
    post_commands: Commands = []


class Deployment(Shape):
    """A named set of commands around those of the task roles."""

    model_config = ConfigDict(extra="ignore")

    name: Name
    task_roles: Annotated[dict[RoleName, DeploymentRole], Field(min_length=1)]


class Defaults(Shape):
    """Where the job runs, and with which deployment."""

    model_config = ConfigDict(extra="ignore")

    virtual_cluster: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]+$", min_length=1, max_length=255)
    ] = "default"
    deployment: str = ""


class HivedRole(Shape):
    """A task role's fields for OpenPAI's scheduler. ``sku_num`` is only its portal's note."""

    model_config = ConfigDict(extra="allow")

    sku_type: SchedulerName | None = None
    sku_num: Annotated[Integer, Field(ge=1, le=MAX_AMOUNT)] | None = None
    pinned_cell_id: SchedulerName | None = None
    affinity_group_name: SchedulerName | None = None


class HivedScheduler(Shape):
    """Requests to the Scheduler, in the fields of OpenPAI's."""

    model_config = ConfigDict(extra="allow")

    job_priority_class: Literal["crit", "prod", "test", "oppo"] | None = None
    lazy_preemption_enable: bool | None = None
    gang_release_enable: bool | None = None
    ignore_suggested_nodes: Annotated[bool | None, Field(alias="ignoreK8sSuggestedNodes")] = None
    task_roles: dict[str, HivedRole] = {}


class RoleAdditions(Shape):
    """What a task role requests of the Scheduler and of nodes. ``gpu_types``: in order of
    preference. ``pin``: only in the pinned cell that the virtual cluster calls so. ``group``: tasks
    that start singly are put near those of the same group. ``resources``: what else nodes count,
    for each task. ``min_instances``: the gang starts and continues with this many tasks, the first
    ones; null: with all. ``image_pull_policy``: when Kubernetes nodes ask the registry for its
    image; null: as the node has it.
    """

    gpu_types: GpuTypes | None = None
    pin: SchedulerName | None = None
    group: SchedulerName | None = None
    min_instances: Annotated[Integer, Field(ge=0, le=MAX_INSTANCES)] | None = None
    resources: Annotated[
        dict[SchedulerName, Annotated[Integer, Field(ge=0, le=MAX_AMOUNT)]],
        Field(max_length=MAX_RESOURCES),
    ] = {}
    image_pull_policy: ImagePullPolicy | None = None


class Additions(Shape):
    """Muster's own additions. ``time_limit_seconds``: a job attempt that has run for longer is
    ended as failed, and not retried. ``expected_seconds``: its expected run time; null: that of
    earlier runs. ``min_run_seconds``: it is protected from preemption for this time.
    ``checkpoint_seconds``: it saves its work this often. ``borrow``: it may use idle quota of other
    virtual clusters. ``priority``: -1 is opportunistic, 0 and above guaranteed.
    ``lazy_preemption``: the job is downgraded before it is preempted for one of its own virtual
    cluster; null: as the cluster's policy.
    """

    time_limit_seconds: Seconds | None = None
    expected_seconds: Seconds | None = None
    min_run_seconds: Seconds | None = None
    checkpoint_seconds: Seconds | None = None
    borrow: bool = False
    priority: Annotated[Integer, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] | None = None
    lazy_preemption: bool | None = None
    task_roles: dict[RoleName, RoleAdditions] = {}


class StorageUse(Shape):
    """A storage that tasks mount. ``mount_path``: where they see it; null: at /mnt/<name>."""

    name: Annotated[str, Field(pattern=STORAGE_NAME)]
    mount_path: Annotated[str, Field(pattern=ABSOLUTE_PATH, max_length=PATH_CHARACTERS)] | None = (
        None
    )


class StatusChanges(Shape):
    """Which changes of the job's state its user is notified of. ``running``: its first task runs
    for the first time. ``retried``: a new attempt begins.
    """

    running: bool = False
    succeeded: bool = False
    stopped: bool = False
    failed: bool = False
    retried: bool = False


class Extras(Shape):
    """Whatever clients keep here; only the named fields are read. ``storages``: empty: the default
    ones of those that the user may use; null: none.
    """

    model_config = ConfigDict(extra="allow")

    gang_allocation: bool = True
    hived_scheduler: HivedScheduler | None = None
    storages: Annotated[list[StorageUse], Field(max_length=MAX_STORAGES)] | None = None
    job_status_change_notification: StatusChanges | None = None
    muster: Additions = Additions()


class JobFile(Described):
    """A job file."""

    protocol_version: ProtocolVersion
    name: Name
    type: Literal["job"]
    prerequisites: Annotated[list[Prerequisite], Field(min_length=1)] = []
    parameters: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    job_retry_count: Annotated[Integer, Field(ge=0, le=MAX_RETRIES)] = 0
    task_roles: Annotated[dict[RoleName, TaskRole], Field(min_length=1)]
    deployments: Annotated[list[Deployment], Field(min_length=1)] = []
    defaults: Defaults = Defaults()
    extras: Extras = Extras()


def job_file_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Muster job file",
        **JobFile.model_json_schema(by_alias=True),
    }
