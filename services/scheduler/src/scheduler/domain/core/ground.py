"""Where pods of one kind may be: in which regions, on which nodes, and there on which leaves."""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.covering import cover, floors, ways_to_bind
from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.model import Kind
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.regions import Region
from scheduler.domain.core.shapes import Pick

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Seeker


THRIFTY = -1
"""As the level from which up quota may be bound: any, and what is bound already comes first."""

FEW_NODES = 32
"""So many nodes at the most are searched in every way, and for leaves that guests use."""


class Ground:
    """The regions in which pods of one kind may be: bound cells, and what may be bound.

    ``bound``: cells that the owner has; of an opportunistic gang all that nobody uses. ``empty``:
    space in which the owner may bind more. ``is_bare``: nothing but GPUs counts. ``is_quiet``: only
    nodes on which nothing is charged.
    """

    __slots__ = (
        "bound",
        "empty",
        "hardware",
        "is_bare",
        "is_quiet",
        "is_split",
        "kind",
        "needs",
        "owner",
        "rather",
        "seeker",
        "wish",
    )

    def __init__(self, seeker: "Seeker", kind: Kind, gpu_type: str) -> None:
        self.seeker = seeker
        self.hardware = hardware = seeker.hardware
        self.kind = kind
        self.owner = seeker.owner
        self.wish = hardware.demands.wish(kind, is_guest=self.owner is None)
        self.needs = self.wish[0]
        self.is_bare = seeker.is_bare or hardware.index.amounts is None
        self.is_split = self.is_quiet = False
        self.rather: Sequence[Ground] | None = None
        self.bound: Region | None
        self.empty: Region | None = None
        if self.owner is None:
            self.bound = hardware.physical.get(gpu_type)
        elif kind.pin is not None:
            is_mine = hardware.owning.pins_of.get(kind.pin) == self.owner
            self.owner = pin_owner(kind.pin)
            regions = hardware.index.regions.get(self.owner, {}) if is_mine else {}
            self.bound = next(iter(regions.values()), None)
        else:
            self.bound = hardware.index.regions.get(self.owner, {}).get(gpu_type)
            if hardware.may_bind_more(self.owner, gpu_type):
                self.empty = hardware.index.empty.get(gpu_type)
                self.is_split = self.owner in hardware.owning.splitters

    @property
    def least(self) -> int:
        """Leaves that one pod needs on the sort of node with such GPUs where it needs fewest."""
        return self.hardware.demands.least_of(self.needs, self.gpu_type)

    @property
    def is_loose(self) -> bool:
        """Pods may be charged leaves that they don't use, and guests may."""
        return self.seeker.owner is not None and self.hardware.demands.is_loose(self.kind)

    @property
    def is_small(self) -> bool:
        """There are few nodes in question."""
        return self.has_at_most(FEW_NODES)

    def has_at_most(self, nodes: int) -> bool:
        """There are so few nodes in question."""
        regions = (self.bound, self.empty)
        return all(region is None or len(region.tags) <= nodes for region in regions)

    @property
    def is_searched(self) -> bool:
        """There are few nodes in question, and pods put one after another may miss a place: also
        where guests or bad GPUs have parts of nodes that may be bound.
        """
        if not self.is_small:
            return False
        if not self.hardware.is_greed_exact(self.seeker.owner):
            return True
        tags = () if self.empty is None or self.owner is None else self.empty.tags.values()
        return any(tag.count and not tag.is_whole for tag in tags)

    def numbers(self) -> set[int]:
        """The nodes in question."""
        regions = (self.bound, self.empty)
        return {number for region in regions if region is not None for number in region.tags}

    def parts(self) -> Sequence["Ground"]:
        """Where pods of an opportunistic gang should rather be, best first: outside of bound cells;
        where nothing is charged.
        """
        if self.rather is None:
            self.rather = found = list[Ground]()
            if self.owner is None and self.bound is not None:
                found.append(self._part(self.outside, found, is_quiet=False))
                found.append(self._part(self.bound, found, is_quiet=True))
        return self.rather

    @property
    def outside(self) -> Region:
        """What an opportunistic gang may use and is in no bound cell."""
        return self.hardware.index.empty[self.gpu_type]

    def _part(self, region: Region, better: Sequence["Ground"], *, is_quiet: bool) -> "Ground":
        part = copy(self)
        part.bound, part.is_quiet, part.rather = region, is_quiet, tuple(better)
        return part

    def floors(self) -> list[int]:
        """Levels from which up quota may be bound for a pod: small cells first."""
        if self.empty is None or self.owner is None:
            return [0]
        levels = floors(self.hardware, self.owner, self.gpu_type)
        return [*levels, THRIFTY] if self.is_split else levels

    @property
    def gpu_type(self) -> str:
        """Of the nodes in question; of a pin's too."""
        region = self.bound or self.empty
        return "" if region is None else region.racks[0].cell.chain.leaf

    def fits(self, number: int) -> bool:
        """The node may be used, and has enough beside GPUs."""
        seeker, kind = self.seeker, self.kind
        if self.is_bare and not kind.ports and seeker.only is None and seeker.within is None:
            return True
        state = self.hardware.states[number]
        machine = state.machine
        if seeker.only is not None and machine.name not in seeker.only:
            return False
        if seeker.within is not None and self.hardware.rack_of(state) is not seeker.within:
            return False
        if seeker.is_bare:
            return True
        if kind.ports and not machine.has_ports(kind.ports):
            return False
        if not machine.sort.names:
            return True
        take = machine.sort.take(kind)
        return take is not None and machine.has(take, is_ahead=self.hardware.index.is_ahead)

    def takes(self, state: SlotState) -> bool:
        """One pod could be on the node, if enough leaves were free."""
        need = self.needs[state.sort]
        return 0 < need <= state.slot.shape.leaves and self.fits(state.slot.number)

    def take(self, state: SlotState, name: str, leaves: int) -> None:
        """A pod takes these leaves, which are in cells that are bound already."""
        is_done = self._take(state, name, leaves, 0)
        assert is_done, name

    def reach(self, state: SlotState) -> int:
        """Usable leaves in cells of the owner, or of nobody; of an opportunistic gang all."""
        if self.owner is None:
            return state.usable
        mine = state.bound.get(self.owner, 0)
        if self.empty is not None:
            number = state.slot.number
            mine |= self.hardware.spaces[number][number]
        return state.usable & mine

    def free(self, state: SlotState, *, is_loose: bool = False) -> int:
        """Leaves in reach that nobody uses; ``is_loose``: or that guests use."""
        taken = 0 if self.owner is None else state.charged
        if not is_loose:  # `SlotState.used`, without a call
            taken |= state.held | state.reserved
            if not self.hardware.index.is_ahead:
                taken |= state.leaving
        return self.reach(state) & ~taken

    def put(
        self, number: int, name: str, leaves: int = 0, floor: int = 0, *, is_loose: bool = False
    ) -> bool:
        """Put a pod on a node if it fits there; on these leaves, where any are given."""
        hardware = self.hardware
        hardware.steps += 1
        if hardware.steps > self.seeker.hard:
            return False
        state = hardware.states[number]
        need, shape = self.needs[state.sort], state.slot.shape
        if not 0 < need <= shape.leaves or not self.fits(number):
            return False
        free = self.free(state, is_loose=is_loose)
        if leaves:
            return not leaves & ~free and self._take(state, name, leaves, floor)
        best = shape.pick(free, need)
        if best is None:
            return False
        if self.owner is None:
            rather = shape.pick(free & hardware.spaces[number][number], need)
            if rather is not None and rather.level <= best.level:
                best = rather
        if not self.is_split:
            return self._take(state, name, best.leaves, floor)
        picks = self._picks(state, free, best, is_thrifty=floor == THRIFTY)
        return any(self._take(state, name, pick.leaves, floor) for pick in picks)

    def _picks(
        self, state: SlotState, free: int, best: Pick, *, is_thrifty: bool
    ) -> Iterator[Pick]:
        """Leaves for one pod on a node, the best first; such as are in fewer cells where those
        can't be bound.
        """
        need, shape = self.needs[state.sort], state.slot.shape
        bound = state.bound.get(self.owner or "", 0)
        mine = shape.pick(free & bound, need)
        if mine is not None and (is_thrifty or mine.level <= best.level):
            yield mine
        yield best
        ways = ways_to_bind(self.hardware, self.owner or "", state, shape.full)
        masks = (bound | part.mask for _, _, part in ways if part is not None)
        picks = (shape.pick(free & mask, need) for mask in masks)
        yield from sorted({pick for pick in picks if pick is not None} - {best, mine})

    def _take(self, state: SlotState, name: str, leaves: int, floor: int) -> bool:
        bindings: tuple[Binding, ...] = ()
        if self.owner is not None:
            found = cover(self.hardware, self.owner, state, leaves, floor)
            if found is None:
                return False
            bindings = found
        machine, kind, gpus = state.machine, self.kind, leaves
        take = machine.sort.take(kind)
        assert take is not None
        if kind.gpus != leaves.bit_count():
            shape = state.slot.shape
            idle = leaves & ~self.hardware.used(state)
            vacant = idle & ~(state.lifted | state.leaving)
            picks = (shape.pick(mask, kind.gpus) for mask in (vacant, idle))
            gpus = next((p.leaves for p in picks if p is not None), 0) if kind.gpus else 0
        is_ahead = self.hardware.index.is_ahead
        ports = machine.choose_ports(kind.ports, is_ahead=is_ahead) if kind.ports else ()
        mask = leaves if self.owner is not None else 0
        self.seeker.enter(
            Pod(name, self.seeker.gang, kind, machine, take, state, mask, gpus, ports, bindings)
        )
        return True

    def mixed(self) -> Iterator[tuple[int, int]]:
        """Nodes in which more pods fit in bound cells and free space together than in each, and how
        many more.
        """
        bound, empty = self.bound, self.empty
        if not self.is_split or bound is None or empty is None:
            return
        for number in sorted(bound.tags.keys() & empty.tags.keys()):
            state = self.hardware.states[number]
            some, more = bound.tags[number].count, empty.tags[number].count
            apart = self.fits_on(some, state) + self.fits_on(more, state)
            if (together := self.fits_on(some + more, state)) > apart:
                yield number, together - apart

    def fits_on(self, free: int, state: SlotState) -> int:
        """How many of the pods this node takes, by its free leaves and all else."""
        need = self.needs[state.sort]
        count = free // need if need else 0
        if count and not self.fits(state.slot.number):
            return 0
        if count and state.machine.sort.names and not self.seeker.is_bare:
            take, left = state.machine.sort.take(self.kind), self.hardware.left(state.machine)
            for have, amount in zip(left, take.amounts if take else (), strict=True):
                if amount:
                    count = min(count, max(have, 0) // amount)
        return count
