"""Which gangs would have to be checkpointed and begun anew elsewhere so that cells are free as a
whole: tried on the one state, of which nothing is changed. Nobody is moved by it.

The cells are taken whose gangs have the fewest GPUs, of these those whose gangs lose least work.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.domain.core.answers import asking
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import PodPlace, Reason
from scheduler.domain.core.moving import (
    Restart,
    closed,
    gpus_of,
    lost_gpu_s,
    undo_restarts,
)
from scheduler.domain.core.occupants import (
    BOUND,
    KEPT,
    PINNED,
    UNSETTLED,
    UNWELL,
    Spot,
    occupants,
    spots_of,
)
from scheduler.domain.core.wishes import Wish

STEPS = 700
"""Places that are tried for one advice, of some 40 us each."""

RESTART_STEPS = 4
"""What it takes to stop one gang in thought."""

CELLS_LOOKED = 512
"""Cells of which it is asked who is there: those with the fewest GPUs in use."""

CELLS_TRIED = 64
"""With which it is begun to gather cells whose gangs might fit elsewhere, the cheapest."""

CELLS_GATHERED = 64
"""The cheapest, among which others are sought beside one."""

ROOM, UNTRIED = "room", "untried"
"""Beside `occupants`' reasons why a cell can't be freed: its gangs don't fit elsewhere; or it was
not tried.
"""

CELLS, BUSY = "cells", "busy"
"""Codes beside `ROOM`, of why there is no advice: there are no such cells, or none of which the
gangs could be moved; a cycle is under way.
"""


@dataclass(frozen=True, slots=True)
class Move:
    """A gang is to begin anew, from where it is to where it would be then: a place for each pod;
    those that it can do without may have none. ``lost_gpu_s``: of work since it was saved last.
    ``lender``: in whose quota it would be then, if not in its own virtual cluster's.
    """

    live: Live
    gpus: int
    lost_gpu_s: float
    before: dict[str, PodPlace]
    after: dict[str, PodPlace]
    lender: str | None = None

    @property
    def is_extra(self) -> bool:
        """It is a pod that its gang can do without."""
        return self.live.extra_of is not None


@dataclass(slots=True)
class Advice:
    """``cells``: addresses of those that are free then, those first that are free already
    (``already`` many). ``reason``: why there are none. ``is_least``: for no others fewer GPUs would
    have to move. ``is_cut``: not all was tried.
    """

    wish: Wish
    cells: tuple[str, ...] = ()
    already: int = 0
    moves: tuple[Move, ...] = ()
    reason: Reason | None = None
    is_least: bool = False
    is_cut: bool = False

    @property
    def price(self) -> tuple[int, float]:
        """GPUs that are moved, and work that is lost."""
        moves = self.moves
        return sum(move.gpus for move in moves), sum(move.lost_gpu_s for move in moves)


@dataclass(slots=True)
class Candidate:
    """A cell, and who would have to move: gangs, and pods that others have grown by."""

    spot: Spot
    lives: dict[str, Live]
    number: int
    price: tuple[int, float] = (0, 0.0)


@dataclass(slots=True)
class Search:
    """``obstacles``: why cells are out of the question, counted. ``free``: GPUs of the chain's
    type that nobody uses, wherever they are. ``prices``: of gangs. ``unlooked``: so many GPUs are
    in use in each cell that was not looked at, at the least; None: there is none.
    """

    cluster: Cluster
    wish: Wish
    candidates: list[Candidate] = field(default_factory=list)
    obstacles: Counter[str] = field(default_factory=Counter)
    prices: dict[str, tuple[int, float]] = field(default_factory=dict)
    free: int = 0
    unlooked: int | None = None
    is_cut: bool = False

    def price(self, lives: Iterable[Live]) -> tuple[int, float]:
        """GPUs and work lost of gangs together."""
        gpus, lost = 0, 0.0
        for live in lives:
            found = self.prices.get(live.id)
            if found is None:
                found = gpus_of(self.cluster, live), lost_gpu_s(live, self.cluster.now)
                self.prices[live.id] = found
            gpus, lost = gpus + found[0], lost + found[1]
        return gpus, lost


def advise(cluster: Cluster, found: Sequence[Wish]) -> Advice:
    """The best of these wishes; one at least. Between two cycles: in the midst of one nothing is
    tried.
    """
    every = [_advise(cluster, wish, STEPS // len(found)) for wish in found]
    done = [each for each in every if each.reason is None]
    return min(done or every, key=lambda each: (len(each.moves) > 0, each.price))


def _advise(cluster: Cluster, wish: Wish, steps: int) -> Advice:
    if cluster.under_way is not None:
        text = "A cycle is under way; ask again."
        return Advice(wish, reason=Reason(BUSY, text, {}), is_cut=True)
    search = Search(cluster, wish)
    with asking(cluster, steps):
        _look(search)
        for chosen in _choices(search):
            if cluster.hardware.is_late:
                search.is_cut = True
                break
            if (moves := _moves(search, chosen)) is not None:
                return _told(search, chosen, moves)
    search.is_cut = search.is_cut or search.unlooked is not None
    return Advice(wish, reason=_reason(search), is_cut=search.is_cut)


def _told(search: Search, chosen: list[Candidate], moves: tuple[Move, ...]) -> Advice:
    found = Advice(search.wish, tuple(each.spot.address for each in chosen), 0, moves)
    found.already = sum(not each.lives for each in chosen)
    others = search.unlooked
    is_sure = len(chosen) - found.already <= 1 and not search.is_cut
    found.is_least = not moves or (is_sure and (others is None or found.price[0] <= others))
    return found


# Which cells.


def _look(search: Search) -> None:
    """Who is in cells of the type, those with the fewest GPUs in use; cheapest first."""
    cluster, hardware = search.cluster, search.cluster.hardware
    used = [hardware.used(state) for state in hardware.states]
    for state in hardware.states:
        if state.gpu_type == search.wish.chain.leaf:
            search.free += (state.usable & ~used[state.slot.number]).bit_count()
    spots = list(spots_of(search.wish.chain, search.wish.level))
    ranked = sorted(
        (sum((used[s.slot.number] & mask).bit_count() for s, mask in spot.leaves(hardware)), number)
        for number, spot in enumerate(spots)
    )
    if len(ranked) > CELLS_LOOKED:
        search.unlooked = ranked[CELLS_LOOKED][0]
        search.obstacles[UNTRIED] = len(ranked) - CELLS_LOOKED
    for _, number in ranked[:CELLS_LOOKED]:
        lives = occupants(cluster, spots[number])
        if isinstance(lives, str):
            search.obstacles[lives] += 1
        else:
            price = search.price(lives.values())
            search.candidates.append(Candidate(spots[number], lives, number, price))
    search.candidates.sort(key=lambda each: (bool(each.lives), each.price, each.number))


def _choices(search: Search) -> Iterator[list[Candidate]]:
    """As many cells as are wanted: those that are free already, and of the others by what they cost
    together, each time begun with another.
    """
    wish, candidates = search.wish, search.candidates
    free = [each for each in candidates if not each.lives][: wish.cells]
    others = [each for each in candidates if each.lives]
    wanted = wish.cells - len(free)
    if not wanted:
        yield free
    starts = len(others) - wanted + 1 if wanted else 0
    for number in range(min(starts, CELLS_TRIED)):
        chosen, lives = [others[number]], dict(others[number].lives)
        rest = others[number + 1 : number + 1 + CELLS_GATHERED]
        while len(chosen) < wanted and rest:
            search.cluster.hardware.steps += 1 + len(rest) // 2
            cheapest = min(rest, key=lambda each: _more(search, each, lives))
            rest.remove(cheapest)
            chosen.append(cheapest)
            lives |= cheapest.lives
        if len(chosen) == wanted:
            yield free + chosen
    if starts > CELLS_TRIED:
        search.obstacles[UNTRIED] += starts - CELLS_TRIED
    search.is_cut = search.is_cut or starts > CELLS_TRIED or (wanted > 1 and starts > 1)


def _more(search: Search, other: Candidate, lives: dict[str, Live]) -> tuple[int, float, int]:
    """What one more cell costs beside those of these gangs."""
    more = search.price(live for gang, live in other.lives.items() if gang not in lives)
    return (*more, other.number)


# Whether who is there fits elsewhere.


def _moves(search: Search, chosen: Sequence[Candidate]) -> tuple[Move, ...] | None:
    """None: some don't fit, or the cells are bound all the same."""
    cluster, hardware = search.cluster, search.cluster.hardware
    lives = {gang: live for each in chosen for gang, live in each.lives.items()}
    lives = {gang: live for gang, live in lives.items() if live.extra_of not in lives}
    spots = [each.spot for each in chosen]
    if not _may_have_room(search, lives.values(), spots):
        search.obstacles[ROOM] += 1
        return None
    restarts: list[Restart] = []
    with closed(hardware, spots):
        ordered = sorted(lives.values(), key=lambda e: (e.extra_of is not None, cluster.rank_of(e)))
        try:
            for live in ordered:
                hardware.steps += RESTART_STEPS
                restarts.append(Restart(cluster, live))
            obstacle = _place(search, restarts)
            if obstacle is None and not all(spot.is_free(hardware) for spot in spots):
                obstacle = BOUND
        finally:
            undo_restarts(restarts)
    if obstacle is not None:
        search.obstacles[obstacle] += 1
        return None
    return tuple(
        Move(
            restart.live,
            *search.price([restart.live]),
            restart.before,
            restart.places,
            restart.lender,
        )
        for restart in restarts
    )


