"""From a configuration to a forest; everything that is wrong with it is said at once."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    Finding,
    PhysicalCell,
    listed,
)
from scheduler.domain.core.forest import Cell, Chain, ConfigError, Forest, Rack, Slot
from scheduler.domain.core.gaps import Gaps
from scheduler.domain.core.quotas import check_quotas
from scheduler.domain.core.shapes import Part, Shape, Tree

MOST_GPUS = 64
"""Of one node in one tree."""

MOST_LEVELS = 16

MUCH_ALIKE = 0.8
"""Of two names, for one to be a misspelt other."""


def build(config: ClusterConfig) -> Forest:
    """The forest of a configuration. Raises ConfigError."""
    gaps = Gaps(config)
    builder = _Builder(config, gaps)
    builder.build()
    check_quotas(builder.forest, builder.tops, gaps, builder.findings)
    findings = gaps.told(builder.findings)
    if findings or config.unread:
        raise ConfigError(findings)
    return builder.forest


def flaws(config: ClusterConfig) -> Sequence[Finding]:
    """What is wrong with a configuration, beside what of it could not be read."""
    try:
        build(config)
    except ConfigError as error:
        return error.findings
    return ()


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a cell is to be made. ``number``: among its parent's children."""

    chain: Chain
    level: int
    parent: Cell | None
    number: int
    path: str


