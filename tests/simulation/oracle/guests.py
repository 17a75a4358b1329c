"""Where opportunistic gangs of one kind go: in no bound cell, else where nothing is charged."""

from collections.abc import Iterator

from oracle.state import Record
from oracle.views import View, demands


def where_guaranteed_are_not(view: View, record: Record) -> Iterator[str]:
    """Of the places that are as near it has such as others would rather not have."""
    used = {view.hardware.leaf_at[p.node, gpu] for p in record.places.values() for gpu in p.gpus}
    if not used:
        return
    if len(record.places) == 1:
        yield from _one(view, record, sorted(used))
    elif len({view.hardware.rack_of(leaf) for leaf in used}) == 1:
        yield from _many(view, record, used)


def _bound(view: View) -> set[int]:
    cells = [*view.bound, *view.hardware.pins.values()]
    return {leaf for cell in cells for leaf in view.hardware.leaves(cell)}


def _one(view: View, record: Record, own: list[int]) -> Iterator[str]:
    hardware, bound = view.hardware, _bound(view)
    (kind,) = {role.kind for role in record.gang.roles}
    level = hardware.lowest_common_level(own)

    def is_charged(cell: int) -> bool:
        leaves = hardware.leaves(hardware.node_cell_of(cell))
        return not view.charged.isdisjoint(leaves)

    is_bound = not bound.isdisjoint(own)
    mine = is_bound, is_bound and is_charged(own[0])
    for cell in hardware.cells:
        if hardware.level(cell.number) != level or cell.node not in view.usable:
            continue
        if hardware.leaf_type(cell.number) != hardware.leaf_type(own[0]):
            continue
        room = view.idle & set(hardware.leaves(cell.number))
        if len(room) < len(own) or not view.has_room(kind, cell.node):
            continue
        is_bound = len(room - bound) < len(own)
        other = is_bound, is_bound and is_charged(cell.number)
        if other < mine:
            better = "outside of bound cells" if not is_bound else "where nothing is charged"
            yield f"expected: {record.gang.id} {better}, in {cell.address}, not {own}"
            return


def _many(view: View, record: Record, used: set[int]) -> Iterator[str]:
    """In one rack: which rack, and which nodes of it."""
    hardware, bound, name = view.hardware, _bound(view), record.gang.id
    (kind,), count = {role.kind for role in record.gang.roles}, len(record.places)
    leaf_type = hardware.leaf_type(min(used))
    own_rack, own_nodes = hardware.rack_of(min(used)), {hardware.node_cell_of(x) for x in used}
    nodes = [n for n in hardware.node_cells() if hardware.leaf_type(n) == leaf_type]

    def fits(node: int, has_bound: bool, has_charged: bool) -> int:
        machine, leaves = str(hardware.cells[node].node), set(hardware.leaves(node))
        if not has_charged and leaves & view.charged:
            return 0
        free = len(leaves & view.idle - (set() if has_bound else bound)) // kind.gpus
        left = view.left[machine]
        some = [left[each] // n for each, n in demands(kind) if n and each in left]
        return max(0, min(free, *some)) if some else free

    def fewest(rack: int, pool: tuple[bool, bool]) -> tuple[int, set[int]]:
        """Nodes that are needed for all, and those of the pool; more than there are: too few."""
        found = {n: f for n in nodes if hardware.rack_of(n) == rack and (f := fits(n, *pool))}
        left, needed = count, 0
        for some in sorted(found.values(), reverse=True):
            left, needed = left - some, needed + (left > 0)
        return needed if left <= 0 else len(nodes) + 1, set(found)

    pools = {
        "outside of bound cells": (False, True),
        "where nothing is charged": (True, False),
        "anywhere": (True, True),
    }
    for where, pool in pools.items():
        racks = {r for r in map(hardware.rack_of, nodes) if fewest(r, pool)[0] <= len(nodes)}
        if racks:
            if own_rack not in racks:
                yield f"expected: {name} {where}, in one of the racks {racks}, not {own_rack}"
            break
    least, _ = fewest(own_rack, (True, True))
    if len(own_nodes) != least:
        yield f"expected: {name} on {least} nodes, not {own_nodes}"
    for where, pool in pools.items():
        needed, some = fewest(own_rack, pool)
        if needed == least:
            if not own_nodes <= some:
                yield f"expected: {name} {where}, on some of the nodes {some}, not {own_nodes}"
            break
