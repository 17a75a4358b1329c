"""What is stored: gangs as a restart needs them, and what a transaction must write."""

from dataclasses import dataclass, field

from muster.contracts.gangs import GangRequest, Preemption
from muster.contracts.model import Reason

from scheduler.domain.core.model import CellUse, GangClass, PodPlace
from scheduler.domain.ledger import Rows
from scheduler.domain.requests import Downgrade
from scheduler.domain.run_times import History, Key, Run


@dataclass(frozen=True, slots=True)
class KnownGang:
    """A gang as it is stored. ``reserved``: places that are kept for its pods. ``shape``: as it
    was asked for first; ``expected_s``: how long it would run, as it was learnt then.
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


@dataclass(slots=True)
class Changes:
    """What a transaction must write: ``ended`` gangs, whose end is to be said; ``kept``: gangs of
    which the core keeps something else than before; ``runs``: of ended gangs, as far as run times
    are learnt from them; ``histories``: what is known from now on of run times, None: nothing.
    """

    rows: Rows
    ended: dict[str, GangRequest] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    runs: dict[str, Run] = field(default_factory=dict)
    histories: dict[Key, History | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows or self.ended or self.kept)
