"""Where equal pods of a gang go: on the fewest racks, there on the fewest nodes."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from scheduler.domain.core.capacity import Caps, may_hold, may_hold_all, rack_caps
from scheduler.domain.core.covering import may_have
from scheduler.domain.core.forest import Rack
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.regions import numbers_in

RACK_TRIES = 64
"""Racks that are tried for all equal pods of a gang together, at the most."""

RACKS_LOOKED = 256
"""Racks of which it is asked what they hold beside GPUs, at the most."""

FRESH_REFUSED = 64
"""Nodes that may turn out not to be had, of those that would hold most."""

SPREAD_TRIES = 8
"""Racks of which the one is sought that holds most, at the most."""

TOO_FEW = 1 << 30
"""So many racks or nodes are needed where all there are don't do."""

Nodes = dict[int, tuple[int, int, int]]
"""By number: how many of the pods fit, free leaves, and an order of such as are as good."""


def many(ground: Ground, names: Sequence[str]) -> bool:
    """Place equal pods on the fewest racks, and there on the fewest nodes."""
    if any(_all_in(ground, rack, names) for rack in _quick(ground, len(names))):
        return True
    seeker = ground.seeker
    is_plain = seeker.only is None and ground.hardware.owning.is_plain(seeker.owner)
    if not is_plain and seeker.within is None and not may_hold_all(ground, len(names)):
        return False
    caps = rack_caps(ground)
    if not ground.is_loose and sum(cap for cap, _ in caps.values()) < len(names):
        return False
    enough = _enough(ground, caps, len(names))
    for rack in enough:
        if _all_in(ground, rack, names):
            return True
        if (
            rack in seeker.near
            and ground.is_searched
            and seeker.search_racks(ground, names, [rack])
        ):
            return True
        if seeker.is_spent:
            break
    if ground.is_searched:
        racks = _in_question(ground, enough)
        if seeker.search_racks(ground, names, racks):
            return True
    before = len(seeker.pods)
    if _spread(ground, names, caps):
        return True
    seeker.undo(before)
    return _on_roomiest(ground, names)


def _all_in(ground: Ground, rack: Rack, names: Sequence[str]) -> bool:
    before = len(ground.seeker.pods)
    for floor in ground.floors():
        if _fill(ground, rack, names, floor) == len(names):
            return True
        ground.seeker.undo(before)
        if ground.seeker.is_spent:
            break
    return False


def _enough(ground: Ground, caps: Caps, count: int) -> list[Rack]:
    """Racks that should hold all: near ones, bound ones, those with the least left. For an
    opportunistic gang: such parts of them as it should rather use, those with the most whole nodes.
    """
    region = ground.bound or ground.empty
    if region is None or all(cap < count for cap, _ in caps.values()):
        return []
    near = {rack.number for rack in ground.seeker.near}
    parts = [(part, rack_caps(part)) for part in ground.parts()] + [(ground, caps)]
    enough = sorted(
        (number not in near, worse, order, cap, number)
        for worse, (_, some) in enumerate(parts)
        for number, (cap, order) in some.items()
        if cap >= count
    )
    found: dict[Rack, None] = {}
    for _, worse, _, _, number in enough[:RACKS_LOOKED]:
        rack = region.racks[number]
        if rack not in found and may_hold(parts[worse][0], rack, count):
            found[rack] = None
            if len(found) == RACK_TRIES:
                break
    return list(found)


def _in_question(ground: Ground, enough: list[Rack]) -> Iterable[Rack]:
    """Racks that are searched: where pods may be charged leaves that guests use all of them, since
    what is free says little.
    """
    if not ground.is_loose:
        return enough
    hardware = ground.hardware
    racks = (hardware.rack_of(hardware.states[number]) for number in sorted(ground.numbers()))
    return dict.fromkeys((*enough, *racks))


def _spread(
    ground: Ground,
    names: Sequence[str],
    caps: Caps,
    *,
    is_near: bool = True,
) -> bool:
    """One rack after another, the one that holds most first; the last as tight as can be.

    ``is_near``: in the smallest cell that should hold all, if there is one.
    """
    before = len(ground.seeker.pods)
    near = _nearest(ground, caps, len(names)) if is_near else caps
    for part, some in _likely(ground, near, len(names)):
        ground.seeker.undo(before)
        left, rest = list(names), _Racks(some)
        while left and rest.by_cap and not ground.seeker.is_over:
            count, done = _on_best(part, rest, left)
            left = left[count:]
            rest.drop(done)
        if not left:
            return True
    if near is not caps and not ground.hardware.is_greed_exact(ground.seeker.owner):
        ground.seeker.undo(before)
        return _spread(ground, names, caps, is_near=False)
    return False


