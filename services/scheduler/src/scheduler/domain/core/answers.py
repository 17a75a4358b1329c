"""What would have to be otherwise for a waiting gang to start: tried on the one state, of which
nothing is changed.

What is answered is true; what is not found within the bounds is left out, and that is said.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from scheduler.domain.core.admitting import could_be_placed, may_be_guest, reserved_shares
from scheduler.domain.core.borrowing import may_borrow, seek_loan
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ends import by_end
from scheduler.domain.core.forestalling import as_if_started, starting_first
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.interface import HEALTH, Fewer
from scheduler.domain.core.names import wrong_name
from scheduler.domain.core.passing import first_of
from scheduler.domain.core.planning import earliest
from scheduler.domain.core.preempting import FEW, is_alone, room_at_best
from scheduler.domain.core.removing import without_all
from scheduler.domain.core.reservation import Reservation, goes_before, may_pass
from scheduler.domain.core.seeking import Seeker, seeker_of
from scheduler.domain.core.shortages import quota_short
from scheduler.domain.core.wellness import all_well

ENDS_LOOKED = 256
"""Gangs, the first to end, of which some may have to end."""

SPARED = 16
"""Gangs of those of which it is tried whether it does without their end."""

STEPS = 800
"""Places that are tried for one part of an answer, of some 40 us each; a look that was begun is
taken to its end.
"""

SEARCH_STEPS = 100
"""Of these in one search in every way."""

ENDS, FEWER, OPPORTUNISTIC, NODES = "ends", "fewer", "opportunistic", "nodes"
BORROWING = "borrowing"

Spot: TypeAlias = tuple[str, int, int]
"""Of a place that was found: the machine, the number of its node's GPUs (-1: none), and these."""


@dataclass(frozen=True, slots=True)
class Ends:
    """It starts, or its preemption is published, when these ``gangs`` have ended, expected at
    ``at``: if nobody who comes before it waited any more. None: only those are in its way.
    ``is_least``: none of them may be left out.
    """

    gangs: tuple[Live, ...]
    at: float
    is_least: bool = True


@dataclass(slots=True)
class Answer:
    """``ends``, ``fewer``: None where there is nothing of that kind. ``is_opportunistic``: with
    priority -1 it would start now; None: not asked. ``is_borrowing``: the same if it might borrow,
    of the virtual cluster ``lender``. ``nodes``: if they were well, it would start
    or its preemption be published. ``left_out``: parts that were not found within the bounds.
    """

    ends: Ends | None = None
    fewer: Fewer | None = None
    is_opportunistic: bool | None = None
    is_borrowing: bool | None = None
    lender: str | None = None
    nodes: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list)


def answer(cluster: Cluster, live: Live) -> Answer:
    """Of a gang in the queue, between two cycles: in the midst of one all is left out."""
    found = Answer()
    if cluster.under_way is not None:
        found.left_out = [ENDS, FEWER, OPPORTUNISTIC, BORROWING]
        return found
    if wrong_name(cluster.hardware, live) is not None or live.lender is not None:
        return found
    for part in (_opportunistic, _borrowing, _fewer, _ends, _nodes):
        with asking(cluster):
            part(cluster, live, found)
    return found


@contextmanager
def asking(cluster: Cluster, steps: int = STEPS) -> Iterator[None]:
    """What is done is undone exactly: nobody notices."""
    hardware = cluster.hardware
    versions, limit, searches = hardware.versions(), hardware.limit, hardware.searches_left
    hardware.limit, hardware.searches_left = hardware.steps + steps, 0
    try:
        yield
    finally:
        hardware.unchanged(versions)
        hardware.limit, hardware.searches_left = limit, searches


@contextmanager
def _set_aside(cluster: Cluster, reservations: Sequence[Reservation]) -> Iterator[None]:
    """What is kept is free for the moment; then it is in the very cells in which it was."""
    taken = [(each.live, pod, pod.bindings) for each in reservations for pod in each.held]
    lent = [(each, each.lent) for each in reservations]
    for each in reservations:
        cluster.reservations.call_in(each)
    for live, pod, _ in reversed(taken):
        cluster.charges.count(live, pod, -1)
        cluster.hardware.discharge(pod)
    try:
        yield
    finally:
        for live, pod, bindings in taken:
            cluster.hardware.recharge(pod, bindings)
            cluster.charges.count(live, pod, 1)
        for each, gangs in lent:
            cluster.reservations.lend_again(each, gangs)


# Fewer pods, or no guarantee.


