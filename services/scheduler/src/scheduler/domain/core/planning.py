"""When and where a gang could start that can't start now: which gangs have to end before, and what
cells it has then.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from scheduler.domain.core.admitting import GANG_STEPS
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ends import by_end, leaving_s
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.preempting import FEW, is_alone, room_at_best
from scheduler.domain.core.queue import SHAPES_REMEMBERED, key_of
from scheduler.domain.core.removing import Removal, undo_all, without_all
from scheduler.domain.core.seeking import Seeker, seeker_of
from scheduler.domain.core.shortages import quota_short
from scheduler.domain.core.wellness import usable

Found = TypeVar("Found")

End: TypeAlias = tuple[float, str, Live]
"""When a gang ends, and its id."""


class Plan(NamedTuple):
    """``leaves`` by node's number, free at ``starts_at``: when the last of ``after`` has ended."""

    leaves: dict[int, int]
    starts_at: float
    after: Sequence[Live]


def plan(cluster: Cluster, live: Live, now: float) -> Plan | None:
    """The earliest; None: not even if all its virtual cluster's gangs were gone."""
    hardware, policy = cluster.hardware, cluster.policy
    charged = cluster.charges.charged_to(live.owner)  # of these lower ones may have to go anyway
    stay = [each for each in charged if each.rank >= live.gang.priority]
    ends = by_end([*stay, *cluster.charges.spared_by(live)], policy, now)
    ends = _each_once(_late(cluster, live, ends) + _protected(cluster, live, now))
    versions, limit = hardware.versions(), hardware.limit
    hardware.limit = hardware.steps + GANG_STEPS
    try:
        with cluster.preemptions.kept_off(live), hardware.ahead():
            found = earliest(cluster, ends, lambda: _leaves(cluster, live, FEW))
            if found is None and _fits_when_gone(cluster, live, ends):
                found = earliest(cluster, ends, lambda: _leaves(cluster, live))
    finally:
        hardware.limit = limit
        hardware.unchanged(versions)
    if found is None:
        return None
    leaves, count = found
    return Plan(leaves, ends[count - 1][0], [other for _, _, other in ends[:count]])


def _late(cluster: Cluster, live: Live, ends: list[End]) -> list[End]:
    """The same; who should be gone from the gang's cells leaves as soon as it is told."""
    late = cluster.reservations.overdue(live, cluster.now)
    at = cluster.now + leaving_s(cluster.policy)
    return [(min(at, end) if other in late else end, gang, other) for end, gang, other in ends]


def _protected(cluster: Cluster, live: Live, now: float) -> list[End]:
    """Gangs that would have to leave for it, and need not yet: when they end, or may have to."""
    found = cluster.preemptions.held_by(live)
    if not found:
        return []
    ends = by_end((cluster.gangs[gang] for gang in sorted(found)), cluster.policy, now)
    return [(min(at, found[gang]), gang, other) for at, gang, other in ends]


def _each_once(ends: list[End]) -> list[End]:
    """The first to end first. Who is protected, and besides would leave for another gang alone,
    whose cells it is on, is gone at its first end.
    """
    first: dict[str, End] = {}
    for at, gang, other in ends:
        if gang not in first or at < first[gang][0]:
            first[gang] = at, gang, other
    return sorted(first.values())


def fits_when_empty(cluster: Cluster, live: Live) -> bool:
    """It would be placed if nobody else were there, as well as the nodes are; or that can't be told
    within the bounds.
    """
    unwell = cluster.hardware.unwell
    if not unwell:
        return True
    version = cluster.hardware.usable_version
    key = live.owner, key_of(live)[2], live.gang.allowed_nodes
    found = cluster.fits_unwell.get(key)
    if found is None or found[0] != version:
        if len(cluster.fits_unwell) >= SHAPES_REMEMBERED:
            cluster.fits_unwell.clear()
        found = cluster.fits_unwell[key] = version, _fits_when_empty(cluster, live)
    return found[1]


def _fits_when_empty(cluster: Cluster, live: Live) -> bool:
    blank = cluster.blank
    states = (state for machine in cluster.hardware.unwell.values() for state in machine.slots)
    bare = ((blank.states[state.slot.number], state.usable) for state in states)
    with usable(blank, bare):
        return Seeker(blank, live.gang, live.owner).could_place(live.waiting)


def earliest(
    cluster: Cluster, ends: Sequence[End], look: Callable[[], Found | None]
) -> tuple[Found, int] | None:
    """What is found when the fewest have ended, one at least, and how many these are. Doubled until
    it fits, then halved between what did and what did not.
    """
    removals: list[Removal] = []
    fails, fits, found = 0, len(ends) + 1, None
    try:
        while fails + 1 < fits:
            known = fits <= len(ends)
            number = (fails + fits) // 2 if known else min(2 * len(removals) + 1, len(ends))
            undo_all(removals[number:])
            del removals[number:]
            removals += (Removal(cluster, other) for _, _, other in ends[len(removals) : number])
            seen = look()
            if seen is not None:
                fits, found = number, seen
            else:
                fails = number
            if not known and number == len(ends) and seen is None:
                break
    finally:
        undo_all(removals)
    return None if found is None else (found, fits)


def _fits_when_gone(cluster: Cluster, live: Live, ends: Sequence[End]) -> bool:
    """It would fit if all had ended, and all had left who may have to: where that is not seen pod
    by pod.
    """
    if not ends or cluster.charges.count_for(live) <= FEW:
        return False  # or it was seen
    with without_all(cluster, (other for _, _, other in ends)):
        return _leaves(cluster, live) is not None


def _leaves(cluster: Cluster, live: Live, most: int | None = None) -> dict[int, int] | None:
    """What the gang would be charged now, by node; None where it does not fit, or costs nothing.
    ``most``: as `room_at_best` has it.
    """
    if quota_short(cluster, live):
        return None
    seeker = seeker_of(cluster, live, is_guest=False)
    if seeker.place(live.waiting):
        leaves = _of(seeker.pods)
        seeker.undo()
        return leaves or None
    if is_alone(cluster, live):
        return None
    return _of(room_at_best(cluster, live, seeker, most) or ()) or None


def _of(pods: Sequence[Pod]) -> dict[int, int]:
    leaves: dict[int, int] = {}
    for pod in pods:
        if pod.state is not None and pod.leaves:
            number = pod.state.slot.number
            leaves[number] = leaves.get(number, 0) | pod.leaves
    return leaves
