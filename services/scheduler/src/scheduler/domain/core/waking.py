"""Which waiting gangs could be helped by what has changed: the others are not tried again."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from scheduler.domain.core.aside import ports_of, stamp_of
from scheduler.domain.core.attainable import has_room
from scheduler.domain.core.freed import PORTS, Freed
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.kinds import wants_as_much
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import OPPORTUNISTIC, Kind
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.prices import cost_of, room_at_most
from scheduler.domain.core.queue import (
    COMMON,
    GUESTS,
    PASSING,
    GroupKey,
    Line,
    Place,
    Stamp,
)
from scheduler.domain.core.reservation import goes_before, may_pass

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

FREED_LOOKED = 64
"""Of more freed nodes than this it is not asked whose pods they could take."""


class Waking:
    """The lines to be tried in one cycle. ``freed``: nodes of which something has become free;
    ``common`` and ``crowded``: as `Freed` has them, the latest of them.

    What is worked out for a state is kept until it changes.
    """

    __slots__ = (
        "_asked",
        "_freed_under",
        "_gettable",
        "_kept",
        "_left",
        "_machines",
        "_most",
        "_nodes_for",
        "_passes",
        "_rooms",
        "_state",
        "_takers",
        "_tight",
        "cluster",
        "common",
        "crowded",
        "freed",
    )

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.freed: dict[int, Machine] = {}
        self.common: Collection[Machine] = ()
        self.crowded: Collection[tuple[Machine, int]] = ()
        self._asked: set[Line] = set()
        self._state: Stamp = ()
        self._rooms: dict[object, int] = {}
        self._left: dict[GroupKey, int] = {}
        self._gettable: dict[GroupKey, int] = {}
        self._kept: dict[str, int] = {}
        self._passes: dict[object, bool] = {}
        self._nodes_for: dict[object, bool] = {}
        self._tight: dict[object, list[Kind]] = {}
        self._freed_under: Stamp = ()
        self._takers: dict[Kind, tuple[Machine | None, int]] = {}
        self._machines: list[Machine] = []
        self._most = 0

    def woken(self) -> Collection[Line]:
        """New lines, and such as may have been helped since this was asked last."""
        cluster, queue = self.cluster, self.cluster.queue
        freed = cluster.freed
        if freed.machines:
            self.freed |= freed.machines
            freed.machines.clear()
        if freed.common or freed.crowded:
            self._take_in_common(freed)
        if cluster.policy.is_strict:
            queue.try_firsts(cluster.rank, soon_to_start(cluster))
        lines, queue.added = queue.added, {}
        if not queue.groups:
            return lines
        state = (*cluster.stamps.state(), cluster.reservations.version)
        if state == self._state and not lines:
            return ()
        if state != self._state:
            self._state = state
            self._rooms.clear()
            self._left.clear()
            self._gettable.clear()
            self._kept.clear()
            self._passes.clear()
            self._nodes_for.clear()
            self._tight.clear()
            self._look_at_freed()
        self._asked.update(lines)
        for group in queue.groups.values():
            stamp = stamp_of(cluster, group)
            if stamp != group.seen:
                group.seen = stamp
                helped = self._helped_by(group.key)
                for alike in group.lines.values():
                    lines.update(dict.fromkeys(helped(alike)))
                for each in cluster.reservations.of(group.key[0]):  # it has what it holds up
                    if each.live.gang.priority == group.key[1]:
                        lines[queue.gangs[each.live.id]] = None
        return lines

    def _take_in_common(self, freed: Freed) -> None:
        """What of that in nobody's quota has become free since this was asked last."""
        self.common = [machine for machine in freed.common.values() if machine.is_open]
        self.crowded = [each for each in freed.crowded.values() if each[0].is_open]
        freed.common.clear()
        freed.crowded.clear()

    def _helped_by(self, group: GroupKey) -> Callable[[Collection[Line]], Iterable[Line]]:
        if group == GUESTS:
            return self._helped_guests
        if group[0].startswith(PASSING):
            return self._helped_in_passing
        return self._helped_in_common if group == COMMON else self._helped

    def _helped_guests(self, alike: Collection[Line]) -> Iterable[Line]:
        """Of lines with the same need those that may be placed as guests."""
        if len(self._machines) <= FREED_LOOKED and next(iter(alike)).least_gpus > self._most:
            return ()
        return (line for line in alike if self._helps_guest(line))

    def _helped(self, alike: Collection[Line]) -> Iterable[Line]:
        """Of lines with the same need those that may be placed in their virtual cluster."""
        first = next(iter(alike))
        if not self._has_quota(first):  # nor has one of a higher priority with what is kept
            is_by_priority = self.cluster.ordering.is_by_priority
            return () if is_by_priority else filter(self._may_take_kept, alike)
        has_room = self._has_room(first)
        return (line for line in alike if self._helps_with_quota(line, has_room=has_room))

    def _helps_with_quota(self, line: Line, *, has_room: bool) -> bool:
        """There would be room for it, or that there is none is to be told."""
        if _is_untold(line) or self._may_take_kept(line):
            return True
        return has_room and not self._is_too_tight(line)

    def _may_take_kept(self, line: Line) -> bool:
        """What is kept for gangs after its first, and is neither free nor anybody's who may go, is
        out of its way.
        """
        live = self.cluster.gangs[line.waiting[0][1]]
        return any(goes_before(live, each) for each in self.cluster.reservations.of(line.key[0]))

    def _helped_in_common(self, alike: Collection[Line]) -> Iterable[Line]:
        """Of lines with the same need those that may be placed by what is in nobody's quota."""
        first = next(iter(alike))
        if not (self.common or self.crowded) or not self._has_quota(first):
            return ()
        return filter(self._helps_in_common, alike) if self._has_room(first) else ()

    def _helped_in_passing(self, alike: Collection[Line]) -> Iterable[Line]:
        """Of lines with the same need those that may go on cells that are kept for others."""
        return filter(self._may_pass, alike) if self._has_kept(next(iter(alike))) else ()

    def _has_kept(self, line: Line) -> bool:
        """Its virtual cluster has as many leaves left as it needs, with what is kept."""
        owner = line.key[0]
        kept = self._kept.get(owner)
        if kept is None:
            kept = self._kept[owner] = self.cluster.reservations.left(owner)
        return line.leaves <= self._quota_left(line) + kept

    def _may_pass(self, line: Line) -> bool:
        """Its first gang would be gone in time."""
        live, cluster = self.cluster.gangs[line.waiting[0][1]], self.cluster
        key = line.key[0], live.apart[:2]
        found = self._passes.get(key)
        if found is None:
            found = self._passes[key] = any(
                may_pass(live, each, cluster.policy, cluster.now)
                for each in cluster.reservations.of(line.key[0])
            )
        return found

    def tried(self, line: Line) -> None:
        """It is the line's turn."""
        self._asked.discard(line)

    def is_idle(self, line: Line) -> bool:
        """What helped the line is others' by now: its gangs wait for the reason that they know."""
        if line.reason is None or line in self._asked:
            return False
        if self.cluster.gangs[line.waiting[0][1]].is_kept_for:
            return False
        for group in line.groups:  # without what `_helps` asks for nobody is helped in common
            if group[0].startswith(PASSING):
                is_helped = self._has_kept(line) and self._may_pass(line)
            else:
                is_helped = self._helps_guest(line) if group == GUESTS else self._helps(line)
            if is_helped:
                return False
        return True

    def _look_at_freed(self) -> None:
        """As long as nothing more becomes free, who takes no pod of a kind takes none later."""
        hardware = self.cluster.hardware
        under = (len(self.freed), hardware.free_version, hardware.usable_version)
        if under != self._freed_under:
            self._freed_under = under
            self._takers.clear()
            self._machines = [machine for machine in self.freed.values() if machine.is_open]
        if len(self._machines) <= FREED_LOOKED:
            self._most = max((machine.free_gpus() for machine in self._machines), default=0)

    def _helps_guest(self, line: Line) -> bool:
        """One of its pods might be placed on a freed node as a guest."""
        if len(self._machines) > FREED_LOOKED:
            return True
        if line.least_gpus > self._most:
            return False
        taken = self.cluster.hardware.taken_version
        for kind, _ in line.key[2]:
            if kind.gpus > self._most:
                continue
            taker, under = self._takers.get(kind, (None, -1))
            if under != taken and (taker is not None or under < 0):
                if taker is None or not _takes(taker, kind):
                    taker = next((each for each in self._machines if _takes(each, kind)), None)
                self._takers[kind] = taker, taken
            if taker is not None:
                return True
        return False

    def _helps_in_common(self, line: Line) -> bool:
        """One of its pods might be on a node without GPUs that has room now, or is to have; or has
        too few ports no longer.
        """
        shape = line.key[2]
        if self.common and any(kind.costs_nothing for kind, _ in shape):
            if len(self.common) > FREED_LOOKED:
                return True
            owner, priority = line.key[:2]
            kinds = [kind for kind, _ in shape if kind.costs_nothing]
            if any(self._yields(each, owner, priority, kinds) for each in self.common):
                return True
        if not self.crowded:
            return False
        ports = ports_of(shape)
        least = min((kind.ports for kind, _ in shape if kind.ports), default=0)
        return any(
            held + ports > PORTS and machine.has_ports(least) for machine, held in self.crowded
        )

    def _yields(self, machine: Machine, owner: str, priority: int, kinds: Sequence[Kind]) -> bool:
        """A pod of one of these kinds might be there without who leaves, and who may have to."""
        takes = [
            take
            for kind in kinds
            if (take := machine.sort.take(kind)) is not None and machine.has_ports(kind.ports)
        ]
        if not takes or any(machine.has(take, is_ahead=True) for take in takes):
            return bool(takes)
        gangs = (self.cluster.gangs[gang] for gang in machine.pods)
        return any(cost_of(each)[0] < (priority if each.owner == owner else 0) for each in gangs)

    def _helps(self, line: Line) -> bool:
        """It has the quota, and there would be room for it; or that there is none is to be told."""
        if self._has_quota(line):
            return self._helps_with_quota(line, has_room=self._has_room(line))
        return not self.cluster.ordering.is_by_priority and self._may_take_kept(line)

    def _has_quota(self, line: Line) -> bool:
        """Its virtual cluster has as many leaves left as it needs at the least."""
        return line.leaves <= self._quota_left(line)

    def _quota_left(self, line: Line) -> int:
        owner, priority = group = line.key[:2]
        left = self._left.get(group)
        if left is None:
            left = self._left[group] = self.cluster.charges.left_of_all(owner, priority)
        return left

    def _quota_without_stayers(self, line: Line) -> int:
        """What is left without what lower ones have and nobody gets from them for now."""
        owner, priority = group = line.key[:2]
        found = self._gettable.get(group)
        if found is None:
            found = self.cluster.charges.left_of_all(owner, priority)
            if self.cluster.charges.has_lower(owner, priority):
                found -= self.cluster.preemptions.staying(owner, priority)
            self._gettable[group] = found
        return found

    def _has_room(self, line: Line) -> bool:
        """There would be room for each kind of its pods if all who may go were gone."""
        if line.leaves > self._quota_without_stayers(line):
            return False
        owner, priority = line.key[:2]
        for key, kind, count in line.wants:
            room = self._rooms.get(key)
            if room is None:
                room = self._rooms[key] = room_at_most(self.cluster, owner, kind, priority)
            if room < count:
                return False
        return True

    def _is_too_tight(self, line: Line) -> bool:
        """No node could give what some of its pods want, or too few could."""
        group = line.key[:2]
        return not all(self._are_nodes_for(group, kind, count) for _, kind, count in line.wants)

    def _are_nodes_for(self, group: GroupKey, kind: Kind, count: int) -> bool:
        """There are for so many such pods, as far as can be told."""
        key = group, kind, count
        found = self._nodes_for.get(key)
        if found is None:
            tight = self._tight.setdefault(group, [])
            found = not any(wants_as_much(kind, less) for less in tight)
            if found:
                found = has_room(self.cluster, group, kind, count)
                if not found and count == 1:
                    tight.append(kind)
            self._nodes_for[key] = found
        return found


