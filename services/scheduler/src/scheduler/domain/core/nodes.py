"""What people and reports say of nodes: well or bad, open or not, and what nobody known holds."""

from collections.abc import Collection, Mapping

from scheduler.domain.core.freed import Freed
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.interface import NodeState
from scheduler.domain.core.machines import Machine


class Nodes:
    """Unknown ones are ignored. ``draining``: those that gangs have to leave."""

    def __init__(self, hardware: Hardware, freed: Freed) -> None:
        self.hardware = hardware
        self.freed = freed
        self.draining: set[str] = set()

    def set_node_health(self, name: str, is_healthy: bool) -> None:
        """A node is bad: nothing new goes there; or healthy again."""
        machine = self.hardware.machines.get(name)
        if machine is not None and machine.is_healthy != is_healthy:
            machine.is_healthy = is_healthy
            self._changed(machine)

    def set_gpu_health(self, name: str, gpu: int, is_healthy: bool) -> None:
        """A GPU is bad, or healthy again."""
        machine = self.hardware.machines.get(name)
        if machine is None:
            return
        for state in machine.slots:
            mask = state.slot.mask_of((gpu,))
            if mask and bool(state.sick & mask) == is_healthy:
                state.sick ^= mask
                self._changed(machine)

    def block(
        self,
        name: str,
        gpus: Collection[int] = (),
        amounts: Mapping[str, int] | None = None,
        ports: Collection[int] = (),
        avoided: Collection[int] = (),
    ) -> bool:
        """No known pod holds so much of a node; it replaces what was said before. ``amounts``: by
        the names of `NodeLimits`. ``avoided``: ports that are given last. Whether that is another
        state than before.
        """
        machine = self.hardware.machines.get(name)
        if machine is None:
            return False
        is_new = machine.block(gpus, amounts or {}, ports)
        if is_new:
            self._changed(machine)
        is_new, machine.avoided = is_new or machine.avoided != set(avoided), set(avoided)
        return is_new

    def of(self, name: str) -> NodeState | None:
        """A node as it is shown; None: there is none of this name."""
        machine = self.hardware.machines.get(name)
        if machine is None:
            return None
        slots, names = machine.slots, machine.sort.names
        amounts = dict(zip(names, machine.blocked, strict=False))
        amounts.pop("ports", None)
        free = (each.usable & ~self.hardware.used(each) for each in slots)
        return NodeState(
            machine.is_healthy,
            machine.is_cordoned,
            machine.is_drained,
            frozenset(gpu for each in slots for gpu in each.slot.indices(each.sick)),
            tuple(gpu for each in slots for gpu in each.slot.indices(each.blocked)),
            amounts,
            machine.blocked_ports,
            machine.avoided,
            tuple(machine.ports),
            frozenset(gpu for each in slots for gpu in each.slot.indices(each.reserved)),
            sum(mask.bit_count() for mask in free),
            dict(zip(names, machine.free, strict=True)),
        )

    def _changed(self, machine: Machine) -> None:
        """What of a node is usable has changed."""
        self.hardware.set_usable(machine)
        self.freed.changed(machine)

    def cordon(self, name: str) -> None:
        """Nothing new goes to the node."""
        self._open(name, is_cordoned=True, is_drained=None)

    def drain(self, name: str) -> None:
        """Nothing new goes to the node, and who is there leaves."""
        self._open(name, is_cordoned=None, is_drained=True)

    def uncordon(self, name: str) -> None:
        """The end of both."""
        self._open(name, is_cordoned=False, is_drained=False)

    def _open(self, name: str, *, is_cordoned: bool | None, is_drained: bool | None) -> None:
        machine = self.hardware.machines.get(name)
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
            self.draining.add(name)
        else:
            self.draining.discard(name)
        self._changed(machine)
