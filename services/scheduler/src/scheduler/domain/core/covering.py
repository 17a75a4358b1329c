"""Which cells a pod's leaves are in: bound ones, else such as are bound for it."""

from collections.abc import Iterable, Iterator, Set

from scheduler.domain.core.binding import Binding, cell_key
from scheduler.domain.core.forest import Cell, Chain, Quota, Slot
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.shapes import Part


def cover(
    hardware: Hardware, owner: str, state: SlotState, leaves: int, floor: int = 0
) -> tuple[Binding, ...] | None:
    """Bound cells of the owner around these leaves; where there are none new ones are bound,
    of level ``floor`` or above.

    None, with nothing changed, where the owner's quota or the others' don't allow it.
    """
    used: list[Binding] = []
    rest = leaves
    for mask, binding in state.bindings.get(owner, ()):
        if mask & rest:
            used.append(binding)
            rest &= ~mask
    known = len(used)
    while rest:
        found = _bind_around(hardware, owner, state, rest, floor)
        if found is None:
            undo(hardware, used[known:])
            return None
        used.append(found)
        rest &= ~_mask_on(found, state)
    return tuple(used)


def floors(hardware: Hardware, owner: str, gpu_type: str | None = None) -> list[int]:
    """Levels from which up an owner may bind, of one GPU type or any: all of its unbound quota
    first.
    """
    left = hardware.unbound.get(owner, {})
    levels = {
        quota.level
        for quota in hardware.owning.quotas.get(owner, ())
        if left[quota.path] and gpu_type in (None, quota.chain.leaf)
    }
    return [0, *sorted(levels)[1:]]


def uncover(hardware: Hardware, bindings: Iterable[Binding]) -> None:
    """Take back bindings that nobody uses, each once."""
    for binding in dict.fromkeys(bindings):
        is_bound = hardware.bindings.get(cell_key(binding.cell, binding.part)) is binding
        if is_bound and not binding.users and binding.quota is not None:
            hardware.unbind(binding)


def undo(hardware: Hardware, tried: Iterable[Binding]) -> None:
    """The same of such as were bound only just now, to see whether they do: nobody is woken, as by
    cells that become free.
    """
    versions = hardware.versions()
    uncover(hardware, tried)
    hardware.unchanged(versions)


def _mask_on(binding: Binding, state: SlotState) -> int:
    return state.slot.shape.full if binding.part is None else binding.part.mask


def _bind_around(
    hardware: Hardware, owner: str, state: SlotState, leaves: int, floor: int
) -> Binding | None:
    """Bind one more cell: the smallest that takes all the leaves, else the one that takes most."""
    hardware.steps += 1
    most, some = 0, None
    for quota, cell, part in ways_to_bind(hardware, owner, state, leaves, floor):
        if part is None or not leaves & ~part.mask:
            return hardware.bind(Binding(owner, quota, cell, part))
        count = (leaves & part.mask).bit_count()
        if count > most:
            most, some = count, (quota, cell, part)
    return None if some is None else hardware.bind(Binding(owner, *some))


def ways_to_bind(
    hardware: Hardware, owner: str, state: SlotState, leaves: int, floor: int = 0
) -> Iterator[tuple[Quota, Cell, Part | None]]:
    """Cells around some of the leaves that may be bound, none below ``floor``, small ones first."""
    slot = state.slot
    cells, left = hardware.cells[slot.chain.name], hardware.unbound.get(owner, {})
    quotas = [
        q
        for q in hardware.owning.quotas.get(owner, ())
        if q.chain is slot.chain and left[q.path] and q.level >= floor
    ]
    for quota in sorted(quotas, key=lambda q: q.level) if len(quotas) > 1 else quotas:
        for cell, part in around(slot, quota.level, leaves):
            if cells.may_bind(cell, part):
                yield quota, cell, part


def may_have(hardware: Hardware, owner: str | None, state: SlotState) -> bool:
    """The owner has cells on a node, or may bind some on or around it."""
    return owner in state.bound or may_bind_on(hardware, owner, state)


def may_bind_on(hardware: Hardware, owner: str | None, state: SlotState) -> bool:
    """The owner may bind some cell on or around a node. Of one with plain cells it is not asked."""
    if owner is None or hardware.owning.is_plain(owner):
        return True
    slot = state.slot
    left, cells = hardware.unbound.get(owner, {}), hardware.cells[slot.chain.name]
    for quota in hardware.owning.quotas.get(owner, ()):
        if quota.chain is slot.chain and left[quota.path]:
            cell, level = slot.cell, quota.level
            while cell.level < level and cell.parent is not None:
                cell = cell.parent
            if cell.level > level:
                if slot.shape.has_whole(cells.space[slot.number], level):
                    return True
            elif cell.level == level and cells.may_bind(cell, None):
                return True
    return False


def chains_to_bind(hardware: Hardware, owner: str | None, gpu_type: str) -> Set[Chain] | None:
    """The chains in which an owner may bind more; None: all with such GPUs, as far as is known."""
    if owner not in hardware.unbound or gpu_type not in hardware.owning.in_several:
        return None
    left = hardware.unbound[owner]
    return {quota.chain for quota in hardware.owning.quotas[owner] if left[quota.path]}


def around(slot: Slot, level: int, leaves: int) -> list[tuple[Cell, Part | None]]:
    """The cells of a level that some of the leaves are in."""
    cell: Cell | None = slot.cell
    if level < slot.cell.level:
        parts = slot.shape.parts[level]
        return [(slot.cell, part) for part in parts if part.mask & leaves]
    while cell is not None and cell.level < level:
        cell = cell.parent
    return [] if cell is None else [(cell, None)]


def bind_exactly(hardware: Hardware, owner: str, path: str, address: str) -> Binding | None:
    """The owner's binding of this cell out of this quota, made if need be; None where that is
    not allowed.
    """
    quota = next((q for q in hardware.owning.quotas.get(owner, ()) if q.path == path), None)
    found = None if quota is None else _find(hardware, quota, address)
    if quota is None or found is None:
        return None
    cell, part = found
    known = hardware.bindings.get(cell_key(cell, part))
    if known is not None:
        return known if known.owner == owner and known.quota is quota else None
    if not hardware.unbound[owner][path]:
        return None
    if not hardware.cells[quota.chain.name].may_bind(cell, part):
        return None
    return hardware.bind(Binding(owner, quota, cell, part))


def _find(hardware: Hardware, quota: Quota, address: str) -> tuple[Cell, Part | None] | None:
    """The cell of a quota's level by its address."""
    for cell in hardware.forest.by_address(quota.chain, address):
        if cell.level == quota.level and cell.address == address:
            return cell, None
        if cell.slot is not None and quota.level < cell.level:
            for part in cell.slot.shape.parts[quota.level]:
                if cell.slot.address(part) == address:
                    return cell, part
    return None
