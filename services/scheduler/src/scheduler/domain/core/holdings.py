"""Gangs and their pods while the scheduler runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.machines import Machine, SlotState, Take
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    CellUse,
    Gang,
    GangClass,
    Kind,
    PodPlace,
    Role,
    UserKey,
)
from scheduler.domain.core.owning import owner_of

Order = tuple[tuple[float, ...], str]
"""By what of the policies of the order stays the same while it waits, then by id: low ones first.
"""

Price = tuple[int, int]
"""What it costs that gangs leave: their GPUs (`prices.GPU` each), and when their work was saved
last, in milliseconds times GPUs, negated: of as many GPUs, what is lost.
"""

REMNANT = "\n"
"""In the name of what is left of a place that the hardware has not as it was: the pod's name, this,
and a number. No pod's own name has it.
"""


@dataclass(slots=True, eq=False)
class Pod:
    """A pod that has a place. ``state`` None: on a node's CPU alone. ``leaves``: charged;
    ``gpus``: used, both as masks. ``bindings``: the cells that it is in.
    """

    name: str
    gang: str
    kind: Kind
    machine: Machine
    take: Take
    state: SlotState | None
    leaves: int
    gpus: int
    ports: tuple[int, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def place(self, *, is_charged: bool = True) -> PodPlace:
        """Where it is, and what it is charged for beside it."""
        if self.state is None:
            return PodPlace(self.name, self.machine.name, (), self.ports)
        slot, rest = self.state.slot, self.leaves & ~self.gpus
        idle = slot.indices(rest) if rest and is_charged else ()
        return PodPlace(self.name, self.machine.name, slot.indices(self.gpus), self.ports, idle)

    def lift(self, *, is_reserved: bool = False) -> None:
        """What-if: it uses nothing, and nothing is reserved for it."""
        self._move(-1)
        state = self.state
        if state is not None and is_reserved:
            state.reserved &= ~self.gpus
        elif state is not None:
            state.held &= ~self.gpus
            state.lifted |= self.gpus

    def lower(self, *, is_reserved: bool = False) -> None:
        """The end of the what-if."""
        self._move(1)
        state = self.state
        if state is not None and is_reserved:
            state.reserved |= self.gpus
        elif state is not None:
            state.held |= self.gpus
            state.lifted &= ~self.gpus

    def _move(self, times: int) -> None:
        machine = self.machine
        machine.charge(self.take, times)
        if self.ports and machine.sort.limits.ports is not None:
            machine.hold_ports(self.ports, times)


@dataclass(slots=True, eq=False)
class Live:
    """A gang that is not over.

    ``pods``: those that have a place. ``waiting``: roles whose pods have none or a reserved one; of
    a gang that runs, its growth. ``started_at`` None: nothing of it runs. ``reserved``: pods whose
    places are not free yet. ``told``: the code of the last word about its wait.
    ``downgraded_under``: its quota when it could not be raised again. ``strangers``: places on
    nodes or GPUs that are not in the configuration; what of them is there is among ``pods``.
    ``apart``: from others that want the same (`queue.Key`). ``is_kept_for``: cells are kept for it;
    ``unplanned``: in which state none were found. ``passed``: the gang on whose kept cells it
    is, as it was expected to be gone in time; ``is_overdue``: it has to go for that.
    ``saved_at``: up to when its work is saved; ``checkpointed_at``: when it said so last.
    ``young_until``: it is protected until then, as it has not run for long; ``is_protected``: from
    the gang that is asked for now (`Protection`); ``is_paired``: it is kept off some other jobs;
    ``job``: by which it is judged. ``account``: what it uses counts there.
    ``reach``: gangs of its own virtual cluster of a lower rank may have to leave for it.
    ``lender``: the virtual cluster in whose quota it is, if that is not its own; ``owner`` is that
    one's then.
    ``rank``: gangs of a higher priority can have its cells; its own priority, but where it has them
    on sufferance.
    ``is_away``: it is taken out of the way in thought (`Removal`).
    ``surplus``: pods that it wants beside, and can start without. ``extra_of``: the gang that has
    grown, or is to grow, by this one's only pod.
    ``booked``: leaves that it is charged, by the books.
    ``among``: the set of `Charges` that it is in. ``cost``: its rank, and the price of
    letting it go (`prices.cost_of`); None: not worked out since one of them may have changed.
    """

    gang: Gang
    order: Order
    owner: str
    waiting: tuple[Role, ...]
    gang_class: GangClass | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    started_at: float | None = None
    reserved: tuple[str, ...] = ()
    preempted_until: float | None = None
    preempted_for: str | None = None
    told: str | None = None
    downgraded_under: tuple[int, ...] | None = None
    strangers: tuple[PodPlace, ...] = ()
    apart: "tuple[str | float | None, ...]" = ()
    is_kept_for: bool = False
    unplanned: tuple[int, ...] = ()
    passed: str | None = None
    is_overdue: bool = False
    is_away: bool = False
    saved_at: float = 0.0
    checkpointed_at: float | None = None
    surplus: tuple[Role, ...] = ()
    extra_of: str | None = None
    lender: str | None = None
    young_until: float = 0.0
    is_protected: bool = False
    is_paired: bool = False
    rank: int = field(init=False)
    reach: int = field(init=False)
    job: str = field(init=False)
    account: UserKey = field(init=False)
    booked: int = 0
    among: set[str] | None = None
    cost: tuple[int, Price] | None = None
    id: str = field(init=False)

    def __post_init__(self) -> None:
        gang = self.gang
        self.id = gang.id
        self.rank = self.reach = gang.priority
        self.job = gang.job or gang.id
        self.account = gang.virtual_cluster, gang.priority == OPPORTUNISTIC, gang.user

    @property
    def usual_rank(self) -> int:
        """Its rank where nothing is kept for others, and nobody overdue."""
        is_suffered = self.lender is not None or self.extra_of is not None
        return OPPORTUNISTIC if is_suffered else self.gang.priority

    def set_lender(self, lender: str | None) -> None:
        """In whose quota it is from now on, None: its own. What another's is it has on
        sufferance, and so what it can do without.
        """
        self.lender = lender
        self.owner = owner_of(lender or self.gang.virtual_cluster)
        self.rank = self.usual_rank

    @property
    def is_leaving(self) -> bool:
        """It was told to leave."""
        return self.preempted_until is not None

    @property
    def is_charged(self) -> bool:
        """It has cells of its virtual cluster."""
        return self.gang_class is GangClass.GUARANTEED and self.preempted_until is None

    @property
    def is_lent(self) -> bool:
        """It is in cells of another virtual cluster's quota."""
        return self.lender is not None and self.is_charged

    @property
    def is_guest(self) -> bool:
        """It is placed where nobody is, whoever's cells that may be in."""
        return self.gang.priority == OPPORTUNISTIC or (
            self.gang_class is not None and self.gang_class is not GangClass.GUARANTEED
        )

    @property
    def saved_ms(self) -> int:
        """Up to when its work is saved, in milliseconds."""
        return round(self.saved_at * 1_000)

    @property
    def gpus(self) -> int:
        """That it uses or has reserved."""
        gpus = 0
        for pod in self.pods.values():
            gpus += pod.gpus.bit_count()
        return gpus

    @property
    def gpus_in_use(self) -> int:
        """That it uses."""
        if not self.reserved:
            return self.gpus
        held = (pod for pod in self.pods.values() if pod.name not in self.reserved)
        return sum(pod.gpus.bit_count() for pod in held)

    def cells(self) -> tuple[CellUse, ...]:
        """The cells that it holds for its virtual cluster, each once."""
        found = {
            (binding.address, "" if binding.quota is None else binding.quota.path)
            for pod in self.pods.values()
            for binding in pod.bindings
        }
        return tuple(CellUse(cell, quota) for cell, quota in sorted(found))

    def states(self) -> Iterator[SlotState]:
        """The nodes' GPUs that it has a part of."""
        return (pod.state for pod in self.pods.values() if pod.state is not None)