def soon_to_start(cluster: "Cluster") -> dict[Place, list[Live]]:
    """Gangs that start when others have left for them, by where in the queue they were."""
    found: dict[Place, list[Live]] = {}
    for gang in cluster.reserved:
        live = cluster.gangs[gang]
        if live.started_at is None:
            owner = owner_of(live.gang.virtual_cluster)
            found.setdefault((owner, live.gang.priority == OPPORTUNISTIC), []).append(live)
    return found


def held_back(cluster: "Cluster") -> list[Line]:
    """Lines that were told that they have too little quota, of which there may be enough by now,
    but for what is kept for others.
    """
    kept, found = cluster.reservations, list[Line]()
    if not kept.by_gang:
        return found
    most = {owner: kept.most(owner) for owner in kept.owners()}
    for (owner, priority), group in cluster.queue.groups.items():
        if owner in most:
            left = cluster.charges.left_of_all(owner, priority) + most[owner]
            for need, alike in group.lines.items():
                if need[0] <= left:
                    found += filter(_is_short_of_quota, alike)
    return found


def _is_short_of_quota(line: Line) -> bool:
    """As it was told, and is not looked at again for that alone."""
    is_short = line.reason is not None and line.reason.code == "quota"
    return is_short and GUESTS not in line.groups


def _is_untold(line: Line) -> bool:
    """That there is no room for it is to be told yet."""
    return line.reason is None or line.reason.code == "quota"


def _takes(machine: Machine, kind: Kind) -> bool:
    """One such pod might be placed there as a guest."""
    if kind.gpus > machine.free_gpus():
        return False
    take = machine.sort.take(kind)
    return take is not None and machine.has(take)
