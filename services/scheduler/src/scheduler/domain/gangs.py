"""A gang as the cluster knows it, and what a cycle changed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.contracts.gangs import GangRequest
from muster.contracts.model import Reason

from scheduler.domain.model import Demand, Placement, PodSpec, Shape
from scheduler.domain.queue import Order


@dataclass(slots=True)
class Gang:
    """A gang that is not over. ``places``: pod → node of each pod that was placed, lost ones too.

    ``said``: the reason that its last word gave, at ``said_at``.
    """

    request: GangRequest
    specs: dict[str, PodSpec]
    places: dict[str, str] = field(default_factory=dict)
    said: Reason | None = None
    said_at: float = 0.0
    is_refused: bool = False

    @property
    def name(self) -> str:
        """Its id."""
        return self.request.gang

    @property
    def order(self) -> Order:
        """Its place among others."""
        return (-self.request.priority, self.request.submitted_at, self.request.gang)

    def waiting(self) -> list[PodSpec]:
        """The pods that are to be placed, all at once."""
        return [spec for pod, spec in self.specs.items() if pod not in self.places]


def shape_of(pods: Iterable[PodSpec]) -> Shape:
    """The pods' demands, counted, greatest first."""
    counts: dict[Demand, int] = {}
    for spec in pods:
        counts[spec.demand] = counts.get(spec.demand, 0) + 1
    return tuple(sorted(counts.items(), reverse=True))


@dataclass(slots=True)
class Changes:
    """What a transaction must write: placements made or changed, and those that are over; gangs
    whose end is to be said.
    """

    placed: dict[str, Placement] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    ended: dict[str, GangRequest] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.placed or self.changed or self.gone or self.ended)
