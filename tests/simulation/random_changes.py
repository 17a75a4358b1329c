"""Random changes of a configuration: of virtual clusters, trees, what nodes have, and policy."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from oracle.hardware import Hardware
from oracle.state import is_honoured
from random_clusters import GRACE_S, PLAIN, Traits, limits, virtual_clusters
from scenes import FREE
from scheduler.domain.core.config import CellType, ClusterConfig, PhysicalCell

Types = Mapping[str, CellType]
Trees = tuple[PhysicalCell, ...]


def a_change(random: Random, config: ClusterConfig, traits: Traits) -> ClusterConfig:
    """Another configuration that can be honoured, with the same virtual clusters by name."""
    ways: tuple[tuple[Callable[[Random, ClusterConfig, Traits], ClusterConfig], int], ...] = (
        (_other_quotas, 3), (_other_trees, 4), (_other_limits, 3), (_other_policy, 1),
    )  # fmt: skip
    changes, weights = zip(*ways, strict=True)
    changed = random.choices(changes, weights)[0](random, config, traits)
    return changed if _is_sound(changed) else _other_quotas(random, changed, traits)


def _is_sound(config: ClusterConfig) -> bool:
    """Whether what virtual clusters own is there, every pin is owned, and all can be honoured."""
    hardware = Hardware(config)
    owned = [c.path.split("/") for vc in config.virtual_clusters.values() for c in vc.cells]
    is_there = all(
        types[0] in hardware.chains() and types[-1] in hardware.types_of(types[0])
        for types in owned
    )
    return is_there and hardware.pins.keys() == hardware.pin_owner.keys() and is_honoured(hardware)


def _other_quotas(random: Random, config: ClusterConfig, _: Traits) -> ClusterConfig:
    made = virtual_clusters(random, replace(config, virtual_clusters={}))
    for name in config.virtual_clusters:
        made.setdefault(name, replace(config.virtual_clusters[name], cells=(), pins=()))
    return replace(config, virtual_clusters=made)


def _other_policy(random: Random, config: ClusterConfig, _: Traits) -> ClusterConfig:
    is_lazy = not config.policy.is_lazy
    grace_s = random.choice((GRACE_S, GRACE_S / 2))
    return replace(config, policy=replace(FREE, is_lazy=is_lazy, grace_s=grace_s))


def _other_limits(random: Random, config: ClusterConfig, traits: Traits) -> ClusterConfig:
    """Of all nodes, or of one: more or less of everything than it had, or no end of it."""
    if not traits.has_limits:
        return config
    made = limits(random, config.physical_cells, config.cell_types, traits)
    if config.nodes and random.random() < 0.7:
        name = random.choice(sorted(config.nodes))
        others = {node: has for node, has in config.nodes.items() if node != name}
        made = {**others, name: made[name]} if name in made else others
    return replace(config, nodes=made)


def _other_trees(random: Random, config: ClusterConfig, traits: Traits) -> ClusterConfig:
    """A tree more or less, a cell less, one cell whole again, or a machine of another shape."""
    changes = (_with_one_more, _with_one_less, _with_a_cell_less, _made_whole, _with_one_moved)
    trees = random.choice(changes)(random, config)
    nodes = config.nodes
    if random.random() < 0.7:  # else machines whose GPUs are gone stay, without GPUs
        known = Hardware(replace(config, physical_cells=trees, nodes={})).gpus_on
        nodes = {name: has for name, has in nodes.items() if name in known or name in PLAIN}
    return replace(config, physical_cells=trees, nodes=nodes)


def _names(cell: PhysicalCell, types: Types) -> list[str]:
    """The machines in a tree."""
    if types[cell.type].is_node:
        return [str(cell.name)]
    return [name for child in cell.children or () for name in _names(child, types)]


def _whole(cell_type: str, types: Types, names: "list[str]") -> PhysicalCell:
    """A complete tree; machines take these names in order."""
    known = types.get(cell_type)
    if known is None:
        return PhysicalCell(cell_type)
    own = names.pop(0) if known.is_node else None
    children = tuple(_whole(known.child, types, names) for _ in range(known.count))
    return PhysicalCell(cell_type, own, children=children)


def _fresh(config: ClusterConfig) -> list[str]:
    """Names that no machine has."""
    known = set(Hardware(config).machines)
    return [name for name in (f"n{number}" for number in range(200)) if name not in known]


def _with_one_more(random: Random, config: ClusterConfig) -> Trees:
    tops = sorted({tree.type for tree in config.physical_cells})
    types = config.cell_types
    some = random.choice([*tops, *tops, *(name for name in types if name.split("-")[1] == "node")])
    made = _whole(some, types, _fresh(config))
    names = {tree.name for tree in config.physical_cells}
    name = next(name for name in (f"top{number}" for number in range(200)) if name not in names)
    return (*config.physical_cells, replace(made, name=made.name or name))


def _with_one_less(random: Random, config: ClusterConfig) -> Trees:
    trees = config.physical_cells
    gone = random.randrange(len(trees))
    return trees if len(trees) == 1 else trees[:gone] + trees[gone + 1 :]


def _at_random(
    random: Random, config: ClusterConfig, change: Callable[[PhysicalCell], PhysicalCell | None]
) -> Trees:
    """One cell of some tree, at any level, is changed, or gone where that gives None."""

    def inside(cell: PhysicalCell) -> PhysicalCell | None:
        children = list(cell.children or ())
        if not children or random.random() < 0.4:
            return change(cell)
        at = random.randrange(len(children))
        changed = inside(children[at])
        children[at : at + 1] = [] if changed is None else [changed]
        return replace(cell, children=tuple(children)) if children else None

    trees = list(config.physical_cells)
    at = random.randrange(len(trees))
    changed = inside(trees[at])
    if changed is not None or len(trees) > 1:
        trees[at : at + 1] = [] if changed is None else [changed]
    return tuple(trees)


def _with_a_cell_less(random: Random, config: ClusterConfig) -> Trees:
    return _at_random(random, config, lambda _: None)


def _made_whole(random: Random, config: ClusterConfig) -> Trees:
    """Some cell has all that its type says, and no pin in it."""
    types, fresh = config.cell_types, _fresh(config)

    def whole(cell: PhysicalCell) -> PhysicalCell:
        if cell.type not in types or any(child.index is not None for child in cell.children or ()):
            return cell
        is_in_node = not types[cell.type].is_node and not _names_if_any(cell, types)
        names = [] if is_in_node else [*_names(cell, types), *fresh]
        made = _whole(cell.type, types, names)
        return replace(made, name=cell.name, pin=cell.pin)

    return _at_random(random, config, whole)


def _names_if_any(cell: PhysicalCell, types: Types) -> bool:
    """Whether there are machines in the cell."""
    known = types.get(cell.type)
    while known is not None and not known.is_node:
        known = types.get(known.child)
    return known is not None


def _with_one_moved(random: Random, config: ClusterConfig) -> Trees:
    """A machine is taken out of its cell and is a tree by itself, of another type."""
    types = config.cell_types
    hardware = Hardware(config)
    name = random.choice([str(hardware.cells[at].node) for at in hardware.node_cells()])
    mine = {
        hardware.cells[at].type for at in hardware.node_cells() if hardware.cells[at].node == name
    }
    other = random.choice(
        [each for each, known in types.items() if known.is_node and each not in mine]
    )

    def without(cell: PhysicalCell) -> PhysicalCell | None:
        if cell.type in types and types[cell.type].is_node:
            return None if cell.name == name else cell
        left = tuple(kept for child in cell.children or () if (kept := without(child)))
        return replace(cell, children=left) if left else None

    left = tuple(kept for tree in config.physical_cells if (kept := without(tree)))
    return (*left, _whole(other, types, [name]))
