"""The physical cells of a configuration as one flat list, in the order of the file."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.domain.core.config import ClusterConfig, NodeLimits, PhysicalCell
from scheduler.domain.core.model import Gang, Kind, PodPlace

Path = str


@dataclass(frozen=True, slots=True)
class Cell:
    """One physical cell. ``node``: its machine, None above nodes. ``gpu``: only of a leaf."""

    number: int
    type: str
    chain: str
    parent: int | None
    children: tuple[int, ...]
    address: str
    node: str | None
    gpu: int | None
    pin: str | None
    is_complete: bool


class Hardware:
    """All cells by number, and what can be read from the configuration alone."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.cells: list[Cell] = []
        self.tops: list[int] = []
        for position, top in enumerate(config.physical_cells):
            builder = _Tree(self, top.type)
            self.tops.append(builder.add(top, None, str(position), iter(top.nodes or ())))
        self._below = [tuple(self._walk(cell.number)) for cell in self.cells]
        self._above = [tuple(self._climb(cell.number)) for cell in self.cells]
        self._leaves = [
            [at for at in below if self.cells[at].gpu is not None] for below in self._below
        ]
        self._types = {top: self._types_from(top) for top in self.chains()}
        self._node_cells = [c.number for c in self.cells if self.is_node_type(c.type)]
        self.leaf_at = {
            (cell.node, cell.gpu): cell.number for cell in self.cells if cell.gpu is not None
        }
        self.gpus_on = Counter(cell.node for cell in self.cells if cell.gpu is not None)
        in_cells = dict.fromkeys(cell.node for cell in self.cells if cell.node is not None)
        self.machines = [*in_cells, *sorted(set(config.nodes) - set(in_cells))]
        self.pins = {cell.pin: cell.number for cell in self.cells if cell.pin is not None}
        self.pin_owner = {
            pin: name for name, vc in config.virtual_clusters.items() for pin in vc.pins
        }
        self.refused: dict[Gang, bool] = {}  # worked out once: nothing that happens changes it

    def cell_at(self, address: str, quota: Path) -> int | None:
        """The cell of an address, in the chain of a quota's path; without one it is pinned."""
        chain = quota.split("/")[0]
        named = [cell for cell in self.cells if cell.address == address]
        named.sort(key=lambda cell: (cell.chain != chain, not quota and cell.pin is None))
        return named[0].number if named else None

    def _climb(self, number: int) -> Iterator[int]:
        at: int | None = number
        while at is not None:
            yield at
            at = self.cells[at].parent

    def _walk(self, number: int) -> Iterator[int]:
        yield number
        for child in self.cells[number].children:
            yield from self._walk(child)

    def holds(self, kind: Kind, place: PodPlace) -> bool:
        """Whether such a pod can have this place: its machine has its GPUs and enough for it."""
        has_enough = self.leaves_needed(kind, place.node) is not None
        return has_enough and self.has_gpus(place)

    def has_gpus(self, place: PodPlace) -> bool:
        """Whether the machine is there, with all GPUs of a place in one node cell."""
        if place.node not in self.gpus_on and place.node not in self.config.nodes:
            return False
        leaves = [self.leaf_at.get((place.node, gpu)) for gpu in place.gpus]
        cells = {None if leaf is None else self.node_cell_of(leaf) for leaf in leaves}
        return None not in cells and len(cells) <= 1

    def path_up(self, number: int) -> tuple[int, ...]:
        """The cell and all above it, from the bottom."""
        return self._above[number]

    def below(self, number: int) -> tuple[int, ...]:
        """The cell and all in it."""
        return self._below[number]

    def leaves(self, number: int) -> list[int]:
        """The GPUs in a cell."""
        return self._leaves[number]

    def is_node_type(self, cell_type: str) -> bool:
        """Whether cells of this type are whole machines."""
        known = self.config.cell_types.get(cell_type)
        return known is not None and known.is_node

    def node_cells(self) -> list[int]:
        """The cells that are machines, in order."""
        return self._node_cells

    def node_cell_of(self, number: int) -> int:
        """The node cell that a leaf is in."""
        return next(at for at in self.path_up(number) if self.is_node_type(self.cells[at].type))

    def rack_of(self, number: int) -> int:
        """The rack of a node cell or of anything in it."""
        node = self.node_cell_of(number)
        parent = self.cells[node].parent
        return node if parent is None else parent

    def rack_of_node(self, machine: str) -> set[int]:
        """The racks that a machine is in; none if it has no GPU."""
        return {self.rack_of(at) for at in self.node_cells() if self.cells[at].node == machine}

    def types_of(self, chain: str) -> list[str]:
        """The types of a chain from its top to its leaf."""
        return self._types[chain] if chain in self._types else self._types_from(chain)

    def _types_from(self, chain: str) -> list[str]:
        types = [chain]
        while types[-1] in self.config.cell_types:
            types.append(self.config.cell_types[types[-1]].child)
        return types

    def level(self, number: int) -> int:
        """1 for a leaf, 2 for its parent, and so on."""
        types = self.types_of(self.cells[number].chain)
        return len(types) - types.index(self.cells[number].type)

    def chains(self) -> list[str]:
        """The types of the top cells, in order."""
        return list(dict.fromkeys(cell.type for cell in map(self.cells.__getitem__, self.tops)))

    def gpu_types(self) -> list[str]:
        """All leaf types in alphabetical order."""
        return sorted({cell.type for cell in self.cells if cell.gpu is not None})

    def limits(self, machine: str) -> NodeLimits:
        """What the machine has beside GPUs."""
        return self.config.nodes.get(machine, NodeLimits())

    def leaf_type(self, number: int) -> str:
        """The type of the GPUs in a cell."""
        return self.types_of(self.cells[number].chain)[-1]

    def lowest_common_level(self, leaves: list[int]) -> int:
        """The level of the smallest cell that all these leaves are in."""
        common = next(at for at in self.path_up(leaves[0]) if set(leaves) <= set(self.leaves(at)))
        return self.level(common)

    def wanted(self, kind: Kind, machine: str) -> list[tuple[int, int | None]]:
        """(what a pod wants, what the machine has of it, None: no limit) beside GPUs."""
        limits = self.limits(machine)
        ports = None if limits.ports is None else limits.ports[1] - limits.ports[0] + 1
        pairs = [(kind.cpu, limits.cpu), (kind.memory_mb, limits.memory_mb), (kind.ports, ports)]
        for name, count in kind.resources:
            has = None if limits.resources is None else limits.resources.get(name, 0)
            pairs.append((count, has))
        return pairs

    def leaves_needed(self, kind: Kind, machine: str) -> int | None:
        """How many leaves a guaranteed pod is charged there; None: it can't be there at all."""
        needed = kind.gpus
        for wants, has in self.wanted(kind, machine):
            if has is None or wants == 0:
                continue
            if wants > has:
                return None
            needed = max(needed, -(-wants * self.gpus_on[machine] // has))
        return needed

    def quotas(self, virtual_cluster: str) -> Counter[Path]:
        """The cells a virtual cluster owns, by path."""
        owned: Counter[Path] = Counter()
        for cells in self.config.virtual_clusters[virtual_cluster].cells:
            owned[cells.path] += cells.count
        return owned

    def leaves_per(self, chain: str, cell_type: str) -> int:
        """How many leaves a complete cell of this type has."""
        types = self.types_of(chain)
        count = 1
        for above in types[types.index(cell_type) : -1]:
            count *= self.config.cell_types[above].count
        return count


class _Tree:
    """Adds one tree to the list of cells."""

    def __init__(self, hardware: Hardware, chain: str) -> None:
        self._hardware = hardware
        self._chain = chain
        self._next_gpu: Counter[str] = Counter()
        self._machine: str | None = None

    def add(
        self, cell: PhysicalCell, parent: int | None, position: str, nodes: Iterator[str]
    ) -> int:
        """Add a cell and all below it; its number comes back."""
        config, cells = self._hardware.config, self._hardware.cells
        known = config.cell_types.get(cell.type)
        above = None if parent is None else cells[parent]
        name = cell.name
        is_node = known is not None and known.is_node
        if is_node:
            name = name or next(nodes, None) or position
        node = name if is_node else (above.node if above else None)
        name = name or position
        address = name if above is None else f"{above.address}/{name}"
        gpu = None if known is not None else self._index(cell, str(node))
        number = len(cells)
        made = Cell(number, cell.type, self._chain, parent, (), address, node, gpu, cell.pin, True)
        cells.append(made)
        if known is None:
            return number
        inner = cell.children
        if inner is None:
            inner = tuple(PhysicalCell(known.child) for _ in range(known.count))
        below = iter(cell.nodes) if cell.nodes is not None else nodes
        children = tuple(
            self.add(child, number, str(position), below) for position, child in enumerate(inner)
        )
        complete = len(children) == known.count and all(cells[c].is_complete for c in children)
        cells[number] = Cell(
            number,
            cell.type,
            self._chain,
            parent,
            children,
            address,
            node,
            None,
            cell.pin,
            complete,
        )
        return number

    def _index(self, cell: PhysicalCell, node: str) -> int:
        if cell.index is not None:
            return cell.index
        self._next_gpu[node] += 1
        return self._next_gpu[node] - 1
