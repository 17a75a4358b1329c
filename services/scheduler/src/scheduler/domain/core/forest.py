"""The hardware as it never changes within one configuration: chains of cells, nodes, machines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.domain.core.config import ClusterConfig, Finding, NodeLimits
from scheduler.domain.core.shapes import REMEMBERED, Part, Shape


class ConfigError(Exception):
    """A configuration that can't be honoured. ``findings``: all that is wrong with it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(f"{f.path}: {f.message}" for f in findings))
        self.findings = tuple(findings)


@dataclass(slots=True, eq=False)
class Chain:
    """The types from leaf (level 0) to top, and all cells of nodes and above, by level.

    ``counts[level]``: children of a complete cell.
    """

    name: str
    types: tuple[str, ...]
    counts: tuple[int, ...]
    node_level: int
    cells: "list[list[Cell]]" = field(default_factory=list)

    @property
    def gpu_type(self) -> str:
        """Of its leaves."""
        return self.types[0]

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.types) - 1

    def leaves(self, level: int) -> int:
        """GPUs of a complete cell."""
        size = 1
        for count in self.counts[1 : level + 1]:
            size *= count
        return size


@dataclass(slots=True, eq=False)
class Cell:
    """A node's cell or one above. ``number``: its place among the chain's cells of its level."""

    address: str
    chain: Chain
    level: int
    number: int
    parent: "Cell | None"
    is_complete: bool = False
    children: "list[Cell]" = field(default_factory=list)
    slot: "Slot | None" = None
    pin: str | None = None

    def slots(self) -> "Iterator[Slot]":
        """The nodes' cells in it, in order."""
        if self.slot is not None:
            yield self.slot
        for child in self.children:
            yield from child.slots()


@dataclass(slots=True, eq=False)
class Slot:
    """A machine's GPUs in one tree. ``number``: in the order of the file. ``gpus``: GPU index of
    each leaf. ``names``: of the cells inside, where they are not just numbers. ``pins``: cells
    inside that are pinned.
    """

    number: int
    cell: Cell
    machine: str
    shape: Shape
    gpus: tuple[int, ...]
    names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    pins: tuple[tuple[str, Part], ...] = ()
    _indices: dict[int, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._indices = self.shape.indices.setdefault(self.gpus, {})

    @property
    def chain(self) -> Chain:
        """The chain that it is in."""
        return self.cell.chain

    def mask_of(self, gpus: Sequence[int]) -> int:
        """The leaves with these GPU indices; others are left out."""
        mask = 0
        if gpus:
            for leaf, gpu in enumerate(self.gpus):
                if gpu in gpus:
                    mask |= 1 << leaf
        return mask

    def indices(self, mask: int) -> tuple[int, ...]:
        """GPU indices of leaves."""
        found = self._indices.get(mask)
        if found is None:
            if len(self._indices) >= REMEMBERED:
                self._indices.clear()
            found = tuple(sorted(gpu for leaf, gpu in enumerate(self.gpus) if mask >> leaf & 1))
            self._indices[mask] = found
        return found

    def address(self, part: Part) -> str:
        """The full address of a cell inside."""
        path = [self.cell.address]
        inside = self.shape.root
        while inside is not part:
            number, inside = next(
                (i, c) for i, c in enumerate(inside.children) if c.mask & part.mask
            )
            path.append(self.names.get((inside.level, inside.mask), str(number)))
        return "/".join(path)


@dataclass(slots=True, eq=False)
class Rack:
    """Where nearness begins to count: a node cell's parent, or the node cell itself at the top."""

    number: int
    cell: Cell
    slots: list[Slot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Quota:
    """``count`` cells of one level of a chain, owned by a virtual cluster."""

    path: str
    chain: Chain
    level: int
    count: int


@dataclass(slots=True, eq=False)
class Forest:
    """All of it. ``machines``: every node's name with its number of GPUs, those without too.

    ``racks`` and ``rack_of`` (by the slot's number) are numbered per GPU type, in order.
    ``pin_lines``: where each pin stands, its path and line.
    """

    config: ClusterConfig
    chains: dict[str, Chain] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    machines: dict[str, list[Slot]] = field(default_factory=dict)
    racks: dict[str, list[Rack]] = field(default_factory=dict)
    rack_of: list[Rack] = field(default_factory=list)
    quotas: dict[str, list[Quota]] = field(default_factory=dict)
    pins: "dict[str, tuple[Slot | Cell, Part | None]]" = field(default_factory=dict)
    pin_lines: dict[str, tuple[str, int]] = field(default_factory=dict)
    pin_owners: dict[str, str] = field(default_factory=dict)
    warnings: list[Finding] = field(default_factory=list)
    _addresses: "dict[tuple[str, str], Cell] | None" = None

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """In alphabetical order."""
        return tuple(sorted(self.racks))

    def limits(self, machine: str) -> NodeLimits:
        """What a node has beside GPUs."""
        return self.config.nodes.get(machine, NO_LIMITS)

    def by_address(self, chain: Chain, address: str) -> "Iterator[Cell]":
        """The cell at an address, or the node whose inside the address is in."""
        if self._addresses is None:
            self._addresses = {
                (each.name, cell.address): cell
                for each in self.chains.values()
                for cells in each.cells
                for cell in cells
            }
        path = address
        while path:
            cell = self._addresses.get((chain.name, path))
            if cell is not None:
                yield cell
                return
            path = path.rpartition("/")[0]

    def pin_type(self, pin: str) -> str:
        """The GPU type of a pinned cell."""
        place, _ = self.pins[pin]
        return (place if isinstance(place, Cell) else place.cell).chain.gpu_type

    def gpus_of(self, machine: str) -> int:
        """How many GPUs a node has."""
        return sum(len(slot.gpus) for slot in self.machines[machine])


NO_LIMITS = NodeLimits()
