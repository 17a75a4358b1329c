"""Lines that were tried in vain: what could help them, and whether that has changed since."""

from typing import TYPE_CHECKING

from scheduler.domain.core.extras import NO_ROOM
from scheduler.domain.core.model import Reason
from scheduler.domain.core.queue import (
    COMMON,
    GUESTS,
    PASSING,
    Group,
    GroupKey,
    Line,
    Shape,
    Stamp,
    Want,
)

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster


def put_aside(cluster: "Cluster", line: Line) -> None:
    """The line's first could not be placed."""
    if cluster.gangs[line.waiting[0][1]].gang.is_borrowing:
        cluster.charges.loans.lines[line] = None
    if line.groups:
        return
    owner, priority, shape, _, apart, _, _ = line.key
    live = cluster.gangs[line.waiting[0][1]]
    is_guest = live.is_guest
    is_growing = bool(live.pods or live.strangers)
    groups: list[GroupKey] = []
    is_extra = live.extra_of is not None  # nothing is reserved for it: cells must be idle
    if is_guest or is_extra or (not is_growing and all(kind.costs_nothing for kind, _ in shape)):
        groups.append(GUESTS)
    if not is_guest:
        if _is_common(cluster, shape):
            groups.append(COMMON)
        groups.append((owner, priority))
        if cluster.is_keeping and any(apart[:2]):
            groups.append((PASSING + owner, priority))
    cluster.freed.most_ports = max(cluster.freed.most_ports, ports_of(shape))
    is_pinned = any(kind.pin is not None for kind, _ in shape)
    least = cluster.hardware.demands.least_leaves
    leaves = 0 if is_pinned else sum(least(kind) * count for kind, count in shape)
    wants: list[Want] = []
    for kind, count in shape:
        needs, _ = cluster.hardware.demands.wish(kind, is_guest=False)
        what = (owner, priority, needs, kind.gpu_types, kind.pin, kind.gpus == 0)
        wants.append((what, kind, count))
    cluster.queue.put_aside(line, groups, leaves, wants)
    for group in (cluster.queue.groups[name] for name in groups):
        if group.seen is None:  # it is the first of its group, and was tried as things are now
            group.seen = stamp_of(cluster, group)


def _is_common(cluster: "Cluster", shape: Shape) -> bool:
    """Some pod might wait for what is in nobody's quota."""
    hardware = cluster.hardware
    return any(
        (kind.ports and hardware.demands.has_open_ports)
        or (
            kind.costs_nothing
            and any(machine.sort.take(kind) is not None for machine in hardware.without_gpus)
        )
        for kind, _ in shape
    )


def ports_of(shape: Shape) -> int:
    return sum(kind.ports * count for kind, count in shape)


def stamp_of(cluster: "Cluster", group: Group) -> Stamp:
    """What could help the gangs of a group, as versions."""
    hardware, (owner, priority) = cluster.hardware, group.key
    if group.key == COMMON:
        return (cluster.freed.version,)
    if not owner:
        return hardware.usable_version, hardware.free_version
    if owner.startswith(PASSING):  # opportunistic gangs may have left what is kept
        owner = owner.removeprefix(PASSING)
        kept = cluster.reservations.versions[owner], hardware.free_version
        return hardware.usable_version, *kept, *cluster.stamps.of_quota(owner, priority)
    return hardware.usable_version, *cluster.stamps.of_quota(owner, priority)


def all_tried(cluster: "Cluster", *, is_settled: bool = True) -> None:
    """Everything is as it was in another cluster after a cycle: who was told there why it waits was
    tried in this state, and is not tried again before something changes.
    """
    cluster.is_settled = is_settled
    for line in cluster.queue.lines.values():
        put_aside(cluster, line)
    settled_under(cluster)
    for line in cluster.queue.lines.values():
        codes = {cluster.gangs[gang].told for _, gang in line.waiting}
        first = cluster.gangs[line.waiting[0][1]]
        if first.extra_of is not None:
            line.reason = NO_ROOM
        elif None in codes:
            cluster.queue.added[line] = None
        else:  # of no state: its text is not known
            cluster.queue.explain(line, Reason(first.told or "", "", {}), ())
            line.untold.clear()


def settled_under(cluster: "Cluster") -> None:
    """All that wait were tried as things are now."""
    cluster.queue.added.clear()
    cluster.freed.clear()
    for group in cluster.queue.groups.values():
        group.seen = stamp_of(cluster, group)