def _opportunistic(cluster: Cluster, live: Live, found: Answer) -> None:
    """Not asked where others would have what it gives up, or come before it then."""
    is_new = not live.pods and not live.strangers
    if live.is_guest or not is_new or _gives_up(cluster, live):
        return
    if all(role.kind.pin is None for role in live.waiting):
        own = [each for each in cluster.reservations.of(live.owner) if each.live is live]
        with _set_aside(cluster, own):
            found.is_opportunistic = _place(cluster, live, is_guest=True) is not None


def _borrowing(cluster: Cluster, live: Live, found: Answer) -> None:
    """Asked like that; not of gangs that may borrow, which somebody would lend to; nor of those for
    which cells are kept, as the same are perhaps kept for it elsewhere before anybody lends.
    """
    if (
        live.is_kept_for
        or _gives_up(cluster, live)
        or live.gang.is_borrowing
        or not may_borrow(live)
    ):
        return
    loan = seek_loan(cluster, live)
    found.is_borrowing = loan is not None
    if loan is not None:
        found.lender, seeker = loan
        seeker.undo()


def _gives_up(cluster: Cluster, live: Live) -> bool:
    """Others that wait may come before it when it asks anew, or have what is kept for it."""
    is_alone = len(cluster.queue.gangs) == 1 and not cluster.reserved
    return not is_alone and (live.is_kept_for or cluster.policy.is_strict)


def _fewer(cluster: Cluster, live: Live, found: Answer) -> None:
    """Of the role with the most pods."""
    number = max(range(len(live.waiting)), key=lambda each: len(live.waiting[each].pods))
    role, roles = live.waiting[number], live.waiting
    if live.pods or live.strangers or not _keeps_its_turn(cluster, live):
        return
    fits, fails = 0, len(role.pods)
    try:
        while fits + 1 < fails and not cluster.hardware.is_late:
            count = (fits + fails) // 2
            less = replace(role, pods=role.pods[:count])
            live.waiting = (*roles[:number], less, *roles[number + 1 :])
            fits, fails = (count, fails) if _starts_now(cluster, live) else (fits, count)
    finally:
        live.waiting = roles
    if fits + 1 < fails:
        found.left_out.append(FEWER)
    elif fits:
        found.fewer = Fewer(role.name, fits, len(role.pods))


def _keeps_its_turn(cluster: Cluster, live: Live) -> bool:
    """When it asks anew nobody gets before it: of its virtual cluster where nobody may pass; of any
    where it gives up what is kept for it.
    """
    if cluster.policy.is_strict:
        if first_of(cluster, live) is not live:
            return False
        ahead = cluster.forecast.ahead(cluster, live)
        if ahead is None or ahead.position > 1:
            return False
    own = cluster.rank_of(live)
    lines = cluster.queue.lines.values()
    return not live.is_kept_for or all(cluster.rank(line) >= own for line in lines)


def _starts_now(cluster: Cluster, live: Live) -> bool:
    """As `passing.tries` would have it, at nobody's cost."""
    if may_be_guest(live):
        with reserved_shares(cluster, live):
            found = _place(cluster, live, is_guest=True)
        if found or live.is_guest:
            return found is not None
    others = cluster.reservations.of(live.owner)
    behind = [each for each in others if goes_before(live, each)]
    with _set_aside(cluster, behind):
        if not quota_short(cluster, live) and _place(cluster, live, is_guest=False):
            return True
        before = [each for each in others if each not in behind]
        passed = [each for each in before if may_pass(live, each, cluster.policy, cluster.now)]
        if not passed or could_be_placed(cluster, live):
            return False  # others have to leave before it goes to kept cells
    with _set_aside(cluster, passed):
        return _place(cluster, live, is_guest=False) is not None


# Who has to end.


def _ends(cluster: Cluster, live: Live, found: Answer) -> None:
    charges, hardware = cluster.charges, cluster.hardware
    if live.is_guest:
        owners = list(charges.guaranteed)
        some = [each for owner in owners for each in charges.charged_to(owner)]
        some += [cluster.gangs[gang] for gang in charges.guests]
        some = [each for each in some if each.id not in cluster.reserved]
    else:
        with _set_aside(cluster, cluster.reservations.of(live.owner)):
            stays, least = cluster.preemptions.held_by(live), live.gang.priority
            some = [e for e in charges.charged_to(live.owner) if e.rank >= least or e.id in stays]
            some += charges.spared_by(live)
    some = [each for each in some if each is not live]
    every = by_end(some, cluster.policy, cluster.now)
    ends = every[:ENDS_LOOKED]
    with _set_aside(cluster, cluster.reservations.of(live.owner)):
        if live.is_guest:
            found.ends = _of_these(cluster, live, ends)
        else:
            with hardware.ahead():
                found.ends = _of_these(cluster, live, ends)
                if found.ends is not None and found.ends.gangs:
                    found.ends = _beside_those_who_start(cluster, live, some, found.ends)
    if found.ends is None and (hardware.is_late or len(ends) < len(every)):
        found.left_out.append(ENDS)


