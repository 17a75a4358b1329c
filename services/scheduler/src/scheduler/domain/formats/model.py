"""The values of the formats: a gang as a file requests it, and the events."""

from dataclasses import dataclass, field
from typing import TypeAlias

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import (
    Gang,
    Kind,
    Restored,
    RestoredPreemption,
    RestoredReservation,
    RestoredUsage,
    Role,
)


@dataclass(frozen=True, slots=True)
class Pods:
    """``count`` equal pods, named ``<name>-0`` and so on, or by ``names``. ``least``: the field
    ``min``.
    """

    name: str
    count: int
    kind: Kind
    least: int | None = None
    names: tuple[str, ...] | None = None

    def role(self, first: int = 0) -> Role:
        """What the core takes, with pods counted from ``first``."""
        if self.names is not None:
            return Role(self.kind, self.names, self.name, self.least)
        numbers = range(first, first + self.count)
        names = tuple(f"{self.name}-{number}" for number in numbers)
        return Role(self.kind, names, self.name, self.least)

    def next(self, first: int = 0) -> int:
        """The number of the next pod of this name, where these are counted from ``first``."""
        if self.names is None:
            return first + self.count
        ends = (pod.removeprefix(f"{self.name}-") for pod in self.names)
        numbers = (int(end) for end in ends if end.isascii() and end.isdecimal())
        return max((first, *(number + 1 for number in numbers)))


@dataclass(frozen=True, slots=True)
class GangFile:
    """A gang as a file has it. ``gang`` has the roles of ``pods``, each counted from 0.

    ``run_s``: its run time in the simulator, None: until it is released.
    """

    gang: Gang
    pods: tuple[Pods, ...]
    run_s: float | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """An event at ``at`` seconds; ``line`` of its file, 0 if it has none."""

    at: float
    line: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class GangRequested(Happening):
    """A gang is requested. ``published``: the code of its last published wait reason."""

    file: GangFile
    published: str | None = None


@dataclass(frozen=True, slots=True)
class GangRestored(Happening):
    """A gang was placed before the file begins."""

    file: GangFile
    restored: Restored
    published: str | None = None


@dataclass(frozen=True, slots=True)
class ReservationRestored(Happening):
    """Cells were reserved for a waiting gang before the file begins."""

    restored: RestoredReservation


@dataclass(frozen=True, slots=True)
class PreemptionRestored(Happening):
    """A gang was preempted before the file begins."""

    restored: RestoredPreemption


@dataclass(frozen=True, slots=True)
class UsageRestored(Happening):
    """A user's usage before the file begins."""

    restored: RestoredUsage


@dataclass(frozen=True, slots=True)
class GangGrown(Happening):
    """More pods are requested; each kind continues the count of the gang's pods. ``is_elastic``: as
    many of them as possible without cost.
    """

    gang: str
    pods: tuple[Pods, ...]
    published: str | None = None
    is_elastic: bool = False


@dataclass(frozen=True, slots=True)
class GangReleased(Happening):
    """A gang is over. ``kept_until``: by the platform's fault; what is healthy of its cells is kept
    until then for the gang that follows it, and other cells for the rest.
    """

    gang: str
    kept_until: float | None = None


@dataclass(frozen=True, slots=True)
class GangWithdrawn(Happening):
    """A gang is withdrawn."""

    gang: str


@dataclass(frozen=True, slots=True)
class GangCheckpointed(Happening):
    """A gang's work up to ``saved_at`` is saved; None: up to now."""

    gang: str
    saved_at: float | None = None


@dataclass(frozen=True, slots=True)
class PodReleased(Happening):
    """A pod is over. ``is_lost``: by the platform's fault."""

    gang: str
    pod: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class NodeHealthChanged(Happening):
    """A node is healthy, or not."""

    node: str
    is_healthy: bool


@dataclass(frozen=True, slots=True)
class GpuHealthChanged(Happening):
    """A GPU is healthy, or not."""

    node: str
    gpu: int
    is_healthy: bool


@dataclass(frozen=True, slots=True)
class NodeCordoned(Happening):
    """No new pods on a node."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeDrained(Happening):
    """No new pods on a node, and its pods are preempted."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUncordoned(Happening):
    """A node is used again."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeBlocked(Happening):
    """Resources of a node that foreign pods hold; it replaces earlier amounts. ``avoided``: ports
    to use last.
    """

    node: str
    gpus: tuple[int, ...] = ()
    cpu: int = 0
    memory_mb: int = 0
    ports: tuple[int, ...] = ()
    avoided: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CycleRun(Happening):
    """How this moment's cycle runs. ``most``: it stops after so many decisions, to be continued
    later; None: no bound. ``is_settled``: gangs that can never be placed are refused.
    """

    most: int | None = None
    is_settled: bool = True

    def is_enough(self, decided: int) -> bool:
        """Whether a cycle with so many decisions stops."""
        return self.most is not None and decided >= self.most


@dataclass(frozen=True, slots=True)
class GangsTried(Happening):
    """All notified waiting gangs were tried in this state, with the same `CycleRun.is_settled`."""

    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class SchedulerRestarted(Happening):
    """All gangs are forgotten, and every node is healthy and open; the configuration stays."""


@dataclass(frozen=True, slots=True)
class ClusterChanged(Happening):
    """Another configuration, whole."""

    config: ClusterConfig


Event: TypeAlias = (
    GangRequested
    | GangRestored
    | ReservationRestored
    | UsageRestored
    | PreemptionRestored
    | GangGrown
    | GangReleased
    | GangWithdrawn
    | GangCheckpointed
    | PodReleased
    | NodeHealthChanged
    | GpuHealthChanged
    | NodeCordoned
    | NodeDrained
    | NodeUncordoned
    | NodeBlocked
    | ClusterChanged
    | CycleRun
    | GangsTried
    | SchedulerRestarted
)
