"""What the core was told of each node, so that only what is another is told again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.contracts.node_orders import Order

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.ledger import Ledger
from scheduler.domain.nodes import View


@dataclass(slots=True)
class Seen:
    """Nodes by name, as the core was last told."""

    nodes: dict[str, View] = field(default_factory=dict)

    def forget(self) -> None:
        """The core knows nothing."""
        self.nodes.clear()

    @staticmethod
    def doubt(cluster: Cluster, ledger: Ledger) -> None:
        """Nodes that were never heard take nothing."""
        for name in cluster.hardware.machines.keys() - ledger.nodes.keys():
            cluster.set_node_health(name, False)

    def carry_all(
        self, cluster: Cluster, ledger: Ledger, orders: Mapping[str, Order], now: float
    ) -> None:
        """Tell the core of every node that has changed."""
        for name in sorted(ledger.touched):
            node = ledger.nodes.get(name)
            if node is not None:
                self.carry(cluster, name, node.view(now))
            self.carry_order(cluster, name, orders.get(name))
        ledger.touched.clear()

    def carry(self, cluster: Cluster, name: str, view: View) -> None:
        """Tell the core how a node is."""
        machine = cluster.hardware.machines.get(name)
        if machine is None or self.nodes.get(name) == view:
            return
        self.nodes[name] = view
        for state in machine.slots:
            sick = state.slot.indices(state.sick)
            for gpu in state.slot.gpus:
                if (gpu in view.well) == (gpu in sick):
                    cluster.set_gpu_health(name, gpu, gpu in view.well)
        amounts = {"cpu": view.cpu, "memoryMB": view.memory_mb}
        cluster.block(name, view.gpus, amounts, view.ports)
        machine.avoided = set(view.avoided)
        cluster.set_node_health(name, view.is_healthy)

    @staticmethod
    def carry_order(cluster: Cluster, name: str, order: Order | None) -> None:
        """Tell the core what an operator ordered of a node."""
        machine = cluster.hardware.machines.get(name)
        if machine is None:
            return
        is_cordoned, is_drained = order is Order.CORDON, order is Order.DRAIN
        if (machine.is_cordoned, machine.is_drained) == (is_cordoned, is_drained):
            return
        cluster.uncordon(name)
        if is_cordoned:
            cluster.cordon(name)
        if is_drained:
            cluster.drain(name)
