"""The values of the core: what a gang wants, where its pods are, what was decided and why.

All times are seconds of one clock that never goes back, chosen by the caller.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

OPPORTUNISTIC = -1
"""The priority of gangs that own nothing: they use what is idle."""

NO_ONE = "-"
"""The virtual cluster of gangs that stand for pods that have ended and hold their place still."""

HIGHEST_PRIORITY = 1000
"""Priorities of guaranteed gangs go from 0 to this."""


class GangClass(StrEnum):
    """How a placed gang holds its GPUs.

    Guaranteed: in cells of its virtual cluster. Downgraded: it was guaranteed, its cells are
    another's now, and it runs on as if opportunistic. Opportunistic: in nobody's cells.
    """

    GUARANTEED = "guaranteed"
    DOWNGRADED = "downgraded"
    OPPORTUNISTIC = "opportunistic"


@dataclass(frozen=True, slots=True)
class Kind:
    """What pods of one role want, each. ``gpu_types``: in order of preference, empty: any type; of
    pods without GPUs they have no effect, and are dropped, as is one that comes again.

    ``pin``: only in this pinned cell. ``resources``: sorted (name, count) pairs.
    """

    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    pin: str | None = None
    cpu: int = 0
    memory_mb: int = 0
    ports: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.gpu_types and not self.gpus:
            object.__setattr__(self, "gpu_types", ())
        elif len(self.gpu_types) > 1:
            object.__setattr__(self, "gpu_types", tuple(dict.fromkeys(self.gpu_types)))
        # Once: a kind is the key of every memory of what was worked out for it.
        wants = (self.gpus, self.gpu_types, self.pin, self.cpu, self.memory_mb, self.ports)
        object.__setattr__(self, "_hash", hash(wants))

    def __hash__(self) -> int:
        return self._hash

    @property
    def costs_nothing(self) -> bool:
        """Such a pod may be where it costs no GPU."""
        return self.gpus == 0 and self.pin is None

    def gpus_alone(self) -> "Kind":
        """The same without what it wants beside them."""
        return Kind(self.gpus, self.gpu_types, self.pin)


@dataclass(slots=True, unsafe_hash=True)
class Role:
    """Equal pods of a gang, by name, in order. A gang grows by pods of a ``name`` that it has.
    ``least``: so many of them, the first ones, are enough to start; None: all.

    It never changes; that nobody makes sure of it is because one is made for each gang that comes,
    and a frozen one takes three times as long.
    """

    kind: Kind
    pods: tuple[str, ...]
    name: str = field(default="", compare=False)
    least: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that are placed together or not at all, in time order: by priority, age and id.

    ``group``: gangs of one job with the same group are put near one another. ``is_lazy``: whether
    it is downgraded before it is killed for a gang of its own virtual cluster, None: as the policy
    says. ``allowed_nodes``: only there, None: anywhere; what it wants is then not guaranteed.

    ``expected_s``: how long it will run, as far as anybody knows; ``limit_s``: it is ended when it
    has run for so long; ``min_run_s``: it is not preempted by its own virtual cluster before, None:
    as the policy says; ``checkpoint_s``: it saves its work whenever it has run for so long again.
    ``is_borrowing``: it may use idle quota of other virtual clusters. ``follows``: the gang of its
    job's last attempt, which the platform failed: it is first in its virtual cluster.
    ``is_preflight``: it tests its allowed nodes, so neither cordon nor drain of them counts for it.
    """

    id: str
    virtual_cluster: str
    user: str
    priority: int
    roles: tuple[Role, ...]
    job: str = ""
    submitted_at: float = 0.0
    group: str | None = None
    is_lazy: bool | None = None
    allowed_nodes: frozenset[str] | None = None
    expected_s: float | None = None
    limit_s: float | None = None
    min_run_s: float | None = None
    checkpoint_s: float | None = None
    is_borrowing: bool = False
    follows: str | None = None
    is_preflight: bool = False


class PodPlace(NamedTuple):
    """Where a pod is: GPU indices and port numbers on the node. ``charged``: GPUs that it does not
    use and is charged all the same, for its share of the node.
    """

    pod: str
    node: str
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    charged: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CellUse:
    """A physical cell by its address that a gang holds for its virtual cluster, and out of which
    quota (its path).
    """

    cell: str
    quota: str


