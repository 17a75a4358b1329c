"""What-if gangs were away: simulate, look, and undo exactly, or keep."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.covering import cover
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.model import GangClass
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.prices import NOBODY, STAYS


class Removal:
    """One gang taken out of the way. ``was_charged``: it had cells of its virtual cluster.

    ``lifts`` False: it loses its cells only, and goes on using its GPUs: it is downgraded.
    ``is_growth``: only what it has reserved to grow by is taken.
    """

    def __init__(
        self, cluster: Cluster, live: Live, *, lifts: bool = True, is_growth: bool = False
    ) -> None:
        self.cluster = cluster
        self.live = live
        self.lifts = lifts
        self.is_growth = is_growth
        self.was_charged = live.is_charged
        self._bindings: list[tuple[Pod, tuple[Binding, ...]]] = []
        self._pods, self._reserved = live.pods, live.reserved
        if is_growth:
            self._pods = {name: live.pods.pop(name) for name in live.reserved}
            live.reserved = ()
        elif lifts:
            live.is_away = True
        hardware = cluster.hardware
        for pod in self._pods.values():
            is_reserved = pod.name in self._reserved
            if self.was_charged:
                self._bindings.append((pod, pod.bindings))
                cluster.charges.count(live, pod, -1)
                hardware.discharge(pod)
            if lifts or is_reserved:
                pod.lift(is_reserved=is_reserved)
                hardware.refresh_all(pod.machine, pod.state)
        if not lifts:  # who is protected does not have to leave as a guest then
            live.gang_class = GangClass.DOWNGRADED
            live.cost = (STAYS, NOBODY) if live.is_protected else None

    def undo(self) -> None:
        """As it was before; everything done since has been undone."""
        self._bring_back()
        for pod, bindings in reversed(self._bindings):
            self.cluster.hardware.recharge(pod, bindings)
            self.cluster.charges.count(self.live, pod, 1)

    def spare(self) -> bool:
        """The gang is not needed after all: give it back what it had, if that can still be had."""
        hardware = self.cluster.hardware
        covered: list[tuple[Pod, tuple[Binding, ...]]] = []
        for pod, _ in self._bindings:
            bindings: tuple[Binding, ...] | None = ()
            if pod.state is not None and pod.leaves:
                owner = self._owner(pod)
                is_taken = pod.leaves & pod.state.charged
                bindings = None if is_taken else cover(hardware, owner, pod.state, pod.leaves)
            if bindings is None:
                for done, _ in reversed(covered):
                    hardware.discharge(done)
                    self.cluster.charges.count(self.live, done, -1)
                return False
            hardware.recharge(pod, bindings)
            self.cluster.charges.count(self.live, pod, 1)
            covered.append((pod, bindings))
        self._bring_back()
        if self.was_charged:
            self.cluster.moved.add(self.live.id)
        return True

    def settle(self) -> None:
        """The gang stays without its cells; what it uses it uses until it leaves."""
        self._bring_back()
        if self.was_charged:
            self.cluster.stamps.touch(self.live.owner)

    def _bring_back(self) -> None:
        if not self.lifts:
            self.live.gang_class, self.live.cost = GangClass.GUARANTEED, None
        if self.is_growth:
            self.live.pods.update(self._pods)
            self.live.reserved = self._reserved
        elif self.lifts:
            self.live.is_away = False
        for pod in self._pods.values():
            is_reserved = pod.name in self._reserved
            if self.lifts or is_reserved:
                pod.lower(is_reserved=is_reserved)
                self.cluster.hardware.refresh_all(pod.machine, pod.state)

    def _owner(self, pod: Pod) -> str:
        return self.live.owner if pod.kind.pin is None else pin_owner(pod.kind.pin)


@contextmanager
def without_all(cluster: Cluster, lives: Iterable[Live], *, lifts: bool = True) -> Iterator[None]:
    """The block runs as if these gangs were away, or downgraded. Its end undoes that, also where an
    exception ends it.
    """
    removals: list[Removal] = []
    try:
        removals.extend(Removal(cluster, live, lifts=lifts) for live in lives)
        yield
    finally:
        undo_all(removals)


def undo_all(removals: Iterable[Removal]) -> None:
    """The last first."""
    for removal in reversed(list(removals)):
        removal.undo()