class _Builder:
    def __init__(self, config: ClusterConfig, gaps: Gaps) -> None:
        self.config = config
        self.forest = Forest(config)
        self.findings: list[Finding] = []
        self.tops: list[Cell | None] = []
        self._gaps = gaps
        self._wrong_types: set[str | int] = gaps.types
        self._shapes: dict[tuple[Tree, tuple[int, ...]], Shape] = {}
        self._names: set[tuple[str, str]] = set()
        self._used: set[str] = set()
        self._gpus: dict[str, set[int]] = {}

    def build(self) -> None:
        """Types first, for all else hangs on them: of a wrong one no tree is looked at."""
        self._check_types()
        for number, spec in enumerate(self.config.physical_cells):
            path = f"physicalCells[{number}]"
            chain = self._chain(spec.type, path, spec.line)
            top = None
            if chain is not None:
                self._used.update(chain.types)
                where = _Where(chain, chain.top, None, number, path)
                top = self._cell(spec, where, _listed(spec))
            self.tops.append(top)
        for name in sorted(self.config.nodes):  # those that no tree has come last
            self.forest.machines.setdefault(name, [])
        self._number_racks()
        for name in sorted(self.config.cell_types.keys() - self._used):
            self._warn(f"cellTypes.{name}", "no physical cell is of this type: it has no effect", 0)

    def _say(self, path: str, message: str, spec: PhysicalCell | None = None) -> None:
        self.findings.append(Finding(path, message, 0 if spec is None else spec.line))

    def _warn(self, path: str, message: str, line: int) -> None:
        self.forest.warnings.append(Finding(path, message, line))

    # Types.

    def _check_types(self) -> None:
        for name, cell_type in self.config.cell_types.items():
            path, before = f"cellTypes.{name}", len(self.findings)
            if cell_type.count < 1:
                self._say(f"{path}.count", "must be at least 1")
            seen = [name]
            for child, _ in self._below(name):
                if child in seen:
                    self._say(path, f"goes round in a circle: {' > '.join([*seen, child])}")
                    break
                seen.append(child)
                if len(seen) > MOST_LEVELS:
                    self._say(path, f"is deeper than {MOST_LEVELS} levels")
                    break
            if len(self.findings) > before:
                self._wrong_types.add(name)

    def _below(self, name: str) -> "Iterator[tuple[str, CellType | None]]":
        while (found := self.config.cell_types.get(name)) is not None:
            name = found.child
            yield name, self.config.cell_types.get(name)

    def _chain(self, top: str, path: str, line: int) -> Chain | None:
        chain = self.forest.chains.get(top)
        if chain is not None:
            return chain
        types = self.config.cell_types
        if top not in types:
            if self._gaps.has_all_types:
                message = f"{top} is no cell type; there are {listed(types)}"
                self.findings.append(Finding(f"{path}.type", message, line))
            return None
        names = [top]
        for name, _ in self._below(top):
            if names[-1] in self._wrong_types:
                return None
            names.append(name)
        nodes = [name for name in names if name in types and types[name].is_node]
        if not nodes and (meant := get_close_matches(names[-1], sorted(types), 1, MUCH_ALIKE)):
            self._wrong_types.add(names[-2])  # so this is said once, not for each tree
            message = f"{names[-1]} is no cell type; is it `{meant[0]}`?"
            self._say(f"cellTypes.{names[-2]}.child", message)
            return None
        if len(nodes) != 1:
            what = "no type with `node: true`" if not nodes else f"two nodes: {' and '.join(nodes)}"
            message = f"{' > '.join(names)} has {what}; one of them must be a machine"
            self.findings.append(Finding(f"{path}.type", message, line))
            return None
        names.reverse()
        counts = (1, *(types[name].count for name in names[1:]))
        chain = Chain(top, tuple(names), counts, names.index(nodes[0]))
        if chain.leaves(chain.node_level) > MOST_GPUS:
            message = f"a {nodes[0]} has more than {MOST_GPUS} GPUs"
            self.findings.append(Finding(f"{path}.type", message, line))
            return None
        chain.cells = [[] for _ in names]
        self.forest.chains[top] = chain
        return chain

    # Cells above nodes.

    def _cell(self, spec: PhysicalCell, at: _Where, names: "deque[str] | None") -> Cell | None:
        """Make a cell and all below it; None where the list of nodes ended before it. ``names``:
        of the nodes that are not made yet; of a cell's own list what is left is told.
        """
        chain, level, parent, path = at.chain, at.level, at.parent, at.path
        if spec.type != chain.types[level]:
            self._say(
                f"{path}.type", f"must be {chain.types[level]}, as its parent's type says", spec
            )
            return None
        name = spec.name
        if level == chain.node_level and name is None:
            name = names.popleft() if names else None
            if name is None:
                if names is None:
                    self._say(f"{path}.name", f"a {spec.type} is a node: it needs a name", spec)
                return None
        name = str(at.number) if name is None else name
        address = name if parent is None else f"{parent.address}/{name}"
        if (chain.name, address) in self._names:
            self._say(path, f"there are two cells {address} in the chain {chain.name}", spec)
        self._names.add((chain.name, address))
        cell = Cell(address, chain, level, len(chain.cells[level]), parent)
        chain.cells[level].append(cell)
        if level == chain.node_level:
            self._slot(spec, cell, name, path)
        else:
            self._children(spec, cell, names, path)
            if names and spec.nodes is not None and spec.children is None:
                self._say(
                    f"{path}.nodes", f"no room for the node {names[0]} in a {spec.type}", spec
                )
        if spec.index is not None:
            self._say(f"{path}.index", f"is for a GPU, not for a {spec.type}; remove it", spec)
        if spec.pin is not None:
            cell.pin = spec.pin
            self._pin(spec.pin, (cell, None), path, spec)
        return cell

    def _children(
        self, spec: PhysicalCell, cell: Cell, names: "deque[str] | None", path: str
    ) -> None:
        chain, level = cell.chain, cell.level
        count = chain.counts[level]
        given = spec.children
        if given is not None and names is not None and spec.nodes is not None:
            self._say(path, "has both `nodes` and `children`; keep one of them", spec)
            return
        if given is not None and len(given) > count:
            self._say(f"{path}.children", f"has {len(given)}; a {spec.type} has {count}", spec)
        below = PhysicalCell(chain.types[level - 1], line=spec.line)
        for number in range(count if given is None else len(given)):
            if given is None and number and not names:
                break  # a cell without nodes is none
            child = below if given is None else given[number]
            where = path if given is None else f"{path}.children[{number}]"
            own = names if child.nodes is None else _listed(child)
            made = self._cell(child, _Where(chain, level - 1, cell, number, where), own)
            if made is not None:
                cell.children.append(made)
            elif given is None:
                break
        has = len(cell.children)
        if not has and not self.findings:
            self._say(path, f"the {spec.type} {cell.address} has no nodes; name them", spec)
        cell.is_complete = has == count and all(child.is_complete for child in cell.children)
        if has < count:
            message = (
                f"{cell.address} has {has} of {count} {chain.types[level - 1]}: it is never given"
                f" whole as a {spec.type}, only its parts are"
            )
            self._warn(path, message, spec.line)

    # Nodes.

    def _slot(self, spec: PhysicalCell, cell: Cell, machine: str, path: str) -> None:
        chain = cell.chain
        if spec.nodes is not None:
            self._say(f"{path}.nodes", "is for cells above nodes; a node has a name", spec)
        inside = _Inside(self, chain)
        tree = inside.tree(spec, chain.node_level, path)
        key = (tree, chain.counts[: chain.node_level + 1])
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(tree, key[1])
        slot = Slot(len(self.forest.slots), cell, machine, shape, tuple(inside.gpus))
        parts = {(part.level, part.mask): part for level in shape.parts for part in level}
        slot.names = inside.names
        slot.pins = tuple((pin, parts[key]) for pin, key, _, _ in inside.pins)
        for (pin, part), (_, _, where, child) in zip(slot.pins, inside.pins, strict=True):
            self._pin(pin, (slot, part), where, child)
        cell.slot, cell.is_complete = slot, shape.root.is_complete
        if not slot.gpus:
            self._say(path, f"the node {machine} has no GPUs here; leave this cell out", spec)
        others = self.forest.machines.setdefault(machine, [])
        if any(other.chain is chain for other in others):
            self._say(path, f"the node {machine} is in the chain {chain.name} twice", spec)
        mine = self._gpus.setdefault(machine, set())
        for gpu in slot.gpus:
            if gpu in mine:
                message = (
                    f"the GPU {gpu} of the node {machine} is in two places;"
                    " give each its `index`, as the node counts them"
                )
                self._say(path, message, spec)
                break
            mine.add(gpu)
        others.append(slot)
        self.forest.slots.append(slot)

    def _pin(
        self, pin: str, place: "tuple[Slot | Cell, Part | None]", path: str, spec: PhysicalCell
    ) -> None:
        if pin in self.forest.pins:
            self._say(f"{path}.pin", f"two cells have the pin {pin}; a pin is one cell", spec)
        self.forest.pins[pin] = place
        self.forest.pin_lines[pin] = f"{path}.pin", spec.line

    def _number_racks(self) -> None:
        known: dict[int, Rack] = {}
        for slot in self.forest.slots:
            cell = slot.cell.parent or slot.cell
            rack = known.get(id(cell))
            if rack is None:
                racks = self.forest.racks.setdefault(slot.chain.gpu_type, [])
                rack = known[id(cell)] = Rack(len(racks), cell)
                racks.append(rack)
            rack.slots.append(slot)
            self.forest.rack_of.append(rack)


