"""Gangs that a gang might follow: where they are it might go, and whether that could help it."""

from collections.abc import Iterable, Iterator

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.machines import Machine, SlotState
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.seeking import Seeker


def leaves_any_near(cluster: Cluster, live: Live) -> bool:
    """Some gang that leaves already is where the gang might go."""
    leaving = (cluster.gangs[gang] for gang in cluster.told_to_leave)
    return next(_near(cluster, live, leaving), None) is not None


def those_near(cluster: Cluster, live: Live, others: Iterable[Live]) -> list[Live]:
    """Of these gangs the ones that are where the gang might go."""
    return list(_near(cluster, live, others))


def _near(cluster: Cluster, live: Live, others: Iterable[Live]) -> Iterator[Live]:
    owners = _owners(live)
    if owners is None:
        yield from others
        return
    near: dict[int, bool] = {}
    for other in others:
        for pod in other.pods.values():
            number = pod.machine.number
            is_near = near.get(number)
            if is_near is None:
                is_near = near[number] = _is_near(cluster, pod.machine, owners)
            if is_near:
                yield other
                break


def _owners(live: Live) -> set[str] | None:
    """Whose cells its pods might be in; None: some may be anywhere."""
    if any(role.kind.costs_nothing for role in live.waiting):
        return None
    return {live.owner if r.kind.pin is None else pin_owner(r.kind.pin) for r in live.waiting}


def _is_near(cluster: Cluster, machine: Machine, owners: set[str]) -> bool:
    spaces = cluster.hardware.spaces
    for state in machine.slots:
        number = state.slot.number
        if spaces[number][number] or not owners.isdisjoint(state.bound):
            return True
    return False


def is_room_after(cluster: Cluster, live: Live, seeker: Seeker) -> bool:
    """Where gangs leave some pod of a gang could be when they have, as the hardware is looked at
    now; or it can't be told.
    """
    grounds = _grounds(live, seeker)
    return not grounds or any(_takes_after(cluster.hardware, ground) for ground in grounds)


def _takes_after(hardware: Hardware, ground: Ground) -> bool:
    if ground.is_small:
        states = (hardware.states[number] for number in ground.numbers())
        return any(
            state.machine.leavers and _takes(ground, state, state.charged) for state in states
        )
    having = ground.seeker.having(ground.kind)
    among = hardware.left_by if having is None else hardware.left_by & having
    regions = (ground.bound, ground.empty)
    if ground.is_split:  # pods may be partly in each
        return among != 0
    return any(each is not None and each.has_any(ground.wish, among) for each in regions)


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
    there: dict[int, tuple[SlotState, int]] = {}
    for pod in other.pods.values():
        if pod.state is not None:
            state, charged = there.get(pod.state.slot.number, (pod.state, pod.state.charged))
            there[state.slot.number] = state, charged & ~pod.leaves
    return any(
        _takes(ground, state, charged) for state, charged in there.values() for ground in grounds
    )


def _grounds(live: Live, seeker: Seeker) -> list[Ground]:
    """Where its pods may be; none where some of them need no GPU."""
    if any(role.kind.gpus == 0 for role in live.waiting):
        return []
    return [
        seeker.ground(role.kind, each) for role in live.waiting for each in seeker.types(role.kind)
    ]


def _takes(ground: Ground, state: SlotState, charged: int) -> bool:
    """One more pod could be there, as far as its number of leaves tells, if these were charged."""
    take = state.machine.sort.take(ground.kind)
    if take is None or not state.machine.has(take, is_ahead=ground.hardware.index.is_ahead):
        return False
    reach = ground.reach(state)
    idle = reach & ~ground.hardware.used(state)
    enough = (reach & ~charged).bit_count() >= ground.needs[state.sort]
    return enough and idle.bit_count() >= ground.kind.gpus
