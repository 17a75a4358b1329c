"""The interface of a scheduling core: changes, the cycle, questions, and what a restart needs.

Answers are values: a later change of the core does not alter them. A question changes nothing.
Sets of GPUs within a slot are bit masks of its leaves, as in `forest`.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.forest import Cell, Forest, Slot
from scheduler.domain.core.model import (
    Decision,
    Gang,
    GangClass,
    PodPlace,
    Reason,
    Restored,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    Role,
    UserKey,
)
from scheduler.domain.core.ordering import OrderPolicy
from scheduler.domain.core.shapes import Part

HEALTH, PREEMPTING = "health", "preempting"
"""Reason codes that the service knows: unusable nodes, and a nominated placement."""

AHEAD_NAMED = 5
"""Gangs ahead of another one that an answer names."""

MOST_CELLS = 64
"""The most cells that advice can be asked for."""


@dataclass(frozen=True, slots=True)
class GangState:
    """A gang that has not ended.

    ``waiting``: pods without a place, or with a nominated one; ``elastic``: those that a gang with
    places wants beside. ``started_at`` None: nothing of it runs. ``published``: the code of its
    last reason. ``is_waiting``: it waits for all of its pods, or for growth; ``is_nominated``: it
    has a nominated placement.
    """

    gang: Gang
    waiting: tuple[Role, ...]
    elastic: tuple[Role, ...] = ()
    started_at: float | None = None
    gang_class: GangClass | None = None
    lender: str | None = None
    preempted_until: float | None = None
    published: str | None = None
    is_waiting: bool = False
    is_nominated: bool = False

    @property
    def has_elastic(self) -> bool:
        """It waits for pods that it could do without."""
        return bool(self.elastic) or any(role.least is not None for role in self.waiting)

    @property
    def gpus_wanted(self) -> int:
        """GPUs of the waiting pods that it can't start without."""
        return sum(
            role.kind.gpus * (len(role.pods) if role.least is None else role.least)
            for role in self.waiting
        )


class Before(NamedTuple):
    """Waiting gangs before another one: their number, and the first of them."""

    number: int
    first: tuple[str, ...]


class Ahead(NamedTuple):
    """A gang's position among the waiting gangs of its virtual cluster and class. ``gpus``: what
    the gangs before it want together; ``first``: the first of these, with their GPUs.
    """

    position: int
    waiting: int
    gpus: int
    first: tuple[tuple[str, int], ...]


class End(NamedTuple):
    """A gang that has to end, its GPUs, and when that is expected."""

    gang: str
    gpus: int
    at: float


@dataclass(frozen=True, slots=True)
class Ends:
    """With the end of these gangs another one starts, or its preemption is published, expected at
    ``at``. ``is_least``: none of them can be spared.
    """

    gangs: tuple[End, ...]
    at: float
    is_least: bool = True


@dataclass(frozen=True, slots=True)
class Fewer:
    """With ``pods`` of a role instead of ``wanted`` it starts now."""

    role: str
    pods: int
    wanted: int


@dataclass(slots=True)
class Counterfactual:
    """The changes that would let a gang start. ``is_opportunistic``: with priority -1 it would
    start now; None: not asked. ``is_borrowing``: the same if it might borrow, of ``lender``.
    ``nodes``: if these were healthy. ``left_out``: parts that were not found within the bounds.
    """

    ends: Ends | None = None
    fewer: Fewer | None = None
    is_opportunistic: bool | None = None
    is_borrowing: bool | None = None
    lender: str | None = None
    nodes: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Move:
    """A gang, or an elastic pod of it, that would begin anew elsewhere: places by pod."""

    gang: str
    is_surplus: bool
    gang_class: GangClass | None
    gpus: int
    lost_gpu_s: float
    lender: str | None
    before: Mapping[str, PodPlace]
    after: Mapping[str, PodPlace]


@dataclass(frozen=True, slots=True)
class Advice:
    """Moves that would free ``cells`` (addresses), of which ``already`` many are free. ``reason``:
    why there are none. ``is_least``: no others need fewer moved GPUs. ``is_cut``: not all was
    tried.
    """

    chain: str
    cell_type: str
    cells: tuple[str, ...]
    already: int
    gpus: int
    lost_gpu_s: float
    moves: tuple[Move, ...]
    reason: Reason | None
    is_least: bool
    is_cut: bool


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node. ``bad``: unhealthy GPUs; ``blocked``, ``amounts`` and ``ports``: what foreign pods
    hold; ``avoided``: ports that are assigned last. ``used_ports``: of all pods.
    ``nominated``: GPUs of nominated placements. ``gpus_free``; ``totals`` and ``left``: amounts
    that it has, and that are left, of limited resources that some gang may want.
    """

    is_healthy: bool
    is_cordoned: bool
    is_drained: bool
    bad: frozenset[int]
    blocked: tuple[int, ...]
    amounts: Mapping[str, int]
    ports: Collection[int]
    avoided: Collection[int]
    used_ports: Collection[int]
    nominated: frozenset[int]
    gpus_free: int
    totals: Mapping[str, int]
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BoundCell:
    """A physical cell that is bound to an owner (`owning`), by a quota's path; None: a pin."""

    owner: str
    quota: str | None
    cell: Cell
    part: Part | None

    @property
    def address(self) -> str:
        """The cell's address."""
        if self.part is None or self.cell.slot is None:
            return self.cell.address
        return self.cell.slot.address(self.part)