def _listed(spec: PhysicalCell) -> "deque[str] | None":
    """The names of the nodes below."""
    return None if spec.nodes is None else deque(spec.nodes)


class _Inside:
    """Reads the cells inside one node."""

    def __init__(self, builder: _Builder, chain: Chain) -> None:
        self.gpus: list[int] = []
        self.names: dict[tuple[int, int], str] = {}
        self.pins: list[tuple[str, tuple[int, int], str, PhysicalCell]] = []
        self._builder = builder
        self._chain = chain

    def tree(self, spec: PhysicalCell | None, level: int, path: str) -> Tree:
        """The node's tree; leaves are numbered as they come."""
        first = len(self.gpus)
        if level == 0:
            self.gpus.append(first if spec is None or spec.index is None else spec.index)
            found: Tree = ()
        else:
            found = self._branches(spec, level, path)
        mask = (1 << len(self.gpus)) - (1 << first)
        if spec is not None and level < self._chain.node_level:
            self._check(spec, level, path)
            if spec.name is not None:
                self.names[level, mask] = spec.name
            if spec.pin is not None:
                self.pins.append((spec.pin, (level, mask), path, spec))
        return found

    def _branches(self, spec: PhysicalCell | None, level: int, path: str) -> Tree:
        chain, builder = self._chain, self._builder
        count = chain.counts[level]
        if spec is None or spec.children is None:
            return tuple(self.tree(None, level - 1, path) for _ in range(count))
        if len(spec.children) > count:
            message = f"has {len(spec.children)}; a {spec.type} has {count}"
            builder._say(f"{path}.children", message, spec)
        if len(spec.children) < count:
            message = (
                f"has {len(spec.children)} of {count} {chain.types[level - 1]}: it is never given"
                f" whole as a {spec.type}, only its parts are"
            )
            builder._warn(path, message, spec.line)
        trees, names = [], set[str]()
        for number, child in enumerate(spec.children[:count]):
            where = f"{path}.children[{number}]"
            name = str(number) if child.name is None else child.name
            if name in names:
                builder._say(where, f"two cells of one {spec.type} have the name {name}", child)
            names.add(name)
            if child.type != chain.types[level - 1]:
                builder._say(f"{where}.type", f"must be {chain.types[level - 1]}", child)
            trees.append(self.tree(child, level - 1, where))
        return tuple(trees)

    def _check(self, spec: PhysicalCell, level: int, path: str) -> None:
        """What has no effect inside a node is refused."""
        given = {
            "nodes": spec.nodes is not None,
            "index": spec.index is not None and level > 0,
            "children": spec.children is not None and level == 0,
        }
        for name in (name for name, is_wrong in given.items() if is_wrong):
            what = "a GPU" if level == 0 else f"a {spec.type}, inside a node"
            self._builder._say(f"{path}.{name}", f"can't be there in {what}; remove it", spec)
