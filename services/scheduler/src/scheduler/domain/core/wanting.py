"""Quota that is wanting for kept cells: it is in cells elsewhere, from where it is to come home."""

from collections.abc import Iterator, Mapping

from scheduler.domain.core.binding import Binding, cell_key
from scheduler.domain.core.covering import around
from scheduler.domain.core.forest import Cell
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.reservation import Leaves, Reservation

CELL = 1 << 30
"""More GPUs than any cell has."""


def short_of(hardware: Hardware, reservation: Reservation) -> dict[str, int]:
    """By chain, GPUs of the smallest cells around the kept leaves that are free and that nobody is
    charged: as many have to be free in cells elsewhere before these can be bound.
    """
    owner, roles = reservation.live.owner, reservation.live.waiting
    pins = {pin_owner(role.kind.pin) for role in roles if role.kind.pin is not None}
    seen = set[tuple[Cell, int]]()
    found: dict[str, int] = {}
    for number, leaves in reservation.leaves.items():
        state = hardware.states[number]
        free = leaves & ~state.charged
        for pin in pins if free else ():
            free &= ~state.bound.get(pin, 0)
        if free:
            chain = state.slot.chain
            levels = [q.level for q in hardware.owning.quotas.get(owner, ()) if q.chain is chain]
            for cell, part in around(state.slot, min(levels), free) if levels else ():
                key = cell, 0 if part is None else part.mask
                if key not in seen:
                    seen.add(key)
                    found[chain.name] = found.get(chain.name, 0) + chain.leaves(min(levels))
    return found


def free_elsewhere(
    hardware: Hardware, owner: str, kept: Leaves, short: Mapping[str, int]
) -> Iterator[tuple[SlotState, int]]:
    """What is free in an owner's other bound cells: of as many as are wanting, those with the
    fewest GPUs in use first. By node's state, leaves.
    """
    for name, wanted in short.items():
        left, chain = wanted, hardware.forest.chains[name]
        region = hardware.index.regions.get(owner, {}).get(chain.leaf)
        used: dict[Binding, int] = {}
        for number in region.tags if region is not None else ():
            state = hardware.states[number]
            for mask, binding in state.bindings.get(owner, ()):
                if binding.cell.chain is chain:
                    count = (
                        CELL if mask & kept.get(number, 0) else (mask & state.charged).bit_count()
                    )
                    used[binding] = used.get(binding, 0) + count
        some = ((count, cell_key(each.cell, each.part), each) for each, count in used.items())
        for count, _, binding in sorted(some):
            if left <= 0 or count >= CELL:
                break
            for slot, mask in binding.masks():
                left -= mask.bit_count()
                state = hardware.states[slot.number]
                if free := mask & state.usable & ~state.charged:
                    yield state, free
