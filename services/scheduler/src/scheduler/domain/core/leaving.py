"""Gangs that a gang might follow: where they are it might go, and whether that could help it."""

from collections.abc import Sequence

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.seeking import Seeker


def leaving_gangs(cluster: Cluster, live: Live) -> list[Live]:
    """Gangs that leave already where the gang might go."""
    return near(cluster, live, [other for other in cluster.leaving() if other is not live])


def near(cluster: Cluster, live: Live, others: list[Live]) -> list[Live]:
    """Of these gangs the ones that are where the gang might go."""
    if any(role.kind.gpus == 0 and role.kind.pin is None for role in live.waiting):
        return others
    owners = {live.owner if r.kind.pin is None else pin_owner(r.kind.pin) for r in live.waiting}
    return [other for other in others if _is_near(cluster, other, owners)]


def _is_near(cluster: Cluster, other: Live, owners: set[str]) -> bool:
    spaces = cluster.hardware.spaces
    for pod in other.pods.values():
        for state in pod.machine.slots:
            number = state.slot.number
            if spaces[number][number] or not owners.isdisjoint(state.bound):
                return True
    return False


def is_room_after(live: Live, seeker: Seeker, others: Sequence[Live]) -> bool:
    """Where these gangs are, some pod of a gang could be if they had left; or it can't be told."""
    grounds = _grounds(live, seeker)
    there: dict[int, _There] = {}
    for other in others:
        for pod in other.pods.values():
            _at(there, pod.machine).leaves(pod, is_reserved=pod.name in other.reserved)
    return not grounds or any(each.takes(ground) for each in there.values() for ground in grounds)


def is_room_without_cells(live: Live, seeker: Seeker, other: Live) -> bool:
    """Some pod of a gang could be where this one runs, or elsewhere, if it had no cells; or it
    can't be told.
    """
    grounds = _grounds(live, seeker)
    if not grounds:
        return True
    for pod in other.pods.values():
        if any(len(binding.users) == 1 for binding in pod.bindings):
            return True
    there: dict[int, _There] = {}
    for pod in other.pods.values():
        if pod.state is not None:
            each, number = _at(there, pod.machine), pod.state.slot.number
            each.charged[number] = each.charged.get(number, 0) | pod.leaves
    return any(each.takes(ground) for each in there.values() for ground in grounds)


def _at(there: "dict[int, _There]", machine: Machine) -> "_There":
    found = there.get(machine.number)
    if found is None:
        found = there[machine.number] = _There(machine)
    return found


def _grounds(live: Live, seeker: Seeker) -> list[Ground]:
    """Where its pods may be; none where some of them need no GPU."""
    if any(role.kind.gpus == 0 for role in live.waiting):
        return []
    return [
        seeker.ground(role.kind, each) for role in live.waiting for each in seeker.types(role.kind)
    ]


class _There:
    """What some gangs give up on a machine. ``held``, ``reserved``, ``charged``: leaves by node's
    number; ``amounts``: of each limited resource.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.held: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        self.charged: dict[int, int] = {}
        self.amounts = [0] * len(machine.free)

    def leaves(self, pod: Pod, *, is_reserved: bool) -> None:
        """All that a pod has there."""
        if pod.state is not None:
            number, masks = pod.state.slot.number, self.reserved if is_reserved else self.held
            masks[number] = masks.get(number, 0) | pod.gpus
        for index, amount in enumerate(pod.take.amounts):
            self.amounts[index] += amount

    def takes(self, ground: Ground) -> bool:
        """One more pod could be there then, as far as its number of leaves tells."""
        machine, kind = self.machine, ground.kind
        take = machine.sort.take(kind)
        if take is None:
            return False
        for amount, have, more in zip(take.amounts, machine.free, self.amounts, strict=True):
            if amount and amount > have + more:
                return False
        for state in machine.slots:
            number, reach = state.slot.number, ground.reach(state)
            used = state.held & ~self.held.get(number, 0)
            used |= state.reserved & ~self.reserved.get(number, 0)
            free = reach & ~(state.charged & ~self.charged.get(number, 0))
            enough = ground.needs[state.sort]
            if free.bit_count() >= enough and (reach & ~used).bit_count() >= kind.gpus:
                return True
        return False
