"""Who may pass whom: the first gang of a virtual cluster that can't start has cells kept for it,
and others go there only where they will be gone in time.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from scheduler.domain.core.admitting import attempts
from scheduler.domain.core.chains import beside, chains_of, has_no_chain, kept_chains, own_chains
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ends import ends_at
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.keeping import freed_by, set_apart, unreserve
from scheduler.domain.core.machines import SlotState
from scheduler.domain.core.model import OPPORTUNISTIC, Decision, Reserved
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.planning import fits_when_empty, plan
from scheduler.domain.core.queue import Line, Stamp, place_of
from scheduler.domain.core.reservation import Leaves, Reservation, goes_before, may_pass
from scheduler.domain.core.starting import start_at_once
from scheduler.domain.core.waking import soon_to_start

PLANNED = 4
"""Gangs of a virtual cluster for which cells are sought in one go, at the most."""


def tries(cluster: Cluster, live: Live) -> Iterator[list[Decision] | None]:
    """`attempts` with what is kept for others out of the way, where the gang goes before them; and
    last, where it would be gone in time, on what is kept for those that go before it.
    """
    others = cluster.reservations.of(live.owner)
    if not others or live.is_guest or live.lender is not None:
        return attempts(cluster, live)
    return _tries_beside(cluster, live, others)


def _tries_beside(
    cluster: Cluster, live: Live, others: Sequence[Reservation]
) -> Iterator[list[Decision] | None]:
    behind = [each for each in others if goes_before(live, each)]
    before = [each for each in others if each not in behind]
    found: list[Decision] | None = None
    with out_of_the_way(cluster, behind):
        for found in _attempts(cluster, live, before):
            if found is not None:
                unreserve(cluster, live)
                break
            yield None
    if live.extra_of is None and before and found is None:
        found = _passing(cluster, live, before)
        if found is not None:
            unreserve(cluster, live)
    yield found


def _attempts(
    cluster: Cluster, live: Live, before: Sequence[Reservation]
) -> Iterator[list[Decision] | None]:
    """Where quota is wanting for what is kept for others ``before`` the gang, it gets none by
    making others leave it, if some of its pods can be in no other chain.
    """
    overdue = cluster.reservations.overdue(live, cluster.now)
    short = {chain for each in before for chain in each.short}
    is_second = bool(short) and has_no_chain(cluster, live, short)
    if not overdue and not is_second:
        yield from attempts(cluster, live)
    else:
        rank = OPPORTUNISTIC if is_second else live.reach
        with _overdue(cluster, overdue), cluster.preemptions.guests_alone(live, rank):
            yield from attempts(cluster, live)


@contextmanager
def _overdue(cluster: Cluster, overdue: Sequence[Live]) -> Iterator[None]:
    """Those that went to the cells kept for the gang, and were expected to be gone, may have to go
    for it, before all others.
    """
    for other in overdue:
        cluster.set_rank(other, OPPORTUNISTIC, is_overdue=True)
    try:
        yield
    finally:
        for other in overdue:
            cluster.set_rank(other, other.gang.priority, is_overdue=False)


def first_of(cluster: Cluster, live: Live) -> Live:
    """Of those that wait in the gang's virtual cluster in its class, and were tried, those for
    which others leave already, and the gang itself the first.
    """
    own = cluster.queue.gangs[live.id]
    place = place_of(own.key)
    lines = (line for line in cluster.queue.tried.get(place, ()) if line is not own)
    firsts = [cluster.gangs[line.waiting[0][1]] for line in lines]
    soon = soon_to_start(cluster).get(place, ())
    first: Live = min((live, *firsts, *soon), key=cluster.rank_of)
    return first


def has_passers(cluster: Cluster) -> bool:
    """Some gang may yet have to go for one whose cells it is on."""
    kept = cluster.reservations
    return any(gang in kept.by_gang for gang in kept.passers)


@contextmanager
def out_of_the_way(cluster: Cluster, reservations: Sequence[Reservation]) -> Iterator[None]:
    """What is kept is free for the moment, which nobody else notices; what others have taken then
    is theirs.
    """
    kept, versions = cluster.reservations, cluster.hardware.versions()
    held = [each.charged_leaves() for each in reservations]
    for each in reservations:
        kept.lift(each)
    cluster.hardware.unchanged(versions)
    try:
        yield
    finally:
        for each, leaves in zip(reservations, held, strict=True):
            if kept.by_gang.get(each.live.id) is each:
                kept.hold_again(each, leaves)
            _free_what_is_lost(cluster, each, leaves)


def _free_what_is_lost(cluster: Cluster, reservation: Reservation, held: Leaves) -> None:
    """Where the quota for what was ``held`` is used elsewhere now others may have it, and perhaps
    more of that quota's cells.
    """
    hardware = cluster.hardware
    if any(leaves & ~hardware.states[number].charged for number, leaves in held.items()):
        hardware.unbound_version += 1
        freed_by(cluster, reservation.live.owner)


def _passing(cluster: Cluster, live: Live, before: Sequence[Reservation]) -> list[Decision] | None:
    """Start it on what is kept for others, where that costs nobody anything."""
    passed = [each for each in before if may_pass(live, each, cluster.policy, cluster.now)]
    if not passed:
        return None
    charged = [each.charged for each in passed]
    with out_of_the_way(cluster, passed):
        found = start_at_once(cluster, live, cluster.at)
    if found is not None:  # on its cells, or in the quota for them
        lost = (each for each, count in zip(passed, charged, strict=True) if each.charged < count)
        whom = next((each for each in passed if each.has(live)), next(lost, None))
        if whom is not None:
            cluster.reservations.passes(live, whom.live.id)
    return found


def passed_by(cluster: Cluster, live: Live) -> tuple[str, ...]:
    """Whose kept cells it would be gone from in time."""
    kept, policy, now = cluster.reservations.of(live.owner), cluster.policy, cluster.now
    return tuple([each.live.id for each in kept if may_pass(live, each, policy, now)])


def keep(cluster: Cluster, owner: str, until: Live | None = None) -> list[Decision]:
    """Keep cells for the first gangs of a virtual cluster that can't start, one for each chain; and
    of those that are kept what has become free. ``until``: for those that come before it.
    """
    kept, lines = cluster.reservations, cluster.queue.tried.get((owner, False))
    of_owner = kept.of(owner)
    if not lines and not of_owner:
        return []
    said: list[Decision] = []
    state = (*cluster.stamps.state(), kept.version)
    is_over = until is None and any(each.starts_at <= cluster.now for each in of_owner)
    is_doubted = any(each.doubted_at <= cluster.now for each in of_owner)
    if kept.looked.get(owner) != state or is_over or is_doubted:
        for each in of_owner.copy():
            is_due = until is None and each.starts_at <= cluster.now
            is_there = kept.by_gang.get(each.live.id) is each  # none before has lost it for him
            if is_there and (is_lost(cluster, each) or is_due) and not _is_awaiting(cluster, each):
                said += _keep_anew(cluster, each)
        before = kept.left(owner)
        for each in of_owner:
            kept.hold(each)
        if kept.left(owner) > before:
            kept.is_another(owner)
    has_lost = True
    while lines and has_lost and kept.full.get(owner) != (known := _known(cluster, owner)):
        found = _keep_first(cluster, owner, lines, until)
        said += found
        if until is None and kept_chains(cluster, kept.of(owner)) >= own_chains(cluster, owner):
            kept.full[owner] = known
        # Who has lost its cells to one before it may have others.
        has_lost = any(isinstance(each, Reserved) and each.starts_at is None for each in found)
        lines = cluster.queue.tried.get((owner, False))
    kept.looked[owner] = (*cluster.stamps.state(), kept.version)
    return said


def is_lost(cluster: Cluster, reservation: Reservation) -> bool:
    """Some of its cells will not be free in time. Looks up when that is to be asked again, though
    nothing changes: when somebody has stayed for longer than expected.
    """
    reservation.doubted_at = inf
    live, states = reservation.live, cluster.hardware.states
    return any(
        leaves & ~states[number].usable
        or _is_others(states[number], live, leaves)
        or _stays(cluster, reservation, states[number], leaves)
        for number, leaves in reservation.leaves.items()
    )


def _is_awaiting(cluster: Cluster, reservation: Reservation) -> bool:
    """Some of its nodes were perhaps not heard yet since a restart: it is kept for a while, and
    looked at again then.
    """
    until = reservation.patient_until
    if until is None or until <= cluster.now:
        return False
    reservation.doubted_at = min(reservation.doubted_at, until)
    states, machines = cluster.hardware.states, cluster.hardware.machines
    return any(not machines[states[n].slot.machine].is_healthy for n in reservation.leaves)


def _is_others(state: SlotState, live: Live, leaves: int) -> bool:
    """Some of the leaves are in cells that are bound to others."""
    own = {live.owner, *(pin_owner(r.kind.pin) for r in live.waiting if r.kind.pin is not None)}
    return any(leaves & mask for owner, mask in state.bound.items() if owner not in own)


def _stays(cluster: Cluster, reservation: Reservation, state: SlotState, leaves: int) -> bool:
    """Somebody is charged some of the leaves for longer."""
    for gang, mask in state.chargers.items():
        if mask & leaves and gang != reservation.live.id:
            other = cluster.gangs[gang]
            if other.passed == reservation.live.id or other.started_at is None:
                continue  # it has to go in time, or will be looked at when it starts
            if other.usual_rank < reservation.live.gang.priority:
                continue  # it may have to go
            end = ends_at(other, cluster.policy, cluster.now)
            if end > reservation.starts_at > cluster.now:
                return True
            reservation.doubted_at = min(reservation.doubted_at, end)
    return False


def _keep_anew(cluster: Cluster, before: Reservation) -> list[Decision]:
    """Other cells, or another time, for a gang that has some already; else none: also where they
    would be in a chain in which some are kept for a gang that it does not go before.
    """
    live = before.live
    others = [each for each in cluster.reservations.of(live.owner) if each is not before]
    behind = [each for each in others if goes_before(live, each)]
    taken = kept_chains(cluster, (each for each in others if each not in behind))
    with out_of_the_way(cluster, [*behind, before]), beside(cluster, live, taken):
        found = plan(cluster, live, cluster.now)
    wanted = set() if found is None else chains_of(cluster, found.leaves)
    if found is None or not taken.isdisjoint(wanted):
        return [_lose(cluster, before)]
    said: list[Decision] = [
        _lose(cluster, each)
        for each in behind
        if not wanted.isdisjoint(chains_of(cluster, each.leaves))
    ]
    cluster.reservations.remove(before)
    after = Reservation(live, found.leaves, found.starts_at, before.since)
    cluster.reservations.add(after)
    if any(leaves & ~after.leaves.get(n, 0) for n, leaves in before.leaves.items()):
        freed_by(cluster, live.owner)
    if (after.leaves, after.starts_at) == (before.leaves, before.starts_at):
        return said
    return [*said, _said(cluster, after)]


def _lose(cluster: Cluster, reservation: Reservation) -> Reserved:
    live = reservation.live
    unreserve(cluster, live)
    return Reserved(live.id, (), None)


def _keep_first(
    cluster: Cluster, owner: str, lines: Iterable[Line], until: Live | None
) -> list[Decision]:
    """Cells for the first gangs in order, in chains in which none are kept for others before."""
    kept = cluster.reservations
    chains = own_chains(cluster, owner)
    if kept_chains(cluster, kept.of(owner)) >= chains:
        # Only who goes before one of those can have some.
        lowest = max((each.live.order[0][:2] for each in kept.of(owner)), default=())
        lines = cluster.queue.ahead_of(owner, lowest)
    last = None if until is None else cluster.rank_of(until)
    ranked = ((cluster.rank(line), cluster.gangs[line.waiting[0][1]]) for line in lines)
    firsts = (
        (rank, live)
        for rank, live in ranked
        if (last is None or rank < last)
        and live.id not in kept.by_gang
        and not (live.pods or live.strangers or live.extra_of)
    )
    said: list[Decision] = []
    left = PLANNED
    for _, live in sorted(firsts, key=lambda each: each[0]):
        behind = [each for each in kept.of(owner) if goes_before(live, each)]
        ahead = [each for each in kept.of(owner) if each not in behind]
        taken = kept_chains(cluster, ahead)
        if chains <= taken or not left:
            break
        if has_no_chain(cluster, live, taken) or not fits_when_empty(cluster, live):
            continue
        left -= 1
        if live.unplanned == _state(cluster, owner):
            continue
        with out_of_the_way(cluster, behind), beside(cluster, live, taken):
            found = plan(cluster, live, cluster.now)
        wanted = set() if found is None else chains_of(cluster, found.leaves)
        if found is None or not taken.isdisjoint(wanted):
            live.unplanned = _state(cluster, owner)
            continue
        for each in behind:
            if not wanted.isdisjoint(chains_of(cluster, each.leaves)):
                said.append(_lose(cluster, each))
        mine = Reservation(live, found.leaves, found.starts_at, cluster.now)
        kept.add(mine)
        cluster.forecast.kept(live, cluster.now, mine.starts_at)
        set_apart(cluster, live)
        said.append(_said(cluster, mine))
    return said


def _state(cluster: Cluster, owner: str) -> Stamp:
    """As long as this is so, nothing is found that was not found before."""
    return (*cluster.stamps.state(), cluster.reservations.versions[owner])


def _known(cluster: Cluster, owner: str) -> Stamp:
    """As long as this is so, the same gangs go before those for which cells are kept."""
    return (cluster.queue.changes[owner], *_state(cluster, owner))


def _said(cluster: Cluster, reservation: Reservation) -> Reserved:
    cells = reservation.cells(cluster.hardware)
    return Reserved(reservation.live.id, cells, reservation.starts_at)
