"""Who is ahead of a waiting gang, and when it is expected to start.

A gang for which cells are kept is expected when these are free. For the others of a virtual cluster
leaves are counted: as gangs that run end, those that wait take them, in order; nobody passes, and
where the leaves are does not count. What came of earlier expectations scales the later ones.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

from scheduler.domain.core.calibration import Calibration
from scheduler.domain.core.ends import ends_at
from scheduler.domain.core.everyone import Everyone, Waiting
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.interface import AHEAD_NAMED, Ahead, Expected, Told
from scheduler.domain.core.model import Kind, Role
from scheduler.domain.core.ordering import Rank
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.queue import Place, place_of

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

KEPT, COUNTED = "reserved", "counted"
"""Where an expectation comes from: cells that are kept, or leaves that are counted."""

ANY = ""
"""Leaves of whatever type, in no pin."""

Leaves = dict[str, int]
"""By GPU type, or by a pin's owner."""


@dataclass(slots=True)
class Ranked:
    """Who waits of one virtual cluster and class, in order. ``gpus[n]``: of the first n.
    ``starts``: when each of the first is expected to start, None: never; ``later``: of the others.
    """

    ranks: list[Rank]
    gangs: list[Live]
    gpus: list[int]
    starts: dict[str, float | None] = field(default_factory=dict)
    later: Iterator[tuple[str, float | None]] | None = None

    def starts_at(self, cluster: "Cluster", owner: str, gang: str) -> float | None:
        """When a gang of these is expected to start: all before it are looked at once."""
        if self.later is None:
            self.later = _starts(cluster, owner, self.gangs)
        if gang not in self.starts:
            for each, at in self.later:
                self.starts[each] = at
                if each == gang:
                    break
        return self.starts.get(gang)