def _likely(ground: Ground, caps: Caps, count: int) -> Iterator[tuple[Ground, Caps]]:
    """For an opportunistic gang first the best part that takes no more racks than all together."""
    least = _fewest((cap for cap, _ in caps.values()), count) if ground.parts() else TOO_FEW
    for part in ground.parts() if least < TOO_FEW else ():
        some = {number: cap for number, cap in rack_caps(part).items() if number in caps}
        if _fewest((cap for cap, _ in some.values()), count) <= least:
            yield part, some
            break
    yield ground, caps


def _fewest(fits: Iterable[int], count: int) -> int:
    """How many of those that hold so many pods each are needed for all, at the least."""
    for number, some in enumerate(sorted(fits, reverse=True), 1):
        count -= some
        if count <= 0:
            return number
    return TOO_FEW


def _on_roomiest(ground: Ground, names: Sequence[str]) -> bool:
    """On bound nodes, and on those of free ones that hold most: where so many more nodes may be
    bound, and guests have parts of some, no other choice holds more.
    """
    bound, empty, count = ground.bound, ground.empty, _nodes_to_bind(ground)
    if empty is None or not count or ground.is_searched:
        return False
    held = 0 if bound is None else sum(view.cap(ground.needs) for view in bound.views.values())
    among = ground.seeker.having(ground.kind)
    fresh = list(islice(empty.roomiest(ground.wish, among), count + FRESH_REFUSED))
    if held + sum(fits for fits, _ in fresh[:count]) < len(names):
        return False
    rest = () if bound is None else bound.roomiest(ground.wish, among)
    done = 0
    for _, number in chain(rest, fresh):
        while done < len(names) and ground.put(number, names[done]):
            done += 1
    return done == len(names)


def _nodes_to_bind(ground: Ground) -> int:
    """How many more nodes the owner may bind; 0 where other cells are left of its quota too."""
    if ground.empty is None or ground.owner is None:
        return 0
    left, leaf = ground.hardware.unbound[ground.owner], ground.gpu_type
    quotas = [q for q in ground.hardware.owning.quotas[ground.owner] if q.chain.leaf == leaf]
    if any(left[q.path] and q.level != q.chain.node_level for q in quotas):
        return 0
    return sum(left[q.path] for q in quotas)


class _Racks:
    """Racks with room, for one that should hold so many pods. ``by_cap``: those that should hold
    most first, in their order, the lowest; ``by_fit``: in their order, that should hold least.
    """

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        some = [(cap, order, number) for number, (cap, order) in caps.items() if cap]
        self.by_cap = sorted((-cap, order, number) for cap, order, number in some)
        self.by_fit = sorted((order, cap, number) for cap, order, number in some)
        self.orders = sorted({order for _, order, _ in some})

    def first(self, count: int, most: int) -> list[int]:
        """The one that should hold all with the least left, and so on; then the one that should
        hold most, and so on; so many of them at the most.
        """
        found: list[int] = []
        for order in self.orders:
            start = bisect_left(self.by_fit, (order, count))
            for other, _, number in self.by_fit[start : start + most - len(found)]:
                if other == order:
                    found.append(number)
        start = bisect_left(self.by_cap, (1 - count,))
        return found + [n for *_, n in self.by_cap[start : start + most - len(found)]]

    def drop(self, numbers: Sequence[int]) -> None:
        """These are done with."""
        for number in numbers:
            cap, order = self.caps[number]
            del self.by_cap[bisect_left(self.by_cap, (-cap, order, number))]
            del self.by_fit[bisect_left(self.by_fit, (order, cap, number))]


def _on_best(ground: Ground, racks: _Racks, names: Sequence[str]) -> tuple[int, Sequence[int]]:
    """Put as many as can be on the rack that should hold all with the least left, else on the one
    that should hold most; on another where that holds fewer than it should. How many, and which
    racks are done with.
    """
    region, seeker = ground.bound or ground.empty, ground.seeker
    assert region is not None
    if ground.hardware.is_greed_exact(seeker.owner) or seeker.is_spent:
        order = racks.first(len(names), 1)
        return _most(ground, region.racks[order[0]], names), order
    order = racks.first(len(names), SPREAD_TRIES)
    best, before = (0, order[0]), len(seeker.pods)
    for number in order:
        most = min(racks.caps[number][0], len(names))
        if best[0] >= most:
            break
        count = _most(ground, region.racks[number], names)
        if count == most or seeker.is_spent:
            return count, [number]
        seeker.undo(before)
        best = (count, number) if count > best[0] else best
    if not best[0]:
        return 0, order
    return _most(ground, region.racks[best[1]], names), [best[1]]


def _most(ground: Ground, rack: Rack, names: Sequence[str]) -> int:
    """Put as many on a rack as can be, of the levels of quota that may be bound with the best."""
    before, best = len(ground.seeker.pods), (-1, 0)
    levels = ground.floors()
    if ground.seeker.is_spent:
        return _fill(ground, rack, names, levels[0])
    for floor in levels:
        count = _fill(ground, rack, names, floor)
        best = max(best, (count, -floor))
        if count == len(names) or len(levels) == 1:
            return count
        is_spent = ground.seeker.is_spent
        if is_spent and best == (count, -floor):
            return count
        ground.seeker.undo(before)
        if is_spent:
            break
    return _fill(ground, rack, names, -best[1])


