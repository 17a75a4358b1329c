"""How many pods of one kind racks take."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from scheduler.domain.core.covering import chains_to_bind, may_bind_on
from scheduler.domain.core.forest import Chain, Rack
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.model import Kind
from scheduler.domain.core.regions import Region, View

if TYPE_CHECKING:
    from scheduler.domain.core.seeking import Kinds, Seeker

RACKS_A_STEP = 64
"""So many racks are as much work as one place."""

NODES_A_STEP = 16
"""So many nodes are as much work as one place."""

TYPES_GIVEN = 2_048
"""So often at the most, and once for each kind, a kind of a gang is given a GPU type until all have
one: where too few GPUs are left for the last ones, those before are given others.
"""

RACKS_EXACT = 16
"""Of more racks what they take is only looked at by their leaves."""

Wanted = tuple[int, Sequence[str]]
"""GPUs of a kind's pods together, and the types that they may have."""


Caps = dict[int, tuple[int, int]]
"""By rack's number: how many of the pods may fit, and an order of racks: lower is better."""


def rack_caps(ground: Ground) -> Caps:
    """What racks take, where there are many only by their leaves. Worse are those that do only in
    cells to be bound; for an opportunistic gang those with fewer whole free nodes.
    """
    caps: Caps = {}
    within, hardware = ground.seeker.within, ground.hardware
    is_plain = hardware.owning.is_plain(ground.owner)
    is_all, is_guest = ground.seeker.only is None and ground.is_bare, ground.owner is None
    for region, is_fresh, chains in _regions(ground):
        is_exact = not is_all and len(region.views) <= RACKS_EXACT
        hardware.steps += len(region.views) // RACKS_A_STEP
        for number, view in _views(ground, region):
            if chains is not None and view.rack.cell.chain not in chains:
                continue
            if is_exact or (is_fresh and not is_plain):
                cap = _held_by(ground, region, view, is_fresh=is_fresh)
            else:
                cap = (view.quiet_cap if ground.is_quiet else view.cap)(ground.needs)
            if cap and is_guest:
                caps[number] = cap, -view.whole
            elif cap:
                before = caps.get(number)
                caps[number] = (cap + before[0], False) if before else (cap, is_fresh)
    for number, cap in ground.mixed():
        rack = hardware.rack_of(hardware.states[number])
        if within is None or rack is within:
            caps[rack.number] = (cap + caps.get(rack.number, (0, False))[0], False)
    return caps


def rooms(ground: Ground) -> Caps:
    """Free leaves by rack's number; for an opportunistic gang with the same order of racks."""
    found: Caps = {}
    for region, _, chains in _regions(ground):
        for number, view in region.views.items():
            if chains is None or view.rack.cell.chain in chains:
                order = -view.whole if ground.owner is None else 0
                room = view.free(is_quiet=ground.is_quiet)
                found[number] = found.get(number, (0, 0))[0] + room, order
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
    some, known = list[Sequence[str]](), dict[tuple[Kind, int], Sequence[str]]()
    for kind, names in kinds:
        key = kind, len(names)
        if key not in known:
            known[key] = _types_with_room(seeker, kind, len(names))
        some.append(known[key])
    if not all(some):
        return
    room = dict[str, int]()
    for (kind, _), types in zip(kinds, some, strict=True):
        for each in types if len(types) > 1 else ():
            if each not in room:
                room[each] = sum(free for free, _ in rooms(seeker.ground(kind, each)).values())
    found, open_, wanted = [types[0] for types in some], list[int](), list[Wanted]()
    for index, ((kind, names), types) in enumerate(zip(kinds, some, strict=True)):
        gpus = kind.gpus * len(names)
        if len(types) > 1:
            open_.append(index)
            wanted.append((gpus, types))
        elif kind.pin is None and types[0] in room:
            room[types[0]] -= gpus
    for chosen in _shared_out(seeker, wanted, room):
        for index, gpu_type in zip(open_, chosen, strict=True):
            found[index] = gpu_type
        yield tuple(found)


def _types_with_room(seeker: "Seeker", kind: Kind, count: int) -> Sequence[str]:
    """GPU types of which each may have room for so many pods of a kind."""
    types = seeker.types(kind)
    if kind.costs_nothing:
        return types
    return [each for each in types if may_hold_all(seeker.ground(kind, each), count)]


def _shared_out(
    seeker: "Seeker", wanted: Sequence[Wanted], room: dict[str, int]
) -> Iterator[Sequence[str]]:
    """A type for each of these, such that all have GPUs enough: the last one's changes first."""
    if min(room.values(), default=0) < 0 or sum(room.values()) < sum(gpus for gpus, _ in wanted):
        return
    chosen, following, given = list[str](), [0], 0
    while following:
        at = len(chosen)
        if at == len(wanted):
            yield tuple(chosen)
            given = 0
        else:
            gpus, types = wanted[at]
            rest = range(following[at], len(types))
            number = next((n for n in rest if room[types[n]] >= gpus), None)
            if number is not None:
                given += 1
                if given > TYPES_GIVEN + len(wanted):
                    seeker.is_cut = True
                    return
                room[types[number]] -= gpus
                chosen.append(types[number])
                following[at] = number + 1
                following.append(0)
                continue
        following.pop()
        if chosen:
            room[chosen.pop()] += wanted[at - 1][0]


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
        and not (ground.is_quiet and tag.is_shared)
        and (not is_fresh or may_bind_on(ground.hardware, ground.owner, states[slot.number]))
    )
