"""What is so of every stream of gangs, whatever is asked for: judges that look at each cycle.

They know what was decided, and ask the core only by letting something else happen in a copy of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from random import Random

import pytest
from scheduler.domain.core import preempting
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.cycle import EXPLAINED, run_cycle
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Gang,
    Grown,
    Placed,
    Preempted,
    PreemptionCancelled,
    Refused,
    Reserved,
    Shrunk,
)
from scheduler.domain.core.owning import owner_of
from streams import Stream

EPSILON = 1e-6

Cell = tuple[str, int]
"""A node and the index of a GPU."""


@contextmanager
def victims_seen(
    look: Callable[[Cluster, Live, preempting.Room, Sequence[Live]], None],
) -> Iterator[None]:
    """``look`` at whom a gang makes leave, and who loses what was reserved, as that is decided."""
    make_room = preempting._make_room

    def made(
        cluster: Cluster,
        live: Live,
        room: preempting.Room,
        losers: Sequence[Live],
        now: float,
    ) -> list[Decision]:
        if not cluster.hardware.is_late:
            look(cluster, live, room, losers)
        return make_room(cluster, live, room, losers, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preempting, "_make_room", made)
        yield


def preempted_for_no_higher(cluster: Cluster, decided: Sequence[Decision]) -> Iterator[str]:
    """Gangs that are preempted for one of equal or lower priority of their own virtual cluster: not
    those that passed, and have stayed on kept cells.
    """
    for each in decided:
        if isinstance(each, Preempted) and each.for_gang and each.reason.code != "reservation":
            victim, other = cluster.gangs[each.gang].gang, cluster.gangs[each.for_gang].gang
            is_own = victim.virtual_cluster == other.virtual_cluster
            if is_own and victim.priority >= other.priority:
                yield f"{victim.id} ({victim.priority}) for {other.id} ({other.priority})"


class Judge:
    """``wrong``: what is not as it should be; ``met``: how often what was to be looked at was
    there.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.wrong: list[str] = []
        self.met: Counter[str] = Counter()

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        """One cycle is over."""
        raise NotImplementedError