def _beside_those_who_start(
    cluster: Cluster, live: Live, some: Sequence[Live], found: Ends
) -> Ends | None:
    """The same where others have what it would get, as they start first: these have to end too."""
    first = starting_first(cluster, live, found.gangs)
    if not first:
        return found
    ends = by_end((*some, *first), cluster.policy, cluster.now)[:ENDS_LOOKED]
    with as_if_started(cluster, live, first):
        again = _of_these(cluster, live, ends)
    return None if again is None else replace(again, is_least=False)


Look: TypeAlias = Callable[[], "list[Spot] | None"]


def _of_these(cluster: Cluster, live: Live, ends: Sequence[tuple[float, str, Live]]) -> Ends | None:
    def look() -> list[Spot] | None:
        return None if cluster.hardware.is_late else _room(cluster, live)

    if look() is not None:
        return Ends((), cluster.now)
    found = earliest(cluster, ends, look)
    if found is None:
        return None
    spots, number = found
    gangs = [other for _, _, other in ends[:number]]
    there = [other for other in gangs if _is_in(other, spots)]
    if len(there) < len(gangs) and _fits_without(cluster, there, look):
        gangs = there
    is_least = len(gangs) <= SPARED
    for other in gangs[-1 : -SPARED - 1 : -1]:  # who ends last first
        if cluster.hardware.is_late:
            is_least = False
            break
        fewer = [each for each in gangs if each is not other]
        if _fits_without(cluster, fewer, look):
            gangs = fewer
    left = {other.id for other in gangs}
    at = max((end for end, gang, _ in ends if gang in left), default=cluster.now)
    return Ends(tuple(gangs), at, is_least)


def _fits_without(cluster: Cluster, gangs: Sequence[Live], look: Look) -> bool:
    with without_all(cluster, gangs):
        return look() is not None


def _is_in(other: Live, spots: Sequence[Spot]) -> bool:
    """It has something of the place that was found, or of its machine where no GPU is wanted."""
    return any(
        pod.machine.name == name
        and (number < 0 or (pod.state is not None and _overlaps(pod, number, mask)))
        for pod in other.pods.values()
        for name, number, mask in spots
    )


def _overlaps(pod: Pod, number: int, mask: int) -> bool:
    state = pod.state
    return state is not None and state.slot.number == number and (pod.leaves | pod.gpus) & mask != 0


# Which nodes would have to be well.


def _nodes(cluster: Cluster, live: Live, found: Answer) -> None:
    """Those of the place that it would have if all were well."""
    line, hardware = cluster.queue.gangs.get(live.id), cluster.hardware
    if line is None or line.reason is None or line.reason.code != HEALTH:
        return
    bad = [hardware.unwell[number] for number in sorted(hardware.unwell)]
    with _set_aside(cluster, cluster.reservations.of(live.owner)):
        with all_well(hardware, bad):
            spots = _room(cluster, live)
        names = {name for name, *_ in spots or ()}
        some = [machine for machine in bad if machine.name in names]
        with all_well(hardware, some):
            is_enough = bool(some) and _room(cluster, live) is not None
    if is_enough:
        found.nodes = tuple(machine.name for machine in some)
    else:
        found.left_out.append(NODES)


# A place.


def _room(cluster: Cluster, live: Live) -> list[Spot] | None:
    """Its place, perhaps after others had to leave for it."""
    if may_be_guest(live) and (found := _place(cluster, live, is_guest=True)) is not None:
        return found
    if live.is_guest or quota_short(cluster, live):
        return None
    found = _place(cluster, live, is_guest=False)
    if found is not None or is_alone(cluster, live):
        return found
    with cluster.preemptions.kept_off(live):
        pods = room_at_best(cluster, live, _seeker(cluster, live, is_guest=False), FEW)
    return None if pods is None else _spots(pods)


def _place(cluster: Cluster, live: Live, *, is_guest: bool) -> list[Spot] | None:
    """Its place at nobody's cost; never empty."""
    seeker = _seeker(cluster, live, is_guest=is_guest)
    try:
        return _spots(seeker.pods) if seeker.place(live.waiting) else None
    finally:
        seeker.undo()


def _seeker(cluster: Cluster, live: Live, *, is_guest: bool) -> Seeker:
    seeker = seeker_of(cluster, live, is_guest=is_guest)
    seeker.search_steps = SEARCH_STEPS
    return seeker


def _spots(pods: Sequence[Pod]) -> list[Spot]:
    return [
        (pod.machine.name, -1, 0)
        if pod.state is None
        else (pod.machine.name, pod.state.slot.number, pod.leaves | pod.gpus)
        for pod in pods
    ]