def _quick(ground: Ground, count: int) -> Iterator[Rack]:
    """Whole nodes in one rack of bound cells, else of free ones: the index knows it."""
    seeker = ground.seeker
    if seeker.near or seeker.within is not None or seeker.only is not None:
        return
    if any(need != ground.hardware.sorts[i].gpus for i, need in enumerate(ground.needs)):
        return
    if seeker.owner is None:
        yield from _quick_for_guest(ground, count)
        return
    for region in (ground.bound, None if ground.is_split else ground.empty):
        enough = [] if region is None else [whole for whole in region.whole if whole >= count]
        if region is not None and enough:
            racks = region.whole[min(enough)]
            yield region.racks[(racks & -racks).bit_length() - 1]


def _quick_for_guest(ground: Ground, count: int) -> Iterator[Rack]:
    """The same for an opportunistic gang: outside of bound cells, else where nothing is charged, in
    the rack with the most whole nodes.
    """
    for region in () if ground.bound is None else (ground.outside, ground.bound):
        most = max(region.whole, default=0)
        if most < count:
            continue
        views = ((region.views[rack], rack) for rack in numbers_in(region.whole[most]))
        caps = ((view.quiet_cap(ground.needs), rack) for view, rack in views)
        best = min((found for found in caps if found[0] >= count), default=None)
        if best is not None:
            yield region.racks[best[1]]
        return


def _nearest(ground: Ground, caps: Caps, count: int) -> Caps:
    """The racks of the smallest cell above racks that holds all; every rack, if none does."""
    region = ground.bound or ground.empty
    if region is None:
        return caps
    above: dict[int, tuple[int, int, list[int]]] = {}
    cells = {number: region.racks[number].cell.parent for number in caps}
    while any(cell is not None for cell in cells.values()):
        above.clear()
        for number, cell in cells.items():
            if cell is not None:
                total, at, inside = above.get(id(cell), (0, cell.number, []))
                above[id(cell)] = (total + caps[number][0], at, [*inside, number])
        enough = [(total, at, inside) for total, at, inside in above.values() if total >= count]
        if enough:
            return {number: caps[number] for number in min(enough)[2]}
        cells = {n: None if cell is None else cell.parent for n, cell in cells.items()}
    return caps


def _fill(ground: Ground, rack: Rack, names: Sequence[str], floor: int) -> int:
    """Put as many as possible on a rack's nodes; how many that were."""
    hardware = ground.hardware
    hardware.steps += 1
    done, nodes = 0, _nodes_for(ground, rack, len(names))
    while done < len(names) and nodes:
        left = len(names) - done
        *_, worse, number = min((*_fit(left, *found), n) for n, found in nodes.items())
        del nodes[number]
        if worse and not may_have(hardware, ground.owner, hardware.states[number]):
            continue
        while done < len(names) and (
            ground.put(number, names[done], 0, floor)
            or (floor > 0 and ground.put(number, names[done]))
        ):
            done += 1
    return done


def _nodes_for(ground: Ground, rack: Rack, count: int) -> Nodes:
    """The rack's nodes; for an opportunistic gang those of the best part that takes no more of them
    than all together, if they hold so many pods.
    """
    every = _nodes(ground, rack)
    parts = ground.parts()
    least = _fewest((fits for fits, _, _ in every.values()), count) if parts else TOO_FEW
    for part in parts if least < TOO_FEW else ():
        some = _nodes(part, rack)
        if _fewest((fits for fits, _, _ in some.values()), count) <= least:
            return some
    return every


def _nodes(ground: Ground, rack: Rack) -> Nodes:
    """The rack's nodes: how many of the pods fit, free leaves, and what of as good ones is worse:
    where cells are to be bound; for an opportunistic gang bound cells, then charged nodes.
    """
    free: dict[int, tuple[int, int]] = {}
    outside = None if ground.owner is not None else ground.outside.tags
    for region, is_fresh in ((ground.bound, 0), (ground.empty, 1)):
        view = None if region is None else region.views.get(rack.number)
        if region is not None and view is not None:
            for tag, slot in region.slots_of(view):
                if tag.count and not (ground.is_quiet and tag.is_shared):
                    before = free.get(slot.number, (0, 1))
                    worse = min(before[1], is_fresh)
                    if outside is not None:
                        worse = 0 if slot.number in outside else 1 + tag.is_shared
                    free[slot.number] = before[0] + tag.count, worse
    states = ground.hardware.states
    return {
        number: (fits, leaves, worse)
        for number, (leaves, worse) in free.items()
        if (fits := ground.fits_on(leaves, states[number]))
    }


def _fit(left: int, fits: int, leaves: int, worse: int) -> tuple[bool, int, int]:
    """The node that holds all the rest with the least left, else the one that holds most."""
    return fits < left, leaves if fits >= left else -fits, worse
