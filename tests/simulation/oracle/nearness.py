"""How near the GPUs of one pod are, once its machine is chosen."""

from collections import Counter
from collections.abc import Iterator

from oracle.state import Record, kinds_of
from oracle.views import View


def levels(view: View, record: Record) -> Iterator[str]:
    """No pod's GPUs could be under a smaller cell with those that are still left beside them."""
    hardware, kinds = view.hardware, kinds_of(record.gang.roles)
    at = hardware.leaf_at
    used = {
        at[place.node, gpu]
        for place in record.places.values()
        for gpu in (*place.gpus, *place.charged)
    }
    mine = {leaf for cell, _ in record.cells for leaf in hardware.leaves(cell)}
    left = view.idle - used
    if view.is_guaranteed:
        left &= mine & view.chargeable
    for pod, place in record.places.items():
        if not place.gpus or place.charged:
            continue
        own = [at[place.node, gpu] for gpu in place.gpus]
        pin = kinds[pod].pin
        may = left if pin is None else left & set(hardware.leaves(hardware.pins[pin]))
        level = hardware.lowest_common_level(own)
        for cell in hardware.below(hardware.node_cell_of(own[0])):
            room = set(hardware.leaves(cell)) & (may | set(own))
            if hardware.level(cell) < level and len(room) >= len(own):
                inside = hardware.cells[cell].address
                yield f"{record.gang.id}: pod {pod} at level {level}, though {inside} has room"
                break


def bound_first(view: View, record: Record) -> Iterator[str]:
    """One pod binds no cell where cells that are bound already have a place as near."""
    hardware = view.hardware
    ((pod, place),) = record.places.items()
    if not view.is_guaranteed or place.charged:
        return
    pools = view.pools([])
    own = [hardware.leaf_at[place.node, gpu] for gpu in place.gpus]
    if all(leaf in pools for leaf in own):
        return
    level, kind = hardware.lowest_common_level(own), kinds_of(record.gang.roles)[pod]
    for cell in hardware.cells:
        if hardware.level(cell.number) != level or cell.node not in view.usable:
            continue
        if hardware.leaf_type(cell.number) != hardware.leaf_type(own[0]):
            continue
        if view.needed(kind, str(cell.node)) != len(own) or not view.has_room(kind, cell.node):
            continue
        room = set(hardware.leaves(cell.number)) & view.idle & view.chargeable
        if sum(1 for leaf in room if pools.get(leaf) == (kind.pin or "")) >= len(own):
            yield f"{record.gang.id} binds for {place}, though {cell.address} is bound and has room"
            return


def without_gpus(view: View, record: Record) -> Iterator[str]:
    """A gang's only pod, that wants no GPU and is charged none: on a machine without GPUs; else on
    the one with the fewest free, and of these on the lowest.
    """
    hardware = view.hardware
    if len(record.places) > 1:
        return
    ((pod, place),) = record.places.items()
    kind = kinds_of(record.gang.roles)[pod]
    if kind.gpus or kind.pin is not None:
        return
    free = Counter(hardware.cells[leaf].node for leaf in view.idle)
    order = {
        machine: (hardware.gpus_on[machine] > 0, free[machine], number)
        for number, machine in enumerate(hardware.machines)
        if machine in view.usable
        and view.has_room(kind, machine)
        and not (view.is_guaranteed and view.needed(kind, machine))
    }
    best = min(order, key=order.__getitem__, default=place.node)
    if best != place.node:
        yield f"{record.gang.id} is on {place.node}, though {best} has room: {order}"
