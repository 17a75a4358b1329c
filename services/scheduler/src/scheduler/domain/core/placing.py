"""One pod: the best place for it on its ground."""

from collections.abc import Generator, Iterable, Iterator
from heapq import merge

from scheduler.domain.core.binding import Cells
from scheduler.domain.core.covering import may_have
from scheduler.domain.core.forest import Cell
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.ranks import NEVER_RANK, Rank
from scheduler.domain.core.regions import Region

FRESH_LOOKED = 256
"""Nodes, best first, that are passed over as they are in no free cell of the level in question;
after that cells are looked at in order.
"""

CELLS_HELD = 64
"""Of so many of these cells the one with the nearest leaves is taken."""


def one(ground: Ground, name: str) -> bool:
    """Place one pod."""
    if ground.owner is None:
        number = _guest(ground)
        return number is not None and ground.put(number, name)
    found = _first(ground, ground.bound)
    if ground.is_split and _across(ground, found[0][0] if found else NEVER_RANK[0], name):
        return True
    if ground.empty is not None and _fresh(ground, found[0] if found else NEVER_RANK, name):
        return True
    if found is not None and ground.put(found[1], name):
        return True
    return ground.is_loose and _loosely(ground, name)


def _loosely(ground: Ground, name: str) -> bool:
    """Put a pod that is charged more than its GPUs where guests use some of those leaves."""
    if ground.owner is None or not ground.is_small:
        return False
    best: tuple[int, int, int] | None = None
    for number in sorted(ground.numbers()):
        state = ground.hardware.states[number]
        gpus = state.slot.shape.pick(ground.free(state), ground.kind.gpus)
        if gpus is None or not ground.fits(number):
            continue
        leaves, rest = gpus.leaves, ground.free(state, is_loose=True) & ~gpus.leaves
        while leaves.bit_count() < ground.needs[state.sort] and rest:
            leaves |= rest & -rest
            rest &= rest - 1
        if leaves.bit_count() == ground.needs[state.sort]:
            rank = (gpus.level, number, leaves)
            best = rank if best is None or rank < best else best
    return best is not None and ground.put(best[1], name, best[2], is_loose=True)


def _first(ground: Ground, region: Region | None) -> tuple[Rank, int] | None:
    """The best node in bound cells."""
    if region is None:
        return None
    seeker, found = ground.seeker, region.best(ground.wish)  # mostly the best of all does
    if found is None or (seeker.within is None and not seeker.near and ground.fits(found[1])):
        return found
    return _nearest(ground, region, region.ranked(ground.wish, seeker.having(ground.kind)))


def _nearest(
    ground: Ground, region: Region, ranked: Iterable[tuple[Rank, int]]
) -> tuple[Rank, int] | None:
    """The first of these nodes on which a pod fits: of those as near in one of the near racks."""
    near = {rack.number for rack in ground.seeker.near}
    best: tuple[Rank, int] | None = None
    for rank, number in ranked:
        if best is not None and rank[0] > best[0][0]:
            break
        if ground.fits(number):
            if not near or region.places[number][0] in near:
                return rank, number
            best = best or (rank, number)
    return best


def _guest(ground: Ground) -> int | None:
    """The best node for an opportunistic pod: of those as near first one where that is outside of
    bound cells.
    """
    region, seeker, wish = ground.bound, ground.seeker, ground.wish
    if region is None:
        return None
    among = seeker.having(ground.kind)
    found = region.best(wish, among)
    if found is None:
        return None
    other = ground.outside.best(wish, among)
    best = found if other is None or found[0][0] < other[0][0] else other
    if seeker.within is not None or seeker.near or not ground.fits(best[1]):
        every = merge(
            _ranked(ground, ground.outside, is_bound=False), _ranked(ground, region, is_bound=True)
        )
        nearest = _nearest(ground, region, ((rank, number) for _, _, rank, number in every))
        return None if nearest is None else nearest[1]
    return best[1]


def _ranked(
    ground: Ground, region: Region, *, is_bound: bool
) -> Iterator[tuple[int, bool, Rank, int]]:
    """The nodes of a region, best first, as they compare with those of another."""
    for rank, number in region.ranked(ground.wish, ground.seeker.having(ground.kind)):
        yield rank[0], is_bound, rank, number


