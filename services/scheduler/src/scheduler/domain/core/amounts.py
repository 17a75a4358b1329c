"""Which nodes have so much left of CPU, memory, ports and counted resources: for all at once.

What is left of a resource is kept in steps, as the bits of a number: of each bit the nodes in whose
number it is set are one bit set. So a comparison with what a pod takes costs as many operations on
sets as the number has bits, however many nodes there are.
"""

from collections.abc import Iterable, Mapping, Sequence

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

    def __init__(self, step: int, slices: list[int], unlimited: int = 0) -> None:
        self.step = step
        self.slices = slices
        self.unlimited = unlimited

    def copy(self) -> "_Measure":
        """Another that says the same."""
        return _Measure(self.step, self.slices.copy(), self.unlimited)

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

    def __init__(
        self,
        masks: Mapping[int, int],
        first: int,
        everywhere: int,
        measures: Mapping[str, _Measure],
        *,
        is_ahead: bool = False,
    ) -> None:
        self.first = first
        self.everywhere = everywhere
        self._masks = masks
        self._measures = measures
        self._is_ahead = is_ahead
        self._changed: dict[int, Machine] = {}
        self._now: dict[int, Sequence[int]] = {}
        self._answers: dict[tuple[tuple[str, int], ...], int] = {}

    def copy(self, is_ahead: bool) -> "Amounts":
        """Another that says the same, and from now on what will be left when those have left who
        were told to (``is_ahead``), or what is left now.
        """
        measures = {name: each.copy() for name, each in self._measures.items()}
        other = Amounts(self._masks, self.first, self.everywhere, measures, is_ahead=is_ahead)
        other._changed, other._now = self._changed.copy(), self._now.copy()
        other._answers = self._answers.copy()
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
                measures[name].steps(amount)
                for name, amount in zip(machine.sort.names, left, strict=True)
            ]
            before = self._now.get(number) or [0] * len(now)
            if now != before:
                self._now[number], is_new, mask = now, True, self._masks[number]
                for name, new, old in zip(machine.sort.names, now, before, strict=True):
                    if new != old:
                        measures[name].change(mask, new ^ old)
        self._changed.clear()
        if is_new:
            self._answers.clear()


def make_amounts(machines: Sequence[Machine], slots: int) -> Amounts:
    """Of machines of which nothing was looked at yet. ``slots``: how many trees they have."""
    most: dict[str, int] = {}
    for machine in machines:
        for name, capacity in zip(machine.sort.names, machine.sort.capacity, strict=True):
            most[name] = max(capacity, most.get(name, 0))
    measures = {name: _measure(amount) for name, amount in most.items()}
    masks: dict[int, int] = {}
    above = slots
    for machine in machines:
        mask = sum(1 << state.slot.number for state in machine.slots)
        if not mask:
            mask, above = 1 << above, above + 1
        masks[machine.number] = mask
        for name in measures.keys() - set(machine.sort.names):
            measures[name].unlimited |= mask
    found = Amounts(masks, slots, (1 << above) - 1, measures)
    for machine in machines:
        found.changed(machine)
    return found


def _measure(most: int) -> _Measure:
    """Of a resource of which a node has so much at the most."""
    step = max(1, most // STEPS)
    return _Measure(step, [0] * (most // step).bit_length())


def _wanted(kind: Kind) -> Iterable[tuple[str, int]]:
    return (
        ("cpu", kind.cpu),
        ("memoryMB", kind.memory_mb),
        ("ports", kind.ports),
        *kind.resources,
    )
