"""Which gangs would have to begin anew elsewhere so that cells are free as a whole; none is moved.

Example: an operator wants a free rack. In a trial the gangs of the rack where they have the fewest
GPUs are taken away, its cells are closed, and each gang is placed anew, at nobody's cost. Where one
finds no place the next rack is tried.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduler.domain.core.attempt import attempt
from scheduler.domain.core.fit import Fit
from scheduler.domain.core.forest import Cell, Chain
from scheduler.domain.core.interface import Advice, Move
from scheduler.domain.core.lend import Lending, lender_of
from scheduler.domain.core.model import PodPlace, Reason
from scheduler.domain.core.nodes import Binding, Phase, Slot, Workload, mask_on
from scheduler.domain.core.reserve import beside
from scheduler.domain.core.restore import class_of, pod_place
from scheduler.domain.core.shapes import Part
from scheduler.domain.core.state import State
from scheduler.domain.core.transitions import Transitions
from scheduler.domain.core.wishes import Wish

CELLS_LOOKED = 512
"""Cells of which the gangs are looked at: those with the fewest GPUs in use."""

CELLS_TRIED = 64
"""Cells with which a choice is begun, the cheapest; and among which the others are chosen."""

PLACED = 256
"""Gangs that are placed anew in thought, for one advice."""

UNWELL, PINNED, KEPT, UNSETTLED, BOUND = "unwell", "pinned", "kept", "unsettled", "bound"
ROOM, UNTRIED, CELLS = "room", "untried", "cells"

TEXTS = {
    UNWELL: "not usable",
    PINNED: "pinned",
    KEPT: "reserved for gangs that wait",
    UNSETTLED: "with gangs that wait for something or leave",
    BOUND: "within larger cells that stay bound",
    ROOM: "whose gangs don't fit elsewhere",
    UNTRIED: "not tried",
}
"""Why cells, or choices of several, can't be freed."""


class Spot(NamedTuple):
    """A cell; inside a node: the ``part`` of it."""

    cell: Cell
    part: Part | None = None

    @property
    def address(self) -> str:
        """The cell's full address."""
        if self.part is None or self.cell.slot is None:
            return self.cell.address
        return self.cell.slot.address(self.part)

    def leaves(self, state: State) -> Iterator[tuple[Slot, int]]:
        """Slots that are in it or around it, with the leaves that are in it."""
        for slot in state.slots_of(self.cell):
            yield slot, slot.shape.full if self.part is None else self.part.mask

    def is_free(self, state: State) -> bool:
        """No cell in it, above it or itself is bound."""
        if self.part is None:
            return state.buddies[self.cell.chain.name].is_free(self.cell)
        return not self.part.mask & ~state.slots_of(self.cell)[0].open


class Price(NamedTuple):
    """GPUs that move, and the work in GPU milliseconds that is lost."""

    gpus: int = 0
    lost_ms: int = 0


class _Candidate(NamedTuple):
    """A cell, and those that would have to move."""

    price: Price
    number: int
    spot: Spot
    workloads: frozenset[Workload]


