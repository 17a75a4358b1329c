"""The core's view of each node, so that only changes are passed on to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.contracts.node_orders import Order

from scheduler.domain.given import Given
from scheduler.domain.ledger import Ledger
from scheduler.domain.nodes import View


@dataclass(slots=True)
class Seen:
    """Nodes by name, as last passed to the core."""

    nodes: dict[str, View] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget all views: the core knows nothing."""
        self.nodes.clear()

    @staticmethod
    def doubt(given: Given, ledger: Ledger) -> None:
        """Nodes that never sent a message take no pods."""
        for name in sorted(given.core.forest.machines.keys() - ledger.nodes.keys()):
            node = given.core.nodes.of(name)
            if node is not None and node.is_healthy:
                given.set_node_health(name, False)

    def carry_all(
        self, given: Given, ledger: Ledger, orders: Mapping[str, Order], now: float
    ) -> None:
        """Pass every changed node to the core."""
        for name in sorted(ledger.touched):
            node = ledger.nodes.get(name)
            if node is not None:
                self.carry(given, name, node.view(now))
            self.carry_order(given, name, orders.get(name))
        ledger.touched.clear()

    def carry(self, given: Given, name: str, view: View) -> None:
        """Pass a node's view to the core."""
        node = None if self.nodes.get(name) == view else given.core.nodes.of(name)
        if node is None:
            return
        self.nodes[name] = view
        for slot in given.core.forest.machines[name]:
            for gpu in slot.gpus:
                if (gpu in view.well) == (gpu in node.bad):
                    given.set_gpu_health(name, gpu, gpu in view.well)
        amounts = {"cpu": view.cpu, "memoryMB": view.memory_mb}
        given.block(name, view.gpus, amounts, view.ports, view.avoided)
        if node.is_healthy != view.is_healthy:
            given.set_node_health(name, view.is_healthy)

    @staticmethod
    def carry_order(given: Given, name: str, order: Order | None) -> None:
        """Pass an operator's order about a node to the core."""
        node = given.core.nodes.of(name)
        is_cordoned, is_drained = order is Order.CORDON, order is Order.DRAIN
        if node is None or (node.is_cordoned, node.is_drained) == (is_cordoned, is_drained):
            return
        given.order(name, is_cordoned=is_cordoned, is_drained=is_drained)
