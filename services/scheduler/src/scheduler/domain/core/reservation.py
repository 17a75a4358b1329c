"""One reservation: what is kept for whom, and who may be there meanwhile."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from scheduler.domain.core.config import Policy
from scheduler.domain.core.ends import bounds_of
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.model import CellUse, NodeGpus

Leaves = Mapping[int, int]
"""By a node's number."""


@dataclass(slots=True, eq=False)
class Reservation:
    """``leaves`` are kept for a gang, which is expected to start at ``starts_at``; it has had a
    reservation ``since`` then. ``held``: those of them that it is charged; ``lent``: gangs on the
    others that would have to leave for it. ``number``: later ones have higher ones.
    ``doubted_at``: when somebody there should be gone, as it was last looked at. ``tried_at``: when
    it was last tried for somebody who is still there. ``patient_until``: as `RestoredReservation`
    has it. ``short``: by chain, the GPUs of cells for which its virtual cluster has no
    quota left, as that is in cells elsewhere: what is free in as many is among ``held``.
    """

    live: Live
    leaves: Leaves
    starts_at: float
    since: float
    held: list[Pod] = field(default_factory=list)
    lent: dict[Live, None] = field(default_factory=dict)
    number: int = 0
    doubted_at: float = -inf
    tried_at: float = -inf
    patient_until: float | None = None
    short: Mapping[str, int] = field(default_factory=dict)

    def cells(self, hardware: Hardware) -> tuple[NodeGpus, ...]:
        """Nodes with the indices of their GPUs that are kept."""
        return _gpus_of(hardware, self.leaves)

    @property
    def charged(self) -> int:
        """How many leaves it is charged."""
        return sum(pod.leaves.bit_count() for pod in self.held)

    def charged_gpus(self, hardware: Hardware) -> tuple[NodeGpus, ...]:
        """The same of what it is charged."""
        return _gpus_of(hardware, self.charged_leaves())

    def has(self, live: Live) -> bool:
        """Some of the gang's pods are on cells that are kept."""
        return any(
            pod.state is not None and pod.leaves & self.leaves.get(pod.state.slot.number, 0)
            for pod in live.pods.values()
        )

    def beside(self) -> list[Pod]:
        """What it is charged on other leaves than those that are kept."""
        return [
            pod
            for pod in self.held
            if pod.state is not None and pod.leaves & ~self.leaves.get(pod.state.slot.number, 0)
        ]

    def charged_leaves(self) -> Leaves:
        """What it is charged."""
        leaves: defaultdict[int, int] = defaultdict(int)
        for pod in self.held:
            if pod.state is not None:
                leaves[pod.state.slot.number] |= pod.leaves
        return leaves

    def bound(self) -> tuple[CellUse, ...]:
        """The cells that are bound for what it is charged."""
        found = {
            (binding.address, binding.quota.path)
            for pod in self.held
            for binding in pod.bindings
            if binding.quota is not None
        }
        return tuple(CellUse(cell, quota) for cell, quota in sorted(found))


def _gpus_of(hardware: Hardware, leaves: Leaves) -> tuple[NodeGpus, ...]:
    found: dict[str, list[int]] = {}
    for number, mask in sorted(leaves.items()):
        slot = hardware.states[number].slot
        found.setdefault(slot.machine, []).extend(slot.indices(mask))
    return tuple((machine, tuple(sorted(gpus))) for machine, gpus in found.items())


def goes_before(live: Live, reservation: Reservation) -> bool:
    """It is the reservation's own gang, or of a higher rank; age does not count."""
    other = reservation.live
    return live is other or live.order[0][:2] < other.order[0][:2]


def leaves_at(live: Live, reservation: Reservation) -> float:
    """When a gang that runs on kept cells should be gone: at the reservation's time where its limit
    ends before that, else when it expected to be.
    """
    began, at = live.started_at, reservation.starts_at
    limit_s, expected_s = bounds_of(live.gang)
    if began is None or expected_s is None or (limit_s is not None and began + limit_s <= at):
        return at
    return min(began + expected_s, at)


def may_pass(live: Live, reservation: Reservation, policy: Policy, now: float) -> bool:
    """The gang will be gone in time, by its limit, or else as far as it knows."""
    return now < reservation.since + policy.max_pass_s and any(
        isinstance(run_s, float) and now + run_s <= reservation.starts_at
        for run_s in live.apart[:2]
    )