@dataclass(frozen=True, slots=True)
class ExtraPod:
    """A pod of a gang that has started with fewer: it runs since ``started_at``, and was told to
    leave by ``preempted_until`` for ``preempted_for``, if at all. ``gang_class``: how it holds its
    GPUs. ``lender``: as with `Restored`.
    """

    pod: str
    started_at: float
    gang_class: GangClass | None = None
    preempted_until: float | None = None
    preempted_for: str | None = None
    lender: str | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A gang that was placed before: all that the core keeps of it.

    ``gang_class`` None: the core binds its cells as it would now. ``started_at`` None: its place
    is reserved, and it waits for the gangs there to leave. ``preempted_until``: it was told to
    leave by then. ``reserved``: pods by which a running gang grows, whose places are reserved. Pods
    of the gang that have no place are over. ``passed``: the gang on whose kept cells it is.
    ``checkpointed_at``: when it said last that its work is saved.
    ``extra``: pods that it could do without, by which it has grown into idle cells. ``lender``: the
    virtual cluster in whose quota it is, None: its own.
    """

    gang: Gang
    places: tuple[PodPlace, ...]
    gang_class: GangClass | None = None
    cells: tuple[CellUse, ...] = ()
    started_at: float | None = None
    preempted_until: float | None = None
    preempted_for: str | None = None
    reserved: tuple[str, ...] = ()
    passed: str | None = None
    checkpointed_at: float | None = None
    extra: tuple[ExtraPod, ...] = ()
    lender: str | None = None

    @property
    def nominated(self) -> tuple[PodPlace, ...]:
        """Places that others have to leave first."""
        if self.started_at is None:
            return self.places
        return tuple(place for place in self.places if place.pod in self.reserved)

    @property
    def running(self) -> tuple[PodPlace, ...]:
        """Places of pods that run."""
        if self.started_at is None:
            return ()
        return tuple(place for place in self.places if place.pod not in self.reserved)


NodeGpus: TypeAlias = tuple[str, tuple[int, ...]]
"""A node and indices of its GPUs."""


@dataclass(frozen=True, slots=True)
class KeptOf:
    """The gang of an attempt that the platform failed, as far as its kept cells need it."""

    virtual_cluster: str
    priority: int
    user: str
    job: str
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredReservation:
    """Cells that were kept for a waiting gang before, expected to start at ``starts_at``; it has
    had some ``since`` then. ``bound``: those that are bound for it. ``held``: what it is charged,
    None: all of ``cells`` that nobody else is. ``patient_until``: nodes of it that are not well may
    just not have been heard until then. ``kept_of``: the cells are those of an attempt that the
    platform failed. They are kept until ``starts_at`` for the gang, or, where that is over, for the
    one that follows it.
    """

    gang: str
    cells: tuple[NodeGpus, ...]
    starts_at: float
    since: float
    bound: tuple[CellUse, ...] = ()
    held: tuple[NodeGpus, ...] | None = None
    patient_until: float | None = None
    kept_of: KeptOf | None = None


UserKey: TypeAlias = tuple[str, bool, str]
"""Virtual cluster, whether of opportunistic gangs, user."""


@dataclass(frozen=True, slots=True)
class RestoredUsage:
    """What a user's gangs of one virtual cluster and class had used up to ``at``: by resource,
    amounts times seconds, faded.
    """

    virtual_cluster: str
    user: str
    is_opportunistic: bool
    at: float
    used: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RestoredPreemption:
    """A gang of ``job`` was told to leave for one of ``for_job``, ``at`` seconds, inside a virtual
    cluster; None, in old files: an opportunistic gang, for a guarantee. It counts for no budget.
    """

    at: float
    job: str
    for_job: str
    virtual_cluster: str | None = None


Numbers: TypeAlias = Mapping[str, "int | float | str | None"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why not. ``code`` for programs, ``text`` for people, ``numbers`` for both."""

    code: str
    text: str
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Placed:
    """The gang starts now. ``lender``: the virtual cluster in whose quota, if not its own."""

    gang: str
    pods: tuple[PodPlace, ...]
    lender: str | None = None


@dataclass(frozen=True, slots=True)
class Grown:
    """These more pods of a running gang start now. ``lender``: as with `Placed`."""

    gang: str
    pods: tuple[PodPlace, ...]
    lender: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """The gang waits; said when the code changes."""

    gang: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refused:
    """No healthy, empty cluster of this configuration could hold the gang."""

    gang: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Preempted:
    """The gang is to leave by ``until``. ``for_gang`` None: its node is drained."""

    gang: str
    for_gang: str | None
    until: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Shrunk:
    """These pods of a gang, which goes on without them, are to leave by ``until``. ``for_gang``
    None: their node is drained.
    """

    gang: str
    pods: tuple[str, ...]
    for_gang: str | None
    until: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class PreemptionCancelled:
    """What was reserved for the gang is not any more."""

    gang: str


@dataclass(frozen=True, slots=True)
class Downgraded:
    """The gang runs on without its cells. ``for_gang`` None: its quota went by a change of the
    configuration.
    """

    gang: str
    for_gang: str | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """Cells are kept for a waiting gang, the first of its virtual cluster that can't start: nodes
    with indices of their GPUs; it is expected to start at ``starts_at``. None, and no cells: they
    are kept no longer.
    """

    gang: str
    cells: tuple[NodeGpus, ...]
    starts_at: float | None


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The gang has cells of its virtual cluster again."""

    gang: str


Decision: TypeAlias = (
    Placed
    | Grown
    | Deferred
    | Refused
    | Preempted
    | Shrunk
    | PreemptionCancelled
    | Downgraded
    | Upgraded
    | Reserved
)


def without(roles: Iterable[Role], pods: Collection[str]) -> tuple[Role, ...]:
    """Roles less some pods."""
    left = (_without(role, pods) for role in roles)
    return tuple(role for role in left if role.pods)


def _without(role: Role, pods: Collection[str]) -> Role:
    least = role.least
    if least is not None:
        least -= sum(pod in pods for pod in role.pods[:least])
    return replace(role, pods=tuple(p for p in role.pods if p not in pods), least=least)


def joined(roles: Sequence[Role], more: Sequence[Role]) -> tuple[Role, ...]:
    """Roles with more pods; those of one name and kind are one role."""
    found = list(roles)
    for role in more:
        same = (i for i, r in enumerate(found) if r.name == role.name != "" and r.kind == role.kind)
        index = next(same, None)
        if index is None:
            found.append(role)
        else:
            found[index] = _joined(found[index], role)
    return tuple(found)


def _joined(role: Role, more: Role) -> Role:
    """It can do without the pods that both could do without."""
    least = None
    if role.least is not None or more.least is not None:
        least = sum(len(r.pods) if r.least is None else r.least for r in (role, more))
    return replace(role, pods=(*role.pods, *more.pods), least=least)
