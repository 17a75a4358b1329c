"""One record for each gang: what the core knows of it beside its places.

So the facts of a gang come and go together. `Records` finds gangs by what they are now.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from scheduler.domain.core.ends import bounds_of, saved_s
from scheduler.domain.core.model import Gang, Kind, PodPlace, Reason
from scheduler.domain.core.nodes import Phase, Pool, Slot, Workload, racks_of
from scheduler.domain.core.ordering import Order


@dataclass(eq=False)
class Run:
    """A gang runs: since when, and up to when its work is saved, as it published."""

    started_at: float
    checkpointed_at: float | None = None

    def lost_ms(self, gang: Gang, now: float) -> int:
        """Work that a preemption would lose, in milliseconds."""
        saved = self.started_at + saved_s(now - self.started_at, gang.checkpoint_s)
        return round((now - max(saved, self.checkpointed_at or saved)) * 1_000)

    def checkpointed(self, at: float) -> bool:
        """Its work up to then is saved. Whether that is more than before."""
        is_more = at > (self.checkpointed_at or self.started_at)
        if is_more:
            self.checkpointed_at = at
        return is_more


@dataclass(eq=False)
class Reservation:
    """``cells``: leaves by slot; ``starts_at``: when the gang can start; ``since``: when its first
    reservation began. ``patient_until``: its nodes may report until then. ``hold``: is charged what
    is free of the cells. ``is_short``: some can't be bound, as its quota is bound elsewhere.
    ``is_kept``: the cells are those of an attempt that the platform failed, until ``starts_at``;
    ``missing``: its pods for which cells are chosen anew when the next cycle begins.
    """

    workload: Workload
    cells: dict[Slot, int]
    starts_at: float
    since: float
    patient_until: float = -inf
    is_short: bool = False
    is_kept: bool = False
    missing: dict[str, Kind] = field(default_factory=dict)
    hold: Workload = field(init=False)

    def __post_init__(self) -> None:
        asking = self.workload
        name = f"{asking.name}\nreserved"
        self.hold = Workload(name, asking.gang, (), asking.owner, asking.priority)

    @property
    def pools(self) -> set[Pool]:
        """Where its cells are."""
        return {slot.pool for slot in self.cells}

    def add(self, slot: Slot, leaves: int) -> None:
        """These are among its cells."""
        if leaves:
            self.cells[slot] = self.cells.get(slot, 0) | leaves

    def is_broken(self, now: float) -> bool:
        """Its time has passed, or one of its cells can't be used. Of kept cells the others stay."""
        is_bad = any(mask & ~slot.good for slot, mask in self.cells.items())
        is_lost = is_bad and not self.is_kept and now >= self.patient_until
        return self.starts_at < now or is_lost


@dataclass(eq=False)
class Growth:
    """What a gang wants beside the pods that it has, or needs to start. ``wanted``: pods, all of
    them at once or none; ``asking`` asks for them while the gang runs. ``spare``: pods that it can
    do without, and that nobody asks for; ``surplus``: those that wait, or have a place.
    """

    wanted: dict[str, Kind] = field(default_factory=dict)
    asking: "Record | None" = None
    spare: dict[str, Kind] = field(default_factory=dict)
    surplus: "dict[str, Record]" = field(default_factory=dict)


@dataclass(eq=False)
class Record:
    """A gang that is not over, or what one grows by. ``misnamed``: it names what the configuration
    has not. ``growth``: None where it wants nothing beside its pods.

    ``run``: since it started. ``reservation``: what is reserved for it while it waits;
    ``reserved_since``: when its first reservation began. ``passed``: the gang on whose reserved
    cells it runs. ``published``: the code of its last reason. ``leaves_by``, ``leaves_for``: when
    it has to leave, and for which gang.
    ``filed``, ``charged_to``: where `Records` filed it last; whose cells it runs in, and its
    priority.
    ``orphaned``: places of its pods on hardware that the configuration has not.
    """

    workload: Workload
    order: Order
    misnamed: Reason | None = None
    run: Run | None = None
    reservation: Reservation | None = None
    reserved_since: float | None = None
    passed: str | None = None
    published: str | None = None
    leaves_by: float | None = None
    leaves_for: str | None = None
    filed: "tuple[dict[Record, None], ...]" = ()
    charged_to: tuple[str, int] | None = None
    growth: Growth | None = None
    orphaned: tuple[PodPlace, ...] = ()

    @property
    def children(self) -> "list[Record]":
        """What it has grown by, or is to grow by, in the order of names."""
        if self.growth is None:
            return []
        asking = () if self.growth.asking is None else (self.growth.asking,)
        return [*asking, *(child for _, child in sorted(self.growth.surplus.items()))]

    @property
    def id(self) -> str:
        """The gang's."""
        return self.workload.gang.id


