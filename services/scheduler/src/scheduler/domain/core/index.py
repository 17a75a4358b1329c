"""What is free, indexed by who may have it: for the hardware as it is, or as it will be when those
have left who leave already.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.domain.core.amounts import Amounts, make_amounts
from scheduler.domain.core.forest import Forest, Rack
from scheduler.domain.core.machines import Machine, SlotState
from scheduler.domain.core.regions import Region
from scheduler.domain.core.tags import Tag, TagKey, Tags


@dataclass(frozen=True, slots=True)
class Parts:
    """What both indexes are made of. ``tags``: by sort of node; ``spaces``: `Hardware.spaces`;
    ``bits``: of each rack its nodes as a bit set, None where nothing beside GPUs is limited.
    """

    racks: Mapping[str, Sequence[Rack]]
    places: Sequence[tuple[int, int]]
    tags: Sequence[Tags]
    spaces: Sequence[Mapping[int, int]]
    bits: Mapping[str, Sequence[int]] | None
    catch_up: Callable[[], object]

    def region(self, leaf: str) -> Region:
        """One without any node, of a GPU type."""
        bits = None if self.bits is None else self.bits[leaf]
        return Region(self.racks[leaf], self.places, self.catch_up, bits)


class Index:
    """``regions[owner][GPU type]``: free leaves of bound cells; ``empty[type]``: of no bound cell;
    ``physical[type]``: what nobody uses, None before a guest looks for a place. ``amounts``: what
    is left beside GPUs, None where nothing of it is limited.

    ``is_ahead``: as it will be. ``behind``: nodes that have changed while the other index was
    looked at, by number.
    """

    def __init__(self, parts: Parts, amounts: Amounts | None, *, is_ahead: bool = False) -> None:
        self._parts = parts
        self.amounts = amounts
        self.is_ahead = is_ahead
        self.empty = self.blank()
        self.regions: dict[str, dict[str, Region]] = {}
        self.physical: dict[str, Region] | None = None
        self.behind: dict[int, SlotState] = {}

    def blank(self) -> dict[str, Region]:
        """Of each GPU type a region without any node."""
        return {leaf: self._parts.region(leaf) for leaf in self._parts.racks}

    def own(self, owner: str, leaf: str) -> None:
        """The owner may have cells with GPUs of a type."""
        regions = self.regions.setdefault(owner, {})
        if leaf not in regions:
            regions[leaf] = self._parts.region(leaf)

    def turned(self, machines: Iterable[Machine]) -> "Index":
        """The other of the two. ``machines``: from which somebody leaves."""
        is_ahead = not self.is_ahead
        amounts = None if self.amounts is None else self.amounts.copy(is_ahead)
        other = Index(self._parts, amounts, is_ahead=is_ahead)
        other.empty = _copies(self.empty)
        other.regions = {owner: _copies(regions) for owner, regions in self.regions.items()}
        other.physical = None if self.physical is None else _copies(self.physical)
        for machine in machines:
            other.behind.update((state.slot.number, state) for state in machine.slots)
            if other.amounts is not None:
                other.amounts.changed(machine)
        return other

    def catch_up(self, behind: dict[int, SlotState]) -> None:
        """Bring what is free on these nodes' leaves into it."""
        regions, physical, amounts = self.regions, self.physical, self.amounts
        is_ahead = self.is_ahead
        for state in reversed(behind.values()):
            number, kind, tags = state.slot.number, state.gpu_type, self._parts.tags[state.sort]
            if amounts is not None:
                amounts.changed(state.machine)
            known = tags.plain
            used = state.held | state.reserved  # `SlotState.used`, without a call
            free = state.usable & ~(used if is_ahead else used | state.leaving)
            if physical is not None:
                others = tags.shared if state.charged else known
                physical[kind].put(number, others.get(free) or tags.new(others, free))
            own = free & ~state.charged
            for owner, mask in state.bound.items():
                mine = mask & own
                regions[owner][kind].put(number, known.get(mine) or tags.new(known, mine))
            space = self._parts.spaces[number][number]
            if space:
                space &= free
                self.empty[kind].put(number, known.get(space) or tags.new(known, space))
            elif number in self.empty[kind].by_number:
                self.empty[kind].drop(number)


def make_index(
    forest: Forest,
    machines: Sequence[Machine],
    samples: Sequence[SlotState],
    spaces: Sequence[Mapping[int, int]],
    catch_up: Callable[[], object],
) -> Index:
    """Of hardware of which nothing was looked at yet. ``samples``: a node of each sort."""
    amounts, bits = None, None
    if any(machine.sort.names for machine in machines):
        amounts = make_amounts(machines, len(spaces))
        bits = {leaf: _bits(racks) for leaf, racks in forest.racks.items()}
    known: dict[TagKey, Tag] = {}
    tags = [Tags(state.slot.shape, state.sort, known) for state in samples]
    return Index(Parts(forest.racks, forest.places(), tags, spaces, bits, catch_up), amounts)


def _copies(regions: Mapping[str, Region]) -> dict[str, Region]:
    return {leaf: region.copy() for leaf, region in regions.items()}


def _bits(racks: Sequence[Rack]) -> list[int]:
    """Of each rack its nodes' numbers as a bit set."""
    return [sum(1 << slot.number for slot in rack.slots) for rack in racks]
