"""The two messages on a pod: run, stop or forget it (Launcher), and what became of it (Runtime
agent).
"""

from datetime import datetime

from pydantic import ValidationInfo, field_validator

from muster.contracts.model import Model, OpenEnum, Reason, Revision, StateMessage
from muster.contracts.storages import StorageMount
from muster.contracts.verdicts import Verdict


class PodAction(OpenEnum):
    """What the agent does. ``forget``: the Launcher knows the pod's end; the name is never used
    again.
    """

    RUN = "run"
    STOP = "stop"
    FORGET = "forget"
    UNKNOWN = "unknown"


class RolePeers(Model):
    """Where the tasks of one role of the job attempt run: what the PAI_* variables are made from.

    Each pod of a gang gets the places of all tasks, so there are lists in the order of the tasks'
    indices instead of an object for each task. ``addresses`` has each node's address once.
    ``addressOf`` has for each task the index of its node in ``addresses``; null: it has no place
    yet. ``ports`` is label → for each task its port numbers. So of ``{"addresses": ["10.0.0.11",
    "10.0.0.12"], "addressOf": [0, 1, 0], "ports": {"http": [[20000], [20000], [20001]]}}`` the task
    with index 2 is at 10.0.0.11 and its port http is 20001. Tasks beyond the end of ``addressOf``
    have no place yet either; the lists in ``ports`` are as long as ``addressOf``.
    """

    role: str
    addresses: tuple[str, ...]
    address_of: tuple[int | None, ...]
    ports: dict[str, tuple[tuple[int, ...], ...]] = {}

    # Of fields, not of the model: those would run again for each pod that gets the peers.
    @field_validator("address_of")
    @classmethod
    def _is_of_an_address(
        cls, found: tuple[int | None, ...], info: ValidationInfo
    ) -> tuple[int | None, ...]:
        known = range(len(info.data.get("addresses", ())))
        for position in found:
            if position is not None and position not in known:
                raise ValueError(f"addressOf {position}: there are {len(known)} addresses")
        return found

    @field_validator("ports")
    @classmethod
    def _is_of_all_tasks(
        cls, found: dict[str, tuple[tuple[int, ...], ...]], info: ValidationInfo
    ) -> dict[str, tuple[tuple[int, ...], ...]]:
        tasks = len(info.data.get("address_of", ()))
        for label, numbers in found.items():
            if len(numbers) != tasks:
                raise ValueError(f"ports {label}: not as many entries as addressOf, {tasks}")
        return found


class RoleShape(Model):
    """The numbers of a task role for every task's PAI_* variables. ``min_instances``: this many
    tasks, the first ones, are always there; None: all.
    """

    name: str
    instances: int
    gpus: int
    cpu: int
    memory_mb: int
    shm_mb: int = 0
    min_failed_instances: int
    min_succeeded_instances: int
    min_instances: int | None = None


class PodRun(Model):
    """All that an agent needs to run a pod. ``user_number``: which of the agent's uids is the
    user's. ``job_name`` is OpenPAI's ``user~name``. ``peers`` has each role of which a task has a
    place; the pod's own task is among them. ``image``: of its container, where the node has
    containers. ``image_pull_policy``: Kubernetes' name for when the node pulls it; empty: as the
    node has it. ``secrets``: those that the pod uses (``muster.contracts.secrets.PodSecrets``),
    sealed to the agent's key; the command has only their references. ``mounts``: the storages that
    it mounts. ``resources`` name → count of what else nodes count.
    """

    user: str
    user_number: int = 0
    job_name: str
    virtual_cluster: str
    role: str
    index: int
    job_attempt: int
    task_attempt: int
    image: str = ""
    image_pull_policy: str = ""
    command: str
    gpus: tuple[int, ...] = ()
    cpu: int
    memory_mb: int
    ports: dict[str, tuple[int, ...]] = {}
    resources: dict[str, int] = {}
    secrets: str | None = None
    mounts: tuple[StorageMount, ...] = ()
    roles: tuple[RoleShape, ...]
    peers: tuple[RolePeers, ...]


class PodStop(Model):
    """Why a pod is stopped, and how long it may take, in seconds, before it is killed."""

    reason: str
    grace_s: float


class PodRequest(StateMessage):
    """Launcher on a pod. ``run`` comes with the action run, ``stop`` with stop; ``journal`` names
    the journal that it was placed for.
    """

    pod: str
    job: str
    gang: str
    node: str
    journal: str
    action: PodAction
    run: PodRun | None = None
    stop: PodStop | None = None


class PodState(OpenEnum):
    """What became of a pod, as its agent knows."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class PodStatus(StateMessage):
    """Runtime agent on a pod: everything from accepted to its end.

    ``report_revision``: with the end of a pod, the first node report (by its revision) that no
    longer counts it; its GPUs and ports are free from that report on. ``checkpointed_at``: when it
    last reported that its gang's work is saved. ``reason``: what an accepted pod waits for, where
    that may last. ``address``: its own, from its start on; None: it has its node's.
    """

    pod: str
    job: str
    gang: str
    node: str
    journal: str
    boot: str
    state: PodState
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    verdict: Verdict | None = None
    checkpointed_at: datetime | None = None
    reason: Reason | None = None
    address: str | None = None
    report_revision: Revision = 0
