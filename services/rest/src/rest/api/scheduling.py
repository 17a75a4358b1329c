"""The Scheduler's answers as the OpenAPI document shows them: queue, gangs, cells, advice, why.

REST passes them on as they are; tests compare real answers with these models.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rest.api.models import ShownReason


class Answered(BaseModel):
    """A part of an answer. Times are in ISO 8601 with Z."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class SchedulerPage(Answered):
    """A page of a list, as of the Scheduler's cycle ``asOf``."""

    asOf: int
    """The number of the cycle after which the answer was begun."""
    total: int
    """How many entries there are on all pages."""
    offset: int
    """How many entries this page skips."""
    limit: int
    """The most entries of this page: the wanted limit, or the Scheduler's if that is smaller."""


class NamedGang(Answered):
    """A gang by its id, and by its job's name."""

    gang: str
    """The gang's id."""
    name: str
    """The name of its job."""
    user: str
    """The owner of its job."""


class Gang(NamedGang):
    """A gang: pods that the Scheduler places together or not at all."""

    job: str
    """The id of its job, `debugId` in the job's answer."""
    virtualCluster: str
    """The virtual cluster that it uses."""
    priority: int
    """Its priority; below 0: opportunistic."""
    submittedAt: str
    """The time of its job's submission."""
    reason: ShownReason | None
    """Why it waits; null: it does not wait, or no cycle has tried it."""


class QueuedGang(Gang):
    """A waiting gang."""

    position: int | None
    """Its position in the queue, from 1; null: it is withheld from the queue."""
    gpus: int
    """The GPUs that it waits for."""
    expectedStart: str | None
    """The time at which it is expected to start; null: it has no reservation."""


class Queue(SchedulerPage):
    """A page of the waiting gangs, in the order of the queue."""

    gangs: list[QueuedGang]
    """The gangs. One that starts or ends meanwhile is left out."""


class Downgrade(Answered):
    """The loss of a gang's guarantee."""

    gang: str | None
    """The gang that got its cells; null: the configuration changed."""
    since: str
    """The time of the downgrade."""


class RunningGang(Gang):
    """A running gang."""

    state: Literal["placed", "preempted", "waiting", "refused"]
    """`preempted`: its pods are being stopped; `waiting`: it runs, and waits to grow."""
    class_: str | None = Field(alias="class")
    """`guaranteed`, `downgraded` or `opportunistic`."""
    lender: str | None
    """The virtual cluster that lends it GPUs; null: it has its own."""
    borrowed: dict[str, int]
    """Its borrowed GPUs by lender, surplus pods included."""
    downgrade: Downgrade | None
    """Null: it has not lost its guarantee."""
    startedAt: str | None
    """The time of its start."""
    pods: int
    """Its pods."""
    gpus: int
    """The GPUs that it uses, surplus pods included."""


class Gangs(SchedulerPage):
    """A page of the running gangs, by id."""

    gangs: list[RunningGang]
    """The gangs. One that ends meanwhile is left out."""


class ExplainedPod(Answered):
    """A pod. Without a place it has none of the fields that follow `state`, or empty ones."""

    pod: str
    """The pod's id."""
    state: str
    """`placed`, `waiting`, `refused`, `preempted` or `lost`."""
    node: str | None = None
    """The node."""
    address: str | None = None
    """The node's address for its peers."""
    logUrl: str | None = None
    """Where REST reads its logs."""
    journal: str | None = None
    """The id of the journal of the node's agent."""
    gpus: list[int]
    """The indices of its GPUs."""
    ports: dict[str, list[int]]
    """Its port numbers, by label."""


class HeldCell(Answered):
    """A cell that a gang holds."""

    cell: str
    """Its address."""
    quota: str
    """The path of the quota that it is held for."""


class PreemptionOrder(Answered):
    """The preemption of a gang."""

    gang: str | None = None
    """The gang that it is preempted for; absent: its node is drained."""
    until: str
    """The time by which its pods must have ended."""
    reason: ShownReason
    """Why it is preempted."""


