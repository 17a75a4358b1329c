"""Nodes while the scheduler runs: facts that only the journal changes.

A node's GPUs in one tree are a *slot*; most nodes have one. A node without GPUs has one slot
without leaves, so that pods without GPUs are placed like all others. Sets of leaves are bit masks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from scheduler.domain.core.config import NodeLimits
from scheduler.domain.core.forest import Cell, Chain, Quota
from scheduler.domain.core.forest import Slot as FixedSlot
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind
from scheduler.domain.core.node_models import FIRST_PORT, LAST_PORT, Model, Want
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.core.shapes import Part, Shape


@dataclass(slots=True, eq=False)
class Node:
    """``left``: of each resource what is free; ``soon``: when those have left that leave.

    ``ports``: in use, as bits from the first port of the node's range; ``blocked_ports``: held by
    foreign pods; ``avoided_ports``: given last. ``blocked``: amounts held by foreign pods.
    """

    name: str
    number: int
    limits: NodeLimits
    left: tuple[int, ...]
    soon: tuple[int, ...]
    slots: "tuple[Slot, ...]" = ()
    is_healthy: bool = True
    is_cordoned: bool = False
    is_drained: bool = False
    ports: int = 0
    blocked_ports: int = 0
    avoided_ports: int = 0
    blocked: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """New pods may come."""
        return self.is_healthy and not self.is_cordoned and not self.is_drained

    @property
    def port_range(self) -> tuple[int, int]:
        """First and last port."""
        return self.limits.ports or (FIRST_PORT, LAST_PORT)

    def ports_in(self, bits: int) -> tuple[int, ...]:
        """The numbers of ports, which are bits of the node's range."""
        found, first = list[int](), self.port_range[0]
        while bits:
            low = bits & -bits
            found.append(first + low.bit_length() - 1)
            bits ^= low
        return tuple(found)

    def port_bits(self, ports: Iterable[int]) -> int:
        """The other way round; ports outside of the range are left out."""
        first, last = self.port_range
        return sum(1 << port - first for port in set(ports) if first <= port <= last)

    def choose_ports(self, count: int) -> int | None:
        """The lowest free ports, avoided ones last, as bits; None where there are too few."""
        if not count:
            return 0
        first, last = self.port_range
        free = ((1 << last - first + 1) - 1) & ~self.ports & ~self.blocked_ports
        chosen = 0
        for some in (free & ~self.avoided_ports, free & self.avoided_ports):
            rest = some
            while rest and count:
                low = rest & -rest
                chosen |= low
                rest ^= low
                count -= 1
        return None if count else chosen


@dataclass(slots=True, eq=False)
class Pool:
    """The slots of one chain, or of all nodes without GPUs (``chain`` None), by number, and by
    rack. ``dirty``, ``dirty_open``, ``dirty_of``: dirty slots of its views, by what these show: all
    slots, those with open leaves, those with leaves bound to an owner.
    """

    chain: Chain | None
    slots: "list[Slot]" = field(default_factory=list)
    racks: "list[list[Slot]]" = field(default_factory=list)
    models: tuple[Model, ...] = ()
    dirty: "list[dict[Slot, None]]" = field(default_factory=list)
    dirty_open: "list[dict[Slot, None]]" = field(default_factory=list)
    dirty_of: "dict[str, list[dict[Slot, None]]]" = field(default_factory=dict)

    @property
    def gpu_type(self) -> str | None:
        """Of its leaves."""
        return None if self.chain is None else self.chain.gpu_type


@dataclass(slots=True, eq=False)
class Slot:
    """A node's GPUs in one tree.

    ``number`` and ``rack``: in its pool; ``bit``: its place in the rack. ``good``: leaves that may
    be used: healthy, not blocked, on an open node. ``used``: by pods that run, or leave.
    ``held``: by nominated pods. ``leaving``: used by pods that leave. ``charged``:
    to gangs that own cells here. ``open``: in no bound cell. ``bound``: owner → leaves.
    ``bindings``: the bound cells, each with its leaves here. ``pods``: workload → leaves that it
    uses or holds, and leaves that it is charged. ``shares``: leaf → who is charged it together.
    """

    node: Node
    pool: Pool
    fixed: FixedSlot | None
    model: Model
    shape: Shape
    number: int
    rack: int
    bit: int
    good: int
    sick: int = 0
    blocked: int = 0
    used: int = 0
    held: int = 0
    leaving: int = 0
    charged: int = 0
    open: int = 0
    bound: dict[str, int] = field(default_factory=dict)
    bindings: "tuple[tuple[int, Binding], ...]" = ()
    pods: "dict[Workload, tuple[int, int]]" = field(default_factory=dict)
    shares: "dict[int, Shares]" = field(default_factory=dict)

    @property
    def staying(self) -> int:
        """Leaves that are used or held when those have left that leave."""
        return self.used & ~self.leaving | self.held

    @property
    def free(self) -> int:
        """Leaves that no workload uses or holds."""
        return self.good & ~(self.used | self.held)


