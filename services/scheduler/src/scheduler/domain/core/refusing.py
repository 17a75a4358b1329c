"""Whether a gang could ever be placed: who could not is refused."""

from collections.abc import Collection

from scheduler.domain.core.borrowing import could_be_lent
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import OPPORTUNISTIC, Reason, Role
from scheduler.domain.core.names import wrong_name
from scheduler.domain.core.queue import SHAPES_REMEMBERED, Line, key_of
from scheduler.domain.core.seeking import Seeker
from scheduler.domain.core.wording import too_large, wanted

REFUSAL_STEPS = 20_000
"""Steps of the search for a place in the healthy, empty cluster: that a gang is refused is asked
once for its shape, and must be certain.
"""

REFUSAL_LOOKS = 64_000
"""Nodes that are looked at in all these steps, of some 8 us each, at the most."""


def refusal(cluster: Cluster, line: Line) -> Reason | None:
    """Why no healthy, empty cluster of this configuration could hold the line's gangs."""
    live = cluster.gangs[line.waiting[0][1]]
    gang = live.gang
    wrong = wrong_name(cluster.hardware, live)
    if wrong is not None:
        return Reason(*wrong, wanted(live))
    if _could_hold(cluster, live):
        return None
    return too_large(gang, ((role.kind, len(role.pods)) for role in live.waiting))


def _could_hold(cluster: Cluster, live: Live) -> bool:
    gang = live.gang
    if live.pods or live.strangers or live.is_kept_for:
        return True
    _, _, shape, _, _, only, _ = key_of(live)
    is_guest = gang.priority == OPPORTUNISTIC
    key = (live.owner, is_guest, gang.is_borrowing, shape, only)
    found = cluster.can_hold.get(key)
    if found is None:
        found = any(
            _fits_blank(cluster, live, guest)
            for guest in ((True,) if is_guest else (False, True))
            if guest == is_guest or all(kind.costs_nothing for kind, _ in shape)
        ) or could_be_lent(cluster, live)
        if len(cluster.can_hold) >= SHAPES_REMEMBERED:
            cluster.can_hold.clear()
        cluster.can_hold[key] = found
    return found


def _fits_blank(cluster: Cluster, live: Live, is_guest: bool) -> bool:
    owner = None if is_guest else live.owner
    if not is_guest and _wants_more_than_owned(cluster, live):
        return False
    if any(_are_more_than_fit(cluster, role, live.gang.allowed_nodes) for role in live.waiting):
        return False
    seeker = Seeker(cluster.blank, live.gang, owner)
    seeker.is_thorough = True
    seeker.search_steps, seeker.looks_left = REFUSAL_STEPS, REFUSAL_LOOKS
    return seeker.could_place(live.waiting)


def _wants_more_than_owned(cluster: Cluster, live: Live) -> bool:
    """It needs more leaves of some GPU types, or of all, than its virtual cluster has of them,
    those of pins aside.
    """
    hardware = cluster.blank
    needed: dict[tuple[str, ...], int] = {}
    for role in live.waiting:
        if role.kind.pin is None:
            count = hardware.demands.least_leaves(role.kind) * len(role.pods)
            every = tuple(hardware.gpu_types)
            for types in {role.kind.gpu_types or every, every}:
                needed[types] = needed.get(types, 0) + count
    owned = hardware.owning.owned
    return any(
        count > sum(owned.get((live.owner, each), 0) for each in types)
        for types, count in needed.items()
    )


def _are_more_than_fit(cluster: Cluster, role: Role, only: Collection[str] | None) -> bool:
    """A role's pods without GPUs are more than all nodes hold beside GPUs, were they empty."""
    machines, left = cluster.blank.machines, len(role.pods)
    if role.kind.gpus or left <= (len(machines) if only is None else len(only)):
        return False
    for name in machines if only is None else machines.keys() & only:
        take = machines[name].sort.take(role.kind)
        if take is not None:
            amounts = zip(take.amounts, machines[name].sort.capacity, strict=True)
            left -= min((most // amount for amount, most in amounts if amount), default=left)
            if left <= 0:
                return False
    return True
