"""Which waiting gangs could be helped by what has changed: the others are not tried again."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import Kind
from scheduler.domain.core.prices import room_at_most
from scheduler.domain.core.queue import Group, Key, Line, Stamp

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

FREED_LOOKED = 64
"""Of more freed nodes than this it is not asked whose pods they could take."""


class Waking:
    """The lines to be tried in one cycle. ``freed``: nodes of which something has become free."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.freed: dict[int, Machine] = {}
        self._asked: set[Key] = set()

    def woken(self) -> list[Line]:
        """New lines, and such as may have been helped since this was asked last."""
        cluster, queue = self.cluster, self.cluster.queue
        lines, queue.added = queue.added, {}
        self._asked.update(lines)
        self.freed |= cluster.freed
        cluster.freed.clear()
        for group in queue.groups.values():
            stamp = stamp_of(cluster, group)
            if stamp != group.seen:
                group.seen = stamp
                lines.update((line.key, line) for line in self._helped(group))
        return list(lines.values())

    def is_idle(self, line: Line) -> bool:
        """What helped the line is others' by now: its gangs wait for the reason that they know."""
        if line.reason is None or line.key in self._asked:
            self._asked.discard(line.key)
            return False
        groups = [self.cluster.queue.groups[name] for name in line.groups]
        return not any(line in self._helped(group, line) for group in groups)

    def _helped(self, group: Group, only: Line | None = None) -> Iterator[Line]:
        lines = group.lines.values() if only is None else (only,)
        owner, priority = group.key
        if owner:
            left = self.cluster.leaves_left(owner, priority)
            enough = (line for line in lines if line.leaves <= left)
            rooms: dict[Kind, int] = {}
            yield from (line for line in enough if self._has_room(line, rooms))
            return
        machines = [machine for machine in self.freed.values() if machine.is_open]
        if len(machines) > FREED_LOOKED:
            yield from lines
            return
        most = max((machine.free_gpus() for machine in machines), default=0)
        known: dict[Kind, bool] = {}
        for line in lines:
            for kind, _ in line.key[2]:
                if kind.gpus > most:
                    continue
                helps = known.get(kind)
                if helps is None:
                    helps = known[kind] = any(_takes(machine, kind) for machine in machines)
                if helps:
                    yield line
                    break

    def _has_room(self, line: Line, rooms: dict[Kind, int]) -> bool:
        """There would be room for each kind of its pods if all who may go were gone; or that is to
        be told them yet.
        """
        if line.reason is None or line.reason.code == "quota":
            return True
        cluster, (owner, priority) = self.cluster, line.key[:2]
        for kind, count in line.key[2]:
            if kind.pin is not None or kind.gpus == 0:
                continue
            if kind not in rooms:
                types = kind.gpu_types or cluster.hardware.forest.gpu_types
                rooms[kind] = max(room_at_most(cluster, owner, t, kind, priority) for t in types)
            if rooms[kind] < count:
                return False
        return True


def stamp_of(cluster: "Cluster", group: Group) -> Stamp:
    """What could help the gangs of a group, as versions."""
    hardware, (owner, _) = cluster.hardware, group.key
    if not owner:
        return hardware.usable_version, hardware.free_version
    unbound = hardware.unbound.get(owner)
    can_bind = unbound is not None and any(unbound.values())
    return (
        hardware.usable_version,
        cluster.versions.get(owner, 0),
        hardware.unbound_version if can_bind else -1,
    )


def settled_under(cluster: "Cluster") -> None:
    """All that wait were tried as things are now."""
    cluster.queue.added.clear()
    cluster.freed.clear()
    for group in cluster.queue.groups.values():
        group.seen = stamp_of(cluster, group)


def _takes(machine: Machine, kind: Kind) -> bool:
    """One such pod might be placed there as a guest."""
    take = machine.sort.take(kind)
    return take is not None and kind.gpus <= machine.free_gpus() and machine.has(take)