class Shares(NamedTuple):
    """Pods without GPUs that are charged one leaf together. ``priorities``: of each, lowest first.
    ``amounts``: of all together. ``holds``: how many are reservations', which nobody joins.
    """

    priorities: tuple[int, ...]
    amounts: tuple[int, ...]
    holds: int


@dataclass(slots=True, eq=False)
class Binding:
    """A bound cell. ``part``: inside the node of ``cell``, None: the cell itself. ``quota`` None:
    it is pinned. ``users``: pods that are charged some of it.
    """

    owner: str
    quota: "QuotaLeft | None"
    cell: Cell
    part: Part | None
    users: int = 0


@dataclass(slots=True, eq=False)
class QuotaLeft:
    """An owner's quota of one level of a chain. ``left``: cells of it that are not bound."""

    quota: Quota
    left: int

    @property
    def chain(self) -> Chain:
        """The chain of its cells."""
        return self.quota.chain

    @property
    def level(self) -> int:
        """The level of its cells."""
        return self.quota.level


Wants = tuple[tuple[Want, tuple[str, ...]], ...]
"""Pods by what they want."""


class Phase(Enum):
    """``NOMINATED``: its places are held until other pods have left them. ``PREEMPTED``: it
    runs until it has left its places.
    """

    WAITING = 0
    NOMINATED = 1
    RUNNING = 2
    PREEMPTED = 3
    OVER = 4


def racks_of(slots: Iterable[Slot]) -> dict[Pool, int]:
    """The racks that the slots are in, by pool as bit sets."""
    found: dict[Pool, int] = {}
    for slot in slots:
        found[slot.pool] = found.get(slot.pool, 0) | 1 << slot.rack
    return found


class Place(NamedTuple):
    """A pod's place. ``gpus``: leaves that it uses; ``charge``: leaves that ``owner`` is charged
    for it, ``is_shared``: one, perhaps with others; ``amounts``: of all else. ``ports``: as bits of
    the node's range.
    """

    pod: str
    slot: Slot
    gpus: int
    amounts: tuple[int, ...]
    charge: int = 0
    owner: str = ""
    ports: int = 0
    is_shared: bool = False


@dataclass(slots=True, eq=False)
class Workload:
    """Pods that are placed together or not at all: a gang, or what one grows by.

    ``wants``: pods by what they want. ``owner``: whose cells it is charged to, but for pods with a
    pin; None: it is opportunistic or downgraded. ``priority``: gangs with a higher one can have its
    cells. ``parent``: the workload that grows by this one. ``is_surplus``: it can do without.
    ``kept``: slots to which its pods go first; ``near``: racks to which they go before others.
    """

    name: str
    gang: Gang
    wants: Wants
    owner: str | None
    priority: int
    parent: "Workload | None" = None
    is_surplus: bool = False
    near: dict[Pool, int] = field(default_factory=dict)
    kept: tuple[Slot, ...] = ()
    phase: Phase = Phase.WAITING
    places: tuple[Place, ...] = ()

    @property
    def is_opportunistic(self) -> bool:
        """It has no cells: it is opportunistic or downgraded."""
        return self.owner is None

    @property
    def is_away(self) -> bool:
        """It has no cells where it should, or another virtual cluster's."""
        if self.gang.priority == OPPORTUNISTIC or self.owner == owner_of(self.gang.virtual_cluster):
            return False
        return any(place.charge | place.gpus for place in self.places)  # it may have grown without

    @property
    def is_uncharged(self) -> bool:
        """It has no cells though it is guaranteed: it wants no GPUs, or is downgraded."""
        return self.owner is None and self.gang.priority != OPPORTUNISTIC

    def owner_of(self, want: Want) -> str | None:
        """To whose cells pods are charged."""
        pin = want.kind.pin
        return self.owner if pin is None or self.owner is None else pin_owner(pin)

    @property
    def kinds(self) -> list[tuple[Kind, int]]:
        """What its pods want, and how many of each."""
        return [(want.kind, len(pods)) for want, pods in self.wants]

    @property
    def gpus(self) -> int:
        """GPUs that it uses or holds."""
        return sum(place.gpus.bit_count() for place in self.places)


def mask_on(binding: Binding, slot: Slot) -> int:
    """Leaves of a slot in a bound cell that it is in."""
    return slot.shape.full if binding.part is None else binding.part.mask
