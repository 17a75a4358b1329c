"""A node while the scheduler runs: what of it is usable, and who holds what."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.config import NodeLimits
from scheduler.domain.core.forest import Forest, Slot
from scheduler.domain.core.model import Kind

NEVER = 1 << 30
"""Leaves that no node has: the pod can't be there."""

FIRST_PORT, LAST_PORT = 20_000, 65_535
"""Ports given on a node that names no range."""

KINDS_REMEMBERED = 100_000


class Take(NamedTuple):
    """What a pod takes of a node: ``leaves`` that it is charged where it is guaranteed, and of
    each limited resource so much.
    """

    leaves: int
    amounts: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Sort:
    """Nodes with the same GPUs and the same limits are of one sort."""

    gpus: int
    limits: NodeLimits
    names: tuple[str, ...] = ()
    capacity: tuple[int, ...] = ()
    _takes: dict[Kind, Take | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = self.limits
        ports = None if limits.ports is None else limits.ports[1] - limits.ports[0] + 1
        found = [("cpu", limits.cpu), ("memoryMB", limits.memory_mb), ("ports", ports)]
        found += sorted((limits.resources or {}).items())
        self.names = tuple(name for name, amount in found if amount is not None)
        self.capacity = tuple(amount for _, amount in found if amount is not None)

    def take(self, kind: Kind) -> Take | None:
        """What a pod takes of an empty node of this sort; None where it has not enough."""
        try:
            return self._takes[kind]
        except KeyError:
            if len(self._takes) >= KINDS_REMEMBERED:
                self._takes.clear()
            found = self._takes[kind] = self._work_out(kind)
            return found

    def amounts(self, kind: Kind) -> tuple[int, ...]:
        """What a pod wants of each limited resource, also where that is more than there is."""
        wanted = {"cpu": kind.cpu, "memoryMB": kind.memory_mb, "ports": kind.ports}
        wanted |= dict(kind.resources)
        return tuple(wanted.get(name, 0) for name in self.names)

    def _work_out(self, kind: Kind) -> Take | None:
        listed = self.limits.resources
        if listed is not None and any(n and name not in listed for name, n in kind.resources):
            return None
        if self.limits.ports is None and kind.ports > LAST_PORT - FIRST_PORT + 1:
            return None
        amounts, leaves = self.amounts(kind), kind.gpus
        for amount, capacity in zip(amounts, self.capacity, strict=True):
            if amount > capacity:
                return None
            if amount and self.gpus:
                leaves = max(leaves, -(-amount * self.gpus // capacity))
        return Take(leaves, amounts)


@dataclass(slots=True, eq=False)
class SlotState:
    """A node's GPUs in one tree, as bit masks of leaves.

    ``usable``: healthy, on a node that may take pods. ``charged``: to guaranteed gangs of the
    owner. ``held``: used by pods. ``reserved``: for pods that wait for others to leave.
    ``leaving``: used by pods of gangs that were told to leave, and among none of these.
    ``lifted``: held by pods that are away in thought only.
    ``bound``: owner → leaves in its bound cells; ``bindings``: the cells, each with its leaves.
    ``holders`` and ``chargers``: gang → leaves.
    """

    slot: Slot
    sort: int
    machine: "Machine"
    gpu_type: str
    usable: int
    sick: int = 0
    blocked: int = 0
    charged: int = 0
    held: int = 0
    reserved: int = 0
    leaving: int = 0
    lifted: int = 0
    bound: dict[str, int] = field(default_factory=dict)
    bindings: dict[str, list[tuple[int, Binding]]] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    chargers: dict[str, int] = field(default_factory=dict)

    def used(self, *, is_ahead: bool) -> int:
        """Leaves that somebody uses or has reserved; ``is_ahead``: when those have left who were
        told to.
        """
        used = self.held | self.reserved
        return used if is_ahead else used | self.leaving


@dataclass(slots=True, eq=False)
class Machine:
    """A node. ``free``: what is left of each limited resource, below 0 while a reservation waits;
    ``later``: when those have left who were told to, the same list where there are none.

    ``pods``: how many of each gang. ``avoided``: ports that are given last. ``blocked``: what
    no known pod holds of each limited resource. ``leavers``: pods that were told to
    leave, and ``vacated`` their ports, where ports are limited.
    """

    number: int
    name: str
    sort: Sort
    slots: list[SlotState] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    is_healthy: bool = True
    is_cordoned: bool = False
    is_drained: bool = False
    ports: dict[int, int] = field(default_factory=dict)
    avoided: set[int] = field(default_factory=set)
    blocked: tuple[int, ...] = ()
    blocked_ports: frozenset[int] = frozenset()
    pods: dict[str, int] = field(default_factory=dict)
    leavers: int = 0
    vacated: list[int] = field(default_factory=list)
    later: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.later = self.free

    @property
    def is_open(self) -> bool:
        """New pods may come."""
        return self.is_healthy and not self.is_cordoned and not self.is_drained

    def free_gpus(self, *, is_ahead: bool = False) -> int:
        """That nobody uses or has reserved; ``is_ahead``: when those have left who were told to."""
        free = 0
        for state in self.slots:
            free += (state.usable & ~state.used(is_ahead=is_ahead)).bit_count()
        return free

    def has(self, take: Take, *, is_ahead: bool = False) -> bool:
        """Enough is left; ``is_ahead``: when those have left who were told to."""
        left = self.later if is_ahead else self.free
        for free, amount in zip(left, take.amounts, strict=True):
            if amount > free and amount:
                return False
        return True

    def has_ports(self, count: int) -> bool:
        """Enough are free of those that a node without a range has; else they are limited like
        the rest.
        """
        if self.sort.limits.ports is not None:
            return True
        used = len(self.ports) + len(self.blocked_ports)
        return used + count <= LAST_PORT - FIRST_PORT + 1

    def charge(self, take: Take, times: int) -> None:
        """A pod comes (1) or goes (-1)."""
        if take.amounts:
            for index, amount in enumerate(take.amounts):
                if amount:
                    self.free[index] -= times * amount
            if self.later is not self.free:
                for index, amount in enumerate(take.amounts):
                    self.later[index] -= times * amount

    def vacate(self, take: Take, ports: Sequence[int], times: int) -> None:
        """A pod was told to leave (1), or is not one of those any more (-1)."""
        self.leavers += times
        if not self.leavers:
            self.later = self.free
        elif self.later is self.free:
            self.later = self.free.copy()
        if self.leavers:
            for index, amount in enumerate(take.amounts):
                self.later[index] += times * amount
        for port in ports if self.sort.limits.ports is not None else ():
            if times > 0:
                self.vacated.append(port)
            else:
                self.vacated.remove(port)

    def block(
        self, gpus: Collection[int], amounts: Mapping[str, int], ports: Collection[int]
    ) -> bool:
        """Nobody's pods hold these now; whether that is another state than before."""
        is_new = False
        for state in self.slots:
            mask = state.slot.mask_of(tuple(gpus))
            is_new = is_new or mask != state.blocked
            state.blocked = mask
        first, last = self.sort.limits.ports or (FIRST_PORT, LAST_PORT)
        known = frozenset(p for p in ports if first <= p <= last and p not in self.ports)
        wanted = {**amounts, "ports": len(known)}
        before = self.blocked or (0,) * len(self.free)
        after = tuple(wanted.get(name, 0) for name in self.sort.names)
        is_new = is_new or self.blocked_ports != known or before != after
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            self.free[index] += old - new
            if self.later is not self.free:
                self.later[index] += old - new
        self.blocked, self.blocked_ports = after, known
        return is_new

    def hold_ports(self, ports: Iterable[int], times: int) -> None:
        """Ports are held (1), or not any more (-1); another may still have one that is reserved."""
        for port in ports:
            count = self.ports.get(port, 0) + times
            if count:
                self.ports[port] = count
            else:
                del self.ports[port]

    def choose_ports(self, count: int, *, is_ahead: bool = False) -> tuple[int, ...]:
        """The lowest free ports, avoided ones last; ``is_ahead``: as those have left who were told
        to.
        """
        if not count:
            return ()
        held: Collection[int] = self.ports
        if is_ahead and self.vacated:
            held = {port for port, n in self.ports.items() if n > self.vacated.count(port)}
        first, last = self.sort.limits.ports or (FIRST_PORT, LAST_PORT)
        chosen: list[int] = []
        spare: list[int] = []
        for port in range(first, last + 1):
            if len(chosen) == count:
                break
            if port not in held and port not in self.blocked_ports:
                (spare if port in self.avoided else chosen).append(port)
        return tuple(sorted(chosen + spare[: count - len(chosen)]))


def make_machines(forest: Forest) -> tuple[dict[str, Machine], list[Sort]]:
    """All nodes of a forest, by name, and by the sort of a node's GPUs its sort of node."""
    machines: dict[str, Machine] = {}
    sorts: list[Sort] = []
    numbers: dict[object, int] = {}
    known: dict[object, Sort] = {}
    for name, slots in forest.machines.items():
        limits = forest.limits(name)
        resources = limits.resources
        named = None if resources is None else tuple(sorted(resources.items()))
        key = (forest.gpus_of(name), limits.cpu, limits.memory_mb, limits.ports, named)
        sort = known.get(key)
        if sort is None:
            sort = known[key] = Sort(key[0], limits)
        machine = Machine(len(machines), name, sort, free=list(sort.capacity))
        machines[name] = machine
        for slot in slots:
            whole = (key, slot.chain.name, slot.shape.tree, slot.shape.counts)
            number = numbers.setdefault(whole, len(numbers))
            if number == len(sorts):
                sorts.append(sort)
            machine.slots.append(SlotState(slot, number, machine, slot.chain.leaf, slot.shape.full))
    return machines, sorts
