"""What-if gangs were away: simulate, look, and undo exactly, or keep."""

from collections.abc import Iterable

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live, Pod


class Removal:
    """One gang taken out of the way. ``is_charged``: it had cells of its virtual cluster.

    ``lifts`` False: it loses its cells only, and goes on using its GPUs.
    """

    def __init__(self, cluster: Cluster, live: Live, *, lifts: bool = True) -> None:
        self.cluster = cluster
        self.live = live
        self.lifts = lifts
        self.was_charged = live.is_charged
        self._bindings: list[tuple[Pod, tuple[Binding, ...]]] = []
        hardware = cluster.hardware
        for pod in live.pods.values():
            is_reserved = pod.name in live.reserved
            if self.was_charged:
                self._bindings.append((pod, pod.bindings))
                cluster.count_charge(live, pod, -1)
                hardware.discharge(pod)
            if is_reserved and pod.state is not None:
                pod.state.reserved &= ~pod.gpus
                pod.machine.charge(pod.take, -1)
                hardware.refresh(pod.state)
            elif lifts and not is_reserved:
                hardware.lift(pod)

    def undo(self) -> None:
        """As it was before; everything done since has been undone."""
        hardware, live = self.cluster.hardware, self.live
        for pod in reversed(list(live.pods.values())):
            is_reserved = pod.name in live.reserved
            if is_reserved and pod.state is not None:
                pod.state.reserved |= pod.gpus
                pod.machine.charge(pod.take, 1)
                hardware.refresh(pod.state)
            elif self.lifts and not is_reserved:
                hardware.lower(pod)
        for pod, bindings in reversed(self._bindings):
            hardware.recharge(pod, bindings)
            self.cluster.count_charge(live, pod, 1)

    def spare(self) -> bool:
        """The gang is not needed after all: give it back what it had, if that can still be had."""
        hardware = self.cluster.hardware
        covered: list[tuple[Pod, tuple[Binding, ...]]] = []
        for pod, _ in self._bindings:
            bindings: tuple[Binding, ...] | None = ()
            if pod.state is not None and pod.leaves:
                owner = self._owner(pod)
                is_taken = pod.leaves & pod.state.charged
                bindings = None if is_taken else hardware.cover(owner, pod.state, pod.leaves)
            if bindings is None:
                for done, _ in reversed(covered):
                    hardware.discharge(done)
                    self.cluster.count_charge(self.live, done, -1)
                return False
            hardware.recharge(pod, bindings)
            self.cluster.count_charge(self.live, pod, 1)
            covered.append((pod, bindings))
        self._bring_back()
        if self.was_charged:
            self.cluster.moved.add(self.live.id)
        return True

    def settle(self) -> None:
        """The gang stays without its cells; what it uses it uses until it leaves."""
        self._bring_back()
        if self.was_charged:
            self.cluster.touch(self.live.owner)

    def _bring_back(self) -> None:
        hardware, live = self.cluster.hardware, self.live
        for pod in live.pods.values():
            if pod.name in live.reserved:
                if pod.state is not None:
                    pod.state.reserved |= pod.gpus
                    pod.machine.charge(pod.take, 1)
                    hardware.refresh(pod.state)
            elif self.lifts:
                hardware.lower(pod)

    def _owner(self, pod: Pod) -> str:
        from scheduler.domain.core.hardware import pin_owner

        return self.live.owner if pod.kind.pin is None else pin_owner(pod.kind.pin)


def undo_all(removals: Iterable[Removal]) -> None:
    """The last first."""
    for removal in reversed(list(removals)):
        removal.undo()
