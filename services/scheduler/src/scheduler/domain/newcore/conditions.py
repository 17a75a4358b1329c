"""Conditions of nodes: health, cordon and drain, what foreign pods hold."""

from collections.abc import Collection, Iterable, Mapping

from scheduler.domain.newcore.models import PORTS
from scheduler.domain.newcore.nodes import Node
from scheduler.domain.newcore.state import State


class Conditions:
    """Unknown nodes are ignored. ``draining``: nodes from which every gang is preempted."""

    def __init__(self, state: State) -> None:
        self.draining: set[str] = set()
        self._state = state

    def set_node_health(self, name: str, is_healthy: bool) -> None:
        """A node is healthy, or not."""
        self._set(name, is_healthy=is_healthy)

    def cordon(self, name: str) -> None:
        """No new pods come to a node."""
        self._set(name, is_cordoned=True)

    def drain(self, name: str) -> None:
        """No new pods come to a node, and those there are preempted."""
        self._set(name, is_drained=True)
        self.draining.update({name} & self._state.nodes.keys())

    def uncordon(self, name: str) -> None:
        """An operator's orders about a node end."""
        self._set(name, is_cordoned=False, is_drained=False)
        self.draining.discard(name)

    def _set(self, name: str, **facts: bool) -> None:
        node = self._state.nodes.get(name)
        if node is None:
            return
        now = {each: getattr(node, each) for each in ("is_healthy", "is_cordoned", "is_drained")}
        self._state.set_open(node, **(now | facts))

    def set_gpu_health(self, name: str, gpu: int, is_healthy: bool) -> None:
        """A GPU is healthy, or not."""
        node = self._state.nodes.get(name)
        for slot in () if node is None else node.slots:
            mask = 0 if slot.fixed is None else slot.fixed.mask_of((gpu,))
            if mask:
                self._state.set_sick(slot, slot.sick & ~mask if is_healthy else slot.sick | mask)

    def block(
        self, name: str, gpus: Collection[int], amounts: Mapping[str, int], ports: Collection[int]
    ) -> bool:
        """Foreign pods hold these now; whether that is another state than before."""
        node = self._state.nodes[name]
        first, last = node.port_range
        known = [port - first for port in ports if first <= port <= last]
        mask = sum(1 << bit for bit in set(known)) & ~node.ports
        wanted = {**amounts, PORTS: mask.bit_count()}
        held = tuple(wanted.get(each, 0) for each in self._state.resources.names)
        return self._state.block(node, gpus, held, mask)


def unwell(state: State) -> list[Node]:
    """Nodes on which not all is usable, in order."""
    nodes = dict.fromkeys(slot.node for slot in state.unwell)
    return sorted(nodes, key=lambda node: node.number)


def heal(state: State, nodes: Iterable[Node]) -> None:
    """All of these nodes is usable, in the caller's trial."""
    for node in nodes:
        state.set_open(node, is_healthy=True, is_cordoned=False, is_drained=False)
        for slot in node.slots:
            state.set_good(slot, slot.shape.full)
