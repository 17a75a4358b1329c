"""Which nodes have so much left of CPU, memory, ports and counted resources: for all at once.

What is left of a resource is kept in steps, as the bits of a number: of each bit the nodes in whose
number it is set are one bit set. So a comparison with what a pod takes costs as many operations on
sets as the number has bits, however many nodes there are.
"""

from collections.abc import Iterable, Sequence
from copy import copy

from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import Kind

STEPS = 1 << 10
"""Into so many steps the most that any node has is divided, at the least where there is as much."""

ANSWERS_KEPT = 1_000
"""So many answers are kept while nothing changes."""


class _Measure:
    """What is left of one resource. ``slices[i]``: nodes with bit i set in their number of steps;
    ``unlimited``: nodes that have no limit of it.
    """

    def __init__(self, most: int) -> None:
        self.step = max(1, most // STEPS)
        self.slices = [0] * (most // self.step).bit_length()
        self.unlimited = 0

    def copy(self) -> "_Measure":
        """Another that says the same."""
        other = copy(self)
        other.slices = self.slices.copy()
        return other

    def steps(self, amount: int) -> int:
        """Rounded down, so that who has enough has enough steps."""
        return amount // self.step if amount > 0 else 0

    def change(self, mask: int, changed: int) -> None:
        """Nodes' numbers change in these bits."""
        while changed:
            lowest = changed & -changed
            self.slices[lowest.bit_length() - 1] ^= mask
            changed ^= lowest

    def at_least(self, steps: int, among: int) -> int:
        """Of some nodes those with so many steps."""
        if not steps:
            return among
        if steps >> len(self.slices):
            return among & self.unlimited
        same, more, lowest = among, among & self.unlimited, steps & -steps
        for index in range(len(self.slices) - 1, lowest.bit_length() - 2, -1):
            some = same & self.slices[index]
            if steps >> index & 1:
                same = some
            else:
                more |= some
                same ^= some
        return more | same  # below the lowest bit of `steps` any number will do


class Amounts:
    """What machines have left beside GPUs, as bit sets: of each tree of a machine the bit of its
    slot's number; of those without GPUs bits above them, in their order.

    ``everywhere``: all of them. ``first``: the bit of the first machine without GPUs.
    """

    def __init__(self, machines: Sequence[Machine], slots: int) -> None:
        self.first = slots
        self._is_ahead = False
        self._masks: dict[int, int] = {}
        self._changed: dict[int, Machine] = {}
        self._now: dict[int, Sequence[int]] = {}
        self._answers: dict[tuple[tuple[str, int], ...], int] = {}
        most: dict[str, int] = {}
        for machine in machines:
            for name, capacity in zip(machine.sort.names, machine.sort.capacity, strict=True):
                most[name] = max(capacity, most.get(name, 0))
        self._measures = {name: _Measure(amount) for name, amount in most.items()}
        above = slots
        for machine in machines:
            mask = sum(1 << state.slot.number for state in machine.slots)
            if not mask:
                mask, above = 1 << above, above + 1
            self._masks[machine.number] = mask
            for name in self._measures.keys() - set(machine.sort.names):
                self._measures[name].unlimited |= mask
            if machine.free:
                self._now[machine.number] = [0] * len(machine.free)
                self._changed[machine.number] = machine
        self.everywhere = (1 << above) - 1

    def copy(self, is_ahead: bool) -> "Amounts":
        """Another that says the same, and from now on what will be left when those have left who
        were told to (``is_ahead``), or what is left now.
        """
        other = copy(self)
        other._is_ahead = is_ahead
        other._changed, other._answers = self._changed.copy(), self._answers.copy()
        other._now = self._now.copy()
        other._measures = {name: each.copy() for name, each in self._measures.items()}
        return other

    def changed(self, machine: Machine) -> None:
        """Something of it was taken or given back."""
        if machine.free:
            self._changed[machine.number] = machine

    def having(self, kind: Kind) -> int:
        """Nodes that have what a pod takes beside GPUs; some may lack a fraction of a step."""
        if self._changed:
            self._read()
        wanted: list[tuple[str, int]] = []
        for name, amount in _wanted(kind):
            if amount and name in self._measures:
                wanted.append((name, self._measures[name].steps(amount)))
        key = tuple(wanted)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= ANSWERS_KEPT:
                self._answers.clear()
            found = self.everywhere
            for name, steps in wanted:
                found = self._measures[name].at_least(steps, found)
            self._answers[key] = found
        return found

    def _read(self) -> None:
        is_new, measures = False, self._measures
        for number, machine in self._changed.items():
            left = machine.later if self._is_ahead else machine.free
            now = [
                amount // measures[name].step if amount > 0 else 0
                for name, amount in zip(machine.sort.names, left, strict=True)
            ]
            before = self._now[number]
            if now != before:
                self._now[number], is_new, mask = now, True, self._masks[number]
                for name, new, old in zip(machine.sort.names, now, before, strict=True):
                    if new != old:
                        measures[name].change(mask, new ^ old)
        self._changed.clear()
        if is_new:
            self._answers.clear()


def _wanted(kind: Kind) -> Iterable[tuple[str, int]]:
    return (
        ("cpu", kind.cpu),
        ("memoryMB", kind.memory_mb),
        ("ports", kind.ports),
        *kind.resources,
    )
