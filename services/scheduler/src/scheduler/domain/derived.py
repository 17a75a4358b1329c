"""The configuration of a cluster that nodes make or complete: a pure function of their sizes."""

import re
from collections.abc import Mapping
from dataclasses import replace

from scheduler.domain.core.building import MOST_GPUS
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.nodes import Size

DEFAULT = "default"
"""The virtual cluster that owns everything if there is no cluster file."""

_ODD = re.compile(r"[^a-z0-9]+")


def derived(sizes: Mapping[str, Size], policy: Policy) -> ClusterConfig:
    """Every node is a cell at the top, of its GPUs' model and number, and `default` owns all."""
    leaves = {_slug(model) for size in sizes.values() for _, model in size.gpus}
    types: dict[str, CellType] = {}
    cells: list[PhysicalCell] = []
    owned: dict[str, int] = {}
    for name, size in sorted(sizes.items()):
        used: set[str] = set()
        for leaf, gpus in _trees(size):
            cell_type = _type_name(leaf, len(gpus), leaves, used)
            used.add(cell_type)
            types[cell_type] = CellType(leaf, len(gpus), is_node=True)
            children = tuple(PhysicalCell(leaf, index=index) for index in gpus)
            is_plain = gpus == tuple(range(len(gpus)))
            cells.append(PhysicalCell(cell_type, name, children=None if is_plain else children))
            owned[cell_type] = owned.get(cell_type, 0) + 1
    return ClusterConfig(
        cell_types=types,
        physical_cells=tuple(cells),
        nodes={name: _limits(size) for name, size in sorted(sizes.items())},
        virtual_clusters={
            DEFAULT: VirtualCluster(tuple(QuotaCells(t, n) for t, n in sorted(owned.items())))
        },
        policy=policy,
    )


def completed(file: ClusterConfig, sizes: Mapping[str, Size]) -> ClusterConfig:
    """A file's configuration; nodes' reports fill in the limits that it leaves out."""
    nodes = dict(file.nodes)
    for name in (*_names(file), *file.nodes):
        size, limits = sizes.get(name), nodes.get(name, NodeLimits())
        if size is not None:
            nodes[name] = NodeLimits(
                size.cpu if limits.cpu is None else limits.cpu,
                size.memory_mb if limits.memory_mb is None else limits.memory_mb,
                size.ports if limits.ports is None else limits.ports,
                _counted(size) if limits.resources is None else limits.resources,
            )
    return replace(file, nodes=nodes)


def _names(file: ClusterConfig) -> list[str]:
    """Every name in the file that may be a node's."""
    found: list[str] = []
    todo = list(file.physical_cells)
    while todo:
        cell = todo.pop()
        found += cell.nodes or ()
        if cell.name is not None and file.cell_types.get(cell.type, _LEAF).is_node:
            found.append(cell.name)
        else:
            todo += cell.children or ()
    return sorted(found)


_LEAF = CellType("", 1)


def _limits(size: Size) -> NodeLimits:
    """It has nothing that it does not report."""
    return NodeLimits(size.cpu, size.memory_mb, size.ports, _counted(size) or {})


def _counted(size: Size) -> dict[str, int] | None:
    return None if size.resources is None else dict(size.resources)


def _trees(size: Size) -> list[tuple[str, tuple[int, ...]]]:
    """A node's GPUs by model, in as few trees as possible."""
    models: dict[str, list[int]] = {}
    for index, model in size.gpus:
        models.setdefault(_slug(model), []).append(index)
    return [
        (leaf, tuple(gpus[first : first + MOST_GPUS]))
        for leaf, gpus in sorted(models.items())
        for first in range(0, len(gpus), MOST_GPUS)
    ]


def _type_name(leaf: str, count: int, leaves: set[str], used: set[str]) -> str:
    """A name that is neither a model's nor one of the node's."""
    name = f"{leaf}-{count}"
    while name in leaves or name in used:
        name += "-node"
    return name


def _slug(model: str) -> str:
    """A model's name as a type's."""
    return _ODD.sub("-", model.lower()).strip("-") or "gpu"
