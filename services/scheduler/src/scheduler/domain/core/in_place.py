"""Cells for pods that stay where they are: after a restart, a change of the configuration, or where
a downgraded gang gets cells again. Small cells first; where that fails, every way within a bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.covering import cover, floors, undo, ways_to_bind
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.owning import pin_owner

BINDS = 200
"""Cells that are bound in search of a way, at the most."""

SLOTS = 16
"""Ways to choose the trees of machines with several that pods without GPUs are charged in."""


@dataclass(slots=True, eq=False)
class PodInPlace:
    """A pod where it is. ``given``: leaves that it was charged, 0: any beside its GPUs will do.

    ``state``, ``leaves``, ``bindings``: what it gets.
    """

    pod: Pod
    owner: str
    given: int = 0
    state: SlotState | None = None
    leaves: int = 0
    bindings: tuple[Binding, ...] = ()

    def states(self) -> Sequence[SlotState]:
        """Where it may be charged: without any leaf in any tree of its machine."""
        pod = self.pod
        return (pod.state,) if pod.state and (pod.gpus or self.given) else pod.machine.slots


def pod_in_place(hardware: Hardware, owner: str, pod: Pod, given: int = 0) -> PodInPlace | None:
    """What a pod of the owner needs where it is; None: it may have no cells there."""
    pin = pod.kind.pin
    if pin is not None and hardware.owning.pins_of.get(pin) != owner:
        return None
    if given.bit_count() != pod.take.leaves:  # its node has other limits now
        given = 0
    return PodInPlace(pod, owner if pin is None else pin_owner(pin), given)


def can_cover(hardware: Hardware, each: PodInPlace, *, binds: bool | None = None) -> bool:
    """The pod's GPUs are charged to nobody, and in cells that its owner has or may bind (where it
    ``binds`` more; None: as it may now), with as many leaves as it is charged; if not, there are
    surely no cells for it.
    """
    states = each.states()
    return not states or any(_can_cover(hardware, each, state, binds) for state in states)


def _can_cover(hardware: Hardware, each: PodInPlace, state: SlotState, binds: bool | None) -> bool:
    number, mine = state.slot.number, state.bound.get(each.owner, 0)
    if hardware.may_bind_more(each.owner, state.gpu_type) if binds is None else binds:
        mine |= hardware.spaces[number].get(number, 0)
    mine &= ~state.charged
    return not each.pod.gpus & ~mine and mine.bit_count() >= each.pod.take.leaves


def cover_in_place(hardware: Hardware, owner: str, pods: Sequence[PodInPlace]) -> bool:
    """Cells for all, which are bound from then on, or none. Where pods can't be charged what they
    were they are charged other leaves beside their GPUs.
    """
    if any(cover_all(hardware, pods, floor) for floor in floors(hardware, owner)):
        return True
    for each in pods:
        each.given = 0
    ways = product(*(each.states() for each in pods))
    return any(_Search(hardware, pods, states).run() for states in islice(ways, SLOTS))


def cover_all(hardware: Hardware, pods: Sequence[PodInPlace], floor: int = 0) -> bool:
    """Cells for one after another, none smaller than ``floor``, or for none."""
    turn = _Turn(hardware, _own_leaves(pods), floor)
    for number, each in enumerate(pods):
        if not any(turn.cover(each, state) for state in each.states()):
            undo(hardware, (b for done in pods[:number] for b in done.bindings))
            return False
    return True


def _own_leaves(pods: Sequence[PodInPlace]) -> dict[int, int]:
    """By node: what pods need that is theirs alone."""
    own: dict[int, int] = {}
    for each in pods:
        if each.pod.state is not None:
            number = each.pod.state.slot.number
            own[number] = own.get(number, 0) | each.pod.gpus | each.given
    return own


@dataclass(frozen=True, slots=True)
class _Turn:
    """One pod after another gets its cells. ``own``: by node, what pods need that is theirs alone;
    ``taken``: what those have got that had their turn.
    """

    hardware: Hardware
    own: Mapping[int, int]
    floor: int
    taken: dict[int, int] = field(default_factory=dict)

    def cover(self, each: PodInPlace, state: SlotState) -> bool:
        """Cells for a pod in this tree, if that can be."""
        number = state.slot.number
        before = self.taken.get(number, 0)
        away = state.charged | before
        free = state.slot.shape.full & ~away & ~self.own.get(number, 0)
        leaves = each.given or _leaves_for(each.pod, free)
        if leaves is None or leaves & away:
            return False
        bindings = cover(self.hardware, each.owner, state, leaves, self.floor)
        if bindings is None:
            return False
        self.taken[number] = before | leaves
        each.state, each.leaves, each.bindings = state, leaves, bindings
        return True


def _leaves_for(pod: Pod, free: int) -> int | None:
    """The pod's own leaves, and as many others as its share of the node needs, the lowest."""
    leaves, rest = pod.gpus, free
    while leaves.bit_count() < pod.take.leaves:
        if not rest:
            return None
        leaves |= rest & -rest
        rest &= rest - 1
    return leaves


class _Search:
    """Binds a cell for the first leaf that is in none, in every way."""

    def __init__(
        self, hardware: Hardware, pods: Sequence[PodInPlace], states: Sequence[SlotState]
    ) -> None:
        self.hardware = hardware
        self.pods = pods
        self.states = states
        self.own = _own_leaves(pods)
        self.left = BINDS

    def run(self) -> bool:
        """Whether there is a way; its cells are bound then, and each pod knows its own."""
        pairs = list(zip(self.pods, self.states, strict=True))
        if any(each.pod.gpus & state.charged for each, state in pairs):
            return False
        missing = self._missing()
        if missing is None:
            return True
        owner, state, leaves = missing
        for quota, cell, part in ways_to_bind(self.hardware, owner, state, leaves):
            self.left -= 1
            if self.left < 0:
                return False
            binding = self.hardware.bind(Binding(owner, quota, cell, part))
            if self.run():
                if not any(binding in each.bindings for each in self.pods):
                    self.hardware.unbind(binding)
                return True
            self.hardware.unbind(binding)
        return False

    def _missing(self) -> tuple[str, SlotState, int] | None:
        """The owner and node of a leaf that is in no cell yet, or of leaves one of which has to
        be; None: all pods have theirs.
        """
        taken: dict[int, int] = {}
        for each, state in zip(self.pods, self.states, strict=True):
            rest = each.pod.gpus & ~state.bound.get(each.owner, 0)
            if rest:
                return each.owner, state, rest & -rest
        for each, state in zip(self.pods, self.states, strict=True):
            number, mine = state.slot.number, state.bound.get(each.owner, 0)
            away = state.charged | taken.get(number, 0) | self.own.get(number, 0)
            leaves = _leaves_for(each.pod, mine & ~away)
            if leaves is None:
                return each.owner, state, state.slot.shape.full & ~mine & ~away
            taken[number] = taken.get(number, 0) | leaves
            bindings = state.bindings.get(each.owner, ())
            around = tuple(binding for mask, binding in bindings if mask & leaves)
            each.state, each.leaves, each.bindings = state, leaves, around
        return None