class ReservedLeaves(NamedTuple):
    """Leaves that are reserved for a gang, which is expected to start then."""

    gang: str
    leaves: int
    starts_at: float


@dataclass(frozen=True, slots=True)
class SlotState:
    """A node's GPUs in one tree. ``bad``: unhealthy ones; ``free``: those for new pods;
    ``nominated``: others leave them. ``gangs``: leaves with the priority by which others see the
    gang that uses them, or has them nominated. ``cells``: the bound cells that the slot is in.
    """

    is_healthy: bool
    bad: int
    used: int
    nominated: int
    free: int
    gangs: tuple[tuple[int, int], ...]
    reserved: tuple[ReservedLeaves, ...]
    cells: tuple[tuple[int, BoundCell], ...]


HELD_AS = OWN, BORROWED, OPPORTUNISTIC_GPUS = "own", "borrowed", "opportunistic"
"""How gangs hold GPUs: in their virtual cluster's quota, in another one's, or in none."""


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A virtual cluster's GPUs: ``owned``; ``charged`` to it, of which others have ``lent``;
    ``opportunistic``: in use by gangs without cells. ``bound``: cells by the path of their quota.
    """

    bound: Mapping[str, int]
    owned: int
    charged: int
    opportunistic: int
    lent: int
    borrowed: int


class Counts(NamedTuple):
    """Gangs by state. ``wanted``: GPUs that waiting gangs want, by virtual cluster and code of the
    published reason; "" before the first one.
    """

    waiting: int
    nominated: int
    downgraded: int
    wanted: Mapping[tuple[str, str], int]


class Leaving(NamedTuple):
    """A preempted gang, which has to end by ``until``, or one elastic pod of it."""

    gang: str
    pod: str | None
    until: float


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference of ``size`` between accounting and placements: which account (``book``) differs,
    and how. ``gang``: whose placement; empty: nobody can be named.
    """

    gang: str
    book: str
    size: int
    text: str


@dataclass(slots=True)
class ChangedRows:
    """Whose stored rows may differ from the core now: gangs beside those of decisions, gangs with
    reservations, users; and the new preemptions.
    """

    gangs: set[str] = field(default_factory=set)
    reservations: set[str] = field(default_factory=set)
    usage: set[UserKey] = field(default_factory=set)
    preemptions: tuple[RestoredPreemption, ...] = ()


class Nodes(Protocol):
    """Nodes and their conditions. Unknown ones are ignored."""

    def of(self, name: str) -> NodeState | None: ...
    def set_node_health(self, name: str, is_healthy: bool) -> None: ...
    def set_gpu_health(self, name: str, gpu: int, is_healthy: bool) -> None: ...
    def block(
        self,
        name: str,
        gpus: Collection[int],
        amounts: Mapping[str, int],
        ports: Collection[int],
        avoided: Collection[int],
    ) -> bool:
        """Foreign pods hold these now. Whether that is another state than before."""

    def cordon(self, name: str) -> None: ...
    def drain(self, name: str) -> None: ...
    def uncordon(self, name: str) -> None: ...


class Cells(Protocol):
    """Cells as they are shown: who uses, holds and owns them."""

    def slot(self, fixed: Slot) -> SlotState: ...
    def bound(self, owners: Collection[str]) -> Iterator[BoundCell]: ...
    def free(self) -> Iterator[tuple[Slot, int, int]]:
        """Of each slot the leaves that new pods may have, and those of them that are free."""

    def quotas(self) -> Mapping[str, QuotaState]:
        """By virtual cluster."""

    def usable(self) -> Mapping[str, int]:
        """Of the GPUs that each virtual cluster has left, how many can be used now. What several
        have in common counts for each.
        """

    def borrowing(self) -> Mapping[str, tuple[int, int]]:
        """GPUs that each virtual cluster lends and borrows."""

    def users(self) -> Mapping[tuple[str, str, str], int]:
        """GPUs that gangs use or hold, by virtual cluster, user, and one of HELD_AS."""


class Rows(Protocol):
    """What is stored of a core beside its gangs, and restored after them."""

    def take_changed(self) -> ChangedRows:
        """Since the last call. Amid a cycle only what is final."""

    def reservation(self, gang: str) -> RestoredReservation | None: ...
    def reservations(self) -> Sequence[RestoredReservation]:
        """The oldest first."""

    def usage_of(self, user: UserKey) -> RestoredUsage | None: ...
    def usages(self) -> Sequence[RestoredUsage]: ...
    def preemptions(self) -> Sequence[RestoredPreemption]:
        """Those of the last hour."""

    def begin_restoring(self) -> None:
        """No time passes for users' usage."""

    def restore_reservation(self, restored: RestoredReservation) -> None: ...
    def forget_reservations(self) -> None: ...
    def restore_usage(self, restored: RestoredUsage) -> None: ...
    def forget_usage(self, user: UserKey) -> None: ...
    def restore_preemption(self, restored: RestoredPreemption) -> None: ...
    def restored(self, now: float) -> None:
        """All is restored; decisions follow."""


