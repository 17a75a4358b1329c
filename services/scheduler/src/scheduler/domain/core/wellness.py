"""What if nodes were well: done, looked at, undone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import Machine


@contextmanager
def all_well(hardware: Hardware, machines: Sequence[Machine]) -> Iterator[None]:
    """All of these nodes are usable for the moment."""
    before = [
        (m, m.is_healthy, m.is_cordoned, m.is_drained, [state.usable for state in m.slots])
        for m in machines
    ]
    for machine in machines:
        machine.is_healthy, machine.is_cordoned, machine.is_drained = True, False, False
        for state in machine.slots:
            state.usable = state.slot.shape.full
            hardware.refresh(state)
    try:
        yield
    finally:
        for machine, *flags, usable in before:
            machine.is_healthy, machine.is_cordoned, machine.is_drained = flags
            for state, mask in zip(machine.slots, usable, strict=True):
                state.usable = mask
                hardware.refresh(state)