class Forecast:
    """``told``: the first expectation of each gang that waits, where there was one."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.told: dict[str, Told] = {}
        self._everyone: Everyone | None = None
        self._ranked: dict[Place, Ranked] = {}
        self._known_under: tuple[object, ...] = ()

    def everyone(self, cluster: "Cluster") -> Everyone:
        """All that wait, in order: known for as long as nothing changes."""
        state = (cluster.queue.version, cluster.now, *cluster.stamps.state())
        if self._everyone is None or self._known_under != state:
            self._ranked.clear()
            self._everyone = Everyone(cluster)
            self._known_under = state
        return self._everyone

    def ahead(self, cluster: "Cluster", live: Live) -> Ahead | None:
        """Who comes before a gang; None: it is not in the queue."""
        line = cluster.queue.gangs.get(live.id)
        if line is None:
            return None
        ranked = self._of(cluster, place_of(line.key))
        before = bisect_left(ranked.ranks, cluster.rank_of(live))
        first = ranked.gangs[: min(before, AHEAD_NAMED)]
        named = tuple((each.id, gpus_wanted(each)) for each in first)
        return Ahead(before + 1, len(ranked.gangs), ranked.gpus[before], named)

    def expected(self, cluster: "Cluster", live: Live) -> Expected | None:
        """When a gang in the queue is expected to start; None: nobody knows. What is told first
        is compared with what comes of it.
        """
        line = cluster.queue.gangs.get(live.id)
        if line is None or live.is_guest:
            return None
        kept = cluster.reservations.by_gang.get(live.id)
        if kept is not None:
            found, source = kept.starts_at, KEPT
        else:
            ranked = self._of(cluster, place_of(line.key))
            at = ranked.starts_at(cluster, line.key[0], live.id)
            if at is None:
                return None
            found, source = at, COUNTED
        now, kind = cluster.now, _kind(live, source)
        since = self.told.setdefault(live.id, Told(now, found, kind)).since
        calibration = self.calibration
        at = since + max(found - since, 0.0) * calibration.factor(kind)
        if at <= now:  # what was scaled has passed
            at = max(found, now)
        return Expected(at, source, calibration.error(kind), calibration.known(kind))

    def kept_at(self, cluster: "Cluster", live: Live) -> float | None:
        """The same for a gang for which cells are kept; None: they are not. It costs nothing."""
        if not live.is_kept_for or live.id not in cluster.reservations.by_gang:
            return None
        found = self.expected(cluster, live)
        return None if found is None else found.at

    def kept(self, live: Live, now: float, starts_at: float) -> None:
        """Cells are kept for a gang from now on."""
        self.told.setdefault(live.id, Told(now, starts_at, _kind(live, KEPT)))

    def started(self, live: Live, now: float) -> None:
        """What was expected of the gang, if anything, has come."""
        told = self.told.pop(live.id, None)
        if told is not None:
            self.calibration.note(told.kind, told.at - told.since, now - told.since)

    def carry(self, before: "Forecast") -> None:
        """What was known before a change of the configuration."""
        self.calibration, self.told = before.calibration, before.told

    def _of(self, cluster: "Cluster", place: Place) -> Ranked:
        of_place = self.everyone(cluster).of_places[place]
        found = self._ranked.get(place)
        if found is None:
            found = self._ranked[place] = _ranked(cluster, of_place)
        return found


def gpus_wanted(live: Live) -> int:
    """By the pods that wait."""
    return sum(role.kind.gpus * len(role.pods) for role in live.waiting)


def _kind(live: Live, source: str) -> str:
    return f"{live.owner}\n{source}"


def _ranked(cluster: "Cluster", waiting: Iterable[Waiting]) -> Ranked:
    found = sorted(rank for each in waiting for rank in each.ranks(len(each.orders)))
    lives = [cluster.gangs[gang] for _, gang in found]
    return Ranked(found, lives, [0, *accumulate(map(gpus_wanted, lives))])


def _starts(
    cluster: "Cluster", owner: str, waiting: Sequence[Live]
) -> Iterator[tuple[str, float | None]]:
    """One after the other, each as soon as there are leaves enough; None for those that want more
    than there are.
    """
    now, policy, owned = cluster.now, cluster.policy, _owned(cluster, owner)
    free, ends = dict(owned), list[tuple[float, int, Leaves]]()
    charged = (live for live in cluster.charges.charged_to(owner) if live.lender is None)
    for number, live in enumerate(charged):
        has = _has(cluster, live)
        _add(free, has, -1)
        ends.append((ends_at(live, policy, now), number, has))
    heapify(ends)
    at, number = now, len(ends)
    if ends:  # nobody can start now: it was tried
        at = _next(ends, free)
    types = [key for key in owned if not _is_pin(key)]
    only = types[0] if len(types) == 1 else None
    wanted: dict[tuple[tuple[Kind, int], ...], Leaves] = {}
    for live in waiting:
        shape = tuple([(role.kind, len(role.pods)) for role in live.waiting])
        wants = wanted.get(shape)
        if wants is None:
            wants = wanted[shape] = _as_one(_wants(cluster, live.waiting), only)
        if not _fits(wants, owned):
            yield live.id, None
            continue
        while ends and not _fits(wants, free):
            at = _next(ends, free)
        if not _fits(wants, free):
            break
        yield live.id, at
        taken = _take(free, wants)
        number += 1
        heappush(ends, (at + _run_s(cluster, live), number, taken))


def _next(ends: list[tuple[float, int, Leaves]], free: Leaves) -> float:
    at, _, has = heappop(ends)
    _add(free, has, 1)
    return at


def _run_s(cluster: "Cluster", live: Live) -> float:
    """How long it will run, as far as anybody knows."""
    run_s = live.gang.expected_s or cluster.policy.assumed_s
    limit_s = live.gang.limit_s
    return run_s if limit_s is None else min(run_s, limit_s)


def _owned(cluster: "Cluster", owner: str) -> Leaves:
    owning = cluster.hardware.owning
    found = {leaf: count for (other, leaf), count in owning.owned.items() if other == owner}
    pins = (pin for pin, other in owning.pins_of.items() if other == owner)
    return found | {pin_owner(pin): owning.pin_leaves[pin] for pin in pins}


def _has(cluster: "Cluster", live: Live) -> Leaves:
    """What a gang is charged."""
    found: Leaves = {}
    for pod in live.pods.values():
        if pod.state is not None and pod.leaves:
            pin = pod.kind.pin
            key = pod.state.gpu_type if pin is None else pin_owner(pin)
            found[key] = found.get(key, 0) + pod.leaves.bit_count()
    return found


def _wants(cluster: "Cluster", roles: Iterable[Role]) -> Leaves:
    found: Leaves = {}
    for role in roles:
        kind = role.kind
        key = ANY if len(kind.gpu_types) != 1 else kind.gpu_types[0]
        key = key if kind.pin is None else pin_owner(kind.pin)
        count = cluster.hardware.demands.least_leaves(kind) * len(role.pods)
        found[key] = found.get(key, 0) + count
    return found


def _as_one(wants: Leaves, only: str | None) -> Leaves:
    """Where a virtual cluster owns one type only, that is what any type is."""
    left = 0 if only is None else wants.pop(ANY, 0)
    if left and only is not None:
        wants[only] = wants.get(only, 0) + left
    return wants


def _fits(wants: Leaves, free: Leaves) -> bool:
    for key, count in wants.items():
        if key != ANY and count > free.get(key, 0):
            return False
    left = wants.get(ANY, 0)
    return not left or left <= sum(
        max(count - wants.get(key, 0), 0) for key, count in free.items() if not _is_pin(key)
    )


def _take(free: Leaves, wants: Leaves) -> Leaves:
    """Of any type those of which most are free."""
    taken = {key: count for key, count in wants.items() if key != ANY}
    _add(free, taken, -1)
    left = wants.get(ANY, 0)
    for key in sorted(free, key=lambda each: -free[each]) if left else ():
        if not _is_pin(key) and (count := min(left, max(free[key], 0))):
            taken[key] = taken.get(key, 0) + count
            free[key] -= count
            left -= count
    return taken


def _add(free: Leaves, some: Leaves, times: int) -> None:
    for key, count in some.items():
        free[key] = free.get(key, 0) + times * count


def _is_pin(key: str) -> bool:
    return key.startswith(pin_owner(""))
