"""Who may not be made to leave, for the moment: quiet preemption (docs/scheduling.md, "Who is
protected").

Inside a virtual cluster nobody who is protected leaves; guests are preempted after all others.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import GangClass, RestoredPreemption
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.preemptions import HOUR_S, Hour

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

NOBODY_OVER = 0
"""Gangs with a lower rank than this may have to leave while a budget is used up: guests, and who
has to go anyway.
"""


NOBODY_ELSE = nullcontext()
"""Nobody but who is protected from all is protected."""


Young = tuple[float, str, float]
"""Until when a gang is protected that has not run for long, its id, and when it started."""


class Protection:
    """``now``: when the last cycle began. ``spent``: virtual clusters whose budget is used up.
    ``is_busy``: some gangs are protected though they have run for long. ``added``: preemptions that
    were decided, in order, until the caller clears it.

    What protects a gang is told by the state alone, so it is the same after a restart.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.now = 0.0
        self.hour = Hour()
        self.spent: set[str] = set()
        self.is_busy = False
        self.added: list[RestoredPreemption] = []
        self._min_run_s = cluster.policy.min_run_s
        self._young: dict[str, list[Young]] = {}
        self._next_old: list[tuple[float, str]] = []
        self._jobs: frozenset[str] = frozenset()
        self._is_lifted = False

    # What happens.

    def began(self, live: Live, now: float) -> None:
        """The gang runs, since it says when."""
        run_s, began = live.gang.min_run_s, live.started_at
        if run_s is None:
            run_s = self._min_run_s
        if not (run_s or live.young_until or self.is_busy) or live.extra_of is not None:
            return  # who gives back what it has grown by runs on
        live.young_until = 0.0
        if run_s and began is not None and began + run_s > now:
            live.young_until = began + run_s
            self._watch(live, began)
            live.is_protected = True
        else:
            live.is_protected = self.covers(live)

    def moved(self, live: Live) -> None:
        """The gang is in another's quota from now on."""
        if live.young_until and live.started_at is not None:
            self._watch(live, live.started_at)

    def _watch(self, live: Live, began: float) -> None:
        """The gang is young for a while."""
        until, owner = live.young_until, live.owner
        young = self._young.get(owner)
        if young is None:
            young = self._young[owner] = []
        heappush(young, (until, live.id, began))
        heappush(self._next_old, (until, owner))

    def begin_cycle(self, now: float) -> None:
        """Who is protected no longer may have to leave: who waits for that is tried."""
        self.now = now
        while self._next_old and self._next_old[0][0] <= now:
            self._grow_old(heappop(self._next_old)[1], now)
        if self.hour.all and self.hour.is_over(now):
            self.forget(now)

    def _grow_old(self, owner: str, now: float) -> None:
        """Gangs in an owner's quota have run for long enough, if they have not ended."""
        cluster, heap = self.cluster, self._young.get(owner, [])
        while heap and heap[0][0] <= now:
            _, gang, began = heappop(heap)
            live = cluster.gangs.get(gang)
            if live is not None and live.started_at == began and live.owner == owner:
                cluster.looked_at_anew(live)
                if (owner, False) in cluster.queue.tried:
                    cluster.stamps.touch(owner)
        if not heap:
            self._young.pop(owner, None)

    def forget(self, now: float) -> None:
        """What is an hour old counts no more."""
        cluster = self.cluster
        inside, jobs = self.hour.forget(now)
        for virtual_cluster in sorted(inside):
            self._count(virtual_cluster)
            cluster.stamps.touch(owner_of(virtual_cluster))
        for job in sorted(jobs):
            self._set_apart(job)
            for gang in self._gangs_of(job):
                if gang in cluster.queue.gangs and not cluster.gangs[gang].is_guest:
                    cluster.stamps.touch(cluster.gangs[gang].owner)

    def preempted(self, victim: Live, live: Live, *, is_inside: bool) -> None:
        """A gang is told to leave for another. ``is_inside``: a virtual cluster."""
        vc = live.gang.virtual_cluster if is_inside else None
        now = self.cluster.at
        self.added.append(RestoredPreemption(now, victim.job, live.job, vc))
        self.restore(self.added[-1])

    def restore(self, preemption: RestoredPreemption) -> None:
        """A gang was preempted then."""
        if self.hour.note(preemption):
            self._set_apart(preemption.job)
            self._set_apart(preemption.for_job)
        if preemption.virtual_cluster is not None:
            self._count(preemption.virtual_cluster)

    def take_over(self, old: "Protection") -> None:
        """What was known before a change of the configuration."""
        for preemption in old.exported():
            self.restore(preemption)
        self.added = old.added

    def exported(self) -> list[RestoredPreemption]:
        """All that is kept beside gangs."""
        return self.hour.exported()

    def _count(self, virtual_cluster: str) -> None:
        """A virtual cluster's budget may be used up, or not any more."""
        was_spent = virtual_cluster in self.spent
        if (self.left(virtual_cluster) == 0) == was_spent:
            return
        (self.spent.discard if was_spent else self.spent.add)(virtual_cluster)
        self.is_busy = bool(self.spent)
        charges = self.cluster.charges
        for gang in sorted(charges.guests | charges.loans.gangs):
            live = self.cluster.gangs[gang]
            if live.gang.virtual_cluster == virtual_cluster:
                self.cluster.looked_at_anew(live)

    def _set_apart(self, job: str) -> None:
        """The gangs of a job may be kept off others than those that want the same, or not any more:
        they are in lines of their own.
        """
        for gang in self._gangs_of(job):
            live = self.cluster.gangs[gang]
            if gang in self.cluster.queue.gangs and live.is_paired != self.sets_apart(live):
                self.cluster.queue.remove(live)
                self.cluster.enqueue(live)

    def _gangs_of(self, job: str) -> list[str]:
        """Of a job, in order."""
        same = self.cluster.gangs.get(job)
        found = [] if same is None or same.job != job else [job]
        others = self.cluster.groups.of_job(job)
        return sorted((*found, *others)) if others else found

    def sets_apart(self, live: Live) -> bool:
        """The gang may be kept off others than those that want the same."""
        return bool(self.hour.pairs(live.job)) and not live.is_guest

    # What that protects.

    def covers(self, live: Live) -> bool:
        """The gang is protected from whoever is asked for now."""
        is_settled = live.started_at is None or live.is_leaving
        if is_settled or self._is_lifted or live.extra_of is not None:
            return False
        if live.young_until > self.now or live.job in self._jobs:
            return True
        is_guest = live.gang_class is not GangClass.GUARANTEED or live.lender is not None
        return is_guest and live.gang.virtual_cluster in self.spent

    def left(self, virtual_cluster: str) -> int | None:
        """How many gangs may yet be preempted inside a virtual cluster; None: any number."""
        most = self.cluster.policy.preemptions_per_hour
        return None if most is None else max(0, most - self.hour.inside(virtual_cluster))

    def is_too_much(self, live: Live, victims: Iterable[Live]) -> bool:
        """So many gangs may not leave for one of their own virtual cluster now."""
        left = None if self._is_lifted else self.left(live.gang.virtual_cluster)
        return left is not None and sum(is_inside(live, each) for each in victims) > left

    def kept_off(self, live: Live) -> AbstractContextManager[None]:
        """Who is protected from this gang is, for the moment."""
        jobs = self.hour.pairs(live.job)
        is_spent = live.gang.virtual_cluster in self.spent
        if self._is_lifted or not (jobs or is_spent):
            return NOBODY_ELSE
        return self._kept_off(live, jobs, is_spent)

    @contextmanager
    def _kept_off(self, live: Live, jobs: Iterable[str], is_spent: bool) -> Iterator[None]:
        try:
            self._keep_off(frozenset(jobs))
            if is_spent:
                with self.guests_alone(live):
                    yield
            else:
                yield
        finally:
            self._keep_off(frozenset())

    @contextmanager
    def guests_alone(self, live: Live, rank: int = NOBODY_OVER) -> Iterator[None]:
        """Nobody of its own virtual cluster leaves for this gang, for the moment. ``rank``: as
        `NOBODY_OVER`.
        """
        before, live.reach = live.reach, min(live.reach, rank)
        try:
            yield
        finally:
            live.reach = before

    def _keep_off(self, jobs: frozenset[str]) -> None:
        looked_at, self._jobs = jobs | self._jobs, jobs
        self.is_busy = bool(jobs or self.spent)
        for job in sorted(looked_at):
            for gang in sorted(self._gangs_of(job)):
                self.cluster.looked_at_anew(self.cluster.gangs[gang])

    @contextmanager
    def lifted(self, owner: str) -> Iterator[None]:
        """What if nobody of a virtual cluster were protected."""
        young = list(self._alive(owner))
        self._is_lifted = True
        for live in young:
            self.cluster.looked_at_anew(live)
        try:
            yield
        finally:
            self._is_lifted = False
            for live in young:
                self.cluster.looked_at_anew(live)

    # When that ends.

    def _is_nobody(self, live: Live) -> bool:
        """Surely nobody is protected from the gang."""
        is_spent = live.gang.virtual_cluster in self.spent
        return not (live.owner in self._young or is_spent or self.hour.pairs(live.job))

    def _alive(self, owner: str) -> Iterator[Live]:
        """Gangs in an owner's quota that have not run for long enough."""
        for young in self._young.get(owner, ()):
            if (live := self._of(young, owner)) is not None:
                yield live

    def staying(self, owner: str, priority: int) -> int:
        """Leaves of an owner's gangs of lower ranks that no gang of this priority gets, whichever
        it is, as they have not run for long enough and are not downgraded.
        """
        return sum(
            pod.leaves.bit_count()
            for live in self._alive(owner)
            if live.rank < priority and self._stays(live)
            for pod in live.pods.values()
            if pod.kind.pin is None
        )

    def _stays(self, live: Live) -> bool:
        """It has cells that it does not lose before it is old enough."""
        is_own = live.gang_class is GangClass.GUARANTEED and live.lender is None
        is_whole = not (live.reserved or live.is_overdue)  # what it is to grow by may be taken
        return is_own and is_whole and not is_lazy(self.cluster, live)

    def _of(self, young: Young, owner: str) -> Live | None:
        """The gang, as long as it runs in this owner's quota as it did then."""
        _, gang, began = young
        live = self.cluster.gangs.get(gang)
        is_same = live is not None and live.started_at == began and live.owner == owner
        return live if live is not None and is_same and not live.is_leaving else None

    def of(self, live: Live) -> dict[str, float]:
        """Gangs of its own virtual cluster that are protected from this one, and until when at the
        least.
        """
        if self._is_nobody(live):
            return {}
        cluster, vc, found = self.cluster, live.gang.virtual_cluster, dict[str, float]()
        for until, gang, began in self._young.get(live.owner, ()):
            other = cluster.gangs.get(gang)
            if other is not None and other.started_at == began and is_below(live, other):
                found[gang] = until
        for job, at in self.hour.pairs(live.job).items():
            for gang in self._gangs_of(job):
                if is_below(live, cluster.gangs[gang]):
                    found[gang] = max(found.get(gang, 0.0), at + HOUR_S)
        first = self.hour.first_inside(vc) if vc in self.spent else None
        if first is not None:
            for other in cluster.charges.below(live.owner, live.gang.priority):
                if is_below(live, other):
                    found[other.id] = max(found.get(other.id, 0.0), first + HOUR_S)
        return found

    def held_by(self, live: Live) -> dict[str, float]:
        """The same, and who may not leave as too little is left of the budget: infinite where it
        is too little for a gang like this whenever that asks.
        """
        vc = live.gang.virtual_cluster
        if self.left(vc) is None:
            return self.of(live)
        first = self.hour.first_inside(vc)
        until = inf if first is None else first + HOUR_S
        below = self.cluster.charges.below(live.owner, live.gang.priority)
        return {each.id: until for each in below if is_below(live, each)} | self.of(live)

    def next_at(self, other: float | None = None) -> float | None:
        """When who waits may be helped by the end of a protection, or at the ``other`` time, if
        that is before; None: never.
        """
        if not (self._young or self.hour.all):
            return other
        found: list[float] = [] if other is None else [other]
        for owner, is_guest in self.cluster.queue.tried:
            if not is_guest:
                found += self._ends(owner)
        return min((at for at in found if at > self.now), default=None)

    def _ends(self, owner: str) -> Iterator[float]:
        """When protections end of gangs with an owner's cells, the next of each sort."""
        heap = self._young.get(owner, [])
        while heap:
            if self._of(heap[0], owner) is not None:
                yield heap[0][0]
                break
            heappop(heap)
        if not self.hour.all:
            return
        for number, line in enumerate(self.cluster.queue.tried[owner, False]):
            live = self.cluster.gangs[line.waiting[0][1]]
            vc = live.gang.virtual_cluster
            if not number and self.left(vc) is not None:
                first = self.hour.first_inside(vc)
                if first is not None:
                    yield first + HOUR_S
            if live.is_paired:
                yield min(self.hour.pairs(live.job).values()) + HOUR_S


def is_lazy(cluster: "Cluster", live: Live) -> bool:
    """It is downgraded before it is killed."""
    if live.gang.is_lazy is not None:
        return live.gang.is_lazy
    return cluster.policy.is_lazy or live.lender is not None


def is_inside(live: Live, victim: Live) -> bool:
    """That it leaves is a preemption inside a virtual cluster."""
    return (
        victim.owner == live.owner
        and victim.gang_class is GangClass.GUARANTEED
        and victim.lender is None
        and victim.started_at is not None
        and victim.extra_of is None
        and not victim.is_overdue
    )


def is_below(live: Live, other: Live) -> bool:
    """It would have to leave for a gang of its own virtual cluster, were it not protected."""
    return (
        other.gang.priority < live.gang.priority  # which is false of most
        and other.preempted_until is None
        and is_inside(live, other)
    )