class Kept(Judge):
    """Who may go on cells that are kept for others, by the decisions alone: who comes before them,
    or will be gone in time by its limit, or else by what it expects, and costs nobody anything.
    Judged are cells that were bound to their virtual cluster when that was decided: for others it
    has no quota yet, and gets that later, elsewhere perhaps.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cells: dict[str, frozenset[Cell]] = {}
        self.starts_at: dict[str, float] = {}
        self.since: dict[str, float] = {}
        self.said_in: dict[str, int] = {}
        self.has_place_since: dict[str, int] = {}
        self.bound: dict[str, set[Cell]] = {}
        self.bound_then: dict[str, dict[str, set[Cell]]] = {}
        self.cycles = 0

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        self.cycles += 1
        placed = {each.gang for each in decided if _has_place(each)}
        for gang in placed:  # it has its place from this cycle on, whenever that is said
            self._forget(gang)
        for each in decided:
            if isinstance(each, Reserved) and each.starts_at is not None:
                if each.gang not in placed:
                    self._keep(each, now)
            elif isinstance(each, Reserved | Refused):
                self._forget(each.gang)
            elif isinstance(each, Preempted | Shrunk) and each.for_gang is not None:
                self.has_place_since[each.for_gang] = self.cycles
                self.bound_then[each.for_gang] = self.bound
            elif isinstance(each, Deferred) and each.reason.code == "preempting":
                self.has_place_since.setdefault(each.gang, self.cycles)
                self.bound_then.setdefault(each.gang, self.bound)
            elif isinstance(each, PreemptionCancelled):
                self.has_place_since.pop(each.gang, None)
                self.bound_then.pop(each.gang, None)
            elif isinstance(each, Placed | Grown):
                self._starts(stream, each, now)
        self.bound = _bound_cells(stream.core)

    def _keep(self, reserved: Reserved, now: float) -> None:
        assert reserved.starts_at is not None
        name = reserved.gang
        self.cells[name] = frozenset((node, gpu) for node, gpus in reserved.cells for gpu in gpus)
        self.starts_at[name] = reserved.starts_at
        self.since.setdefault(name, now)
        self.said_in[name] = self.cycles

    def _forget(self, name: str) -> None:
        for each in (self.cells, self.starts_at, self.since, self.said_in):
            each.pop(name, None)  # type: ignore[attr-defined]

    def _starts(self, stream: Stream, decision: Placed | Grown, now: float) -> None:
        gang = stream.runs[decision.gang].gang
        known = self.has_place_since.pop(gang.id, self.cycles)
        bound = self.bound_then.pop(gang.id, self.bound)
        places = {(place.node, gpu) for place in decision.pods for gpu in place.gpus}
        for other, cells in self.cells.items():
            first = stream.runs[other].gang
            is_loan = decision.lender is not None
            is_behind = (
                (decision.lender or gang.virtual_cluster) == first.virtual_cluster
                and gang.priority >= 0
                and (is_loan or gang.priority <= first.priority)
                and (known > self.said_in[other] or known == self.cycles)
            )
            if is_behind and places & cells & bound.get(first.virtual_cluster, set()):
                self.met["passes"] += 1
                may_not = isinstance(decision, Grown) or is_loan or known < self.cycles
                if may_not or not self._is_in_time(gang, other, now):
                    self.wrong.append(f"{now}: {gang.id} starts on what is kept for {other}")

    def _is_in_time(self, gang: Gang, other: str, now: float) -> bool:
        bounds_s = (each for each in (gang.limit_s, gang.expected_s) if each is not None)
        return any(now + each <= self.starts_at[other] + EPSILON for each in bounds_s)


class Punctual(Judge):
    """Who passed, and expected to be gone by now, holds the gang that it passed no longer than for
    the grace.
    """

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        cluster = stream.core
        for first, kept in list(cluster.reservations.by_gang.items()):
            late = [
                live
                for live in cluster.gangs.values()
                if live.passed == first
                and live.started_at is not None
                and _is_late(live, kept.starts_at, now)
            ]
            stays = [live.id for live in late if not live.is_leaving]
            if stays:
                self.met["late"] += 1
                if without(cluster, [live.id for live in late], first, now) == "placed":
                    self.wrong.append(f"{now}: {first} could start if {stays} had left")


class Told(Judge):
    """Who waits is told of the order, or of what is kept, if nothing else is in its way; and nobody
    else is. ``share``: of the cycles are looked at, in each of them one gang.
    """

    share = 0.3

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        cluster = stream.core
        for each in decided:
            if isinstance(each, Deferred) and each.reason.code in ("order", "reservation"):
                self._names(cluster, each, now)
        waiting = [gang for gang in cluster.queue.gangs if _is_new(cluster.gangs[gang])]
        if len(waiting) > EXPLAINED or cluster.hardware.unwell:
            return  # not all reasons are looked at; others may get what is well
        if not waiting or self.random.random() >= self.share:
            return
        gang = self.random.choice(sorted(waiting))
        live = cluster.gangs[gang]
        if cluster.policy.is_strict and any(
            _is_beside(cluster, live, other) for other in cluster.reserved
        ):
            return  # who is to start before it can't be thought away without its place
        others = [
            other
            for other in cluster.queue.gangs
            if other != gang and _is_new(cluster.gangs[other]) and _is_beside(cluster, live, other)
        ]
        is_held = without(cluster, others, gang, now) not in ("waits", "lent")
        self.met[f"{live.told}"] += 1
        if is_held != (live.told in ("order", "reservation")):
            self.wrong.append(f"{now}: {gang} is told {live.told}; held by others only: {is_held}")

    def _names(self, cluster: Cluster, told: Deferred, now: float) -> None:
        first = cluster.gangs.get(str(told.reason.numbers["for"]))
        live = cluster.gangs[told.gang]
        self.met["names"] += 1
        if first is None or first is live or first.owner != live.owner:
            self.wrong.append(f"{now}: {told.gang} is told of {told.reason.numbers['for']}")


def without(cluster: Cluster, others: list[str], gang: str, now: float) -> str:
    """What becomes of a gang that waits if others were not there: in a copy."""
    other = deepcopy(cluster)
    for each in others:
        other.release(each)
    decided = run_cycle(other, now)
    for each in decided:
        if isinstance(each, Placed) and each.gang == gang:
            return "placed" if each.lender is None else "lent"
    live = other.gangs.get(gang)
    return "reserved" if live is None or live.reserved else "waits"


def _bound_cells(cluster: Cluster) -> dict[str, set[Cell]]:
    """Those that are bound to a virtual cluster's quota."""
    return {
        name: {
            (state.machine.name, gpu)
            for state in cluster.hardware.states
            for gpu in state.slot.indices(state.bound.get(owner_of(name), 0))
        }
        for name in cluster.hardware.forest.quotas
    }


def _has_place(decision: Decision) -> bool:
    is_told = isinstance(decision, Deferred) and decision.reason.code == "preempting"
    return is_told or isinstance(decision, Placed)


def _is_late(live: Live, starts_at: float, now: float) -> bool:
    """The time has come; or it went there by what it expects alone, and that has passed."""
    began, limit_s, expected_s = live.started_at, live.gang.limit_s, live.gang.expected_s
    assert began is not None
    # Rounded up to two digits, as the rules have it.
    by_limit = limit_s is not None and began + limit_s <= starts_at
    return now >= starts_at or (
        not by_limit and expected_s is not None and now >= began + 1.1 * expected_s
    )


def _is_new(live: Live) -> bool:
    return not live.is_guest and not live.pods and live.extra_of is None


def _is_beside(cluster: Cluster, live: Live, other: str) -> bool:
    return cluster.gangs[other].owner == live.owner
