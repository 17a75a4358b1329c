"""Reservations: the first gang of a virtual cluster that can't start gets cells at the moment when
they will be free. Source: EASY backfill (Lifka, 1995).

Reserved cells that no other gang has are charged to a *hold*: a workload without pods, with the
priority of the gang that waits. So nothing else has to know of reservations. A gang that may use
reserved cells is tried in a trial that lifts the hold.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scheduler.domain.core.config import Policy
from scheduler.domain.core.ends import bounds_of
from scheduler.domain.core.evict import CostOf, Rules
from scheduler.domain.core.fit import ROOM, Fit, No, claim, fit, lacks
from scheduler.domain.core.gangs import workload_of
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    KeptOf,
    NodeGpus,
    RestoredReservation,
    Role,
)
from scheduler.domain.core.nodes import Binding, Phase, Place, Pool, Slot, Workload, racks_of
from scheduler.domain.core.records import Records, Reservation
from scheduler.domain.core.restore import bind_again, cells_of
from scheduler.domain.core.shortage import shortage, wanted
from scheduler.domain.core.state import State, claimable

ENDS = "ends"

End = tuple[float, Workload]
"""When a workload that runs will end."""


def lift(state: State, reservation: Reservation) -> None:
    """Nothing is charged for it."""
    if reservation.hold.phase is Phase.NOMINATED:
        state.remove(reservation.hold, Phase.WAITING)


def lift_all(state: State, reservations: Collection[Reservation]) -> None:
    """The same for several, which the caller renews or a trial restores: it helps nobody."""
    if reservations:
        with state.unnoticed():
            for each in reservations:
                lift(state, each)


def end(state: State, reservation: Reservation) -> None:
    """It is over: its cells are others', and gangs there may be preempted for others again. So is
    the rest of their share of CPU and the like, where its gang starts there.
    """
    lift(state, reservation)
    left = dict(reservation.cells)
    for place in reservation.workload.places:
        if place.slot in left:
            left[place.slot] &= ~place.charge
    state.notice(slot for slot, mask in left.items() if mask or slot.model.limited)


def beside(records: Records, workload: Workload) -> list[Reservation]:
    """Those of other gangs of its virtual cluster, and what is kept for next attempts."""
    found = (*(each.reservation for each in records.reserved), *records.kept)
    return [
        each
        for each in found
        if each and each.workload.owner == workload.owner and each.workload is not workload
    ]


def choose_anew(state: State, kept: Reservation, behind: Collection[Reservation]) -> None:
    """Cells for its missing pods are kept too, near the others: where these are idle, else where
    opportunistic gangs are. ``behind``: what is reserved for gangs behind its next attempt.
    """
    roles = [Role(kind, (pod,)) for pod, kind in sorted(kept.missing.items())]
    workload = workload_of(state, kept.workload.gang, roles)
    workload.near = racks_of(kept.cells)
    lift_all(state, behind)
    with state.trial():
        has_room = isinstance(fit(state, workload, None), Fit)
        places = workload.places if has_room else _claimed(state, workload)
    for place in places:
        kept.add(place.slot, place.charge)
    kept.missing.clear()
    for each in (kept, *behind):
        renew(state, each)


def _claimed(state: State, workload: Workload) -> tuple[Place, ...]:
    """Where it would be if no opportunistic gang were there."""
    state.set_priority(workload, OPPORTUNISTIC)
    return () if lacks(state, workload) else claim(state, workload)


def renew(state: State, reservation: Reservation) -> None:
    """Charge what is free of its cells now."""
    with state.unnoticed():
        _renew(state, reservation)


def reserve_again(
    state: State, workload: Workload, restored: RestoredReservation
) -> Reservation | None:
    """A reservation of before, charged what it was. None: some of its cells are not there."""
    cells = _slots_of(state, restored.cells)
    held = cells if restored.held is None else _slots_of(state, restored.held)
    if cells is None or held is None:
        return None
    found = Reservation(workload, held, restored.starts_at, restored.since)
    found.patient_until = restored.patient_until or found.patient_until
    free = ((slot, mask & slot.good & ~slot.charged) for slot, mask in held.items())
    places = [Place("", slot, 0, (), mask) for slot, mask in free if mask]
    bind_again(state, workload.owner or "", restored.bound, places)
    renew(state, found)
    found.cells, found.is_kept = cells, restored.kept_of is not None
    found.is_short = any(mask & slot.good & ~slot.charged for slot, mask in cells.items())
    return found


def _slots_of(state: State, cells: Iterable[NodeGpus]) -> dict[Slot, int] | None:
    found: dict[Slot, int] = {}
    for name, gpus in cells:
        node, count = state.nodes.get(name), 0
        for slot in () if node is None else node.slots:
            mask = 0 if slot.fixed is None else slot.fixed.mask_of(gpus)
            if mask:
                found[slot] = mask
                count += mask.bit_count()
        if count < len(gpus):
            return None
    return found


def exported_reservation(reservation: Reservation) -> RestoredReservation:
    """All that is kept of a reservation."""
    held: dict[Slot, int] = {}
    for place in reservation.hold.places:
        held[place.slot] = held.get(place.slot, 0) | place.charge
    return RestoredReservation(
        reservation.workload.gang.id,
        named(reservation.cells),
        reservation.starts_at,
        reservation.since,
        tuple(use for use in cells_of(reservation.hold) if use.quota),
        named(held),
        kept_of=_kept_of(reservation.workload) if reservation.is_kept else None,
    )


def _kept_of(workload: Workload) -> KeptOf:
    gang = workload.gang
    pins = {want.kind.pin for want, _ in workload.wants} - {None}
    names = tuple(sorted(pin for pin in pins if pin is not None))
    return KeptOf(gang.virtual_cluster, gang.priority, gang.user, gang.job, names)


def named(cells: Mapping[Slot, int]) -> tuple[NodeGpus, ...]:
    """Leaves by slot as GPUs by node."""
    found: dict[str, list[int]] = {}
    for slot, mask in cells.items():
        gpus = () if slot.fixed is None else slot.fixed.indices(mask)
        found.setdefault(slot.node.name, []).extend(gpus)
    return tuple((node, tuple(sorted(gpus))) for node, gpus in sorted(found.items()))


def _renew(state: State, reservation: Reservation) -> None:
    lift(state, reservation)
    places, short = list[Place](), 0
    for slot, mask in reservation.cells.items():
        free = mask & slot.good & ~slot.charged
        owner = _owner_on(reservation.workload, slot, free)
        if free and not state.bind_around(owner, slot, free):
            short += (free & ~slot.bound.get(owner, 0)).bit_count()
        places += _hold(state, reservation, slot, mask, owner)
    state.journal.set(reservation, "is_short", short > 0)
    for slot, mask in _elsewhere(state, reservation, short) if short else ():
        places += _hold(state, reservation, slot, mask, reservation.hold.owner or "")
    state.settle(reservation.hold, places, Phase.NOMINATED)


def _hold(
    state: State, reservation: Reservation, slot: Slot, mask: int, owner: str
) -> Iterator[Place]:
    """What is idle of these leaves in the owner's cells. Pods that share one of them run on, but no
    other joins them.
    """
    mine, amounts = mask & slot.bound.get(owner, 0), (0,) * len(state.resources.names)
    idle, shared = mine & slot.good & ~slot.charged, [leaf for leaf in slot.shares if leaf & mine]
    for leaves, is_shared in ((idle, False), *((leaf, True) for leaf in sorted(shared))):
        if leaves:
            place = Place("", slot, 0, amounts, leaves, owner, is_shared=is_shared)
            state.take(reservation.hold, place, Phase.NOMINATED)
            yield place


def _elsewhere(state: State, reservation: Reservation, short: int) -> Iterator[tuple[Slot, int]]:
    """Idle leaves of cells outside in which so much of its quota is bound: without them these cells
    would be in use for ever, by one small gang after another. Those of the emptiest cells.
    """
    found: dict[Binding, dict[Slot, int]] = {}
    for slot in (slot for pool in reservation.pools for slot in pool.slots):
        for mask, binding in () if slot in reservation.cells else slot.bindings:
            if binding.owner == reservation.hold.owner and binding.quota is not None:
                found.setdefault(binding, {})[slot] = mask
    inside = {each for slot in reservation.cells for _, each in slot.bindings}
    sizes = [
        (sum((mask & slot.charged).bit_count() for slot, mask in there.items()), number, binding)
        for number, (binding, there) in enumerate(found.items())
        if binding not in inside
    ]
    for _, _, binding in sorted(sizes, key=lambda each: each[:2]):
        if short <= 0:
            return
        short -= sum(mask.bit_count() for mask in found[binding].values())
        yield from found[binding].items()


@contextmanager
def reserved_shares(state: State, reservations: Collection[Reservation]) -> Iterator[None]:
    """In the ``with`` block idle reserved cells have taken their share of CPU and the like. Pods
    that are charged one, without its GPU, have taken theirs.
    """
    taken, holds = list[Workload](), [each.hold for each in reservations]
    with state.unnoticed():
        for each in reservations:
            hold = replace(each.hold, owner=None, phase=Phase.WAITING, places=())
            places = [
                Place("", slot, 0, _left_of(slot, mask, holds))
                for slot, mask in each.cells.items()
                if slot.model.limited
            ]
            for place in places:
                state.take(hold, place, Phase.NOMINATED)
            state.settle(hold, places, Phase.NOMINATED)
            taken.append(hold)
        yield
        for hold in taken:
            state.remove(hold)


def _left_of(slot: Slot, mask: int, holds: Collection[Workload]) -> tuple[int, ...]:
    """The share of these leaves, without what pods have of it that are charged them."""
    shared = sum(slot.shares)
    leaves = mask & slot.free
    for other, (_, charge) in slot.pods.items():
        if other not in holds:
            leaves &= ~charge | shared
    used = [each.amounts for leaf, each in slot.shares.items() if leaf & leaves]
    return tuple(
        max(0, total - sum(some))
        for total, *some in zip(slot.model.share(leaves), *used, strict=True)
    )


def _owner_on(workload: Workload, slot: Slot, leaves: int) -> str:
    """The pin that the leaves are in, if the workload names it; else its virtual cluster."""
    owners = {workload.owner_of(want) for want, _ in workload.wants}
    return next((o for o in owners if o and slot.bound.get(o, 0) & leaves), workload.owner or "")


def may_backfill(workload: Workload, reservation: Reservation, policy: Policy, now: float) -> bool:
    """The workload may be on reserved cells: by its limit, or as far as is known, it will have
    ended before they are needed. The next attempt needs kept cells as soon as it comes.
    """
    is_late = reservation.is_kept or now > reservation.since + policy.max_pass_s
    ends = (now + seconds for seconds in bounds_of(workload.gang) if seconds is not None)
    return not is_late and any(end <= reservation.starts_at for end in ends)


def passed_by(workload: Workload, reservations: Sequence[Reservation]) -> str:
    """The gang of these reservations on whose cells, or in whose quota, a workload is."""
    on = (each for each in reservations if any(p.slot in each.cells for p in workload.places))
    return next(on, reservations[0]).workload.gang.id


def plan(
    state: State,
    workload: Workload,
    ends: Collection[End],
    now: float,
    taken: Collection[Pool] = (),
) -> Reservation | No:
    """Where and when the workload starts soonest: those that it can't make leave end one after the
    other, until it fits. ``taken``: pools in which others have reservations. No for `ROOM`: it fits
    already as far as leaves count; no for `ENDS`: no end helps. Nothing is changed.
    """
    in_order = sorted(((max(end, now), each.name, each) for end, each in ends), key=lambda e: e[:2])
    least = min((want.least(state.models) for want, _ in workload.wants), default=0)
    leaves = wanted(state, workload)
    with state.trial():
        for _, each in ends:  # none of these leaves for it
            if each.priority < workload.priority:
                state.set_priority(each, workload.priority)
        starts_at, is_new, no = now, True, ENDS
        for number in range(len(in_order) + 1):
            if number:
                starts_at, _, each = in_order[number - 1]
                slots = [place.slot for place in each.places]
                state.remove(each)
                is_new = is_new or any(_has(slot, workload, least) for slot in slots)
            if not is_new or shortage(state, leaves, workload.priority) is not None:
                continue
            is_new = False
            cells: dict[Slot, int] = {}
            for place in claim(state, workload, taken):
                if place.charge:
                    cells[place.slot] = cells.get(place.slot, 0) | place.charge
            if not cells:
                continue
            if starts_at > now:
                return Reservation(workload, cells, starts_at, now)
            is_new, no = True, ROOM  # something else than leaves is wanting
    return No(no)


def _has(slot: Slot, workload: Workload, least: int) -> bool:
    owner = workload.owner or ""
    mask = claimable(slot, owner, workload.priority, may_bind=True)
    return mask.bit_count() >= least


@dataclass(frozen=True)
class Sparing:
    """Rules by which nobody leaves reserved cells for a gang that is not the one that they are
    reserved for; nor other cells while quota for the reserved ones is bound elsewhere.
    """

    rules: Rules
    reservations: Collection[Reservation]

    def of(self, asking: Workload, *, is_inside: bool = True) -> CostOf:
        """What it costs that others leave for a workload."""
        cost_of = self.rules.of(asking, is_inside=is_inside)
        return lambda other: None if self._is_on_reserved(other) else cost_of(other)

    def lazy(self, asking: Workload) -> Iterable[Workload]:
        """Those that are downgraded before they are preempted for a workload."""
        return [each for each in self.rules.lazy(asking) if not self._is_on_reserved(each)]

    def surplus(self, asking: Workload) -> Iterable[Workload]:
        """Pods that their gangs can spare, and that may have to leave for a workload."""
        return (each for each in self.rules.surplus(asking) if not self._is_on_reserved(each))

    def is_too_many(self, asking: Workload, victims: Iterable[Workload]) -> bool:
        """They would be more than its virtual cluster's budget has left."""
        return self.rules.is_too_many(asking, victims)

    def _is_on_reserved(self, other: Workload) -> bool:
        return any(
            place.charge & each.cells.get(place.slot, 0)
            or (each.is_short and place.charge and place.slot.pool in each.pools)
            for each in self.reservations
            for place in other.places
        )
