"""Does it fit? The one question: admission, preemption, reservations and explanations ask it, each
under its own overlay.

Example: an operator asks why a gang waits. Under a trial in which all nodes are healthy it fits: it
waits for health.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from scheduler.domain.core.evict import NO_COST, WHOLE_GANG, Choice, CostOf, Rules, choose
from scheduler.domain.core.nodes import Place, Pool, Slot, Workload
from scheduler.domain.core.place import Placer
from scheduler.domain.core.shortage import shortage, wanted
from scheduler.domain.core.state import State
from scheduler.domain.core.views import When


@dataclass(frozen=True, slots=True)
class Fit:
    """The workload has its places. ``victims`` are preempted for it, and ``downgraded`` go on
    without cells; ``is_waiting``: its places are held until others have left them.
    """

    victims: tuple[Workload, ...] = ()
    is_waiting: bool = False
    downgraded: tuple[Workload, ...] = ()


@dataclass(frozen=True, slots=True)
class No:
    """Why it does not fit, with numbers."""

    code: str
    numbers: dict[str, int] = field(default_factory=dict)


QUOTA, ROOM, ORDER = "quota", "room", "order"
SPARED = 24
"""Victims that are tried to be spared one by one."""

DOWNGRADED = 128
"""Gangs that are downgraded together for one, at the most."""

SHRUNK = 128
"""Surplus pods that leave together so that no gang has to, at the most."""


def fit(state: State, workload: Workload, rules: Rules | None) -> Fit | No:
    """Place a workload: without victims; else where others leave already; else by downgrading
    others; else by making them leave. Nothing has changed where the answer is no. ``rules`` None:
    without victims alone.
    """
    if workload.gang.is_preflight:
        return _past_orders(state, workload)
    if (short := lacks(state, workload)) is not None:
        return short
    if Placer(state, workload, When.NOW).place():
        return Fit()
    if rules is None:
        return No(ROOM)
    if state.leaving and Placer(state, workload, When.SOON).place():
        return Fit(is_waiting=True)
    if workload.is_opportunistic:
        return No(ROOM)
    found = _by_downgrades(state, workload, rules)
    if found is not None:
        return found
    claimed = claim(state, workload)
    if not claimed:
        return No(ROOM)
    choice = _choose(state, workload, rules, claimed)
    if choice is None:
        return No(ROOM)
    with state.trial() as trial:
        for victim in choice.victims:
            state.evict(victim)
        is_waiting = not Placer(state, workload, When.NOW).place()  # else it needed quota alone
        if is_waiting and not _place_soon(state, workload, choice.slots):
            return No(ROOM)
        trial.commit()
    return Fit(choice.victims, is_waiting=is_waiting)


def _past_orders(state: State, workload: Workload) -> Fit | No:
    """On its allowed nodes, whether they are cordoned or drained, at nobody's cost."""
    allowed = sorted(workload.gang.allowed_nodes or ())
    nodes = [state.nodes[name] for name in allowed if name in state.nodes]
    with state.trial() as trial:
        with state.unordered(nodes):
            is_placed = Placer(state, workload, When.NOW).place()
        if is_placed:
            trial.commit()
    return Fit() if is_placed else No(ROOM)


def _by_downgrades(state: State, workload: Workload, rules: Rules) -> Fit | None:
    """The smallest ones lose their cells: as few as serve, of these those that can't be spared."""
    every = list(rules.lazy(workload))
    if not every or not _fits_beside_all(state, workload):
        return None
    lazy = sorted(every, key=_size)[:DOWNGRADED]
    lazy = _fewest(lazy, lambda few: bool(_without_cells(state, workload, few, is_kept=False)))
    if not lazy:
        return None
    for each in lazy[-2 : -SPARED - 2 : -1]:  # without the last it does not fit
        rest = [other for other in lazy if other is not each]
        if _without_cells(state, workload, rest, is_kept=False):
            lazy = rest
    when = _without_cells(state, workload, lazy, is_kept=True)
    return Fit((), is_waiting=when is When.SOON, downgraded=tuple(lazy))


