"""Cells for a workload that stays where it is: it was downgraded or borrows."""

from operator import add

from scheduler.domain.core.nodes import Place, Slot, Workload
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.state import State


def rebind(state: State, workload: Workload, owner: str, priority: int) -> bool:
    """A running workload gets cells of an owner around its GPUs, if that is allowed
    and no gang is charged these leaves, or shares them. Nothing has changed where it does not.
    """
    if workload.is_opportunistic and _are_charged(workload):  # a cheap look first: most fail here
        return False
    if not state.has_pins(owner, workload):
        return False
    wants = {pod: want for want, pods in workload.wants for pod in pods}
    with state.trial() as trial:
        if not workload.is_opportunistic:
            state.downgrade(workload)
        places: list[Place] = []
        shared: dict[tuple[Slot, int], tuple[int, ...]] = {}
        for place in workload.places:
            pin = wants[place.pod].kind.pin
            mine = owner if pin is None else pin_owner(pin)
            slot, charge = place.slot, place.charge | place.gpus  # it may have grown without cells
            others = charge & slot.charged
            if place.is_shared:  # its own pods may share it too
                before = shared.get((slot, charge), (0,) * len(place.amounts))
                amounts = shared[slot, charge] = tuple(map(add, before, place.amounts))
                others &= ~state.joinable(slot, mine, amounts, priority)
            if others or not state.bind_around(mine, slot, charge):
                return False
            places.append(place._replace(owner=mine, charge=charge))
        state.upgrade(workload, places, owner, priority)
        trial.commit()
    return True


def _are_charged(workload: Workload) -> bool:
    """Other gangs are charged some of its leaves, which are not shared."""
    return any(
        (place.charge | place.gpus) & place.slot.charged
        for place in workload.places
        if not place.is_shared
    )
