"""The gangs that wait, in order, those that want the same in one line.

Within a cycle room only shrinks: when the first of a line can't be placed, no later one can.
Between cycles a line is tried again only after something changed that could help it (`waking`).
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from scheduler.domain.core.holdings import Live, Order
from scheduler.domain.core.model import OPPORTUNISTIC, Kind, Reason, UserKey
from scheduler.domain.core.ordering import Rank
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.rechecks import Rechecks

Shape = tuple[tuple[Kind, int], ...]
"""Pods that want the same, counted."""

SHAPES_REMEMBERED = 10_000
"""Of which it is known whether they could be placed at all, or on the nodes that are well."""

Apart = tuple[str | float | None, ...]
"""What else keeps gangs apart that want the same: how long they run at most, and whose they are."""

Key = tuple[str, int, Shape, str, Apart, frozenset[str] | None, str]
"""Owner, priority, shape, what is near, what keeps apart, allowed nodes, and the gang itself where
it grows, cells are kept for it, or its job is kept off others; or that it may borrow.
"""

Place = tuple[str, bool]
"""Owner, and whether opportunistic gangs."""

FirstRanks = tuple[float, ...]
"""Ranks of a gang by the first of the policies of the order."""

Stamp = tuple[int, ...]

GroupKey = tuple[str, int]
"""Owner and priority."""

Want = tuple[tuple[object, ...], Kind, int]
"""What the room for such pods depends on, their kind, and how many they are."""

Need = tuple[int, int, tuple[tuple[tuple[object, ...], int], ...]]
"""Leaves that a gang needs of its quota at the least, GPUs that its smallest pod wants, and what
the room for its pods depends on with how many they are: lines with the same need are helped alike.
"""

GUESTS: GroupKey = ("", OPPORTUNISTIC)
"""The group of gangs that are placed as guests, whoever they are."""

PASSING = "\n"
"""Before the owner in the group of gangs that may go on cells that are kept for others in time."""

BORROWING = "\n"
"""In the key of gangs that may borrow, which others that want the same may not."""

COMMON: GroupKey = ("", 0)
"""The group of gangs with cells that may wait for what is in nobody's quota (`Freed`)."""


@dataclass(slots=True, eq=False)
class Line:
    """Waiting gangs of one key. ``groups``: whose changes help it, from its first failure on;
    ``leaves``: of its quota that one of them needs at the least; ``least_gpus``: that its smallest
    pod wants; ``wants``: its pods by kind; ``need``: all three.

    ``reason``: why its first could not be placed, found in the state ``explained``. ``untold``:
    gangs that were not told the reason's code. ``mark``: its place in `Rechecks`, if any.
    """

    key: Key
    groups: tuple[GroupKey, ...] = ()
    leaves: int = 0
    least_gpus: int = 0
    wants: tuple[Want, ...] = ()
    need: Need = (0, 0, ())
    waiting: list[Order] = field(default_factory=list)
    reason: Reason | None = None
    untold: set[str] = field(default_factory=set)
    explained: Stamp | None = None
    mark: bytes = b""


@dataclass(slots=True, eq=False)
class Group:
    """Lines that the same changes help, by what they need. ``seen``: the stamp under which all of
    them failed.
    """

    key: GroupKey
    lines: dict[Need, dict[Line, None]] = field(default_factory=dict)
    seen: Stamp | None = None