def _place(search: Search, restarts: Sequence[Restart]) -> str | None:
    """All of them, those last that have to borrow; or why not."""
    hardware, left = search.cluster.hardware, list[Restart]()
    for restart in restarts:
        if not restart.place() and restart.live.extra_of is None:
            if not restart.live.gang.is_borrowing:
                return ROOM
            left.append(restart)
        if hardware.is_late:
            search.is_cut = True
            return UNTRIED
    return None if all(restart.borrow() for restart in left) else ROOM


def _may_have_room(search: Search, lives: Iterable[Live], spots: Sequence[Spot]) -> bool:
    """Surely not, where all want the chain's type of GPU and too few are free elsewhere."""
    cluster, hardware, leaf = search.cluster, search.cluster.hardware, search.wish.chain.leaf
    for live in lives:
        if live.extra_of is not None or live.id in cluster.extras:
            return True
        for role in live.gang.roles:
            types = role.kind.gpu_types or hardware.gpu_types
            if role.kind.gpus and role.kind.pin is None and tuple(types) != (leaf,):
                return True
    size = sum(mask.bit_count() for spot in spots for _, mask in spot.leaves(hardware))
    return search.free >= size


# Why not.


def _reason(search: Search) -> Reason:
    """What is in the way, with numbers."""
    wish, obstacles, texts = search.wish, search.obstacles, TEXTS
    count, what = sum(1 for _ in spots_of(wish.chain, wish.level)), wish.cell_type
    wanted = f"None of the {count} complete cells {what}"
    if wish.cells > 1:
        wanted, texts = f"Not {wish.cells} of the {count} complete cells {what}", OF_SEVERAL
    else:
        known = sum(obstacles[each] for each in TEXTS if each != UNTRIED)
        obstacles[UNTRIED] = count - known
    if wish.cells > count:
        cells = "is 1 complete cell" if count == 1 else f"are {count} complete cells"
        return Reason(CELLS, f"There {cells} {what}, not {wish.cells}.", {"cells": count})
    told = ", ".join(f"{obstacles[each]} {text}" for each, text in texts.items() if obstacles[each])
    text = f"{wanted} can be freed by moving the gangs there{': ' if told else ''}{told}."
    text += f" {search.free} GPUs of type {wish.chain.leaf} are free in all."
    if search.is_cut and not obstacles[UNTRIED]:
        text += " Not every choice was tried."
    numbers: dict[str, int | float | str | None] = {"cells": count, "free": search.free}
    numbers |= {each: obstacles[each] for each in TEXTS if obstacles[each]}
    return Reason(ROOM if obstacles[ROOM] else CELLS, text, numbers)


TEXTS = {
    UNWELL: "not well or not open",
    PINNED: "pinned",
    KEPT: "kept for gangs that wait",
    UNSETTLED: "with gangs that wait for something or leave",
    ROOM: "with gangs that don't fit elsewhere",
    BOUND: "parts of larger cells that stay bound",
    UNTRIED: "not tried",
}
"""Of so many cells."""

OF_SEVERAL = TEXTS | {ROOM: "choices tried whose gangs don't fit elsewhere"}
"""Where several cells are wanted."""
