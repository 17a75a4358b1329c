"""What people and reports say of nodes: well or bad, open or not, and what nobody known holds."""

from collections.abc import Collection, Mapping

from scheduler.domain.core.freed import Freed
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import Machine


class Nodes:
    """Unknown ones are ignored. ``draining``: those that gangs have to leave."""

    def __init__(self, hardware: Hardware, freed: Freed) -> None:
        self.hardware = hardware
        self.freed = freed
        self.draining: set[str] = set()

    def set_node_health(self, node: str, is_healthy: bool) -> None:
        """A node is bad: nothing new goes there; or healthy again."""
        machine = self.hardware.machines.get(node)
        if machine is not None and machine.is_healthy != is_healthy:
            machine.is_healthy = is_healthy
            self._changed(machine)

    def set_gpu_health(self, node: str, gpu: int, is_healthy: bool) -> None:
        """A GPU is bad, or healthy again."""
        machine = self.hardware.machines.get(node)
        if machine is None:
            return
        for state in machine.slots:
            mask = state.slot.mask_of((gpu,))
            if mask and bool(state.sick & mask) == is_healthy:
                state.sick ^= mask
                self._changed(machine)

    def block(
        self,
        node: str,
        gpus: Collection[int] = (),
        amounts: Mapping[str, int] | None = None,
        ports: Collection[int] = (),
    ) -> bool:
        """No known pod holds so much of a node; it replaces what was said before. ``amounts``: by
        the names of `NodeLimits`. Whether that is another state than before.
        """
        machine = self.hardware.machines.get(node)
        is_new = machine is not None and machine.block(gpus, amounts or {}, ports)
        if machine is not None and is_new:
            self._changed(machine)
        return is_new

    def _changed(self, machine: Machine) -> None:
        """What of a node is usable has changed."""
        self.hardware.set_usable(machine)
        self.freed.changed(machine)

    def cordon(self, node: str) -> None:
        """Nothing new goes to the node."""
        self._open(node, is_cordoned=True, is_drained=None)

    def drain(self, node: str) -> None:
        """Nothing new goes to the node, and who is there leaves."""
        self._open(node, is_cordoned=None, is_drained=True)

    def uncordon(self, node: str) -> None:
        """The end of both."""
        self._open(node, is_cordoned=False, is_drained=False)

    def _open(self, node: str, *, is_cordoned: bool | None, is_drained: bool | None) -> None:
        machine = self.hardware.machines.get(node)
        if machine is None:
            return
        before = machine.is_cordoned, machine.is_drained
        if is_cordoned is not None:
            machine.is_cordoned = is_cordoned
        if is_drained is not None:
            machine.is_drained = is_drained
        if before == (machine.is_cordoned, machine.is_drained):
            return
        if machine.is_drained:
            self.draining.add(node)
        else:
            self.draining.discard(node)
        self._changed(machine)