class GangWithGpus(NamedGang):
    """A gang by its id and name, with its GPUs."""

    gpus: int
    """The GPUs that it waits for, or holds."""


class EndingGang(GangWithGpus):
    """A running gang whose end makes room."""

    endsAt: str
    """The time at which it is expected to end."""


class PlaceInVirtualCluster(Answered):
    """The place of a waiting gang in its virtual cluster, among gangs of its class."""

    position: int
    """Its position, from 1."""
    waiting: int
    """How many gangs wait."""
    gpusAhead: int
    """The GPUs that the gangs ahead wait for."""
    ahead: list[GangWithGpus]
    """The first gangs ahead."""


class NeededEnds(Answered):
    """The gangs whose ends would let a gang start."""

    gangs: list[EndingGang]
    """The first of them."""
    count: int
    """How many they are."""
    gpus: int
    """Their GPUs."""
    at: str
    """The time at which all are expected to have ended."""
    isLeast: bool
    """None of them can be left out."""


class FewerPods(Answered):
    """A smaller gang that would start now."""

    role: str
    """The task role that has fewer pods."""
    pods: int
    """Its pods then."""
    insteadOf: int
    """Its pods now."""
    isElastic: bool = False
    """These numbers are the role's `minInstances`, not its `instances`."""


class Borrowing(Answered):
    """The start of the gang if it might borrow."""

    startsNow: bool
    """It would start now."""
    lender: str | None
    """The virtual cluster that would lend; null: none would."""


class Counterfactual(Answered):
    """What would have to be otherwise for a gang to start."""

    ends: NeededEnds | None
    """Other gangs end; null: no ends help, or they were not found."""
    fewer: FewerPods | None
    """It has fewer pods; null: that does not help, or was not found."""
    opportunistic: bool | None
    """It would start now with priority -1; null: not asked."""
    borrowing: Borrowing | None
    """Null: not asked."""
    nodes: list[str]
    """It could start if these nodes were healthy."""
    leftOut: list[str]
    """The parts that were not found in the time that an answer may take."""


class ExplainedGang(Gang):
    """A gang of the job. The fields from `position` on are absent unless it waits."""

    state: Literal["placed", "preempted", "waiting", "refused"]
    """`preempted`: its pods are being stopped."""
    pods: list[ExplainedPod]
    """Its pods."""
    class_: str | None = Field(alias="class")
    """`guaranteed`, `downgraded` or `opportunistic`; null: it is not placed."""
    lender: str | None
    """The virtual cluster that lends it GPUs; null: it has its own."""
    borrowed: dict[str, int]
    """Its borrowed GPUs by lender, surplus pods included."""
    cells: list[HeldCell]
    """The cells that it holds; those of the lender if it borrows."""
    downgrade: Downgrade | None
    """Null: it has not lost its guarantee."""
    preemption: PreemptionOrder | None
    """Null: it is not preempted."""
    position: int | None = None
    """Its position in the queue, from 1."""
    waiting: int | None = None
    """How many gangs are in the queue."""
    ahead: list[str] | None = None
    """The ids of the first gangs ahead."""
    inVirtualCluster: PlaceInVirtualCluster | None = None
    """Its place among gangs of its class; null: it has a nominated placement."""
    expectedStart: str | None = None
    """The time at which it is expected to start; null: it has no reservation."""
    counterfactual: Counterfactual | None = None
    """Of the first three waiting gangs of a job; absent: it has a nominated placement."""


class ExplainedJob(Answered):
    """The Scheduler's answer on a job."""

    asOf: int
    """The number of the cycle after which the answer was begun."""
    job: str
    """The id of the job."""
    gangs: list[ExplainedGang]
    """Its gangs: one, or one for each task without gang allocation."""


class Why(Answered):
    """The reason of a job's state."""

    name: str
    """The job, as `user~name`."""
    state: str
    """Its state."""
    reason: ShownReason | None
    """The reason; null: it is not known."""
    scheduler: ExplainedJob | None
    """The Scheduler's answer; null: the job has ended, or it does not answer."""
    schedulerProblem: str | None
    """Why the Scheduler's answer is missing."""


