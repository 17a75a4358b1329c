"""What it costs that somebody leaves, and who need not: the rules of quiet preemption."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from scheduler.domain.core.model import Gang, RestoredPreemption
from scheduler.domain.core.preemptions import HOUR_S, Hour
from scheduler.domain.core.saving import saved_s
from scheduler.domain.newcore.evict import NOBODY, Toll, TollOf
from scheduler.domain.newcore.lend import lender_of
from scheduler.domain.newcore.nodes import Phase, Workload


@dataclass(eq=False)
class Run:
    """A workload that runs: since when, and up to when its work is saved, as it said."""

    started_at: float
    checkpointed_at: float | None = None

    def lost_ms(self, gang: Gang, now: float) -> int:
        """Work that would be lost, in milliseconds."""
        saved = self.started_at + saved_s(now - self.started_at, gang.checkpoint_s)
        return round((now - max(saved, self.checkpointed_at or saved)) * 1_000)


@dataclass(eq=False)
class Tolls:
    """``min_run_s``, ``per_hour``, ``is_lazy``: the policy's minimum run time, its budget of
    preemptions in a virtual cluster, and whether gangs are downgraded before they are preempted
    there. ``hour``: the preemptions of the last hour. ``again_at``: when a protection ends that
    somebody met.
    """

    runs: Mapping[Workload, Run]
    min_run_s: float
    per_hour: int | None
    is_lazy: bool = False
    hour: Hour = field(default_factory=Hour)
    now: float = 0.0
    again_at: float = inf

    def preempted(self, asking: Workload, victim: Workload, now: float) -> None:
        """A workload was told to leave for another. Its cells are another's by now."""
        is_inside = victim.owner is not None and victim.owner == asking.owner
        is_inside &= lender_of(victim) is None and victim.parent is None
        vc = asking.gang.virtual_cluster if is_inside else None
        self.hour.note(RestoredPreemption(now, job_of(victim.gang), job_of(asking.gang), vc))

    def of(self, asking: Workload) -> TollOf:
        """What it costs that others leave for a workload."""
        pairs = self.hour.pairs(job_of(asking.gang))
        is_spent = self._is_spent(asking.gang.virtual_cluster)

        def toll_of(other: Workload) -> Toll | None:
            if other is asking or other.phase not in (Phase.RUNNING, Phase.NOMINATED):
                return None
            if not self._is_below(asking, other):
                return None
            if other.phase is Phase.NOMINATED:
                return NOBODY
            gpus = other.gpus
            run = self.runs.get(other)
            lost_ms = max(gpus, 1) * (0 if run is None else run.lost_ms(other.gang, self.now))
            if other.parent is not None:
                return Toll(surplus=gpus)
            is_young = self._is_young(other)
            is_protected = job_of(other.gang) in pairs or is_young
            if other.is_guest:
                is_protected |= self._is_spent(other.gang.virtual_cluster)
                guests = max(gpus, 1)
                return Toll(guests if is_protected else 0, guests, lost_ms=lost_ms)
            if lender_of(other) is not None:
                return Toll(loaned=gpus, lost_ms=lost_ms)
            if is_protected or is_spent:
                self._note_end(other, is_young=is_young)
                return None
            return Toll(gpus=max(gpus, 1), lost_ms=lost_ms)

        return toll_of

    def _note_end(self, other: Workload, *, is_young: bool) -> None:
        """Who asks is tried again when the protection ends."""
        if is_young:
            least = other.gang.min_run_s
            ends = self.runs[other].started_at + (self.min_run_s if least is None else least)
        else:
            ends = min((each.at for each in self.hour.all), default=self.now) + HOUR_S
        self.again_at = min(self.again_at, ends)

    def lazy(self, asking: Workload) -> Iterable[Workload]:
        """Those that are downgraded before they are preempted for a workload."""
        return [
            other
            for other in self.runs
            if other.owner == asking.owner
            and other.priority < asking.priority
            and other.phase is Phase.RUNNING
            and other.parent is None
            and self._is_lazy(other)
        ]

    def _is_lazy(self, other: Workload) -> bool:
        if other.gang.is_lazy is not None:
            return other.gang.is_lazy
        return self.is_lazy or lender_of(other) is not None

    def _is_below(self, asking: Workload, other: Workload) -> bool:
        """It may have to leave, whoever is protected. Nobody leaves for a gang of equal or lower
        priority of its own virtual cluster.
        """
        if other.is_guest:
            is_same = other.gang.virtual_cluster == asking.gang.virtual_cluster
            return not is_same or other.gang.priority < asking.priority
        return other.owner == asking.owner and other.priority < asking.priority

    def _is_young(self, other: Workload) -> bool:
        run, least = self.runs.get(other), other.gang.min_run_s
        least = self.min_run_s if least is None else least
        return run is not None and self.now < run.started_at + least

    def _is_spent(self, virtual_cluster: str) -> bool:
        return self.per_hour is not None and self.hour.inside(virtual_cluster) >= self.per_hour


def job_of(gang: Gang) -> str:
    """The job of a gang, else the gang."""
    return gang.job or gang.id
