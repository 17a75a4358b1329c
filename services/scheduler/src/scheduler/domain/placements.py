"""Placements of pods, and their later states."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.domain.core.model import (
    NO_ONE,
    OPPORTUNISTIC,
    Gang,
    GangClass,
    Kind,
    PodPlace,
    Restored,
    Role,
)

LEFT = "released "
"""Before a pod's name: the name of its own gang until its node shows it free. No gang's id begins
so.
"""


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod's place, as decided. ``journal``: the node's agent's at that time.

    ``kind``: its request. ``charged``: GPUs that it is charged for and does not use.
    ``secrets_key``: the agent's public key at that time, where the gang needs keys.
    """

    pod: str
    gang: str
    node: str
    journal: str
    address: str
    log_url: str | None
    gpus: tuple[int, ...]
    ports: Mapping[str, tuple[int, ...]]
    kind: Kind
    charged: tuple[int, ...] = ()
    secrets_key: str | None = None

    @property
    def port_numbers(self) -> tuple[int, ...]:
        """Every port of the pod."""
        return tuple(number for numbers in self.ports.values() for number in numbers)

    def place(self) -> PodPlace:
        """The same for the core."""
        return PodPlace(self.pod, self.node, self.gpus, self.port_numbers, self.charged)


@dataclass(frozen=True, slots=True)
class Hold:
    """A placement and its state.

    ``is_wanted``: the Launcher still lists the pod. ``is_occupying``: its GPUs and ports are not
    free yet. ``free_from``: the report revision that its end names, 0 if it names none.
    ``lost_lease``: its node's lease number when it was lost, None if it was not.
    """

    placement: Placement
    is_wanted: bool = True
    is_occupying: bool = True
    free_from: int = 0
    lost_lease: int | None = None

    @property
    def pod(self) -> str:
        """Its name."""
        return self.placement.pod

    @property
    def is_lost(self) -> bool:
        """Its node was lost, or its agent's journal, and the pod with it, for good."""
        return self.lost_lease is not None


def left(place: Placement, at: float) -> Restored:
    """The resources of a released pod, as a gang that is preempted already: it uses no quota."""
    name = LEFT + place.pod
    gang = Gang(name, NO_ONE, NO_ONE, OPPORTUNISTIC, (Role(place.kind, (place.pod,)),), name)
    places = (PodPlace(place.pod, place.node, place.gpus, place.port_numbers),)
    return Restored(gang, places, GangClass.OPPORTUNISTIC, (), 0.0, at)
