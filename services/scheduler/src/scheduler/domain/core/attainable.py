"""What gangs could have of each node if all were gone that may have to go for them, and all that
can be downgraded had lost their cells: more than that nobody gets there.

It may be less: whether cells can be bound there, which leaves of a node lie together, and what
can't be had at once is not asked. Nodes that have changed are looked at again when somebody asks.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scheduler.domain.core.holdings import Live
from scheduler.domain.core.machines import SlotState, Take
from scheduler.domain.core.model import GangClass, Kind
from scheduler.domain.core.prices import cost_of, floor_of, is_spared, kept
from scheduler.domain.core.protecting import is_lazy
from scheduler.domain.core.queue import GroupKey

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

Key = tuple[str, str, int, bool]
"""Owner, GPU type, priority, and whether of space in no bound cell."""


class Left(NamedTuple):
    """Of a node, beside what is kept for others: leaves that could be charged, GPUs of those that
    could be used, and amounts of what is limited beside them.
    """

    leaves: int
    gpus: int
    amounts: tuple[int, ...]


class Attainable:
    """Of the nodes in an owner's bound cells, for its gangs of one priority; ``is_space``: of those
    with space in no bound cell.

    ``_left``: by number of leaves, the nodes of which so many could be had; ``_leaves``: how many.
    """

    def __init__(self, cluster: "Cluster", key: Key) -> None:
        self.cluster = cluster
        self.owner, self.gpu_type, self.priority, self.is_space = key
        self._read = -1
        self._left: dict[int, dict[int, Left]] = {}
        self._leaves: dict[int, int] = {}

    def room(self, kind: Kind, most: int) -> int:
        """How many such pods there would be room for, if that is less than ``most``."""
        found = 0
        for _, count in self.each(kind):
            found += count
            if found >= most:
                break
        return found

    def each(self, kind: Kind) -> Iterator[tuple[int, int]]:
        """The nodes on which there would be room for such pods, and for how many."""
        self._update()
        hardware = self.cluster.hardware
        needs = hardware.demands.wish(kind, is_guest=False)[0]
        least = min(needs, default=0)
        for leaves, nodes in self._left.items():
            if leaves < least:
                continue
            for number, left in nodes.items():
                state = hardware.states[number]
                need = needs[state.sort]
                if leaves < need or left.gpus < kind.gpus:
                    continue
                take = state.machine.sort.take(kind)
                if take is not None and (count := _fitting(kind, take, need, left)):
                    yield number, count

    def _update(self) -> None:
        hardware, owner = self.cluster.hardware, self.owner
        self._read, numbers = hardware.changed_since(self._read)
        if numbers is None:
            self._left.clear()
            self._leaves.clear()
            of_type = (
                hardware.index.empty if self.is_space else hardware.index.regions.get(owner, {})
            )
            numbers = list(of_type[self.gpu_type].tags) if self.gpu_type in of_type else []
        machines = (hardware.states[number].machine for number in numbers)
        for state in dict.fromkeys(state for machine in machines for state in machine.slots):
            number = state.slot.number
            space = hardware.spaces[number][number]
            mine = space if self.is_space else state.bound.get(owner, 0)
            if (known := self._leaves.pop(number, None)) is not None:
                del self._left[known][number]
            if mine and state.gpu_type == self.gpu_type:
                left = self._of(state, (mine | space) & state.usable)
                if left.leaves:
                    self._leaves[number] = left.leaves
                    self._left.setdefault(left.leaves, {})[number] = left

    def _of(self, state: SlotState, mine: int) -> Left:
        gangs, machine = self.cluster.gangs, state.machine
        leaves = gpus = mine
        amounts = list(machine.later)
        for gang in machine.pods:
            live = gangs[gang]
            if live.is_leaving:  # it is charged nothing, and `later` knows what it takes
                continue
            is_there = self._stays(live)
            if is_there or is_there is None:
                gpus &= ~state.holders.get(gang, 0)
                if is_there:
                    leaves &= ~state.chargers.get(gang, 0)
            elif amounts:
                for pod in live.pods.values():
                    if pod.machine is machine:
                        for index, amount in enumerate(pod.take.amounts):
                            amounts[index] += amount
        for gang, mask in state.chargers.items():
            if gang not in machine.pods:  # it is kept for it
                leaves &= ~mask
        return Left(leaves.bit_count(), (leaves & gpus).bit_count(), tuple(amounts))

    def _stays(self, live: Live) -> bool | None:
        """It would not go; None: but might lose its cells."""
        is_guest = live.gang_class is not GangClass.GUARANTEED
        if is_guest and is_spared(live, self.owner, self.priority):
            return True
        is_below = live.owner == self.owner and live.rank < self.priority
        if (live.cost or cost_of(live))[0] < self.priority or (live.reserved and is_below):
            return False
        return None if is_below and is_lazy(self.cluster, live) else True


def _fitting(kind: Kind, take: Take, need: int, left: Left) -> int:
    """How many such pods there would be room for on a node."""
    count = left.leaves // need
    if kind.gpus:
        count = min(count, left.gpus // kind.gpus)
    for have, amount in zip(left.amounts, take.amounts, strict=True):
        if amount:
            count = min(count, have // amount)
    return max(count, 0)


def has_room(cluster: "Cluster", group: GroupKey, kind: Kind, count: int) -> bool:
    """There could be room for so many such pods of an owner's gangs of a priority, on GPUs of one
    type (for pods without GPUs of any), beside what is kept for others; or that is not known.
    """
    hardware, charges = cluster.hardware, cluster.charges
    owner, priority = group
    if kind.pin is not None or hardware.demands.least_leaves(kind) == 0:
        return True
    may_move, floor = charges.has_below(owner, priority), floor_of(cluster, owner, priority)
    found = 0
    for gpu_type in kind.gpu_types or hardware.gpu_types:
        if kind.gpus:
            found = 0
        found += _list(cluster, (owner, gpu_type, floor, False)).room(kind, count - found)
        if found < count and (may_move or hardware.may_bind_more(owner, gpu_type)):
            space = _list(cluster, (owner, gpu_type, floor, True))
            found += space.room(kind, count - found)
        if found >= count:
            return True
    return False


def may_have_room(cluster: "Cluster", live: Live) -> bool:
    """`has_room` for a waiting gang. It is asked only where gangs without cells stay: elsewhere the
    answer is seldom no.
    """
    return live.owner not in cluster.charges.ranked_guests or all(
        has_room(cluster, (live.owner, live.gang.priority), role.kind, len(role.pods))
        for role in live.waiting
    )


def chargers_there(cluster: "Cluster", live: Live) -> Iterator[str]:
    """Gangs with cells of a gang's virtual cluster where there could be room for one of its pods
    that is in no pin, in the order of the nodes; a gang may come more than once.
    """
    owner, priority, states = live.owner, live.gang.priority, cluster.hardware.states
    floor, numbers = floor_of(cluster, owner, priority), set[int]()
    for kind in {role.kind for role in live.waiting if role.kind.pin is None}:
        for gpu_type in kind.gpu_types or cluster.hardware.gpu_types:
            there = _list(cluster, (owner, gpu_type, floor, False)).each(kind)
            numbers.update(number for number, _ in there)
    for number in sorted(numbers):
        yield from states[number].chargers


def _list(cluster: "Cluster", key: Key) -> Attainable:
    return kept(cluster.attainable, key, lambda: Attainable(cluster, key))
