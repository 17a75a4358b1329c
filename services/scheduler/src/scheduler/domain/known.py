"""Stored facts: gangs as a restart needs them, and the rows that a transaction must write."""

from dataclasses import dataclass, field, replace

from muster.contracts.gangs import GangRequest, Preemption
from muster.contracts.model import Reason

from scheduler.domain.core.model import CellUse, ExtraPod, GangClass, PodPlace, Restored
from scheduler.domain.core_rows import CoreChanges
from scheduler.domain.ledger import Rows
from scheduler.domain.requests import Asked, Downgrade
from scheduler.domain.run_times import History, Key, Run


@dataclass(frozen=True, slots=True)
class KnownGang:
    """A gang as it is stored. ``reserved``: the nominated places of its pods. ``shape``: of its
    first request; ``expected_s``: the expected run time then. ``passed``: the gang whose reserved
    cells it uses by backfill. ``extra``: its elastic pods. ``lender``: the virtual cluster whose
    quota it borrows.
    """

    request: GangRequest
    reason: Reason | None = None
    is_refused: bool = False
    gang_class: GangClass | None = None
    cells: tuple[CellUse, ...] = ()
    started_at: float | None = None
    preempted_for: str | None = None
    preemption: Preemption | None = None
    preempted_until: float | None = None
    reserved: tuple[PodPlace, ...] = ()
    downgrade: Downgrade | None = None
    shape: str | None = None
    expected_s: float | None = None
    passed: str | None = None
    extra: tuple[ExtraPod, ...] = ()
    lender: str | None = None


def known_of(gang: Asked, placed: Restored | None, downgrade: Downgrade | None) -> KnownGang:
    """All that is stored of a gang; ``placed``: what the core keeps of its places, if any."""
    known = KnownGang(
        gang.request,
        gang.published_reason,
        gang.is_refused,
        preemption=gang.preemption,
        shape=gang.shape,
        expected_s=gang.expected_s,
    )
    if placed is None or not placed.places:
        return known
    return replace(
        known,
        gang_class=placed.gang_class,
        cells=placed.cells,
        started_at=placed.started_at,
        preempted_for=placed.preempted_for,
        preempted_until=placed.preempted_until,
        reserved=placed.nominated,
        downgrade=downgrade,
        passed=placed.passed,
        extra=placed.extra,
        lender=placed.lender,
    )


@dataclass(slots=True)
class Changes:
    """The rows that a transaction must write. ``ended``: gangs whose end is to be published;
    ``kept``: gangs about which the core's facts changed; ``runs``: ended gangs from which run times
    are learnt; ``histories``: changed run times, None: delete them; ``core``: the core's other
    facts; ``adopted``: by gang, pods that run already.
    """

    rows: Rows
    ended: dict[str, GangRequest] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    runs: dict[str, Run] = field(default_factory=dict)
    histories: dict[Key, History | None] = field(default_factory=dict)
    core: CoreChanges = field(default_factory=CoreChanges)
    adopted: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows or self.ended or self.kept or self.core)
