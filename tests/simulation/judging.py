"""What is so of every stream of gangs, whatever is asked for: judges that look at each cycle.

They know what was decided, and ask the core only by letting something else happen in a copy of it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from random import Random

from scheduler.domain.core.interface import Core, GangState
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
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


def gang_of(core: Core, name: str) -> Gang:
    """One that has not ended."""
    found = core.gang(name)
    assert found is not None, name
    return found.gang


def waiting(core: Core) -> list[str]:
    """Gangs without places, the first to start first. What others grow by is not among them."""
    names = core.questions.first(len(core.gang_ids()))
    return [n for n in names if (each := core.gang(n)) and _is_new(each)]


def preempted_for_no_higher(core: Core, decided: Sequence[Decision]) -> Iterator[str]:
    """Gangs that are preempted for one of equal or lower priority of their own virtual cluster: not
    those that passed, and have stayed on reserved cells.
    """
    for each in decided:
        if isinstance(each, Preempted) and each.for_gang and each.reason.code != "reservation":
            victim, other = gang_of(core, each.gang), gang_of(core, each.for_gang)
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
        core = stream.core
        leaving = {each.gang for each in core.leaving()}
        passed = {name: core.exported(name).passed for name, run in running(core).items() if run}
        for kept in core.rows.reservations():
            late = [
                name
                for name, first in passed.items()
                if first == kept.gang and _is_late(core, name, kept.starts_at, now)
            ]
            stays = sorted(set(late) - leaving)
            if stays:
                self.met["late"] += 1
                if without(core, late, kept.gang, now) == "placed":
                    self.wrong.append(f"{now}: {kept.gang} could start if {stays} had left")


class Told(Judge):
    """A gang that is told of the order, or of a reservation, is told of another one of its virtual
    cluster. How often nothing else is in its way, and how often it is told so where something is,
    is counted: a reason is as of the last attempt. ``share``: of the cycles are looked at, in each
    of them one gang.
    """

    share = 0.2

    def __call__(self, stream: Stream, now: float, decided: list[Decision]) -> None:
        core = stream.core
        for each in decided:
            if isinstance(each, Deferred) and each.reason.code in ("order", "reservation"):
                self._names(core, each, now)
        new = [name for name in waiting(core) if gang_of(core, name).priority > OPPORTUNISTIC]
        if is_unwell(core) or not new or self.random.random() >= self.share:
            return  # where something is bad, others may get what is well
        gang = self.random.choice(sorted(new))
        mine = gang_of(core, gang)
        held = [name for name in core.gang_ids() if (s := core.gang(name)) and s.is_nominated]
        if stream.policy.is_strict and any(is_beside(mine, gang_of(core, each)) for each in held):
            return  # who is to start before it can't be thought away without its place
        others = [name for name in new if name != gang and is_beside(mine, gang_of(core, name))]
        is_held = without(core, others, gang, now) not in ("waits", "lent")
        found = core.gang(gang)
        told = None if found is None else found.published
        self.met[f"{told}"] += 1
        self.met["looked"] += 1
        self.met["outdated"] += is_held != (told in ("order", "reservation"))

    def _names(self, core: Core, told: Deferred, now: float) -> None:
        name = str(told.reason.numbers["for"])
        first, mine = core.gang(name), gang_of(core, told.gang)
        self.met["names"] += 1
        if first is None or name == told.gang or not is_beside(first.gang, mine):
            self.wrong.append(f"{now}: {told.gang} is told of {name}")


def running(core: Core) -> Mapping[str, float | None]:
    """Gangs by their start; None: they wait."""
    found = {name: core.gang(name) for name in core.gang_ids()}
    return {name: each.started_at for name, each in found.items() if each is not None}


def is_unwell(core: Core) -> bool:
    """Something can't be used that is there."""
    nodes = (core.nodes.of(name) for name in core.forest.machines)
    return any(
        each is not None
        and (each.bad or not each.is_healthy or each.is_cordoned or each.is_drained)
        for each in nodes
    )


def without(core: Core, others: Collection[str], gang: str, now: float) -> str:
    """What becomes of a gang that waits if others were not there: in a copy."""
    other = deepcopy(core)
    for each in others:
        other.release(each)
    for each in other.cycle(now):
        if isinstance(each, Placed) and each.gang == gang:
            return "placed" if each.lender is None else "lent"
    found = other.gang(gang)
    return "reserved" if found is None or found.is_nominated else "waits"


def _bound_cells(core: Core) -> dict[str, set[Cell]]:
    """Those that are bound to a virtual cluster's quota."""
    names = {owner_of(name): name for name in core.cells.quotas()}
    found: dict[str, set[Cell]] = {name: set() for name in names.values()}
    for slot in core.forest.slots:
        for mask, bound in core.cells.slot(slot).cells:
            if bound.owner in names:
                found[names[bound.owner]] |= {(slot.machine, gpu) for gpu in slot.indices(mask)}
    return found


def _has_place(decision: Decision) -> bool:
    is_told = isinstance(decision, Deferred) and decision.reason.code == "preempting"
    return is_told or isinstance(decision, Placed)


def _is_late(core: Core, name: str, starts_at: float, now: float) -> bool:
    """The time has come; or it went there by what it expects alone, and that has passed."""
    found = core.gang(name)
    assert found is not None
    assert found.started_at is not None
    began, limit_s, expected_s = found.started_at, found.gang.limit_s, found.gang.expected_s
    # Rounded up to two digits, as the rules have it.
    by_limit = limit_s is not None and began + limit_s <= starts_at
    return now >= starts_at or (
        not by_limit and expected_s is not None and now >= began + 1.1 * expected_s
    )


def _is_new(state: GangState) -> bool:
    return state.started_at is None and state.is_waiting and not state.is_nominated


def is_beside(one: Gang, other: Gang) -> bool:
    """They are of one virtual cluster and class."""
    is_same = one.virtual_cluster == other.virtual_cluster
    return is_same and (one.priority == OPPORTUNISTIC) == (other.priority == OPPORTUNISTIC)
