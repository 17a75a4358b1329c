"""Before gangs are tried: what became free, or has turned bad, for gangs that wait for it."""

from collections.abc import Iterator
from functools import partial

from scheduler.domain.core.freed import Freed
from scheduler.domain.core.model import Decision
from scheduler.domain.core.nodes import Phase, Place
from scheduler.domain.core.ordering import Order
from scheduler.domain.core.records import Record
from scheduler.domain.core.reserve import lift_all, renew
from scheduler.domain.core.transitions import Transitions


def is_due(gangs: Transitions, now: float) -> bool:
    """Time alone may help a gang: a protection, a reservation or what was kept has ended."""
    if now >= gangs.costs.again_at:
        for other in gangs.costs.no_longer_spared():
            gangs.state.freed += [place.slot for place in other.places]
        return True
    if gangs.records.unlooked or any(kept.starts_at < now for kept in gangs.records.kept):
        return True
    return _stays_from_now_on(gangs, now) or any(
        each.reservation and each.reservation.is_broken(now) for each in gangs.records.reserved
    )


def _stays_from_now_on(gangs: Transitions, now: float) -> bool:
    """Since the last cycle a gang has begun to overstay on reserved cells."""
    is_so = False
    for record in gangs.records.backfilled:
        if gangs.costs.before < gangs.records.stays_until(record) <= now:
            reservation = gangs.records.reservation_of(record.passed or "")
            if reservation is not None:
                gangs.queue.try_again(gangs.queue.class_of(reservation.workload))
                is_so = True
    return is_so


def wake(gangs: Transitions, now: float) -> Iterator[Decision]:
    """Nominated gangs start or lose their place, reservations are renewed, and classes are to be
    tried again that may be helped.
    """
    state, records, queue = gangs.state, gangs.records, gangs.queue
    gangs.forget_kept(now)
    changed = list(state.freed)
    freed = Freed(state, gangs.costs, changed)
    state.freed.clear()
    gangs.note_freed(changed)
    looked = freed.slots | records.unlooked
    records.unlooked.clear()
    for record in sorted(records.nominated, key=_turn):
        workload = record.workload
        places = [place for place in workload.places if place.slot in looked]
        if not places:
            continue
        if any(_is_bad(place) for place in places):
            yield gangs.wait_again(record)
        elif state.start(workload):
            yield gangs.started(record, now)
        elif not any(_is_awaited(place) for place in workload.places):
            yield gangs.wait_again(record)  # foreign pods have taken what it needs
    yield from _look_at_reservations(gangs, freed, now)
    for found in queue.classes.values() if freed.owners else ():
        found.hopeless_beside = None  # other cells may be bound now
    for found in list(queue.classes.values()):
        if found.no is not None and freed.helps(found):
            if freed.is_small:
                queue.wake(found, partial(freed.helps, found))
            else:
                queue.try_again(found)
    if reservations := records.reservations():
        may_use = {each: None for each in queue.classes.values() if each.is_bounded}
        may_use |= {queue.class_of(each.workload): None for each in reservations}
        with state.trial():  # these may be on reserved cells
            lift_all(state, reservations)
            lifted = Freed(state, gangs.costs, changed)
            helped = [each for each in may_use if each.no is not None and lifted.helps(each)]
        for found in helped:
            queue.try_again(found)


def _look_at_reservations(gangs: Transitions, freed: Freed, now: float) -> Iterator[Decision]:
    for kept in gangs.records.kept:
        if any(slot in freed.slots for slot in kept.cells):
            renew(gangs.state, kept)
    for record in sorted(gangs.records.reserved, key=_turn):
        reservation = record.reservation
        if reservation is None:
            continue
        if reservation.is_broken(now):
            yield gangs.unreserve(reservation)
        elif reservation.is_short or any(slot in freed.slots for slot in reservation.cells):
            renew(gangs.state, reservation)
            gangs.queue.try_again(gangs.queue.class_of(record.workload))


def _turn(record: Record) -> tuple[Order, str]:
    """However the gangs came."""
    return record.order, record.workload.name


def _is_awaited(place: Place) -> bool:
    """A gang leaves the place's node."""
    pods = (each for slot in place.slot.node.slots for each in slot.pods)
    return any(each.phase is Phase.PREEMPTED for each in pods)


def _is_bad(place: Place) -> bool:
    leaves = place.charge | place.gpus
    return leaves & ~place.slot.good != 0 or not place.slot.node.is_open
