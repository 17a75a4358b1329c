"""The two messages on a gang: which pods are wanted (Launcher), what was decided (Scheduler)."""

from datetime import datetime

from muster.contracts.model import Model, OpenEnum, Reason, Revision, StateMessage


class PodAsk(Model):
    """One pod that a gang wants or still holds. ``ports`` is label → count, ``resources`` name →
    count of what else nodes count.

    ``gpu_types``: in order of preference, empty: any. ``pin``: only in the pinned cell that its
    virtual cluster calls so. ``surplus``: the gang starts without it where it has no place. It is
    placed when no other gang loses anything by it, and released before any gang is preempted. Where
    no other pod of the gang has a place or waits, it does not wait.
    """

    pod: str
    role: str
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    pin: str | None = None
    cpu: int = 0
    memory_mb: int = 0
    ports: dict[str, int] = {}
    resources: dict[str, int] = {}
    surplus: bool = False


class PodRelease(Model):
    """The end that a pod's agent reported: its resources are free from ``report_revision`` of
    ``journal`` on.
    """

    pod: str
    journal: str
    report_revision: Revision


class GangEnd(OpenEnum):
    """How a gang ended. ``stopped``: by its user. ``limit``: its time limit. ``taken``: by neither
    its user nor itself: preempted, drained, lost. ``requeued``: the same by a failure of the
    platform or a drain, and the job's next attempt follows soon.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LIMIT = "limit"
    TAKEN = "taken"
    REQUEUED = "requeued"
    UNKNOWN = "unknown"


class GangRequest(StateMessage):
    """Launcher on a gang: the pods it wants or still holds.

    A placed pod that is not listed is released; an empty list ends the gang. A pod name is never
    used again. ``released`` names the node report from which on an ended pod's GPUs and ports are
    free: the last ended pod of each task is enough. A released pod that is not in it counts as free
    from the newest report that does not list it.

    ``priority``: 0 to 1000 is guaranteed, -1 is opportunistic. ``submitted_at`` is the job's: an
    attempt that follows a preemption keeps its age. ``group``: gangs of one job with the same group
    are placed near one another. ``lazy_preemption``: whether it is downgraded before it is
    preempted for a gang of its own virtual cluster, None: as the policy. ``limit_s``: the run time
    at which it is ended. ``expected_s``: the run time that its user expects. ``min_run_s``: how
    long it is protected from preemption. ``checkpoint_s``: how often it saves work. ``borrow``: it
    may use idle quota of other virtual clusters. ``checkpointed_at``: when a pod last reported that
    the gang's work is saved. ``needs_keys``: its pods have secrets, so each placement needs the key
    of its node's agent. ``end``: with an empty list, how the gang ended; None: unknown. ``failed``:
    with the end ``requeued``, the pods that the platform failed. The Scheduler keeps the places of
    the others, and other places for these, for the gang whose ``follows`` names this one. That gang
    is first in its virtual cluster. ``node``: only on this node, which it tests: neither a cordon
    nor a drain of it counts. It is opportunistic then.
    """

    gang: str
    job: str
    name: str
    user: str
    virtual_cluster: str
    priority: int
    submitted_at: datetime
    group: str | None = None
    lazy_preemption: bool | None = None
    limit_s: int | None = None
    expected_s: int | None = None
    min_run_s: int | None = None
    checkpoint_s: int | None = None
    borrow: bool = False
    checkpointed_at: datetime | None = None
    needs_keys: bool = False
    end: GangEnd | None = None
    failed: tuple[str, ...] = ()
    follows: str | None = None
    node: str | None = None
    pods: tuple[PodAsk, ...] = ()
    released: tuple[PodRelease, ...] = ()


class PodDecisionState(OpenEnum):
    """What was decided about one pod."""

    PLACED = "placed"
    WAITING = "waiting"
    REFUSED = "refused"
    PREEMPTED = "preempted"
    LOST = "lost"
    UNKNOWN = "unknown"


class PodDecision(Model):
    """One pod: where it is placed, or what became of its placement.

    ``address`` is the node's address for its peers. ``journal`` is the id of the journal of the
    node's agent: an agent with another journal refuses the pod. ``gpus`` are indices on the node,
    ``ports`` label → port numbers. ``secrets_key``: the public key of the node's agent, where the
    gang needs keys and the agent has one.
    """

    pod: str
    state: PodDecisionState
    node: str | None = None
    address: str | None = None
    log_url: str | None = None
    journal: str | None = None
    gpus: tuple[int, ...] = ()
    ports: dict[str, tuple[int, ...]] = {}
    secrets_key: str | None = None


class Preemption(Model):
    """Release the pods: for which gang, by when, why. ``gang`` None: their node is drained."""

    gang: str | None = None
    until: datetime
    reason: Reason


class GangClass(OpenEnum):
    """How a placed gang holds its GPUs. ``guaranteed``: in cells of its virtual cluster.
    ``downgraded``: another gang has these cells now. ``opportunistic``: in no virtual cluster's
    cells.
    """

    GUARANTEED = "guaranteed"
    DOWNGRADED = "downgraded"
    OPPORTUNISTIC = "opportunistic"
    UNKNOWN = "unknown"


class Wait(Model):
    """The state of a waiting gang after the Scheduler's cycle ``as_of``, like ``asOf`` of its
    answers.

    ``position``: its place among the ``waiting`` gangs of its virtual cluster and class. None: it
    has a nominated placement, or too many gangs wait. ``expected_start``: with a reservation.
    """

    as_of: int
    position: int | None = None
    waiting: int | None = None
    expected_start: datetime | None = None


class GangDecision(StateMessage):
    """Scheduler on a gang: each pod placed, waiting, refused, preempted or lost.

    An ended gang has no pods, but those lost that a request lists after its end. ``reason``
    explains a wait, a refusal, or why such pods are lost. ``gang_class`` is set while the gang is
    placed; when it changes, so does only this. ``lender``: the virtual cluster in whose quota it is
    placed, if not in its own. ``wait``: while it waits. ``preemption`` is set while pods are
    preempted: all that have a place, or surplus ones, without which the gang continues.
    """

    gang: str
    job: str
    epoch: int
    gang_class: GangClass | None = None
    lender: str | None = None
    pods: tuple[PodDecision, ...] = ()
    reason: Reason | None = None
    preemption: Preemption | None = None
    wait: Wait | None = None