def _fresh(ground: Ground, rank: Rank, name: str) -> bool:
    """Place a pod in a cell that is bound for it, where that is nearer than ``rank``."""
    if rank is not NEVER_RANK and rank[0] <= ground.hardware.demands.least_level(ground.needs):
        return False
    assert ground.empty is not None
    best = ground.empty.best(ground.wish, ground.seeker.having(ground.kind))
    if best is None or best[0][0] >= rank[0]:
        return False
    fresh = _fresh_nodes(ground, rank[0])
    for found, number in _near_first(ground, fresh) if ground.seeker.near else fresh:
        if (
            found[0] < rank[0]
            and ground.fits(number)
            and may_have(ground.hardware, ground.owner, ground.hardware.states[number])
            and ground.put(number, name)
        ):
            return True
    return False


def _near_first(ground: Ground, fresh: Iterator[tuple[Rank, int]]) -> Iterator[tuple[Rank, int]]:
    """Of nodes whose leaves are as near those in near racks before others."""
    assert ground.empty is not None
    near = sorted(
        (rank, slot.number)
        for rack in ground.seeker.near
        for slot in rack.slots
        if (rank := ground.empty.rank_of(slot.number, ground.wish)) is not None
    )
    for rank, number in fresh:
        while near and near[0][0][0] <= rank[0]:
            yield near.pop(0)
        yield rank, number
    yield from near


def _across(ground: Ground, level: int, name: str) -> bool:
    """Place a pod partly in a bound cell, partly in one that is bound for it, where its leaves
    are nearer than a place at ``level`` and any in free space.
    """
    numbers = [number for number, _ in ground.mixed()]
    if not numbers:
        return False
    assert ground.empty is not None
    other = ground.empty.best(ground.wish, ground.seeker.having(ground.kind))
    least = level if other is None else min(level, other[0][0])
    found = []
    for number in numbers:
        state = ground.hardware.states[number]
        pick = state.slot.shape.pick(ground.free(state), ground.needs[state.sort])
        if pick is not None and pick.level < least:
            found.append((pick, number))
    return any(ground.put(number, name) for _, number in sorted(found))


def _fresh_nodes(ground: Ground, level: int) -> Iterator[tuple[Rank, int]]:
    """Nodes in cells that may be bound: of small quota cells first, best first in each, where they
    are nearer than a place at ``level``.
    """
    hardware, empty = ground.hardware, ground.empty
    assert empty is not None
    assert ground.owner is not None
    left, is_ranked = hardware.unbound[ground.owner], False
    for quota in sorted(hardware.owning.quotas[ground.owner], key=lambda q: q.level):
        if not left[quota.path] or hardware.forest.racks[quota.chain.leaf] is not empty.racks:
            continue
        if quota.level <= quota.chain.node_level:
            if not is_ranked:
                is_ranked = True
                yield from empty.ranked(ground.wish, ground.seeker.having(ground.kind))
            continue
        cells = hardware.cells[quota.chain.name]
        if not (yield from _best_in_free(ground, cells, quota.level, level)):
            yield from _best_of_each(ground, cells.free_cells(quota.level), empty)


def _best_in_free(
    ground: Ground, cells: Cells, level: int, nearer_than: int
) -> Generator[tuple[Rank, int], None, bool]:
    """The nodes in free cells of a level above them, best first; whether these are all."""
    assert ground.empty is not None
    hardware, missed = ground.hardware, 0
    may: dict[int, bool] = {}
    for rank, number in ground.empty.ranked(ground.wish, ground.seeker.having(ground.kind)):
        if rank[0] >= nearer_than:
            break
        cell: Cell | None = hardware.states[number].slot.cell
        while cell is not None and cell.level < level:
            cell = cell.parent
        is_free = False
        if cell is not None and cell.chain is cells.chain:
            if cell.number not in may:
                may[cell.number] = cells.may_bind(cell, None)
            is_free = may[cell.number]
        if is_free:
            yield rank, number
        else:
            missed += 1
            if missed == FRESH_LOOKED:
                return False
    return True


def _best_of_each(
    ground: Ground, cells: Iterable[Cell], empty: Region
) -> Iterator[tuple[Rank, int]]:
    """The best node of each cell: at once where leaves can't be nearer, else the nearest of
    some cells first.
    """
    least, held = ground.hardware.demands.least_level(ground.needs), list[tuple[Rank, int]]()
    for cell in cells:
        found = [
            (rank, slot.number)
            for slot in cell.slots()
            if ground.fits(slot.number)
            and (rank := empty.rank_of(slot.number, ground.wish)) is not None
        ]
        if found and (best := min(found))[0][0] <= least:
            yield best
        elif found:
            held.append(best)
        if len(held) == CELLS_HELD:
            yield from sorted(held, key=lambda each: each[0][0])
            held.clear()
    yield from sorted(held, key=lambda each: each[0][0])
