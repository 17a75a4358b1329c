"""Conditions of nodes: health, cordon and drain, what foreign pods hold."""

from collections.abc import Collection, Iterable, Mapping

from scheduler.domain.core.interface import NodeState
from scheduler.domain.core.node_models import OTHERS, PORTS
from scheduler.domain.core.nodes import Node
from scheduler.domain.core.state import State


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
        if now != now | facts:
            self._state.set_open(node, **(now | facts))

    def set_gpu_health(self, name: str, gpu: int, is_healthy: bool) -> None:
        """A GPU is healthy, or not."""
        node = self._state.nodes.get(name)
        for slot in () if node is None else node.slots:
            mask = 0 if slot.fixed is None else slot.fixed.mask_of((gpu,))
            if mask and is_healthy is bool(slot.sick & mask):
                self._state.set_sick(slot, slot.sick ^ mask)

    def block(
        self,
        name: str,
        gpus: Collection[int],
        amounts: Mapping[str, int],
        ports: Collection[int],
        avoided: Collection[int] = (),
    ) -> bool:
        """Foreign pods hold these now; whether that is another state than before. ``avoided``:
        ports that are assigned last.
        """
        node = self._state.nodes.get(name)
        if node is None:
            return False
        mask = node.port_bits(ports) & ~node.ports
        wanted = {**amounts, PORTS: mask.bit_count()}
        held = tuple(wanted.get(each, 0) for each in self._state.resources.names)
        return self._state.block(node, gpus, held, mask, node.port_bits(avoided))

    def of(self, name: str) -> NodeState | None:
        """A node as it is shown; None: the configuration has none of this name."""
        node = self._state.nodes.get(name)
        if node is None:
            return None
        names = self._state.resources.names
        held = dict(zip(names, node.blocked, strict=False))
        all_totals = zip(names, self._state.resources.totals(node.limits), strict=True)
        totals = {n: amount for n, amount in all_totals if amount is not None and n != OTHERS}
        return NodeState(
            node.is_healthy,
            node.is_cordoned,
            node.is_drained,
            frozenset(_gpus(node, "sick")),
            tuple(_gpus(node, "blocked")),
            {n: amount for n, amount in held.items() if amount and n not in (PORTS, OTHERS)},
            node.ports_in(node.blocked_ports),
            node.ports_in(node.avoided_ports),
            node.ports_in(node.ports),
            frozenset(_gpus(node, "held")),
            sum(slot.free.bit_count() for slot in node.slots),
            totals,
            {name: rest for name, rest in zip(names, node.left, strict=True) if name in totals},
        )

    def take_over(self, before: "Conditions") -> None:
        """The conditions of the same nodes under another configuration."""
        nodes = self._state.nodes
        self.draining = {name for name in before.draining if name in nodes}
        for name, old in before._state.nodes.items():
            if name not in nodes:
                continue
            self._set(
                name,
                is_healthy=old.is_healthy,
                is_cordoned=old.is_cordoned,
                is_drained=old.is_drained,
            )
            for gpu in _gpus(old, "sick"):
                self.set_gpu_health(name, gpu, False)
            held = dict(zip(before._state.resources.names, old.blocked, strict=False))
            ports, avoided = old.ports_in(old.blocked_ports), old.ports_in(old.avoided_ports)
            self.block(name, _gpus(old, "blocked"), held, ports, avoided)


def _gpus(node: Node, what: str) -> list[int]:
    """Indices of a node's GPUs that are ``sick``, ``blocked`` or ``held``."""
    return [
        gpu
        for slot in node.slots
        if slot.fixed is not None
        for gpu in slot.fixed.indices(getattr(slot, what))
    ]


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
