"""How many pods of one kind racks take."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from typing import TYPE_CHECKING

from scheduler.domain.core.covering import chains_to_bind, may_bind_on
from scheduler.domain.core.forest import Chain, Rack
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.regions import Region, View

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Kinds, Seeker

RACKS_A_STEP = 64
"""So many racks are as much work as one place."""

NODES_A_STEP = 16
"""So many nodes are as much work as one place."""

CHOICES_LOOKED = 1_024
"""Choices of GPU types of which it is asked whether there are so many GPUs, at the most."""

RACKS_EXACT = 16
"""Of more racks what they take is only looked at by their leaves."""


def rack_caps(ground: Ground) -> dict[int, tuple[int, bool]]:
    """By rack's number: how many of the pods may fit (where there are many racks only by their
    leaves), and whether only in cells to be bound.
    """
    caps: dict[int, tuple[int, bool]] = {}
    within, hardware = ground.seeker.within, ground.hardware
    is_plain = hardware.owning.is_plain(ground.owner)
    is_all = ground.seeker.only is None and ground.is_bare
    for region, is_fresh, chains in _regions(ground):
        is_exact = not is_all and len(region.views) <= RACKS_EXACT
        hardware.steps += len(region.views) // RACKS_A_STEP
        for number, view in _views(ground, region):
            if chains is not None and view.rack.cell.chain not in chains:
                continue
            if is_exact or (is_fresh and not is_plain):
                cap = _held_by(ground, region, view, is_fresh=is_fresh)
            else:
                cap = view.cap(ground.needs)
            if cap:
                before = caps.get(number)
                caps[number] = (cap + before[0], False) if before else (cap, is_fresh)
    for number, cap in ground.mixed():
        rack = hardware.rack_of(hardware.states[number])
        if within is None or rack is within:
            caps[rack.number] = (cap + caps.get(rack.number, (0, False))[0], False)
    return caps


def rooms(ground: Ground) -> dict[int, int]:
    """Free leaves by rack's number."""
    found: dict[int, int] = {}
    for region, _, chains in _regions(ground):
        for number, view in region.views.items():
            if chains is None or view.rack.cell.chain in chains:
                found[number] = found.get(number, 0) + view.free()
    return found


def _regions(ground: Ground) -> Iterator[tuple[Region, bool, Set[Chain] | None]]:
    """Where the pods may be, and whether in cells to be bound: of which chains; None: of any."""
    if ground.bound is not None:
        yield ground.bound, False, None
    if ground.empty is not None:
        yield ground.empty, True, chains_to_bind(ground.hardware, ground.owner, ground.gpu_type)


def could_hold_all(ground: Ground, count: int) -> bool:
    """False: so surely, were none of the owner's gangs there either."""
    owner, hardware = ground.owner, ground.hardware
    if owner not in hardware.unbound or hardware.owning.is_plain(owner) or not ground.least:
        return True
    cells = {quota.path: quota.count for quota in hardware.owning.quotas[owner]}
    return _bindable(ground, owner, cells) >= count


def may_hold_all(ground: Ground, count: int) -> bool:
    """False: there is surely no room for so many of the pods, as things are now."""
    owner, hardware = ground.owner, ground.hardware
    if not ground.least:
        return True
    most = 0
    if owner is not None and ground.empty is not None:
        most = _bindable(ground, owner, hardware.unbound[owner])
    held = fresh = 0
    for looks, number in enumerate(_allowed(ground)):
        if looks % NODES_A_STEP == 0:
            hardware.steps += 1
        state = hardware.states[number]
        free = ground.reach(state) & ~(0 if owner is None else state.charged)
        idle = free & ~hardware.used(state)
        if not free or idle.bit_count() < ground.kind.gpus:
            continue
        fits = ground.fits_on((idle if owner is None else free).bit_count(), state)
        if owner is None or free & state.bound.get(owner, 0):
            held += fits
        else:
            fresh += fits
        if held + min(fresh, most) >= count:
            return True
    return False


def choices(seeker: "Seeker", kinds: "Kinds") -> Iterator[Sequence[str]]:
    """GPU types for a gang's kinds, preferred ones first, of which each may have room for its pods
    and all together enough GPUs. The seeker is told where there may be more.
    """
    some, room = list[Sequence[str]](), dict[str, int]()
    for kind, names in kinds:
        types = seeker.types(kind)
        if kind.gpus or kind.pin is not None:
            types = [t for t in types if may_hold_all(seeker.ground(kind, t), len(names))]
        some.append(types)
        if len(types) > 1:
            room |= {t: sum(rooms(seeker.ground(kind, t)).values()) for t in types}
    for looked, types in enumerate(product(*some)):
        if looked == CHOICES_LOOKED:
            seeker.is_cut = True
            return
        left = dict(room)
        for (kind, names), gpu_type in zip(kinds, types, strict=True):
            if kind.pin is None and gpu_type in left:
                left[gpu_type] -= kind.gpus * len(names)
        if min(left.values(), default=0) >= 0:
            yield types


def _allowed(ground: Ground) -> Iterable[int]:
    """Nodes in question, on which the gang may be."""
    only, machines = ground.seeker.only, ground.hardware.machines
    if only is None:
        return ground.numbers()
    known = (machines[name] for name in only if name in machines)
    numbers = ground.numbers()
    slots = (state.slot.number for machine in known for state in machine.slots)
    return (number for number in slots if number in numbers)


def _bindable(ground: Ground, owner: str, left: Mapping[str, int]) -> int:
    """How many of the pods so many cells of each quota of the owner hold, at the most."""
    pods = leaves = 0
    if ground.bound is None and ground.empty is None:
        return 0
    gpu_type = ground.gpu_type
    for quota in ground.hardware.owning.quotas[owner]:
        if quota.chain.leaf != gpu_type:
            continue
        chain, cells = quota.chain, left[quota.path]
        node = chain.leaves(chain.node_level)
        if quota.level < chain.node_level:
            leaves += cells * chain.leaves(quota.level)
        else:
            pods += cells * (chain.leaves(quota.level) // node) * (node // ground.least)
    return pods + leaves // ground.least


def _views(ground: Ground, region: Region) -> Iterable[tuple[int, View]]:
    """Racks in which there may be leaves for a pod."""
    within = ground.seeker.within
    if within is None:
        return region.roomy(ground.wish)
    view = region.views.get(within.number)
    return () if view is None or view.rack is not within else ((within.number, view),)


def may_hold(ground: Ground, rack: Rack, count: int) -> bool:
    """Whether a rack that has leaves for so many of the pods takes them."""
    return ground.is_bare or ground.is_split or _holds(ground, rack) >= count


def _holds(ground: Ground, rack: Rack) -> int:
    """How many of the pods a rack takes, bound cells and free space apart."""
    return sum(
        _held_by(ground, region, view)
        for region in (ground.bound, ground.empty)
        if region is not None and (view := region.views.get(rack.number)) is not None
    )


def _held_by(ground: Ground, region: Region, view: View, *, is_fresh: bool = False) -> int:
    """How many of the pods a rack's nodes take; ``is_fresh``: of those where cells may be bound."""
    states = ground.hardware.states
    return sum(
        ground.fits_on(tag.count, states[slot.number])
        for tag, slot in region.slots_of(view)
        if tag.count
        and (not is_fresh or may_bind_on(ground.hardware, ground.owner, states[slot.number]))
    )