def _size(lazy: Workload) -> tuple[int, int, int, int, str]:
    """The smallest first; without GPUs those together that share a leaf, few before many."""
    place = next((each for each in lazy.places if each.is_shared), None)
    if lazy.gpus or place is None:
        return lazy.gpus, 0, 0, 0, lazy.name
    slot, leaf = place.slot, place.charge
    sharing = len(slot.shares[leaf].priorities)
    return 0, sharing, slot.node.number, leaf, lazy.name


def _fits_beside_all(state: State, workload: Workload) -> bool:
    """It would fit on idle GPUs in any cells: gangs that are downgraded keep their GPUs."""
    with state.trial():
        state.be_opportunistic(workload)
        return Placer(state, workload, When.SOON).place()


def _fewest(
    some: list[Workload], is_enough: Callable[[Sequence[Workload]], bool]
) -> list[Workload]:
    """The first of them that are enough; none if all are not."""
    if not some or not is_enough(some):
        return []
    few, enough = 0, len(some)
    while few + 1 < enough:
        count = (few + enough) // 2
        if is_enough(some[:count]):
            enough = count
        else:
            few = count
    return some[:enough]


def _without_cells(
    state: State, workload: Workload, lazy: Sequence[Workload], *, is_kept: bool
) -> When | None:
    """Downgrade them and place the workload; None: it does not fit, and nothing has changed."""
    with state.trial() as trial:
        for each in lazy:
            state.downgrade(each)
        for when in (When.NOW, When.SOON):
            if Placer(state, workload, when).place():
                if is_kept:
                    trial.commit()
                return when
    return None


def lacks(state: State, workload: Workload) -> No | None:
    """Gangs of its priority or higher leave it too little quota."""
    short = shortage(state, wanted(state, workload), workload.priority)
    return None if short is None else No(QUOTA, short._asdict())


def claim(state: State, workload: Workload, without: Collection[Pool] = ()) -> tuple[Place, ...]:
    """Where it would be if all were gone that it can make leave, and nothing but leaves counted;
    nowhere if it does not fit even so. ``without``: pools where it may not be. Nothing is changed.
    """
    placer = Placer(state, workload, When.CLAIM, without)
    with state.trial():
        return tuple(placer.taken) if placer.place() else ()


def _choose(
    state: State, workload: Workload, rules: Rules, claimed: Sequence[Place]
) -> Choice | None:
    """Where the victims are more than may leave inside its virtual cluster, none of these. Surplus
    pods alone, where that serves.
    """
    for is_inside in (True, False):
        cost_of = rules.of(workload, is_inside=is_inside)
        choice = choose(state, workload, cost_of, claimed)
        if choice is None:
            return None
        if any((cost_of(each) or NO_COST) >= WHOLE_GANG for each in choice.victims):
            choice = _surplus(state, workload, rules, choice.slots) or choice
        victims = _spare(state, workload, choice, cost_of)
        if not rules.is_too_many(workload, victims):
            return Choice(victims, choice.slots)
    return None


def _surplus(
    state: State, workload: Workload, rules: Rules, slots: tuple[Slot, ...]
) -> Choice | None:
    """Surplus pods alone, the largest first; None: these do not serve."""
    some = sorted(rules.surplus(workload), key=lambda each: (-each.gpus, each.name))[:SHRUNK]
    some = _fewest(some, lambda few: _serves(state, workload, few, slots))
    return Choice(tuple(some), slots) if some else None


def _serves(
    state: State, workload: Workload, victims: Iterable[Workload], slots: Sequence[Slot]
) -> bool:
    """It fits without these. Nothing is changed."""
    with state.trial():
        for victim in victims:
            state.evict(victim)
        return _place_soon(state, workload, slots)


def _place_soon(state: State, workload: Workload, slots: Sequence[Slot]) -> bool:
    """Place it where others leave: as well as can be, else just on these slots."""
    placer = Placer(state, workload, When.SOON)
    return placer.place() or placer.place_on(slots)


def _spare(
    state: State, workload: Workload, choice: Choice, cost_of: CostOf
) -> tuple[Workload, ...]:
    """Without those that need not leave, the costliest spared first."""
    victims = sorted(choice.victims, key=lambda each: cost_of(each) or NO_COST, reverse=True)
    if len(victims) > 1:
        for victim in victims[:SPARED]:
            rest = [each for each in victims if each is not victim]
            if _serves(state, workload, rest, choice.slots):
                victims = rest
    return tuple(victims)
