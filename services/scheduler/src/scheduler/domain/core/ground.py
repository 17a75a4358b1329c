"""Where pods of one kind may be, and the best place for them: racks, then nodes, then leaves."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.covering import cover, floors, may_have, ways_to_bind
from scheduler.domain.core.forest import Cell
from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.machines import NEVER, SlotState
from scheduler.domain.core.model import Kind
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.regions import NEVER_RANK, Rank, Region
from scheduler.domain.core.shapes import Pick

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Seeker


THRIFTY = -1
"""As the level from which up quota may be bound: any, and what is bound already comes first."""

CELLS_HELD = 64
"""Cells above nodes of which the one with the nearest leaves is taken."""

FEW_NODES = 32
"""So many nodes at the most are searched in every way, and for leaves that guests use."""


class Ground:
    """The regions in which pods of one kind may be: bound cells, and what may be bound.

    ``bound``: cells that the owner has; of an opportunistic gang all that nobody uses. ``empty``:
    space in which the owner may bind more. ``is_bare``: nothing but GPUs counts.
    """

    __slots__ = (
        "bound",
        "empty",
        "hardware",
        "is_bare",
        "is_split",
        "kind",
        "needs",
        "owner",
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
        self.is_split = False
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
        """Leaves that one pod needs on the sort of node where it needs fewest."""
        return min(self.needs, default=NEVER)

    @property
    def is_loose(self) -> bool:
        """Pods may be charged leaves that they don't use, and guests may."""
        return any(need not in (self.kind.gpus, NEVER) for need in self.needs)

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
        assert region is not None
        return region.racks[0].cell.chain.leaf

    # One pod.

    def one(self, name: str) -> bool:
        """Place one pod."""
        found = self._first(self.bound)
        if self.is_split and self._across(found[0][0] if found else NEVER_RANK[0], name):
            return True
        if self.empty is not None and self._fresh(found[0] if found else NEVER_RANK, name):
            return True
        if found is not None and self.put(found[1], name):
            return True
        return self.kind.gpus < self.least and self._loosely(name)

    def _loosely(self, name: str) -> bool:
        """Put a pod that is charged more than its GPUs where guests use some of those leaves."""
        if self.owner is None or not self.is_small:
            return False
        best: tuple[int, int, int] | None = None
        for number in sorted(self.numbers()):
            state = self.hardware.states[number]
            gpus = state.slot.shape.pick(self._free(state), self.kind.gpus)
            if gpus is None or not self._fits(number):
                continue
            leaves, rest = gpus.leaves, self._free(state, is_loose=True) & ~gpus.leaves
            while leaves.bit_count() < self.needs[state.sort] and rest:
                leaves |= rest & -rest
                rest &= rest - 1
            if leaves.bit_count() == self.needs[state.sort]:
                rank = (gpus.level, number, leaves)
                best = rank if best is None or rank < best else best
        return best is not None and self.put(best[1], name, best[2], is_loose=True)

    def _first(self, region: Region | None) -> "tuple[Rank, int] | None":
        """The best node in bound cells."""
        if region is None:
            return None
        seeker = self.seeker
        if seeker.owner is None:
            found = self._guest(region, seeker.having(self.kind))
        else:  # mostly the best of all does
            found = region.best(self.wish)
        if found is None or (seeker.within is None and not seeker.near and self._fits(found[1])):
            return found
        among = seeker.having(self.kind)
        near = {rack.number for rack in seeker.near}
        best: tuple[Rank, int] | None = None
        for rank, number in region.ranked(self.wish, among):
            if best is not None and rank[0] > best[0][0]:
                break
            if self._fits(number):
                if not near or region.places[number][0] in near:
                    return rank, number
                best = best or (rank, number)
        return best

    def _guest(self, region: Region, among: int | None) -> "tuple[Rank, int] | None":
        """For an opportunistic pod: outside of bound cells, where that is as good."""
        found = region.best(self.wish, among)
        empty = self.hardware.index.empty[self.gpu_type]
        if found is not None:
            other = empty.best(self.wish, among)
            if other is not None and other[0][0] <= found[0][0] and self._fits(other[1]):
                return other
        return found

    def _fits(self, number: int) -> bool:
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

    def _fresh(self, rank: Rank, name: str) -> bool:
        """Place a pod in a cell that is bound for it, where that is nearer than ``rank``."""
        if rank is not NEVER_RANK and rank[0] <= self.hardware.demands.least_level(self.needs):
            return False
        assert self.empty is not None
        best = self.empty.best(self.wish, self.seeker.having(self.kind))
        if best is None or best[0][0] >= rank[0]:
            return False
        for found, number in self._fresh_nodes():
            if (
                found[0] < rank[0]
                and self._fits(number)
                and may_have(self.hardware, self.owner, self.hardware.states[number])
                and self.put(number, name)
            ):
                return True
        return False

    def _across(self, level: int, name: str) -> bool:
        """Place a pod partly in a bound cell, partly in one that is bound for it, where its leaves
        are nearer than a place at ``level`` and any in free space.
        """
        numbers = [number for number, _ in self.mixed()]
        if not numbers:
            return False
        assert self.empty is not None
        other = self.empty.best(self.wish, self.seeker.having(self.kind))
        least = level if other is None else min(level, other[0][0])
        found = []
        for number in numbers:
            state = self.hardware.states[number]
            pick = state.slot.shape.pick(self._free(state), self.needs[state.sort])
            if pick is not None and pick.level < least:
                found.append((pick, number))
        return any(self.put(number, name) for _, number in sorted(found))

    def _fresh_nodes(self) -> "Iterator[tuple[Rank, int]]":
        """Nodes in cells that may be bound: of small quota cells first, best first in each."""
        hardware, empty = self.hardware, self.empty
        assert empty is not None
        assert self.owner is not None
        left, is_ranked = hardware.unbound[self.owner], False
        for quota in sorted(hardware.owning.quotas[self.owner], key=lambda q: q.level):
            if not left[quota.path] or hardware.forest.racks[quota.chain.leaf] is not empty.racks:
                continue
            if quota.level <= quota.chain.node_level:
                if not is_ranked:
                    is_ranked = True
                    yield from empty.ranked(self.wish, self.seeker.having(self.kind))
                continue
            cells = hardware.cells[quota.chain.name].free_cells(quota.level)
            yield from self._best_of_each(cells, empty)

    def _best_of_each(self, cells: Iterable[Cell], empty: Region) -> "Iterator[tuple[Rank, int]]":
        """The best node of each cell: at once where leaves can't be nearer, else the nearest of
        some cells first.
        """
        least, held = self.hardware.demands.least_level(self.needs), list[tuple[Rank, int]]()
        for cell in cells:
            found = [
                (rank, slot.number)
                for slot in cell.slots()
                if self._fits(slot.number)
                and (rank := empty.rank_of(slot.number, self.wish)) is not None
            ]
            if found and (best := min(found))[0][0] <= least:
                yield best
            elif found:
                held.append(best)
            if len(held) == CELLS_HELD:
                yield from sorted(held, key=lambda each: each[0][0])
                held.clear()
        yield from sorted(held, key=lambda each: each[0][0])

    def takes(self, state: SlotState) -> bool:
        """One pod could be on the node, if enough leaves were free."""
        need = self.needs[state.sort]
        return 0 < need <= state.slot.shape.leaves and self._fits(state.slot.number)

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

    def _free(self, state: SlotState, *, is_loose: bool = False) -> int:
        """Leaves in reach that nobody uses; ``is_loose``: or that guests use."""
        taken = 0 if self.owner is None else state.charged
        if not is_loose:
            taken |= state.used(is_ahead=self.hardware.index.is_ahead)
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
        if need > shape.leaves or not self._fits(number):
            return False
        free = self._free(state, is_loose=is_loose)
        if leaves:
            return not leaves & ~free and self._take(state, name, leaves, floor)
        best = shape.pick(free, need)
        if best is None:
            return False
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
        if count and not self._fits(state.slot.number):
            return 0
        if count and state.machine.sort.names and not self.seeker.is_bare:
            take, left = state.machine.sort.take(self.kind), self.hardware.left(state.machine)
            for have, amount in zip(left, take.amounts if take else (), strict=True):
                if amount:
                    count = min(count, max(have, 0) // amount)
        return count
