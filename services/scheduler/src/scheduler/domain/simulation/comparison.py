"""The effects of a change of a cluster on gangs: two simulations of the same events, in numbers."""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.domain.simulation.side_by_side import SAME_S, Side, SideBySide
from scheduler.domain.simulation.tally import GroupName

USERS_LISTED = 10
"""The most users in the list, the most affected first."""


@dataclass(slots=True)
class Twice:
    """A number in the cluster as it is, and in the changed one."""

    before: float = 0.0
    after: float = 0.0

    def add(self, other: "Twice") -> None:
        """Sum up."""
        self.before += other.before
        self.after += other.after

    @property
    def is_same(self) -> bool:
        """Whether there is no significant difference."""
        return abs(self.after - self.before) < SAME_S


def _times() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Row:
    """Some gangs. ``waited``: those that waited and started in both; ``waits_s``: the sum of their
    waits; ``other_waits``: those with another total wait. ``later_s``, ``earlier_s``: by how much
    each gang that starts in both starts later, or earlier. ``stopped``: start only in the first;
    ``started``: only in the second. ``shorter_s``: as in `SideBySide`.
    """

    gangs: int = 0
    waited: int = 0
    other_waits: int = 0
    waits_s: Twice = field(default_factory=Twice)
    later_s: "array[float]" = field(default_factory=_times)
    earlier_s: "array[float]" = field(default_factory=_times)
    stopped: int = 0
    started: int = 0
    refused: Twice = field(default_factory=Twice)
    preempted: Twice = field(default_factory=Twice)
    lost_gpu_s: Twice = field(default_factory=Twice)
    shorter_s: "array[float]" = field(default_factory=_times)

    def add(self, other: "Row") -> None:
        """Sum up."""
        for name in ("gangs", "waited", "other_waits", "stopped", "started"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("waits_s", "refused", "preempted", "lost_gpu_s"):
            getattr(self, name).add(getattr(other, name))
        for name in ("later_s", "earlier_s", "shorter_s"):
            getattr(self, name).extend(getattr(other, name))

    @property
    def mean_waits_s(self) -> Twice | None:
        """Of the gangs that waited; None: none did."""
        if not self.waited:
            return None
        return Twice(self.waits_s.before / self.waited, self.waits_s.after / self.waited)

    @property
    def is_same(self) -> bool:
        """Whether nothing changes."""
        is_start_same = not (self.later_s or self.earlier_s or self.stopped or self.started)
        is_rest_same = all(each.is_same for each in (self.refused, self.preempted, self.lost_gpu_s))
        return is_start_same and not self.other_waits and is_rest_same

    @property
    def harm(self) -> tuple[float, ...]:
        """How much the change affects them: their losses, then other differences."""
        return (
            self.stopped,
            sum(self.later_s),
            self.other_waits,
            self.preempted.after - self.preempted.before,
            self.started,
            sum(self.earlier_s),
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Gangs by group and by user, in order of appearance. ``pair``: the two simulations."""

    pair: SideBySide
    groups: dict[GroupName, Row]
    users: dict[str, Row]

    @property
    def all(self) -> Row:
        """Everybody's."""
        return sum_of(self.groups.values())

    @property
    def virtual_clusters(self) -> dict[str, Row]:
        """By virtual cluster, both classes together, in the order of their names."""
        found: dict[str, Row] = {}
        for (name, _), row in sorted(self.groups.items()):
            found.setdefault(name, Row()).add(row)
        return found

    def users_listed(self) -> tuple[list[tuple[str, Row]], list[Row]]:
        """Users by name, the most affected first; and all the others."""
        changed = [(user, row) for user, row in self.users.items() if not row.is_same]
        changed.sort(key=lambda each: ([-harm for harm in each[1].harm], each[0]))
        listed = changed[:USERS_LISTED]
        names = {user for user, _ in listed}
        return listed, [row for user, row in self.users.items() if user not in names]


def compare(pair: SideBySide) -> Comparison:
    """The result of two finished simulations."""
    groups = {name: Row() for name in pair.groups}
    users = {name: Row() for name in pair.users}
    group_rows, user_rows = list(groups.values()), list(users.values())
    for number in range(pair.gangs):
        for row in (group_rows[pair.group_of[number]], user_rows[pair.user_of[number]]):
            _add_gang(row, pair, number)
    for name, group in groups.items():
        group.lost_gpu_s = Twice(*(_lost_by_group(side, name) for side in _sides(pair)))
    for login, user in users.items():
        user.lost_gpu_s = Twice(*(side.simulation.tally.lost_gpu_s[login] for side in _sides(pair)))
    return Comparison(pair, groups, users)


def _sides(pair: SideBySide) -> tuple[Side, Side]:
    return pair.before, pair.after


def _lost_by_group(side: Side, name: GroupName) -> float:
    group = side.simulation.tally.groups.get(name)
    return 0.0 if group is None else group.lost_gpu_s


def _add_gang(row: Row, pair: SideBySide, number: int) -> None:
    before, after = pair.before, pair.after
    row.gangs += 1
    row.refused.add(Twice(number in before.refused, number in after.refused))
    row.preempted.add(Twice(before.preempted[number], after.preempted[number]))
    if number in pair.shorter_s:
        row.shorter_s.append(pair.shorter_s[number])
    later_s = after.starts[number] - before.starts[number]
    if math.isnan(later_s):
        row.stopped += not math.isnan(before.starts[number])
        row.started += not math.isnan(after.starts[number])
        return
    if later_s >= SAME_S:
        row.later_s.append(later_s)
    elif later_s <= -SAME_S:
        row.earlier_s.append(-later_s)
    waits_s = Twice(before.waits_s[number], after.waits_s[number])
    if not math.isnan(waits_s.before + waits_s.after):
        row.waited += 1
        row.waits_s.add(waits_s)
        row.other_waits += not waits_s.is_same


def sum_of(rows: Iterable[Row]) -> Row:
    """All of them together."""
    total = Row()
    for row in rows:
        total.add(row)
    return total
