"""Does it fit? The one question: admission, preemption, reservations and explanations ask it, each
under its own overlay.

Example: an operator asks why a gang waits. Under a trial in which all nodes are healthy it fits: it
waits for health.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scheduler.domain.core.machines import NEVER
from scheduler.domain.newcore.evict import NOBODY, Choice, CostOf, Rules, choose
from scheduler.domain.newcore.nodes import Place, Slot, Workload
from scheduler.domain.newcore.place import Placer
from scheduler.domain.newcore.state import State
from scheduler.domain.newcore.views import When


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


@dataclass(frozen=True, slots=True)
class Shortage:
    """More ``leaves`` are wanted than there are to ``spare``: in a pin, of GPU types, or of all."""

    leaves: int
    spare: int
    pin: str | None = None
    gpu_types: tuple[str, ...] = ()


QUOTA, ROOM = "quota", "room"
SPARED = 24
"""Victims that are tried to be spared one by one."""

DOWNGRADED = 128
"""Gangs that are downgraded together for one, at the most."""


def fit(state: State, workload: Workload, rules: Rules | None) -> Fit | No:
    """Place a workload: at nobody's cost; else where others leave already; else by downgrading
    others; else by making them leave. Nothing has changed where the answer is no. ``rules`` None:
    at nobody's cost alone.
    """
    no = lacks(state, workload)
    if no is not None:
        return no
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
    cost_of = rules.of(workload)
    choice = choose(state, workload, cost_of, claimed)
    if choice is None:
        return No(ROOM)
    victims = _spare(state, workload, choice, cost_of)
    with state.trial() as trial:
        if not _with_victims(state, workload, victims, choice.slots):
            return No(ROOM)
        trial.commit()
    return Fit(victims, is_waiting=True)


def _by_downgrades(state: State, workload: Workload, rules: Rules) -> Fit | None:
    """The smallest ones lose their cells; those that need not keep them, the largest first."""
    lazy = sorted(rules.lazy(workload), key=lambda each: (each.gpus, each.name))[:DOWNGRADED]
    if not lazy or not _without_cells(state, workload, lazy, is_kept=False):
        return None
    for each in lazy[: -SPARED - 1 : -1]:
        rest = [other for other in lazy if other is not each]
        if rest and _without_cells(state, workload, rest, is_kept=False):
            lazy = rest
    when = _without_cells(state, workload, lazy, is_kept=True)
    return Fit((), is_waiting=when is When.SOON, downgraded=tuple(lazy))


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


def claim(state: State, workload: Workload) -> tuple[Place, ...]:
    """Where it would be if all were gone that it can make leave, and nothing but leaves counted;
    nowhere if it does not fit even so. Nothing is changed.
    """
    placer = Placer(state, workload, When.CLAIM)
    with state.trial():
        return tuple(placer.taken) if placer.place() else ()


def lacks(state: State, workload: Workload) -> No | None:
    """Its quota is too small for it, beside gangs of its priority or a higher one."""
    short = shortage(state, workload)
    return None if short is None else No(QUOTA, {"leaves": short.leaves, "spare": short.spare})


def shortage(state: State, workload: Workload) -> Shortage | None:
    """Which quota is too small: of its pods' pins and GPU types, then of all types."""
    wanted: dict[tuple[str, tuple[str, ...]], int] = {}
    pins: dict[str, str] = {}
    every = tuple(state.forest.racks)
    for want, pods in workload.wants:
        owner = workload.owner_of(want)
        least = want.least(state.models)
        if owner is None or least == NEVER:
            continue
        if want.kind.pin is not None:
            pins[owner] = want.kind.pin
        for types in dict.fromkeys((want.gpu_types or every, every)):
            key = (owner, types)
            wanted[key] = wanted.get(key, 0) + least * len(pods)
    for (owner, types), leaves in wanted.items():
        spare = state.spare(owner, types, workload.priority)
        if leaves > spare:
            pin = pins.get(owner)
            return Shortage(leaves, spare, pin, () if pin or types == every else types)
    return None


def _with_victims(
    state: State, workload: Workload, victims: Iterable[Workload], slots: Sequence[Slot]
) -> bool:
    """Make them leave and place it: as well as can be, else just where they were."""
    for victim in victims:
        state.evict(victim)
    placer = Placer(state, workload, When.SOON)
    return placer.place() or placer.place_on(slots)


def _spare(
    state: State, workload: Workload, choice: Choice, cost_of: CostOf
) -> tuple[Workload, ...]:
    """Without those that need not leave, the costliest spared first."""
    victims = sorted(choice.victims, key=lambda each: cost_of(each) or NOBODY, reverse=True)
    if len(victims) > 1:
        for victim in victims[:SPARED]:
            rest = [each for each in victims if each is not victim]
            with state.trial():
                if _with_victims(state, workload, rest, choice.slots):
                    victims = rest
    return tuple(victims)
