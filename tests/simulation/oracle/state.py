"""Who holds what, and nothing else; and what the definitions say of it, computed from scratch."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler.domain.core.model import Gang, GangClass, Kind, PodPlace, Role

from oracle.hardware import Hardware, Path

Bound = dict[int, tuple[str, Path]]
"""A bound cell: whose it is and out of which quota. Pinned cells are not among them."""


@dataclass(frozen=True)
class Record:
    """A gang with places. ``started_at`` None: the places are reserved for it."""

    gang: Gang
    places: Mapping[str, PodPlace]
    gang_class: GangClass
    cells: frozenset[tuple[int, Path]] = frozenset()
    started_at: float | None = None
    preempted_until: float | None = None
    preempted_for: str | None = None
    checkpointed_at: float | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to leave."""
        return self.preempted_until is not None

    @property
    def is_reserved(self) -> bool:
        """Whether it waits for others to leave its places."""
        return self.started_at is None

    @property
    def is_guaranteed(self) -> bool:
        """Whether it is in cells of its virtual cluster: no more once it was told to leave."""
        return self.gang_class is GangClass.GUARANTEED and not self.is_leaving

    def gpus(self) -> int:
        """How many GPUs it has."""
        return sum(len(place.gpus) for place in self.places.values())


def kinds_of(roles: Iterable[Role]) -> dict[str, Kind]:
    """What each pod wants."""
    return {pod: role.kind for role in roles for pod in role.pods}


Pod = tuple[str, str]
"""The names of a gang and of a pod of it."""


@dataclass(frozen=True)
class BeforeChange:
    """What is left of the time before the last change of the configuration. ``ran``: pods that ran
    then. ``broken``: those whose machines have not all that they have any more. ``used``: more
    than a machine has now of what is limited, as it was in use then.
    """

    ran: frozenset[Pod] = frozenset()
    broken: frozenset[Pod] = frozenset()
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass
class State:
    """All there is to know at one moment."""

    hardware: Hardware
    records: dict[str, Record] = field(default_factory=dict)
    waiting: dict[str, Gang] = field(default_factory=dict)
    growing: dict[str, tuple[Role, ...]] = field(default_factory=dict)
    bad_nodes: set[str] = field(default_factory=set)
    bad_gpus: set[tuple[str, int]] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    before_change: BeforeChange = BeforeChange()
    now: float = 0.0

    def is_protected(self, record: Record) -> bool:
        """Whether it may not be made to leave by its own virtual cluster: it has not run for long
        enough.
        """
        run_s = record.gang.min_run_s
        if run_s is None:
            run_s = self.hardware.config.policy.min_run_s
        return record.started_at is not None and self.now < record.started_at + run_s

    def emptied(self) -> "State":
        """A healthy cluster of this configuration in which nothing runs."""
        return State(self.hardware)

    def healed(self) -> "State":
        """The same with every GPU usable."""
        healed = State(self.hardware, dict(self.records), dict(self.waiting), dict(self.growing))
        healed.now = self.now
        return healed

    def is_machine_usable(self, machine: str) -> bool:
        """Whether new pods may go there."""
        return machine not in self.bad_nodes | self.cordoned | self.drained

    def is_usable(self, leaf: int) -> bool:
        """Whether a GPU is healthy and its machine takes pods."""
        cell = self.hardware.cells[leaf]
        node, gpu = str(cell.node), cell.gpu
        assert gpu is not None
        return self.is_machine_usable(node) and (node, gpu) not in self.bad_gpus

    def leaves_of(self, record: Record) -> list[int]:
        """The GPUs of a gang that are there."""
        at = self.hardware.leaf_at
        held = [(place.node, gpu) for place in record.places.values() for gpu in place.gpus]
        return [at[gpu] for gpu in held if gpu in at]

    def charged_by(self, record: Record) -> list[int]:
        """The GPUs that a gang is charged: its own and others for its share of the node."""
        at = self.hardware.leaf_at
        charged = [
            (place.node, gpu)
            for place in record.places.values()
            for gpu in (*place.gpus, *place.charged)
        ]
        return [at[gpu] for gpu in charged if gpu in at]

    def is_whole(self, record: Record) -> bool:
        """Whether the machines of all its pods have what they have."""
        kinds = kinds_of(record.gang.roles)
        holds = self.hardware.holds
        return all(holds(kinds[pod], place) for pod, place in record.places.items())

    def trial(self, records: Mapping[str, Record]) -> "State":
        """The same hardware with these gangs, to be looked at only."""
        trial = State(self.hardware, dict(records), before_change=self.before_change)
        trial.now = self.now
        return trial

    def bound(self, without: Iterable[str] = ()) -> Bound:
        """The cells that guaranteed gangs use, some gangs left out."""
        out = set(without)
        pinned = set(self.hardware.pins.values())
        return {
            cell: (record.gang.virtual_cluster, path)
            for record in self.records.values()
            if record.is_guaranteed and record.gang.id not in out
            for cell, path in record.cells
            if cell not in pinned
        }

    def replace_record(self, name: str, **changes: object) -> None:
        """Put another record in a gang's place."""
        self.records[name] = replace(self.records[name], **changes)  # type: ignore[arg-type]


def free_cells(hardware: Hardware, bound: Iterable[int]) -> set[int]:
    """The cells with nothing bound or pinned in them, above them, or themselves."""
    taken: set[int] = set()
    for cell in [*bound, *hardware.pins.values()]:
        taken.update(hardware.path_up(cell))
        taken.update(hardware.below(cell))
    return set(range(len(hardware.cells))) - taken


def spare(hardware: Hardware, bound: Bound) -> dict[tuple[str, str], int]:
    """S of every type of every chain."""
    free = free_cells(hardware, bound)
    obtainable: Counter[tuple[str, str]] = Counter()
    for number in free:
        cell = hardware.cells[number]
        above = None if cell.parent is None else hardware.cells[cell.parent]
        if not cell.is_complete:
            continue
        if above is None or above.number not in free or not above.is_complete:
            obtainable[cell.chain, cell.type] += 1
    unbound: Counter[tuple[str, str]] = Counter()
    for name in hardware.config.virtual_clusters:
        for path, count in hardware.quotas(name).items():
            types = path.split("/")
            unbound[types[0], types[-1]] += count
    for _, path in bound.values():
        types = path.split("/")
        unbound[types[0], types[-1]] -= 1
    left: dict[tuple[str, str], int] = {}
    for chain in hardware.chains():
        above_left, per_parent = 0, 0
        for cell_type in hardware.types_of(chain):
            key = (chain, cell_type)
            left[key] = obtainable[key] + per_parent * above_left - unbound[key]
            above_left = left[key]
            known = hardware.config.cell_types.get(cell_type)
            per_parent = 0 if known is None else known.count
    return left


def is_honoured(hardware: Hardware) -> bool:
    """Whether all virtual clusters can have all they own while nothing is bound."""
    return min(spare(hardware, {}).values(), default=0) >= 0


def is_lazy(state: State, gang: Gang) -> bool:
    """Whether a gang is downgraded before it is killed for one of its own virtual cluster."""
    return state.hardware.config.policy.is_lazy if gang.is_lazy is None else gang.is_lazy


def order_of(gang: Gang) -> tuple[int, float, str]:
    """By priority, age, id."""
    return (-gang.priority, gang.submitted_at, gang.id)