class Records:
    """``all``: by the gang's id; ``children``: what they grow by, by the workload's name. The
    others are those of both that are nominated, run outside of their own cells (downgraded, or on
    borrowed capacity), run without cells though they are guaranteed, run on reserved cells, have a
    reservation, or are misnamed. ``kept``: cells
    of attempts that the platform failed, for the next ones. ``moved``: gangs whose places have
    changed without a decision; ``unplanned``: owners of whose gangs one has
    started or lost its reservation, or may get one as health has changed;
    ``unlooked``: slots that others may have left for nominated gangs; ``rebindable``: those of
    ``away`` that may get cells of their own: until the caller clears them.
    """

    def __init__(self) -> None:
        self.all: dict[str, Record] = {}
        self.children: dict[str, Record] = {}
        self.nominated: dict[Record, None] = {}
        self.away: dict[Record, None] = {}
        self.uncharged: dict[Record, None] = {}
        self.backfilled: dict[Record, None] = {}
        self.reserved: dict[Record, None] = {}
        self.misnamed: dict[Record, None] = {}
        self.kept: dict[Reservation, None] = {}
        self.moved: set[str] = set()
        self.unplanned: dict[str, None] = {}
        self.unlooked: dict[Slot, None] = {}
        self.rebindable: dict[Record, None] = {}
        self._charged: dict[str, dict[int, dict[Record, None]]] = {}
        self._groups: dict[tuple[str, str], dict[Record, None]] = {}

    def of(self, workload: Workload) -> Record:
        """The record of a workload."""
        return self._home(workload)[workload.name]

    def _home(self, workload: Workload) -> "dict[str, Record]":
        return self.all if workload.parent is None else self.children

    def charged_to(self, owner: str | None) -> Iterable[Record]:
        """Gangs that run in an owner's cells, in no order."""
        found = {} if owner is None else self._charged.get(owner, {})
        return chain.from_iterable(found.values())

    def charged_below(self, owner: str | None, priority: int) -> Iterable[Record]:
        """The same of those with a lower priority."""
        found = {} if owner is None else self._charged.get(owner, {})
        return chain.from_iterable(found[each] for each in found if each < priority)

    def around(self, workload: Workload) -> Iterable[Record]:
        """Gangs in the cells that a workload asks for, and those of its virtual cluster without."""
        cluster = workload.gang.virtual_cluster
        beside = (e for e in self.uncharged if e.workload.gang.virtual_cluster == cluster)
        return chain(self.charged_to(workload.owner), beside)

    def reservations(self) -> list[Reservation]:
        """Of gangs that wait, those of the gangs that have had one for longest first."""
        found = [each.reservation for each in self.reserved if each.reservation is not None]
        return sorted(found, key=lambda each: (each.since, each.workload.name))

    def borrowers(self) -> list[Workload]:
        """Those that run in another virtual cluster's quota."""
        away = (record.workload for record in self.away)
        return [each for each in away if not each.is_opportunistic]

    def overstaying(self, gang: str, now: float) -> list[Workload]:
        """Gangs that run for longer than they may on cells that are reserved for this one."""
        return [
            each.workload
            for each in self.backfilled
            if each.passed == gang and self.stays_until(each) <= now
        ]

    def reservation_of(self, gang: str) -> Reservation | None:
        """What is reserved for a gang, or for what it is to grow by."""
        record = self.all.get(gang)
        if record is not None and record.growth is not None:
            record = record.growth.asking or record
        return None if record is None else record.reservation

    def stays_until(self, record: Record) -> float:
        """Until when a gang may be on reserved cells: where its limit ends it before they are
        needed, until then; else until it should have ended by what it expects.
        """
        limit_s, run_s = bounds_of(record.workload.gang)
        began = inf if record.run is None else record.run.started_at
        by_limit = inf if limit_s is None else began + limit_s
        reservation = self.reservation_of(record.passed or "")
        if reservation is not None and by_limit <= reservation.starts_at:
            return reservation.starts_at
        return by_limit if run_s is None else min(by_limit, began + run_s)

    def kept_of(self, gang: str | None) -> Reservation | None:
        """Cells that are kept of a gang that is over."""
        return next((each for each in self.kept if each.workload.gang.id == gang), None)

    def racks_near(self, workload: Workload) -> dict[Pool, int]:
        """Racks with pods of a workload's group, or of the gang that grows, as bit sets."""
        group = _group_of(workload)
        near = [] if group is None else [each.workload for each in self._groups.get(group, ())]
        if workload.parent is not None:
            near.append(workload.parent)
        return racks_of(place.slot for each in near for place in each.places)

    def add(self, record: Record) -> None:
        """A gang comes."""
        home, name = self._home(record.workload), record.workload.name
        assert name not in home, name
        home[name] = record
        if record.misnamed is not None or record.workload.phase is not Phase.WAITING:
            self.file(record)
        if (group := _group_of(record.workload)) is not None:
            self._groups.setdefault(group, {})[record] = None

    def remove(self, record: Record) -> None:
        """A gang is over. The caller has lifted its reservation."""
        del self._home(record.workload)[record.workload.name]
        self._file(record, ())
        if (group := _group_of(record.workload)) is not None:
            del self._groups[group][record]
            if not self._groups[group]:
                del self._groups[group]
        self._file_by_owner(record, None)

    def file(self, record: Record) -> None:
        """The record, or its workload, has changed."""
        workload, filed = record.workload, list[dict[Record, None]]()
        is_running = workload.phase is Phase.RUNNING
        if workload.phase is Phase.NOMINATED:
            filed.append(self.nominated)
        if is_running and workload.is_away:
            filed.append(self.away)
            self.rebindable[record] = None
        if is_running and workload.is_uncharged:
            filed.append(self.uncharged)
        if is_running and record.passed is not None:
            filed.append(self.backfilled)
        if record.reservation is not None:
            filed.append(self.reserved)
        if record.misnamed is not None:
            filed.append(self.misnamed)
        if filed or record.filed:
            self._file(record, tuple(filed))
        self._file_by_owner(record, workload.owner if is_running else None)

    def _file(self, record: Record, filed: tuple[dict[Record, None], ...]) -> None:
        waits = (self.nominated, self.reserved)
        if _some_in(record.filed, waits) and not _some_in(filed, waits):
            self.unplanned[record.workload.owner or ""] = None  # others may get a reservation
        for where in record.filed:
            if not _some_in(filed, (where,)):
                del where[record]
        for where in filed:
            where[record] = None
        record.filed = filed

    def _file_by_owner(self, record: Record, owner: str | None) -> None:
        key = None if owner is None else (owner, record.workload.priority)
        if key == record.charged_to:
            return
        if record.charged_to is not None:
            before, priority = record.charged_to
            del self._charged[before][priority][record]
        if key is not None:
            self._charged.setdefault(key[0], {}).setdefault(key[1], {})[record] = None
        record.charged_to = key


def _some_in(filed: Iterable[object], some: Iterable[object]) -> bool:
    return any(each is other for each in filed for other in some)


def job_of(gang: Gang) -> str:
    """The job of a gang, else the gang."""
    return gang.job or gang.id


def _group_of(workload: Workload) -> tuple[str, str] | None:
    gang = workload.gang
    return None if gang.group is None else (gang.job, gang.group)