@dataclass(slots=True, eq=False)
class Queue:
    """Every waiting gang. ``added``: lines to be tried in any case; ``news``: those with gangs that
    were not told; ``rechecks``: those whose reason may become another one without their help. Sets
    of lines are kept in the order in which they came. ``explained``: raised whenever a line's
    reason is looked for; ``version``: whenever who waits changes. ``tried``: in vain, of a virtual
    cluster's gangs of one class.
    ``orders``: of each user's gangs of one virtual cluster and class, in order.
    ``changes``: by owner, raised when there are more of these, or the first of one waits no longer;
    ``firsts``: who was tried as the first, where nobody may pass. ``ahead``: by owner, what
    `ahead_of` was asked last, and the lines that it found.
    """

    lines: dict[Key, Line] = field(default_factory=dict)
    gangs: dict[str, Line] = field(default_factory=dict)
    orders: defaultdict[UserKey, list[Order]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    added: dict[Line, None] = field(default_factory=dict)
    news: dict[Line, None] = field(default_factory=dict)
    rechecks: Rechecks = field(default_factory=Rechecks)
    explained: int = 0
    version: int = 0
    tried: dict[Place, dict[Line, None]] = field(default_factory=dict)
    firsts: dict[Place, str] = field(default_factory=dict)
    changes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    ahead: dict[str, tuple[FirstRanks, dict[Line, None]]] = field(default_factory=dict)

    def add(self, live: Live, key: Key) -> None:
        """A gang waits from now on."""
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(key)
        insort(line.waiting, live.order)
        insort(self.orders[live.account], live.order)
        if line.groups and line.waiting[0] is live.order:
            self._note_ahead(line)
            if live.order[0][:2] < line.waiting[1][0][:2]:  # perhaps before who has cells kept
                self.changes[key[0]] += 1
                self.added[line] = None
        self.version += 1
        if line.reason is None:  # else the same holds for it as for the others in the line
            self.added[line] = None
        if live.extra_of is None:
            self.news[line] = None
            line.untold.add(live.id)
        self.gangs[live.id] = line

    def remove(self, live: Live) -> None:
        """The gang does not wait any more."""
        line = self.gangs.pop(live.id, None)
        if line is None:
            return
        self.version += 1
        if self.firsts and self.firsts.get(place := place_of(line.key)) == live.id:
            del self.firsts[place]  # if it comes again, as another, it is tried again
        orders = self.orders[live.account]
        del orders[bisect_left(orders, live.order)]
        if not orders:
            del self.orders[live.account]
        index = bisect_left(line.waiting, live.order)
        del line.waiting[index]
        if index == 0 and line.groups:
            self.changes[line.key[0]] += 1
        line.untold.discard(live.id)
        if line.waiting:
            return
        del self.lines[line.key]
        if line.groups:
            place = place_of(line.key)
            del self.tried[place][line]
            if not self.tried[place]:
                del self.tried[place]
        self.news.pop(line, None)
        self.added.pop(line, None)
        if line.mark:
            self.rechecks.discard(line)
        for name in line.groups:
            group = self.groups[name]
            del group.lines[line.need][line]
            if not group.lines[line.need]:
                del group.lines[line.need]
            if not group.lines:
                del self.groups[name]

    def put_aside(
        self, line: Line, groups: Sequence[GroupKey], leaves: int, wants: Sequence[Want]
    ) -> None:
        """The line failed: from now on it is tried when one of these groups is helped."""
        line.groups, line.leaves, line.wants = tuple(groups), leaves, tuple(wants)
        line.least_gpus = min(kind.gpus for kind, _ in line.key[2])
        line.need = leaves, line.least_gpus, tuple((what, count) for what, _, count in wants)
        self.changes[line.key[0]] += 1
        self.tried.setdefault(place_of(line.key), {})[line] = None
        self._note_ahead(line)
        for name in groups:
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = Group(name)
            group.lines.setdefault(line.need, {})[line] = None

    def ahead_of(self, owner: str, ranks: FirstRanks) -> list[Line]:
        """Lines tried in vain, of a virtual cluster's gangs with quota, whose first goes before
        these first ranks.
        """
        lines, known = self.tried.get((owner, False), {}), self.ahead.get(owner)
        among = lines if known is None or known[0] != ranks else known[1]
        found = [
            line for line in among if line in lines and line.waiting[0][0][: len(ranks)] < ranks
        ]
        self.ahead[owner] = ranks, dict.fromkeys(found)
        return found

    def _note_ahead(self, line: Line) -> None:
        """Another gang is the line's first, which was tried in vain."""
        known = self.ahead.get(line.key[0])
        if known is not None and line.key[1] != OPPORTUNISTIC:
            ranks, found = known
            if line.waiting[0][0][: len(ranks)] < ranks:
                found[line] = None

    def try_firsts(self, rank: Callable[[Line], Rank], held: Container[Place]) -> bool:
        """Where nobody may pass: who has become the first of a virtual cluster is tried. Whether
        anybody has. ``held``: where somebody is still to start for whom others leave.
        """
        found = False
        for place, lines in self.tried.items():
            if place in held:
                self.firsts.pop(place, None)
                continue
            line = min(lines, key=rank)
            gang = line.waiting[0][1]
            if self.firsts.get(place) != gang:
                self.firsts[place] = gang
                self.added[line] = None
                found = True
        return found

    def explain(self, line: Line, reason: Reason, state: Stamp) -> None:
        """Why the line's gangs wait."""
        self.explained += 1
        if line.reason is None or line.reason.code != reason.code:
            line.untold.update(gang for _, gang in line.waiting)
            self.news[line] = None
        line.reason, line.explained = reason, state
        # Too little quota stays too little until some is free; who may go without any is told
        # of bad nodes all the same.
        if reason.code == "quota" and GUESTS not in line.groups:
            self.rechecks.discard(line)
        else:
            self.rechecks.add(line)

    def candidates(
        self,
        woken: Callable[[], Collection[Line]],
        is_idle: Callable[[Line], bool],
        rank: Callable[[Line], Rank],
        ranked: Callable[[], int],
    ) -> Iterator[tuple[Line, str]]:
        """The gangs to try now, in order. A gang that still waits when the next is asked for takes
        its line out. ``woken``: lines that may have been helped since it was last asked; those
        that are not reached are there again the next time. ``is_idle``: such a line is not helped
        after all, as things are before it is its turn. ``rank``: of the first of a line, which may
        fall behind as others are placed; ``ranked``: raised when some may be others than before.
        """
        heads: list[tuple[Rank, int, int, Order, Line]] = []
        inside: set[Line] = set()  # not by key: a line may be left by all and begun anew meanwhile
        number = 0
        lines, reached = woken(), None
        try:
            while lines or heads:
                under = ranked()
                for line in lines:
                    if line.waiting and line not in inside:
                        number += 1
                        inside.add(line)
                        only = ((), "") if len(lines) == 1 and not heads else None
                        heappush(heads, (only or rank(line), number, under, line.waiting[0], line))
                lines = ()
                if not heads:
                    break
                known, _, since, order, reached = heappop(heads)
                inside.discard(reached)
                if reached.waiting and reached.waiting[0] == order:
                    if is_idle(reached):  # of most; their ranks are left alone
                        reached = None
                        continue
                    if heads and since != under and known != rank(reached):
                        lines, reached = (reached,), None
                        continue
                    yield reached, order[1]
                lines = woken()
                if reached.waiting and reached.waiting[0] != order:
                    lines = (reached, *lines)
                reached = None
        finally:
            for *_, line in heads:
                if line.waiting:
                    self.added[line] = None
            if reached is not None and reached.waiting:
                self.added[reached] = None


def place_of(key: Key) -> Place:
    """Where in the queue those of a key are."""
    return key[0], key[1] == OPPORTUNISTIC


def wish_of(line: Line) -> object:
    """What its first gang has in common with all that want the same and come as far before others
    by what counts for kept cells: however long they run, and whose they are.
    """
    return line.key[2], kin_of(line)


def kin_of(line: Line) -> object:
    """The same with all that may be in the same places, whatever they want there."""
    owner, priority, _, near, _, *others = line.key
    return owner, priority, near, *others, line.waiting[0][0][:2]


def key_of(live: Live) -> Key:
    """What its line has in common."""
    gang = live.gang
    shape = tuple([(role.kind, len(role.pods)) for role in live.waiting])
    near = "" if gang.group is None else f"{gang.job}\n{gang.group}"
    is_alone = live.pods or live.strangers or live.is_kept_for or live.is_paired
    alone = ""
    if is_alone:
        alone = live.id
    elif gang.is_borrowing:
        alone = BORROWING
    if live.extra_of is not None:  # not with what its gang waits for all at once
        alone = f"{live.extra_of}\n"
    owner = live.owner if live.lender is None else owner_of(gang.virtual_cluster)
    return owner, gang.priority, shape, near, live.apart, gang.allowed_nodes, alone
