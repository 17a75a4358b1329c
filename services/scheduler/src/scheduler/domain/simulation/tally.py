"""The sums of a simulation, over time and gangs."""

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields

from scheduler.domain.core.forest import Forest
from scheduler.domain.core.model import NO_ONE, OPPORTUNISTIC, Gang, GangClass, PodPlace
from scheduler.domain.simulation.gang_run import GangRun
from scheduler.domain.simulation.space import Room, Space

GroupName = tuple[str, str]
"""A virtual cluster, and the requested class: guaranteed or opportunistic."""


def group_name(gang: Gang) -> GroupName:
    """A gang's group."""
    is_guaranteed = gang.priority > OPPORTUNISTIC
    kind = GangClass.GUARANTEED if is_guaranteed else GangClass.OPPORTUNISTIC
    return gang.virtual_cluster, kind.value


@dataclass(slots=True)
class Group:
    """Gangs of one virtual cluster and class, in numbers. ``waits_s``: the total wait of each
    started gang.
    """

    requested: int = 0
    restored: int = 0
    refused: int = 0
    preempted: int = 0
    downgraded: int = 0
    lost_gpu_s: float = 0.0
    waits_s: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class Tally:
    """Sums. ``room_s``: GPUs times seconds, over the time from ``begins_at`` to ``now``.
    ``whole_s``: the same for free GPUs in wholly free cells, by chain and type of cell.
    ``lost_gpu_s``: by user.
    """

    space: Space
    begins_at: float | None = None
    now: float = 0.0
    groups: dict[GroupName, Group] = field(default_factory=dict)
    room_s: dict[str, float] = field(
        default_factory=lambda: {each.name: 0.0 for each in fields(Room)}
    )
    whole_s: "defaultdict[tuple[str, str], float]" = field(
        default_factory=lambda: defaultdict(float)
    )
    lost_gpu_s: "defaultdict[str, float]" = field(default_factory=lambda: defaultdict(float))
    upgraded: int = 0
    cancelled: int = 0

    @classmethod
    def of(cls, forest: Forest) -> "Tally":
        """An empty one."""
        return cls(Space(forest))

    def share(self, part: str, whole: str, until: float | None = None) -> float | None:
        """Of the GPUs of ``whole``, those of ``part``, over time; None: there were none. ``until``:
        as if the state stayed as it is.
        """
        rest_s, room = 0.0 if until is None else until - self.now, self.space.room
        of = self.room_s[whole] + rest_s * getattr(room, whole)
        return (self.room_s[part] + rest_s * getattr(room, part)) / of if of else None

    def group(self, run: GangRun) -> Group:
        """The gang's group."""
        return self.groups.setdefault(group_name(run.gang), Group())

    def advance(self, now: float) -> None:
        """Time advances to ``now``; the state was constant until then."""
        if self.begins_at is None:
            self.begins_at = now
        elif now > self.now:
            elapsed_s, room = now - self.now, self.space.room
            for name in self.room_s:
                self.room_s[name] += elapsed_s * getattr(room, name)
            for chain, pieces in self.space.cells.pieces.items():
                for level, leaves in enumerate(pieces.whole):
                    self.whole_s[chain, pieces.chain.types[level]] += elapsed_s * leaves
        self.now = now

    def start(self, run: GangRun, places: Iterable[PodPlace]) -> None:
        """A gang starts, after a wait until now."""
        waits_s, waited_s = self.group(run).waits_s, self.now - run.waits_since
        if run.wait is None:
            run.wait = len(waits_s)
            waits_s.append(waited_s)
        else:
            waits_s[run.wait] += waited_s
        self.space.take(places)

    def stop(self, run: GangRun) -> None:
        """A gang releases its GPUs."""
        self.space.give(run.places.values())

    def lose(self, run: GangRun, places: Collection[PodPlace]) -> None:
        """A preempted gang releases these, and loses its work on them since its last checkpoint.
        What an ended pod still holds is no work.
        """
        self.space.give(places)
        if run.gang.virtual_cluster != NO_ONE:
            lost_gpu_s = run.lost_s(self.now) * sum(len(place.gpus) for place in places)
            self.group(run).lost_gpu_s += lost_gpu_s
            self.lost_gpu_s[run.gang.user] += lost_gpu_s
