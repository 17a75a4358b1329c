"""The values of the core: what a pod takes, where it was placed, what was decided and why.

All times are seconds of one clock that never goes back, chosen by the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from muster.contracts.gangs import PodAsk
from muster.contracts.model import Reason


@dataclass(frozen=True, slots=True, order=True)
class Demand:
    """What one pod takes from one node; ``ports`` is how many."""

    gpus: int = 0
    cpu: int = 0
    memory_mb: int = 0
    ports: int = 0

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(
            self.gpus + other.gpus,
            self.cpu + other.cpu,
            self.memory_mb + other.memory_mb,
            self.ports + other.ports,
        )

    def times(self, count: int) -> "Demand":
        """What ``count`` such pods take."""
        return Demand(
            self.gpus * count, self.cpu * count, self.memory_mb * count, self.ports * count
        )


Shape = tuple[tuple[Demand, int], ...]
"""Equal pods counted, in falling order. Gangs of one shape fit, or don't, alike."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod that a gang wants. ``ports`` is (label, count), in the request's order."""

    pod: str
    role: str
    demand: Demand
    ports: tuple[tuple[str, int], ...] = ()


def spec_of(ask: PodAsk) -> PodSpec:
    """The pod as the core sees it."""
    ports = tuple((label, count) for label, count in ask.ports.items() if count > 0)
    demand = Demand(ask.gpus, ask.cpu, ask.memory_mb, sum(count for _, count in ports))
    return PodSpec(ask.pod, ask.role, demand, ports)


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod's place, as it was decided. ``journal`` is the one that the node's agent had then."""

    pod: str
    gang: str
    node: str
    journal: str
    address: str
    log_url: str | None
    gpus: tuple[int, ...]
    ports: Mapping[str, tuple[int, ...]]
    cpu: int
    memory_mb: int

    @property
    def port_numbers(self) -> tuple[int, ...]:
        """Every port of the pod."""
        return tuple(number for numbers in self.ports.values() for number in numbers)


@dataclass(frozen=True, slots=True)
class Hold:
    """A placement and what has become of it.

    ``is_wanted``: the Launcher still lists the pod. ``is_occupying``: its GPUs and ports are not
    free yet. ``free_from``: the report revision that its end names, 0 if none was told.
    ``lost_lease``: the lease number under which it was lost, None if it was not.
    """

    placement: Placement
    is_wanted: bool = True
    is_occupying: bool = True
    free_from: int = 0
    lost_lease: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """All waiting pods of the gang have their places."""

    gang: str
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Deferred:
    """The gang waits, and why; said when the code changes, else now and then."""

    gang: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refused:
    """No healthy empty cluster of the present nodes could hold the gang."""

    gang: str
    reason: Reason


Decision = Placed | Deferred | Refused


@dataclass(frozen=True, slots=True)
class Policy:
    """How the core decides. Times in seconds.

    ``cycle_gangs``: so many gangs, at the most, are placed, refused, or told why they wait, each,
    in one cycle.
    ``search_nodes``, ``search_steps``: where a gang of several kinds of pods does not fit greedily,
    every way is tried on so many nodes at the most, in so many steps of a cycle for all gangs.
    ``settle_s``: the cluster must not have grown for this long before a gang is refused.
    ``defer_again_s``: a wait whose numbers changed is said again this often at the most;
    ``defer_again_gangs``: for so many gangs in a cycle at the most.
    ``foreign_port_s``: a port that a stranger held is avoided for this long.
    ``port_rest_s``: a port that was freed is used again within this time only if no other is free.
    """

    cycle_gangs: int = 500
    search_nodes: int = 32
    search_steps: int = 5000
    settle_s: float = 30.0
    defer_again_s: float = 60.0
    defer_again_gangs: int = 50
    foreign_port_s: float = 600.0
    port_rest_s: float = 60.0
