"""Machines on which pods cost no GPU: the best, and for a search in every way all: of those that
look the same the first will do.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from scheduler.domain.core.capacity import NODES_A_STEP
from scheduler.domain.core.ground import FEW_NODES
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import Kind
from scheduler.domain.core.regions import numbers_in

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Seeker

Look = tuple[int, tuple[int, ...], bool, bool]
"""Sort, what is left, and whether there are GPUs, and ports enough."""


class Costless:
    """For pods of these kinds, machines without GPUs of the first `FEW_NODES` looks that are of any
    use; of those with GPUs all for an opportunistic gang, else the best.

    ``is_cut``: there are more looks.
    """

    def __init__(self, seeker: "Seeker", kinds: Collection[Kind], pods: int) -> None:
        self.seeker = seeker
        self.hardware = seeker.hardware
        self.is_cut = False
        self._kinds, self._pods = kinds, pods
        self._ports = max((kind.ports for kind in kinds), default=0)
        self._alike: dict[Look, list[Machine]] = {}
        self._first: dict[int, Look] = {}
        self._useless: set[Look] = set()
        if not kinds:
            return
        self.hardware.steps += len(self.hardware.without_gpus) // NODES_A_STEP
        for machine in self.hardware.without_gpus:
            self._add(machine, most=FEW_NODES)
        for machine in self.hardware.machines.values() if seeker.owner is None else ():
            if machine.slots:
                self._add(machine, most=None)

    def _add(self, machine: Machine, most: int | None) -> None:
        """Of each look as many as there are pods are enough."""
        look = self._look(machine)
        alike = self._alike.get(look, ())
        is_full = len(alike) == self._pods or look in self._useless
        if is_full or not self.seeker.may_be_on(machine):
            return
        if not alike and not any(self.seeker.takes(machine, kind) for kind in self._kinds):
            self._useless.add(look)
        elif not alike and len(self._alike) == most:
            self.is_cut = True
        else:
            self._alike.setdefault(look, []).append(machine)
            self._first[machine.number] = look

    def _look(self, machine: Machine) -> Look:
        """The same of machines that are as good as one another for these pods."""
        left = () if self.seeker.is_bare else tuple(self.hardware.left(machine))
        return id(machine.sort), left, bool(machine.slots), machine.has_ports(self._ports)

    def now(self, kind: Kind) -> Iterator[Machine]:
        """Machines that take such a pod now, one of each look: those without GPUs first."""
        used = {pod.machine.number: pod.machine for pod in self.seeker.pods}
        some = [m for m in used.values() if not m.slots or self.seeker.owner is None]
        for alike in self._alike.values():
            some += next(([machine] for machine in alike if machine.number not in used), ())
        some.sort(key=lambda machine: (bool(machine.slots), machine.number))
        if self.seeker.owner is not None:
            cheapest = cheapest_machine(self.seeker, kind)
            if cheapest is not None and cheapest not in some:
                some.append(cheapest)
        seen: set[Look] = set()
        for machine in some:
            look = self._look(machine)
            if look not in seen and self.seeker.takes(machine, kind):
                seen.add(look)
                yield machine

    def changed(self, known: Collection[int]) -> object:
        """How machines look of which the gang's pods have taken, and how they did: the same where
        those are as good as one another. But for nodes that are known anyway.
        """
        machines, ports = dict[int, Machine](), dict[int, int]()
        for pod in self.seeker.pods:
            if pod.ports or any(pod.take.amounts):
                number = pod.machine.number
                machines[number] = pod.machine
                ports[number] = ports.get(number, 0) + len(pod.ports)
        return tuple(
            sorted(
                (self._first.get(number, (number, (), False, False)), self._look(m), ports[number])
                for number, m in machines.items()
                if not any(state.slot.number in known for state in m.slots)
            )
        )


def cheapest_machine(seeker: "Seeker", kind: Kind) -> Machine | None:
    """Where such a pod costs no GPU, the best."""
    if kind.pin is not None:
        return next(iter(pinned_machines(seeker, kind)), None)
    hardware, states = seeker.hardware, seeker.hardware.states
    among = seeker.having(kind)
    for machine in _without_gpus(hardware, among):
        if seeker.takes(machine, kind):
            return machine
    sorts = {
        number
        for number, sort in enumerate(hardware.sorts)
        if (take := sort.take(kind)) is not None and (seeker.owner is None or not any(take.amounts))
    }
    found: list[Machine] = []
    for region in hardware.physical.values():
        for number in region.fullest(sorts, among):
            machine = states[number].machine
            if seeker.takes(machine, kind):
                found.append(machine)
                if len(machine.slots) == 1:  # else it may have more free in other trees
                    break
    is_ahead = hardware.index.is_ahead
    return min(found, key=lambda m: (m.free_gpus(is_ahead=is_ahead), m.number), default=None)


def pinned_machines(seeker: "Seeker", kind: Kind) -> list[Machine]:
    """Those of its pinned cell on which a pod without GPUs takes nothing that is limited, the
    best first.
    """
    hardware, pin = seeker.hardware, kind.pin or ""
    if seeker.owner is None or hardware.owning.pins_of.get(pin) != seeker.owner:
        return []
    machines = {hardware.states[slot.number].machine for slot in hardware.forest.slots_of(pin)}
    found = [
        machine
        for machine in machines
        if (take := machine.sort.take(kind)) is not None
        and not any(take.amounts)
        and seeker.takes(machine, kind)
    ]
    is_ahead = hardware.index.is_ahead
    return sorted(found, key=lambda m: (m.free_gpus(is_ahead=is_ahead), m.number))


def _without_gpus(hardware: Hardware, among: int | None) -> Iterator[Machine]:
    """Machines without GPUs, in order; ``among``: of these nodes."""
    amounts = hardware.index.amounts
    if among is None or amounts is None:
        yield from hardware.without_gpus
    else:
        for number in numbers_in(among >> amounts.first):
            yield hardware.without_gpus[number]
