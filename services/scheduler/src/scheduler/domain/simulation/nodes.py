"""Events of a node, for the core and for the sums."""

from collections.abc import Callable
from typing import TypeAlias, assert_never

from scheduler.domain.core.config import Finding
from scheduler.domain.core.interface import Core
from scheduler.domain.formats.model import (
    GpuHealthChanged,
    NodeBlocked,
    NodeCordoned,
    NodeDrained,
    NodeHealthChanged,
    NodeUncordoned,
)
from scheduler.domain.simulation.space import Space

Warn = Callable[[Finding], None]

OfNode: TypeAlias = (
    NodeHealthChanged | GpuHealthChanged | NodeCordoned | NodeDrained | NodeUncordoned | NodeBlocked
)


def apply_to_node(event: OfNode, core: Core, space: Space, warn: Warn) -> None:
    """Apply an event; for an unknown node or GPU it only warns."""
    if not space.has(event.node):
        warn(Finding("node", f"{event.node!a} is not there: ignored", event.line))
        return
    match event:
        case NodeHealthChanged(node=node, is_healthy=is_healthy):
            core.nodes.set_node_health(node, is_healthy)
            space.set_node_health(node, is_healthy)
        case GpuHealthChanged(node=node, gpu=gpu, is_healthy=is_healthy):
            if not space.has(node, gpu):
                warn(Finding("gpu", f"{gpu} is not on {node!a}: ignored", event.line))
                return
            core.nodes.set_gpu_health(node, gpu, is_healthy)
            space.set_gpu_health(node, gpu, is_healthy)
        case NodeCordoned(node=node):
            core.nodes.cordon(node)
            space.set_open(node, False)
        case NodeDrained(node=node):
            core.nodes.drain(node)
            space.set_open(node, False)
        case NodeUncordoned(node=node):
            core.nodes.uncordon(node)
            space.set_open(node, True)
        case NodeBlocked(node=node):
            amounts = {"cpu": event.cpu, "memoryMB": event.memory_mb}
            core.nodes.block(node, event.gpus, amounts, event.ports, event.avoided)
            space.block(node, event.gpus)
        case _:
            assert_never(event)
