"""Which waiting gangs could be helped by what has changed: the others are not tried again."""

from collections.abc import Collection, Iterable, Iterator, Sequence
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
        self._state: Stamp = ()
        self._rooms: dict[tuple[str, Kind, int], int] = {}
        self._takers: dict[Kind, bool] = {}

    def woken(self) -> Collection[Line]:
        """New lines, and such as may have been helped since this was asked last."""
        cluster, queue = self.cluster, self.cluster.queue
        state = cluster.state_of()
        if state == self._state and not queue.added:
            return ()
        if state != self._state:
            self._state = state
            self._rooms.clear()
            self._takers.clear()
        lines, queue.added = queue.added, {}
        self._asked.update(lines)
        self.freed |= cluster.freed
        cluster.freed.clear()
        for group in queue.groups.values():
            stamp = stamp_of(cluster, group)
            if stamp != group.seen:
                group.seen = stamp
                lines.update((line.key, line) for line in self._helped(group, group.lines.values()))
        return lines.values()

    def is_idle(self, line: Line) -> bool:
        """What helped the line is others' by now: its gangs wait for the reason that they know."""
        if line.reason is None or line.key in self._asked:
            self._asked.discard(line.key)
            return False
        groups = (self.cluster.queue.groups[name] for name in line.groups)
        return not any(True for group in groups for _ in self._helped(group, (line,)))

    def _helped(self, group: Group, lines: Iterable[Line]) -> Iterator[Line]:
        owner, priority = group.key
        if owner:
            left = self.cluster.leaves_left(owner, priority)
            yield from (line for line in lines if line.leaves <= left and self._has_room(line))
            return
        machines = [machine for machine in self.freed.values() if machine.is_open]
        if len(machines) > FREED_LOOKED:
            yield from lines
            return
        most = max((machine.free_gpus() for machine in machines), default=0)
        for line in lines:
            for kind, _ in line.key[2]:
                if kind.gpus <= most and self._is_taken(kind, machines):
                    yield line
                    break

    def _is_taken(self, kind: Kind, machines: Sequence[Machine]) -> bool:
        """Such a pod might be placed on one of these nodes as a guest."""
        found = self._takers.get(kind)
        if found is None:
            found = self._takers[kind] = any(_takes(machine, kind) for machine in machines)
        return found

    def _has_room(self, line: Line) -> bool:
        """There would be room for each kind of its pods if all who may go were gone; or that is to
        be told them yet.
        """
        if line.reason is None or line.reason.code == "quota":
            return True
        owner, priority = line.key[:2]
        for kind, count in line.key[2]:
            key = (owner, kind, priority)
            room = self._rooms.get(key)
            if room is None:
                room = self._rooms[key] = room_at_most(self.cluster, owner, kind, priority)
            if room < count:
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
