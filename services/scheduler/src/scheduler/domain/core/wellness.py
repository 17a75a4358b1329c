"""What if nodes were well: done, looked at, undone."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import Machine, SlotState


@contextmanager
def usable(hardware: Hardware, masks: Iterable[tuple[SlotState, int]]) -> Iterator[None]:
    """These GPUs of nodes are usable for the moment, and no others of the same nodes."""
    before = []
    for state, mask in masks:
        before.append((state, state.usable))
        state.usable = mask
        hardware.refresh(state)
    try:
        yield
    finally:
        for state, mask in before:
            state.usable = mask
            hardware.refresh(state)


@contextmanager
def all_well(hardware: Hardware, machines: Sequence[Machine]) -> Iterator[None]:
    """All of these nodes are usable for the moment."""
    before = [(m, m.is_healthy, m.is_cordoned, m.is_drained) for m in machines]
    for machine in machines:
        machine.is_healthy, machine.is_cordoned, machine.is_drained = True, False, False
    states = (state for machine in machines for state in machine.slots)
    try:
        with usable(hardware, ((state, state.slot.shape.full) for state in states)):
            yield
    finally:
        for machine, *flags in before:
            machine.is_healthy, machine.is_cordoned, machine.is_drained = flags
