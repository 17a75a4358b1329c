"""What has become free since waiting gangs were last tried; and what of it is in nobody's quota.

An owner's quota is changed by its own gangs, or by cells that others unbind. Nodes without GPUs,
and ports of nodes that have no range of them, belong to all: any gang's end may help any other.
"""

from collections.abc import Iterable

from scheduler.domain.core.holdings import Pod
from scheduler.domain.core.machines import FIRST_PORT, LAST_PORT, Machine

PORTS = LAST_PORT - FIRST_PORT + 1
"""Of a node that has no range."""


class Freed:
    """Nodes by number. ``machines``: on which something has become free. ``common``: of those
    without GPUs also the ones that gangs have to leave, or may have to from now on. ``crowded``:
    nodes that have no range of ports, with so many ports held before some were given back.

    ``version``: raised with the latter two. ``most_ports``: that any gang wanted which had to wait.
    """

    def __init__(self) -> None:
        self.machines: dict[int, Machine] = {}
        self.common: dict[int, Machine] = {}
        self.crowded: dict[int, tuple[Machine, int]] = {}
        self.version = self.most_ports = 0

    def changed(self, machine: Machine) -> None:
        """What of a node is usable has changed."""
        self.machines[machine.number] = machine

    def left_by(self, pod: Pod) -> None:
        """A pod is about to give up its place and ports, which may be nobody's quota."""
        machine = pod.machine
        self.machines[machine.number] = machine
        if not machine.slots:
            self.version += 1
            self.common[machine.number] = machine
        if pod.ports and machine.sort.limits.ports is None:
            held = len(machine.ports) + len(machine.blocked_ports)
            if held + self.most_ports > PORTS:
                self.version += 1
                self.crowded[machine.number] = machine, self._most(machine.number, held)

    def yielded_by(self, pods: Iterable[Pod]) -> None:
        """Their gang was told to leave, or has lost its cells: others may have their places."""
        for pod in pods:
            if not pod.machine.slots:
                self.version += 1
                self.common[pod.machine.number] = pod.machine

    def _most(self, number: int, held: int) -> int:
        known = self.crowded.get(number)
        return held if known is None else max(held, known[1])

    def clear(self) -> None:
        """Everybody was tried since."""
        self.machines.clear()
        self.common.clear()
        self.crowded.clear()
