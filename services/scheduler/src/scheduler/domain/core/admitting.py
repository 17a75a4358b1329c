"""One waiting gang: placed, or its preemption published, or not. The order of docs/scheduling.md,
"Whom it costs".
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from scheduler.domain.core.attainable import may_have_room
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ground import FEW_NODES
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.leaving import (
    is_room_after,
    is_room_without_cells,
    leaves_any_near,
)
from scheduler.domain.core.machines import Take
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    Decision,
    Downgraded,
    GangClass,
    Kind,
)
from scheduler.domain.core.names import wrong_name
from scheduler.domain.core.preempting import (
    after_victims,
    is_alone,
    lazy_below,
    protected_lazy,
    room_at_best,
)
from scheduler.domain.core.removing import Removal, undo_all, without_all
from scheduler.domain.core.reservation import Reservation, goes_before
from scheduler.domain.core.seeking import Seeker, seeker_of
from scheduler.domain.core.shortages import quota_short
from scheduler.domain.core.starting import (
    begin,
    reserve,
    start_at_once,
    start_reserved,
    start_whole,
)

DOWNGRADED = 1_024
"""Gangs of which some are downgraded together, at the most."""

SINGLES = 64
"""Gangs that are tried as the only one to be downgraded, at the most."""

GANG_STEPS = 2_000
"""Places and cells that are tried for one gang on more than `FEW_NODES` nodes; from then on who
leaves for it is found in the fewest tries.
"""

GANG_STEPS_ON_FEW = 20_000
"""The same on fewer nodes, where all is to be tried: less than a second."""


def attempts(cluster: Cluster, live: Live) -> Iterator[list[Decision] | None]:
    """What is decided for a gang that waits, as the last of what is tried for it; None, with
    nothing changed, for each that did not succeed.
    """
    hardware = cluster.hardware
    if wrong_name(hardware, live) is not None or live.lender is not None:
        return None  # what runs on a loan grows by more of it
    is_large = len(hardware.states) > FEW_NODES
    hardware.limit = hardware.steps + (GANG_STEPS if is_large else GANG_STEPS_ON_FEW)
    if live.extra_of is not None:
        yield (_as_guest if live.is_guest else start_at_once)(cluster, live, cluster.at)
        return
    if live.surplus:
        yield start_whole(cluster, live, cluster.at)
    if not live.is_guest and not quota_short(cluster, live):
        for attempt in (start_at_once, _after_leaving, _after_downgrades, after_victims):
            yield attempt(cluster, live, cluster.at)
    if may_be_guest(live):
        yield _as_guest(cluster, live, cluster.at)


def may_be_guest(live: Live) -> bool:
    """It is opportunistic, or is where its virtual cluster has no place for it: none of its pods
    wants a GPU or a pinned cell. What a guaranteed gang grows by is guaranteed.
    """
    is_new = not live.pods and not live.strangers
    return live.is_guest or (is_new and all(role.kind.costs_nothing for role in live.waiting))


def _as_guest(cluster: Cluster, live: Live, now: float) -> list[Decision] | None:
    seeker = seeker_of(cluster, live, is_guest=True)
    found = seeker.place(live.waiting)
    there = {pod.machine.number for pod in seeker.pods}
    states = cluster.hardware.states
    if any(states[n].machine.number in there for r in _before(cluster, live) for n in r.leaves):
        seeker.undo()
        with reserved_shares(cluster, live):
            found = seeker.place(live.waiting)
    return begin(cluster, live, seeker.pods, GangClass.OPPORTUNISTIC, now) if found else None


def _before(cluster: Cluster, live: Live) -> Sequence[Reservation]:
    """Reservations of its virtual cluster that an opportunistic gang leaves alone, as their gangs
    may not preempt it.
    """
    if live.gang.priority == OPPORTUNISTIC or live.extra_of is not None:
        return ()
    return [each for each in cluster.reservations.of(live.owner) if not goes_before(live, each)]


@contextmanager
def reserved_shares(cluster: Cluster, live: Live) -> Iterator[None]:
    """The block finds taken what is reserved for gangs of its virtual cluster before this one: the
    cells, and their share of CPU and the like of the node.
    """
    hardware, taken = cluster.hardware, list[Pod]()
    versions = hardware.versions()
    try:
        for each in _before(cluster, live):
            for number, leaves in each.leaves.items():
                state = hardware.states[number]
                sort, used = state.machine.sort, state.held | state.reserved | state.leaving
                share = [-(-have * leaves.bit_count() // sort.gpus) for have in sort.capacity]
                take, idle = Take(0, tuple(share)), leaves & ~used
                pod = Pod("", each.live.id, Kind(), state.machine, take, state, 0, idle)
                hardware.enter(pod, is_charged=False, is_reserved=False)
                taken.append(pod)
        hardware.unchanged(versions)
        yield
    finally:
        versions = hardware.versions()
        for pod in taken:
            hardware.leave(pod, is_charged=False, is_reserved=False)
        hardware.unchanged(versions)


def _after_leaving(cluster: Cluster, live: Live, now: float) -> list[Decision] | None:
    """On what gangs hold that leave already."""
    if not leaves_any_near(cluster, live):
        return None
    with cluster.hardware.ahead():
        seeker = seeker_of(cluster, live, is_guest=False)
        if not is_room_after(cluster, live, seeker) or not seeker.place(live.waiting):
            return None
        reserve(cluster, live, seeker)
    return start_reserved(cluster, live, now)


def _after_downgrades(cluster: Cluster, live: Live, now: float) -> list[Decision] | None:
    if not cluster.charges.has_below(live.owner, live.gang.priority):
        return None
    decisions: list[Decision] = []
    seeker = _downgrade_some(cluster, live, decisions)
    if seeker is not None:
        return decisions + begin(cluster, live, seeker.pods, GangClass.GUARANTEED, now)
    if not leaves_any_near(cluster, live):
        return None
    with cluster.hardware.ahead():
        seeker = _downgrade_some(cluster, live, decisions)
        if seeker is None:
            return None
        reserve(cluster, live, seeker)
    return decisions + start_reserved(cluster, live, now)


def _downgrade_some(cluster: Cluster, live: Live, decisions: list[Decision]) -> Seeker | None:
    """Downgrade one gang, else several: who has found its places then."""
    if not _is_physically_free(cluster, live):
        return None
    is_loose = any(cluster.hardware.demands.is_loose(role.kind) for role in live.waiting)
    lower = list(islice(lazy_below(cluster, live), DOWNGRADED))
    types = _types_without(cluster, live, lower) if len(lower) > 1 else None
    alone = (other for other in lazy_below(cluster, live) if is_loose or _gives_cells(other))
    seeker = seeker_of(cluster, live, is_guest=False)
    for other in islice(alone, SINGLES):
        if is_room_without_cells(live, seeker, other):
            found = _downgrade(cluster, live, [other], types, decisions)
            if found is not None:
                return found
            if cluster.hardware.is_late:
                break
    if len(lower) > 1:
        return _downgrade(cluster, live, lower, types, decisions)
    return None


def _types_without(
    cluster: Cluster, live: Live, others: Sequence[Live]
) -> Mapping[str, str] | None:
    """The GPU types that a gang gets that may have several, if all these lose their cells."""
    seeker = seeker_of(cluster, live, is_guest=False)
    if all(len(seeker.types(role.kind)) == 1 for role in live.waiting):
        return None
    removals = [Removal(cluster, other, lifts=False) for other in others]
    seeker.place(live.waiting)
    types = seeker.types_taken()
    seeker.undo()
    undo_all(removals)
    return types


def _is_physically_free(cluster: Cluster, live: Live) -> bool:
    """Whose cells they are aside, there are such GPUs that nobody uses. Surely known of equal pods
    in no pinned cell only.
    """
    if len(live.waiting) > 1 or live.waiting[0].kind.pin is not None:
        return True
    seeker = seeker_of(cluster, live, is_guest=True)
    found = seeker.place(live.waiting)
    seeker.undo()
    return found


def _gives_cells(other: Live) -> bool:
    """Without its cells, others could have some of them."""
    return any(
        pod.leaves & ~pod.gpus or any(len(binding.users) == 1 for binding in pod.bindings)
        for pod in other.pods.values()
    )


def _downgrade(
    cluster: Cluster,
    live: Live,
    others: Sequence[Live],
    types: Mapping[str, str] | None,
    decisions: list[Decision],
) -> Seeker | None:
    """Place the gang without the cells of some of the others: doubled until it fits, on these types
    of GPUs.
    """
    removals: list[Removal] = []
    while len(removals) < len(others):
        most = len(others) if cluster.hardware.is_late else 2 * len(removals) + 1
        more = others[len(removals) : most]
        removals += [Removal(cluster, other, lifts=False) for other in more]
        seeker = seeker_of(cluster, live, is_guest=False)
        if seeker.place(live.waiting) and types in (None, seeker.types_taken()):
            break
        seeker.undo()
    else:
        undo_all(removals)
        return None
    settled = [removal for removal in removals if not removal.spare()]
    for removal in sorted(settled, key=lambda removal: removal.live.id):
        removal.settle()
        cluster.downgrade(removal.live)
        decisions.append(Downgraded(removal.live.id, live.id))
    return seeker


def could_be_placed(cluster: Cluster, live: Live, *, is_bare: bool = False) -> bool:
    """Whether it would be placed with everybody away who would have to go for it."""
    if may_be_guest(live):
        seeker = seeker_of(cluster, live, is_guest=True, is_bare=is_bare)
        found = seeker.place(live.waiting)
        seeker.undo()
        if found or live.is_guest:
            return found
    if quota_short(cluster, live):
        return False
    seeker = seeker_of(cluster, live, is_guest=False, is_bare=is_bare)
    found = seeker.place(live.waiting)
    seeker.undo()
    if found:
        return True
    if is_alone(cluster, live) and not leaves_any_near(cluster, live):
        return False
    if not may_have_room(cluster, live):
        return False
    with cluster.preemptions.kept_off(live), cluster.hardware.ahead():
        if room_at_best(cluster, live, seeker) is not None:
            return True
        lazy = protected_lazy(cluster, live)
        with without_all(cluster, lazy, lifts=False):
            return bool(lazy) and room_at_best(cluster, live, seeker) is not None
