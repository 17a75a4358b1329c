"""The clusters that are measured: racks of eight nodes of eight GPUs, in whole racks' quota."""

from collections.abc import Mapping

from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from w1 import GPUS_PER_NODE, NODES_PER_RACK, VIRTUAL_CLUSTERS

CELL_TYPES: Mapping[str, CellType] = {
    "switch": CellType("gpu", 2),
    "socket": CellType("switch", 2),
    "node": CellType("socket", 2, is_node=True),
    "rack": CellType("node", NODES_PER_RACK),
}
RACK, NODE, GPU = "rack", "rack/node", "rack/node/socket/switch/gpu"
"""What can be owned, as paths."""

NODE_CPU = 12 * GPUS_PER_NODE
NODE_MEMORY_MB = 96_000 * GPUS_PER_NODE
EVERYTHING_ON = Policy(
    is_lazy=True,
    is_backfilling=True,
    order_by=("priority", "fair-share", "age"),
    min_run_s=600.0,
    preemptions_per_hour=1_000,
)
"""What costs anything is measured with all of it."""


def node_name(rack: int, number: int) -> str:
    return f"n{rack * NODES_PER_RACK + number}"


def racks(count: int) -> tuple[PhysicalCell, ...]:
    """Whole racks of nodes n0, n1, …"""
    return tuple(
        PhysicalCell("rack", f"r{rack}", tuple(node_name(rack, n) for n in range(NODES_PER_RACK)))
        for rack in range(count)
    )


def rack_of(nodes: int) -> dict[str, int]:
    """The rack of each node by name."""
    return {f"n{number}": number // NODES_PER_RACK for number in range(nodes)}


def in_quarters(nodes: int, is_limited: bool = False) -> ClusterConfig:
    """Four virtual clusters with a quarter of the racks each; ``is_limited``: nodes have so much
    CPU and memory and not more.
    """
    count = nodes // NODES_PER_RACK
    quota = VirtualCluster((QuotaCells(RACK, count // len(VIRTUAL_CLUSTERS)),))
    limits = NodeLimits(cpu=NODE_CPU, memory_mb=NODE_MEMORY_MB)
    return ClusterConfig(
        cell_types=CELL_TYPES,
        physical_cells=racks(count),
        nodes={f"n{number}": limits for number in range(nodes)} if is_limited else {},
        virtual_clusters=dict.fromkeys(VIRTUAL_CLUSTERS, quota),
        policy=EVERYTHING_ON,
    )