class ReservedFor(NamedGang):
    """The first gang that reserved cells are for."""

    startsAt: str
    """The time at which it is expected to start."""


class CellBinding(Answered):
    """A bound cell, and its owner."""

    cell: str
    """The address of the bound cell: this one, or one around it."""
    virtualCluster: str | None
    """The owner; null: a pin that no virtual cluster owns."""
    quota: str | None
    """The path of the quota cell that it is bound to; null: it is pinned."""
    pin: str | None
    """The pin; null: it is bound to a quota cell."""


class PhysicalCell(Answered):
    """A physical cell: a GPU, a node, a part of a node, or a group of nodes."""

    cell: str
    """Its address."""
    chain: str
    """The chain of cell types that it is of."""
    type: str
    """Its cell type."""
    node: str | None
    """The node; null: it is above nodes."""
    gpu: int | None
    """The index of the GPU; null: it is no single GPU."""
    health: Literal["healthy", "bad"]
    """`bad`: a GPU in it is not healthy."""
    trouble: str | None
    """The first cause, and how many more; null: none."""
    order: str | None
    """`cordon` or `drain`, of the node; null: neither."""
    gpus: int
    """Its GPUs."""
    gpusHealthy: int
    """Its healthy GPUs."""
    gpusUsed: int
    """Its used GPUs, also those of ended or unknown pods."""
    gpusNominated: int
    """GPUs that are nominated for gangs that wait for preempted ones."""
    gpusFree: int
    """GPUs that are usable now; none on a cordoned node."""
    gpusBound: int
    """GPUs that are bound to quota cells or pins."""
    gpusReserved: int
    """GPUs that are reserved for gangs that can't start yet."""
    reservedFor: ReservedFor | None
    """The first of these gangs to start; null: none."""
    binding: CellBinding | None
    """Null: it is bound in parts, or not."""
    priority: int | None
    """The highest priority of gangs that use it or are nominated for it; null: no gang."""


class Cells(SchedulerPage):
    """A page of physical cells, in the order of the cluster's file."""

    cells: list[PhysicalCell]
    """The cells, parents first."""


class PodPosition(Answered):
    """A pod's place."""

    node: str
    """The node."""
    gpus: list[int]
    """The indices of its GPUs."""


class PodMove(Answered):
    """One pod of a move."""

    pod: str
    """The pod's id."""
    from_: PodPosition | None = Field(alias="from")
    """Its present place."""
    to: PodPosition | None
    """Its new place; null: it is released."""


class GangMove(NamedGang):
    """A gang to checkpoint and restart elsewhere."""

    virtualCluster: str
    """The virtual cluster that it uses."""
    priority: int
    """Its priority."""
    class_: str | None = Field(alias="class")
    """`guaranteed`, `downgraded` or `opportunistic`."""
    gpus: int
    """The GPUs that move."""
    lostGpuSeconds: float
    """The work that a restart loses: GPU seconds since the last checkpoint."""
    isSurplus: bool
    """Only pods beyond the gang's minimum move."""
    lender: str | None
    """The virtual cluster that lends it GPUs there; null: it has its own."""
    pods: list[PodMove]
    """The pods that move."""


class ShownAdvice(Answered):
    """Moves that would free cells, or the reason why none would."""

    asOf: int
    """The number of the cycle after which the answer was begun."""
    chain: str
    """The chain of the cells."""
    cell: str
    """The cell type."""
    wanted: int
    """How many cells are to be free."""
    cells: list[str]
    """The addresses of these cells; the first ``freeAlready`` are free now."""
    freeAlready: int
    """How many of them are free now."""
    gpus: int
    """The GPUs that move."""
    lostGpuSeconds: float
    """The work that the restarts lose, in GPU seconds."""
    isLeast: bool
    """No other cells would move fewer GPUs."""
    isCut: bool
    """The Scheduler has not tried everything, for lack of time."""
    reason: ShownReason | None
    """Why no moves free the cells; null: the moves do."""
    moves: list[GangMove]
    """The moves."""
