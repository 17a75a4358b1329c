"""Cells for a workload that stays where it is: it was downgraded or borrows."""

from collections.abc import Sequence

from scheduler.domain.core.nodes import Place, Workload
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.state import State


def rebind(state: State, workload: Workload, owner: str, priority: int) -> bool:
    """A running workload gets cells of an owner around its GPUs, if that is allowed
    and no gang is charged these leaves, or shares them. Nothing has changed where it does not.
    """
    if not state.has_pins(owner, workload):
        return False
    wants = {pod: want for want, pods in workload.wants for pod in pods}
    with state.trial() as trial:
        if not workload.is_opportunistic:
            state.downgrade(workload)
        places: list[Place] = []
        for place in workload.places:
            pin = wants[place.pod].kind.pin
            mine = owner if pin is None else pin_owner(pin)
            slot, charge = place.slot, place.charge | place.gpus  # it may have grown without cells
            again = place._replace(owner=mine, charge=charge)
            if place.is_shared:
                again = _sharing(state, workload, again, places, priority)
                if not again.charge:
                    return False
            elif charge & slot.charged or not state.bind_around(mine, slot, charge):
                return False
            places.append(again)
        state.upgrade(workload, places, owner, priority)
        trial.commit()
    return True


def _sharing(
    state: State, workload: Workload, place: Place, before: Sequence[Place], priority: int
) -> Place:
    """The place of a pod without GPUs, charged a bound leaf: its last one, else one that others
    share, else an idle one; 0: there is none. ``before``: where others of its pods are now.
    """
    slot, owner = place.slot, place.owner
    rest = slot.good & (slot.bound.get(owner, 0) | slot.open) & ~place.charge
    for other in workload.places:  # its pods that share nothing
        if other.slot is slot and not other.is_shared:
            rest &= ~(other.charge | other.gpus)
    leaves = [1 << bit for bit in range(rest.bit_length()) if rest >> bit & 1]
    leaves.sort(key=lambda leaf: (leaf not in slot.shares, leaf & slot.open > 0))
    for leaf in (place.charge, *leaves):
        mine = (each.amounts for each in before if each.slot is slot and each.charge == leaf)
        amounts = tuple(map(sum, zip(place.amounts, *mine, strict=True)))
        if leaf & slot.charged:
            has_room = leaf & state.joinable(slot, owner, amounts, priority) > 0
        else:
            has_room = slot.model.goes_with_leaf(amounts)
        if has_room and state.bind_around(owner, slot, leaf):
            return place._replace(charge=leaf)
    return place._replace(charge=0)
