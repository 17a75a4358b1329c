"""The two words about a pod: run, stop or forget it (Launcher), and what became of it (Runtime
agent).
"""

from datetime import datetime

from muster.contracts.model import Model, OpenEnum, Word
from muster.contracts.verdicts import Verdict


class PodAction(OpenEnum):
    """What the agent shall do. ``forget``: the pod's end is known, its name never comes back."""

    RUN = "run"
    STOP = "stop"
    FORGET = "forget"
    UNKNOWN = "unknown"


class Peer(Model):
    """Where a task of the same job attempt runs: what the PAI_* variables are made from."""

    role: str
    index: int
    address: str
    ports: dict[str, tuple[int, ...]] = {}


class RoleShape(Model):
    """The numbers of a task role that the PAI_* variables tell every task."""

    name: str
    instances: int
    gpus: int
    cpu: int
    memory_mb: int
    shm_mb: int = 0
    min_failed_instances: int
    min_succeeded_instances: int


class PodRun(Model):
    """All that an agent needs to run a pod. ``job_name`` is OpenPAI's ``user~name``. ``grace_s``
    is kept before a kill.
    """

    user: str
    job_name: str
    virtual_cluster: str
    role: str
    index: int
    job_attempt: int
    task_attempt: int
    command: str
    gpus: tuple[int, ...] = ()
    cpu: int
    memory_mb: int
    ports: dict[str, tuple[int, ...]] = {}
    roles: tuple[RoleShape, ...]
    peers: tuple[Peer, ...]


class PodStop(Model):
    """Why a pod is stopped, and how long it may take, in seconds, before it is killed."""

    reason: str
    grace_s: float


class PodRequest(Word):
    """Launcher on a pod. ``run`` comes with the action run, ``stop`` with stop; ``journal`` names
    the
    journal that it was placed for.
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


class PodStatus(Word):
    """Runtime agent on a pod: everything from accepted to its end.

    ``report_revision``: with the end of a pod, the first node report (by its revision) that no
    longer counts it; its GPUs
    and ports are free from that report on.
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
    report_revision: int = 0
