"""Gangs of one job, and those of them that are put near one another."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from scheduler.domain.core.extras import of_same_gang
from scheduler.domain.core.forest import Rack
from scheduler.domain.core.holdings import Live

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster


class Groups:
    """Ids of gangs by job and group."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], set[str]] = {}
        self._jobs: dict[str, set[str]] = {}

    def add(self, live: Live) -> None:
        """A gang is known from now on."""
        if live.job != live.id:
            self._jobs.setdefault(live.job, set()).add(live.id)
        if live.gang.group is not None:
            self._ids.setdefault((live.gang.job, live.gang.group), set()).add(live.id)

    def discard(self, live: Live) -> None:
        """A gang is over."""
        if live.job != live.id:
            self._jobs[live.job].discard(live.id)
            if not self._jobs[live.job]:
                del self._jobs[live.job]
        if live.gang.group is not None:
            key = (live.gang.job, live.gang.group)
            self._ids[key].discard(live.id)
            if not self._ids[key]:
                del self._ids[key]

    def of_job(self, job: str) -> Collection[str]:
        """All gangs of a job but one that is called like it."""
        return self._jobs.get(job, ())

    def of(self, live: Live) -> set[str]:
        """The gang, and those of its group."""
        if live.gang.group is None:
            return {live.id}
        return self._ids[live.gang.job, live.gang.group] | {live.id}


def racks_near(cluster: "Cluster", live: Live) -> list[Rack]:
    """Racks in which pods of the gang or of its group are, in order."""
    ids = cluster.groups.of(live) | of_same_gang(cluster, live)
    numbers = {state.slot.number for other in ids for state in cluster.gangs[other].states()}
    racks = {
        (rack.cell.chain.leaf, rack.number): rack
        for number in numbers
        for rack in (cluster.hardware.forest.rack_of[number],)
    }
    return [racks[key] for key in sorted(racks)]