def advise(gangs: Transitions, lending: Lending, found: Sequence[Wish]) -> Advice:
    """The best of these wishes; one at least. Nothing is changed."""
    every = [_Search(gangs, lending, wish, PLACED // len(found)).advice() for wish in found]
    done = [each for each in every if each.reason is None]
    return min(done or every, key=lambda each: (len(each.moves) > 0, each.gpus, each.lost_gpu_s))


def spots_of(chain: Chain, level: int) -> Iterator[Spot]:
    """The complete cells of a level, in order."""
    if level >= chain.node_level:
        yield from (Spot(cell) for cell in chain.cells[level] if cell.is_complete)
        return
    for cell in chain.cells[chain.node_level]:
        assert cell.slot is not None
        yield from (Spot(cell, p) for p in cell.slot.shape.parts[level] if p.is_complete)


class _Search:
    """``left``: gangs that may yet be placed. ``_obstacles``: why cells are out of the question,
    counted. ``_unlooked``: so many GPUs are in use in each cell that was not looked at, at least.
    """

    def __init__(self, gangs: Transitions, lending: Lending, wish: Wish, left: int) -> None:
        self._gangs = gangs
        self._state = gangs.state
        self._lending = lending
        self._wish = wish
        self._left = left
        self._spots = list(spots_of(wish.chain, wish.level))
        self._obstacles: Counter[str] = Counter()
        self._unlooked: int | None = None
        self._is_cut = False
        self._kept: dict[Slot, int] = {}
        for each in (*gangs.records.reservations(), *gangs.records.kept):
            for slot, mask in each.cells.items():
                self._kept[slot] = self._kept.get(slot, 0) | mask

    def advice(self) -> Advice:
        """The cheapest choice whose gangs all fit elsewhere."""
        candidates = self._candidates()
        free = [each for each in candidates if not each.workloads][: self._wish.cells]
        others = [each for each in candidates if each.workloads]
        for chosen in self._choices(others, self._wish.cells - len(free)):
            if self._left <= 0:
                self._is_cut = True
                break
            moves = self._moves([*free, *chosen])
            if not isinstance(moves, str):
                return self._found(free, chosen, moves)
            self._obstacles[moves] += 1
        return self._advice((), 0, (), self._reason(), is_least=False)

    def _found(
        self, free: list[_Candidate], chosen: list[_Candidate], moves: tuple[Move, ...]
    ) -> Advice:
        cells = tuple(each.spot.address for each in (*free, *chosen))
        gpus = sum(move.gpus for move in moves)
        is_sure = len(chosen) <= 1 and not self._is_cut
        is_sure &= self._unlooked is None or gpus <= self._unlooked
        return self._advice(cells, len(free), moves, None, is_least=not moves or is_sure)

    def _advice(
        self,
        cells: tuple[str, ...],
        already: int,
        moves: tuple[Move, ...],
        reason: Reason | None,
        *,
        is_least: bool,
    ) -> Advice:
        return Advice(
            self._wish.chain.name,
            self._wish.cell_type,
            cells,
            already,
            sum(move.gpus for move in moves),
            sum(move.lost_gpu_s for move in moves),
            moves,
            reason,
            is_least,
            self._is_cut,
        )

    # Which cells.

    def _candidates(self) -> list[_Candidate]:
        """Cells that could be freed, of those with the fewest GPUs in use; the cheapest first."""
        found: list[_Candidate] = []
        ranked = sorted((self._used(spot), number) for number, spot in enumerate(self._spots))
        if len(ranked) > CELLS_LOOKED:
            self._unlooked = ranked[CELLS_LOOKED][0]
            self._obstacles[UNTRIED] = len(ranked) - CELLS_LOOKED
        for _, number in ranked[:CELLS_LOOKED]:
            there = self._workloads(self._spots[number])
            if isinstance(there, str):
                self._obstacles[there] += 1
            else:
                found.append(_Candidate(self._price(there), number, self._spots[number], there))
        return sorted(found, key=lambda each: each[:2])

    def _used(self, spot: Spot) -> int:
        leaves = spot.leaves(self._state)
        return sum(((slot.used | slot.held) & mask).bit_count() for slot, mask in leaves)

    def _choices(self, others: list[_Candidate], wanted: int) -> Iterator[list[_Candidate]]:
        """So many cells, by what they cost together, each time begun with another."""
        if not wanted:
            yield []
            return
        starts = len(others) - wanted + 1
        self._is_cut = starts > CELLS_TRIED or (wanted > 1 and starts > 1)
        for number in range(min(starts, CELLS_TRIED)):
            chosen, rest = [others[number]], others[number + 1 : number + 1 + CELLS_TRIED]
            there = set(chosen[0].workloads)
            while len(chosen) < wanted and rest:
                best = min(rest, key=lambda e: (self._price(e.workloads - there), e.number))
                rest.remove(best)
                chosen.append(best)
                there |= best.workloads
            if len(chosen) == wanted:
                yield chosen
        self._obstacles[UNTRIED] += max(starts - CELLS_TRIED, 0)

    def _workloads(self, spot: Spot) -> frozenset[Workload] | str:
        """Those that would have to move; or why the cell can't be freed."""
        found, users = set[Workload](), set[Workload]()
        leaves = dict(spot.leaves(self._state))
        for slot, mask in leaves.items():
            if mask & ~slot.good or not slot.node.is_open:
                return UNWELL
            if mask & self._kept.get(slot, 0):
                return KEPT
            is_whole = spot.part is None and all(each in leaves for each in slot.node.slots)
            for other, (gpus, charge) in slot.pods.items():
                if is_whole or (gpus | charge) & mask:
                    found.add(other)
            for cells, binding in slot.bindings:
                if cells & mask and binding.quota is None:
                    return PINNED
                if cells & mask:
                    users |= self._users(binding)
        moving = self._with_surplus(found)
        if not all(map(_can_move, moving)):
            return UNSETTLED
        return frozenset(moving) if users <= moving else BOUND

    def _users(self, binding: Binding) -> set[Workload]:
        return {
            other
            for slot in self._state.slots_of(binding.cell)
            for other, (_, charge) in slot.pods.items()
            if charge & mask_on(binding, slot)
        }

    def _with_surplus(self, workloads: Iterable[Workload]) -> set[Workload]:
        """With what these have grown by, where that has a place."""
        found = set(workloads)
        for each in workloads:
            if each.parent is None and each.wants:  # no hold of a reservation
                children = self._gangs.records.of(each).children
                found |= {child.workload for child in children if child.workload.places}
        return found

    def _price(self, workloads: Iterable[Workload]) -> Price:
        gpus = lost_ms = 0
        for each in workloads:
            run, now = self._gangs.records.of(each).run, self._gangs.costs.now
            gpus += each.gpus
            if run is not None and not each.is_surplus:
                lost_ms += run.lost_ms(each.gang, now) * max(each.gpus, 1)
        return Price(gpus, lost_ms)

    # Whether those that move fit elsewhere.

    def _moves(self, cells: Sequence[_Candidate]) -> tuple[Move, ...] | str:
        """Where each begins anew; or why not all do."""
        moving = {each for candidate in cells for each in candidate.workloads}
        in_order = sorted(moving, key=self._rank_of)
        before = {each: _by_pod(each) for each in in_order}
        prices = {each: self._price([each]) for each in in_order}
        with self._state.trial():
            for each in in_order:
                self._state.remove(each)
            for candidate in cells:
                self._close(candidate.spot)
            anew = self._placed(in_order)
            if anew is None:
                return ROOM
            if not all(candidate.spot.is_free(self._state) for candidate in cells):
                return BOUND
            return tuple(
                self._move(each, prices[each], before[each], anew[each]) for each in in_order
            )

    def _move(
        self, workload: Workload, price: Price, before: Mapping[str, PodPlace], anew: Workload
    ) -> Move:
        return Move(
            workload.gang.id,
            workload.is_surplus,
            class_of(self._gangs.records.of(workload)),
            price.gpus,
            price.lost_ms / 1_000,
            lender_of(anew) if anew.places else None,
            before,
            _by_pod(anew),
        )

    def _rank_of(self, workload: Workload) -> tuple[object, ...]:
        """Surplus comes after all gangs."""
        record = self._gangs.records.of(workload)
        return workload.is_surplus, self._gangs.queue.rank_of(workload, record.order)

    def _close(self, spot: Spot) -> None:
        for slot, mask in spot.leaves(self._state):
            self._state.set_good(slot, slot.good & ~mask)
            if spot.part is None:  # nor may pods without GPUs come
                self._state.set_open(slot.node, is_healthy=True, is_cordoned=True, is_drained=False)

    def _placed(self, workloads: Sequence[Workload]) -> dict[Workload, Workload] | None:
        """Each anew, at nobody's cost, those last that have to borrow; None: not all fit."""
        state, anew, left = self._state, dict[Workload, Workload](), list[Workload]()
        for each in workloads:
            self._left -= 1
            again = anew[each] = replace(each, phase=Phase.WAITING, places=())
            state.ask_anew(again)
            reservations = beside(self._gangs.records, again)
            answer, _ = attempt(state, again, reservations, self._gangs.costs, is_free=True)
            if not isinstance(answer, Fit) and not each.is_surplus:
                left.append(again)
        borrowers = self._gangs.records.borrowers()
        for again in left:
            may_borrow = again.gang.is_borrowing
            if not may_borrow or self._lending.borrow(again, borrowers) is None:
                return None
            borrowers.append(again)
        return anew

    def _reason(self) -> Reason:
        """Why there is no advice, with numbers."""
        wish, what, count = self._wish, self._wish.cell_type, len(self._spots)
        if wish.cells > count:
            cells = "is 1 complete cell" if count == 1 else f"are {count} complete cells"
            return Reason(CELLS, f"There {cells} {what}, not {wish.cells}.", {"cells": count})
        pools = [pool for pool in self._state.pools if pool.gpu_type == wish.chain.gpu_type]
        free = sum(slot.free.bit_count() for pool in pools for slot in pool.slots)
        found = {each: self._obstacles[each] for each in TEXTS if self._obstacles[each]}
        told = ", ".join(f"{number} {TEXTS[each]}" for each, number in found.items())
        some = f"{'None' if wish.cells == 1 else f'Not {wish.cells}'} of the {count} complete cells"
        can = f"The only complete cell {what} can't" if count == 1 else f"{some} {what} can"
        gpus = f"1 GPU of type {wish.chain.gpu_type} is"
        if free != 1:
            gpus = f"{free} GPUs of type {wish.chain.gpu_type} are"
        text = f"{can} be freed by moving the gangs there: {told}. {gpus} free in all."
        numbers = {"cells": count, "free": free, **found}
        return Reason(ROOM if ROOM in found else CELLS, text, numbers)


def _by_pod(workload: Workload) -> dict[str, PodPlace]:
    return {place.pod: pod_place(place) for place in workload.places}


def _can_move(workload: Workload) -> bool:
    """All of it runs, and nothing of it leaves."""
    pods = sum(len(names) for _, names in workload.wants)
    return workload.phase is Phase.RUNNING and len(workload.places) == pods