class Questions(Protocol):
    """Questions about waiting gangs. Nothing is changed. Unknown gangs are a KeyError."""

    def reason_of(self, gang: str) -> Reason | None:
        """Why it waits, as of the last time that its class was tried: for messages and lists."""

    def reason_now(self, gang: str) -> Reason | None:
        """The same as of the last cycle, which takes longer."""

    def starts_at(self, gang: str) -> float | None:
        """When it is expected to start, if it has a reservation."""

    def counts(self) -> Counts: ...
    def has_at_most(self, waiting: int) -> bool:
        """No more gangs wait. It looks at no more of them."""

    def first(self, limit: int) -> Sequence[str]:
        """The first waiting gangs, in order."""

    def before(self, gang: str) -> Before:
        """The waiting gangs before it, of all virtual clusters."""

    def ahead(self, gang: str) -> Ahead | None:
        """Its position in its virtual cluster; None: it has a nominated placement."""

    def counterfactual(self, gang: str) -> Counterfactual | None:
        """None: it has a nominated placement, or does not wait."""

    def advise(self, chain: str | None, cell: str | None, cells: int) -> Advice | None:
        """None: there is no such chain or type of cell."""


class Core(Protocol):
    """``forest``: the cluster by its configuration. ``cycles``: how many cycles, or parts of one,
    there were. ``explained``: how many reasons were found. ``is_under_way``: the rest of a cycle is
    to come, before anything else changes. ``is_settled``: gangs that can never start are refused.
    ``is_explaining``: waiting gangs get reasons.
    """

    policies: Mapping[str, OrderPolicy]
    is_explaining: bool

    @property
    def nodes(self) -> Nodes: ...
    @property
    def cells(self) -> Cells: ...
    @property
    def rows(self) -> Rows: ...
    @property
    def questions(self) -> Questions: ...
    @property
    def forest(self) -> Forest: ...
    @property
    def cycles(self) -> int: ...
    @property
    def explained(self) -> int: ...
    @property
    def is_under_way(self) -> bool: ...
    @property
    def is_settled(self) -> bool: ...

    # Gangs. Unknown ones are ignored.

    def request(self, gang: Gang) -> None: ...
    def grow(self, gang: str, roles: Sequence[Role]) -> None:
        """It wants these pods too, all of them at once or none."""

    def want_more(self, gang: str, roles: Sequence[Role]) -> None:
        """It grows by as many of these pods as possible at nobody's cost."""

    def checkpointed(self, gang: str, at: float) -> bool:
        """Its work up to then is saved. Whether it runs, and had not saved so much."""

    def release(self, gang: str) -> None:
        """It has ended, or is not wanted any more. Nothing is kept of one that was requeued."""

    def requeue(self, gang: str, until: float) -> None:
        """It has ended by the platform's fault. What is healthy of its cells is kept until then for
        the gang that follows it, and other cells for the rest.
        """

    def release_pod(self, gang: str, pod: str, *, is_lost: bool = False) -> None:
        """A pod has ended; with its last pod the gang. ``is_lost``: by the platform's fault."""

    def restore(self, restored: Restored, now: float) -> None:
        """A gang has had places. If it can't have its cells again it is downgraded; the next cycle
        publishes that.
        """

    def note_published(self, gang: str, code: str | None) -> None:
        """The code of a gang's last published reason."""

    def forget(self, gang: str) -> None:
        """As if the gang had never been there."""

    def gang(self, gang: str) -> GangState | None: ...
    def gang_ids(self) -> Collection[str]: ...
    def exported(self, gang: str) -> Restored:
        """All that is kept of a gang."""

    def leaving(self) -> Sequence[Leaving]:
        """Preempted gangs that have not ended."""

    # The cycle.

    def settle(self, is_settled: bool) -> None:
        """Whether gangs that can never start are refused from now on."""

    def cycle(self, now: float, is_enough: Callable[[int], bool] | None = None) -> list[Decision]:
        """Decide about all that wait, or the rest of that. ``is_enough`` is asked between gangs,
        with the number of decisions so far.
        """

    def wakes_at(self) -> float | None:
        """When a cycle is due without an event; None: never."""

    def idle_cycles(self) -> float:
        """How many cycles without an event, one after the other, may still lead to a decision."""

    def unpublished(self) -> Collection[str]:
        """Gangs about which the next cycle publishes what happened since the last one."""

    def was_tried(self) -> bool:
        """Gangs wait, and none for the next cycle."""

    def note_tried(self, *, is_settled: bool) -> None:
        """All is as after a cycle: gangs with a published reason were tried."""

    def changed(self, config: ClusterConfig, now: float) -> "Core":
        """A core of another configuration with the same gangs, which stay where they are. This one
        is only read. Raises ConfigError.
        """

    def audit(self) -> Generator[None, None, list[Drift]]:
        """Compare accounting with placements. Cycles may run at each step."""
