"""What agents broadcast of their nodes, and what the Scheduler broadcasts of lost ones."""

from datetime import datetime

from muster.contracts.model import Model, OpenEnum


class ProblemKind(OpenEnum):
    """What kind of problem a node or GPU has. DRIVER: the GPU driver does not answer. XID: a fatal
    one. MEMORY: errors that could not be corrected. MISSING: the driver lists the GPU no more.
    FOREIGN: a process of no pod uses it. SETUP: its MIG mode can't be used. DISK: it is full.
    """

    DRIVER = "driver"
    XID = "xid"
    MEMORY = "memory"
    MISSING = "missing"
    FOREIGN = "foreign"
    SETUP = "setup"
    DISK = "disk"
    UNKNOWN = "unknown"


class Gpu(Model):
    """One GPU of a node. ``pod`` holds it; ``simulated`` GPUs are pretended, to try things out.
    ``problem`` is a sentence, ``problem_kind`` its kind.

    A GPU in MIG mode is not listed but each of its MIG devices, with the profile in ``model`` and
    ``mig_profile`` ("1g.10gb") and the UUID of their GPU as ``mig_parent``.
    """

    index: int
    uuid: str
    model: str
    memory_mb: int
    is_healthy: bool = True
    problem: str | None = None
    problem_kind: ProblemKind | None = None
    simulated: bool = False
    pod: str | None = None
    mig_profile: str | None = None
    mig_parent: str | None = None


class PodOnNode(Model):
    """A live pod on a node, with what it holds."""

    pod: str
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    cpu: int = 0
    memory_mb: int = 0


FOREIGN = "kubernetes/foreign"
"""The entry in a report's ``pods`` that stands for all pods of others on the node."""


class NodeReport(Model):
    """State of a node, on each change and each minute; the newest ``revision`` of a ``journal``
    counts.

    ``lease``: the highest lease number that the agent has read from ``node-returned``.
    ``foreign_ports``: ports in ``port_range`` (first and last, inclusive) that another process
    held, with the time until which to avoid them. ``missing_limits``: the node can't hold pods
    to these (memory, swap, cpu, processes). ``single_user``: why users are not separated from one
    another; None: they are. ``labels``: of the Kubernetes node. ``resources``: its counted
    resources by name; None: the node counts none by itself. ``secrets_key``: the agent's public
    key, to which secrets are sealed. On Kubernetes one entry of ``pods`` is FOREIGN.
    """

    node: str
    revision: int
    journal: str
    boot: str
    at: datetime
    address: str
    log_url: str | None = None
    version: str
    lease: int = 0
    cpu: int
    memory_mb: int
    port_range: tuple[int, int] = (20000, 29999)
    gpus: tuple[Gpu, ...] = ()
    pods: tuple[PodOnNode, ...] = ()
    foreign_ports: tuple[int, ...] = ()
    is_healthy: bool = True
    problem: str | None = None
    problem_kind: ProblemKind | None = None
    is_stopping: bool = False
    simulated: bool = False
    missing_limits: tuple[str, ...] = ()
    single_user: str | None = None
    labels: dict[str, str] = {}
    resources: dict[str, int] | None = None
    secrets_key: str | None = None

    @property
    def pods_of_jobs(self) -> tuple[PodOnNode, ...]:
        """Those that end where the node is drained."""
        return tuple(pod for pod in self.pods if pod.pod != FOREIGN)

    @property
    def foreign(self) -> PodOnNode:
        """What pods of others hold."""
        return next((pod for pod in self.pods if pod.pod == FOREIGN), PodOnNode(pod=FOREIGN))


class NodeHeartbeat(Model):
    """An agent is alive. The Scheduler's own probe has a ``probe`` and the empty node."""

    node: str
    journal: str = ""
    probe: str | None = None


class NodeLost(Model):
    """The Scheduler's lease of a node ran out. Repeated every 60 s while it is lost."""

    node: str
    lease: int
    since: datetime
    silent_s: float
    pods: tuple[str, ...] = ()


class NodeReturned(Model):
    """A lost node reports again. Its GPUs count again from a report that names this lease."""

    node: str
    lease: int
    at: datetime


class NodeNameClashed(Model):
    """Two machines report under one node name, each from its own journal: the Scheduler places
    nothing there. It publishes this again every 60 s until only one of them reports.
    """

    node: str
    journal: str
    address: str
    other_journal: str
    other_address: str
    since: datetime
    at: datetime
