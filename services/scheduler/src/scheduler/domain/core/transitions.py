"""What becomes of gangs: each change of a gang's state, record, queue and usage, in one piece.

A decision is returned where there is one to publish.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from scheduler.domain.core.config import REQUEUE_S, Policy
from scheduler.domain.core.costs import Costs
from scheduler.domain.core.explain import DRAIN, preempted, preempting
from scheduler.domain.core.fit import ORDER, Fit
from scheduler.domain.core.gangs import growth_of, pods_of, surplus_of, wants_with, workload_of
from scheduler.domain.core.grow import Children, behind
from scheduler.domain.core.lend import lender_of
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    Decision,
    Deferred,
    Downgraded,
    Gang,
    GangClass,
    Grown,
    KeptOf,
    Kind,
    Placed,
    Preempted,
    PreemptionCancelled,
    Reason,
    Refused,
    Reserved,
    Restored,
    RestoredReservation,
    Role,
    Shrunk,
    Upgraded,
)
from scheduler.domain.core.model import joined as roles_with
from scheduler.domain.core.model import without as roles_without
from scheduler.domain.core.nodes import Phase, Slot, Wants, Workload
from scheduler.domain.core.ordering import Order
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.queue import Queue
from scheduler.domain.core.rebind import rebind
from scheduler.domain.core.records import Growth, Record, Records, Reservation, Run
from scheduler.domain.core.refuse import misnaming
from scheduler.domain.core.reserve import (
    beside,
    choose_anew,
    end,
    lift,
    named,
    renew,
    reserve_again,
)
from scheduler.domain.core.restore import class_of, parts_of, pod_place, restore
from scheduler.domain.core.state import State, pods_in, without
from scheduler.domain.core.usage import Usage


@dataclass(frozen=True)
class Transitions:
    """All that a gang is known to: changed together here, and read by the steps of a cycle.
    ``children``: what gangs grow by.
    """

    state: State
    records: Records
    queue: Queue
    usage: Usage
    costs: Costs
    policy: Policy
    children: Children

    def begin(self, now: float) -> None:
        """A cycle begins."""
        self.queue.now = now
        self.costs.begin(now)
        if self.policy.is_strict:
            for found in self.queue.classes.values():
                if found.no is not None and found.no.code == ORDER:
                    self.queue.try_again(found)
        self.usage.settle(now)
        self._settle_kept(now)

    # Gangs come and go.

    def add(self, record: Record) -> None:
        """A gang comes. What was kept of its job's last attempt is reserved for it."""
        self.records.add(record)
        if record.misnamed is not None:
            return
        found = self.queue.add(record.workload, record.order)
        kept = self.records.kept_of(_last_of(record))
        if kept is not None and not kept.missing:
            self._hand_over(kept, record)
            self.queue.try_again(found)

    def _hand_over(self, kept: Reservation, record: Record) -> None:
        """What was kept of a job's last attempt is kept for this one."""
        self._forget_kept(kept)
        before = record.reservation
        if before is not None:
            lift(self.state, before)
            for slot, mask in before.cells.items() if before.is_kept else ():
                kept.add(slot, mask)
        again = Reservation(record.workload, kept.cells, kept.starts_at, kept.since)
        again.is_kept = True
        renew(self.state, again)
        self._hold_reserved(record, again)

    def restore(self, restored: Restored, order: Order) -> Iterator[Decision]:
        """A gang comes that was placed before."""
        own, growth, surplus = parts_of(restored)
        yield from self.restore_whole(own, growth, order)
        record = self.records.all[own.gang.id]
        record.workload.gang = restored.gang  # with the roles of what it has grown by
        self.restore_surplus(record, surplus)

    def restore_whole(
        self, own: Restored, growth: Restored | None, order: Order
    ) -> Iterator[Decision]:
        """A gang comes with the places that it has to grow by."""
        workload = workload_of(self.state, own.gang, own.gang.roles)
        record = Record(workload, order)
        yield from self._restore(record, own)
        if growth is not None:
            record.growth = Growth(wanted=pods_of(growth.gang.roles))
            is_downgraded = own.gang_class is GangClass.GUARANTEED and workload.owner is None
            yield from self._restore_growth(record, growth, is_lost=is_downgraded)

    def restore_surplus(self, record: Record, surplus: Mapping[str, Restored]) -> None:
        """A gang's pods that it can do without."""
        for pod, each in surplus.items():
            growth = record.growth = record.growth or Growth()
            (kind,) = pods_of(each.gang.roles).values()
            child = surplus_of(self.state, record.workload, pod, kind)
            growth.surplus[pod] = Record(child, behind(record.order, child))
            if list(self._restore(growth.surplus[pod], each)):  # nothing is published of it
                self.records.moved.add(record.id)

    def _restore_growth(
        self, record: Record, growth: Restored, *, is_lost: bool
    ) -> Iterator[Decision]:
        """Its places are held again; where they can't be, it waits."""
        assert record.growth is not None
        child = growth_of(self.state, record.workload, record.growth.wanted)
        owner = child.owner
        if not is_lost:
            restore(self.state, growth, child)
        if child.phase is Phase.NOMINATED and child.owner == owner:
            record.growth.asking = Record(child, record.order)
            self.records.add(record.growth.asking)
            return
        self.state.remove(child)
        yield PreemptionCancelled(record.id)
        self.children.ask(record)

    def _restore(self, record: Record, restored: Restored) -> Iterator[Decision]:
        workload = record.workload
        record.orphaned = restore(self.state, restored, workload)
        record.leaves_by, record.leaves_for = restored.preempted_until, restored.preempted_for
        if workload.phase in (Phase.RUNNING, Phase.PREEMPTED):
            record.run = Run(restored.started_at or 0.0)
            if restored.checkpointed_at is not None:
                record.run.checkpointed(restored.checkpointed_at)
            record.passed = restored.passed
            self.usage.begin(workload.gang, workload.places, self.costs.now)
        elif workload.phase is Phase.WAITING:
            record.misnamed = misnaming(self.state, workload)
        self.records.add(record)
        if workload.phase is Phase.WAITING:
            if record.misnamed is None:
                self.queue.add(workload, record.order)
            if restored.places:
                yield PreemptionCancelled(record.id)
            return
        had_cells = restored.gang_class in (None, GangClass.GUARANTEED)
        has_lost = record in self.records.away or bool(record.orphaned)
        if had_cells and has_lost and class_of(record) is GangClass.DOWNGRADED:
            yield Downgraded(record.id, None)

    def release(self, record: Record) -> None:
        """The gang is over, with all that it has grown by: what it held is free at once."""
        for each in (*record.children, record):
            self.children.remove(each)

    def requeue(self, record: Record, until: float) -> None:
        """The gang is over by the platform's fault. Its cells are kept until then for its job's
        next attempt.
        """
        self._keep_of(record)
        self.release(record)
        kept = self.records.kept_of(record.id)
        if kept is not None:
            kept.starts_at = until
            renew(self.state, kept)
            if not kept.missing:
                self._keep(kept)

    def _keep_of(self, record: Record, lost: Collection[str] = ()) -> None:
        """The healthy cells of a gang that runs are kept for its job's next attempt, and others in
        place of the rest. ``lost``: its other pods run on, and have their cells.
        """
        workload = record.workload
        if workload.phase is not Phase.RUNNING or workload.is_opportunistic or workload.is_away:
            return
        kinds = {pod: want.kind for want, pods in workload.wants for pod in pods}
        kept = self.records.kept_of(record.id)
        if kept is None:
            gang = replace(workload.gang, follows=record.id)
            of = replace(workload, gang=gang, near={}, kept=(), phase=Phase.WAITING, places=())
            kept = Reservation(of, {}, inf, self.costs.now)
            kept.is_kept = True
        kept.starts_at = inf
        for place in workload.places:
            if not place.charge or (lost and place.pod not in lost):
                continue
            if lost or place.charge & ~place.slot.good:
                kept.missing[place.pod] = kinds[place.pod]
            else:
                kept.add(place.slot, place.charge)
        if kept.missing or kept.cells:
            self.records.kept[kept] = None

    def _settle_kept(self, now: float) -> None:
        """Cells are chosen for lost pods. The gang that follows may wait already."""
        some = (each for each in self.records.kept if each.missing or each.starts_at == inf)
        kept = sorted(some, key=lambda each: (-each.workload.priority, each.workload.name))
        for each in kept:
            renew(self.state, each)  # none of these cells is chosen for another, or once more
        for each in kept:
            if each.starts_at == inf:
                each.starts_at = now + REQUEUE_S
            if each.missing:
                behind = [
                    other
                    for other in beside(self.records, each.workload)
                    if not other.is_kept and self.costs.goes_before(each.workload, other)
                ]
                choose_anew(self.state, each, behind)
            if each.cells:
                self._keep(each)
            else:
                self._forget_kept(each)

    def forget_kept(self, now: float) -> None:
        """What was kept for attempts that have not come in time is free."""
        for kept in [each for each in self.records.kept if each.starts_at < now]:
            self._forget_kept(kept)

    def forget_kept_of(self, gang: str) -> None:
        """What was kept of a gang that is over is free: no attempt follows it."""
        kept = self.records.kept_of(gang)
        if kept is not None:
            self._forget_kept(kept)

    def _forget_kept(self, kept: Reservation) -> None:
        end(self.state, kept)
        del self.records.kept[kept]

    def release_pod(self, record: Record, pod: str, *, is_lost: bool = False) -> Iterator[Decision]:
        """One pod is over; with its last pod the gang. ``is_lost``: by the platform's fault."""
        if is_lost:
            self._keep_of(record, [pod])
        yield from self._release_child(record, pod)
        workload = record.workload
        if all(pod not in pods for _, pods in workload.wants):
            return
        if workload.phase is Phase.NOMINATED:
            yield self.wait_again(record)
        if workload.phase is Phase.WAITING:
            yield from self._want(record, without(workload.wants, pod))
            return
        self.usage.end(workload.gang, [p for p in workload.places if p.pod == pod])
        self.state.drop(workload, pod)
        record.orphaned = tuple(place for place in record.orphaned if place.pod != pod)
        self.records.rebindable[record] = None  # the rest may be in its own cells then
        if workload.wants:
            return
        if self.children.adopt(record):
            is_leaving = workload.phase is Phase.PREEMPTED
            again = self.children.recall if is_leaving else self.children.ask_anew
            yield from again(record)
        else:
            yield from self._begin_anew(record)

    def _release_child(self, record: Record, pod: str) -> Iterator[Decision]:
        growth = record.growth
        if growth is None:
            return
        growth.spare.pop(pod, None)
        if (child := growth.surplus.pop(pod, None)) is not None:
            self.children.remove(child)
        if growth.wanted.pop(pod, None) is not None:
            yield from self.children.ask_anew(record)

    def _begin_anew(self, record: Record) -> Iterator[Decision]:
        """No pod of the gang is left: what it was to grow by waits like any other gang, if there is
        such.
        """
        yield from self.children.recall(record)
        wanted = {} if record.growth is None else record.growth.wanted
        if not wanted:
            self.release(record)
            return
        before, roles = record.workload, [Role(kind, (pod,)) for pod, kind in wanted.items()]
        self.state.remove(before)
        record.workload = workload_of(self.state, before.gang, roles)
        record.run = record.leaves_by = record.leaves_for = record.published = None
        record.passed = None
        wanted.clear()
        self.records.file(record)
        self.queue.add(record.workload, record.order)

    def _want(self, record: Record, wants: Wants) -> Iterator[Decision]:
        """A waiting gang wants other pods than before: it is of another class now."""
        if record.reservation is not None:
            yield self.unreserve(record.reservation)
        before = record.workload
        self.state.remove(before)
        self.queue.leave(before)
        if not wants:
            self.release(record)
            return
        record.workload = replace(before, wants=wants, phase=Phase.WAITING)
        record.misnamed = misnaming(self.state, record.workload)
        self.records.file(record)
        if record.misnamed is None:
            self.queue.add(record.workload, record.order)

    def grow(self, record: Record, roles: Sequence[Role]) -> Iterator[Decision]:
        """A gang wants more pods, all of them at once or none."""
        workload, pods = record.workload, pods_of(roles)
        _name(workload, roles)
        if workload.phase is Phase.NOMINATED:
            yield self.wait_again(record)
        if workload.phase is Phase.WAITING:
            record.published = None
            yield from self._want(record, wants_with(self.state, workload, pods))
            return
        record.growth = record.growth or Growth()
        record.growth.wanted |= pods
        yield from self.children.ask_anew(record)

    def want_more(self, record: Record, roles: Sequence[Role]) -> None:
        """A gang wants more pods that it can do without."""
        pods = pods_of(roles)
        _name(record.workload, roles)
        growth = record.growth = record.growth or Growth()
        growth.spare |= {pod: kind for pod, kind in pods.items() if pod not in growth.surplus}
        self.children.ask(record)

    def refuse(self, record: Record, reason: Reason) -> Decision:
        """The gang, or what it wants to grow by, can never start here."""
        if record.workload.parent is not None:
            self.children.refuse(record)
        else:
            self.release(record)
        return Refused(record.id, reason)

    # Gangs get places, and lose them.

    def placed(self, record: Record, answer: Fit, now: float) -> Iterator[Decision]:
        """`fit` has placed the gang: it starts, or waits for the victims to leave."""
        workload = record.workload
        self.queue.new.pop(workload, None)
        for victim in sorted(answer.victims, key=lambda each: each.parent is None):
            other = self.records.of(victim)
            if victim.phase is Phase.WAITING:  # it was nominated
                yield self.wait_again(other)
            elif victim.parent not in answer.victims:  # else it leaves with its gang
                yield from self._preempted(other, workload, now)
        for each in answer.downgraded:
            other = self.records.of(each)
            self.records.file(other)
            if each.is_surplus:
                self.records.moved.add(other.id)
            else:
                yield Downgraded(other.id, record.id)
                yield from self.children.ask_anew(other)
        if not answer.is_waiting or self.state.start(workload):
            yield self.started(record, now)
        else:
            self.records.file(record)
            yield from self.publish(record, preempting(self.records, workload))

    def _preempted(self, victim: Record, asking: Workload, now: float) -> Iterator[Decision]:
        if not victim.workload.is_surplus:
            self.costs.preempted(asking, victim.workload, now)
        reason = preempted(victim.workload, asking)
        yield from self._leaves(victim, asking.gang.id, now, reason)

    def _leaves(
        self, record: Record, for_gang: str | None, now: float, reason: Reason
    ) -> Iterator[Decision]:
        """The gang was evicted, or a child of it; what a gang has grown by leaves with it."""
        until = record.leaves_by = now + self.policy.grace_s
        record.leaves_for = for_gang
        if for_gang is not None:
            self.forget_kept_of(record.id)
        self.records.file(record)
        if record.workload.is_surplus:
            pods = pods_in(record.workload.wants)
            yield Shrunk(record.id, pods, for_gang, until, reason)
            return
        yield Preempted(record.id, for_gang, until, reason)
        yield from self.children.recall(record)
        for child in record.children:
            if child.workload.phase is Phase.RUNNING:
                self.state.evict(child.workload)
            if child.leaves_by is None:
                child.leaves_by, child.leaves_for = until, for_gang
            self.records.file(child)

    def started(self, record: Record, now: float) -> Decision:
        """The gang, or what it grows by, runs from now on."""
        workload = record.workload
        self._runs(record, now)
        places = tuple(map(pod_place, workload.places))
        if workload.parent is not None:
            if not workload.is_surplus:
                self.children.merge(record)
            return Grown(record.id, places, lender_of(workload))
        for child in record.children:  # it starts whole
            self._runs(child, now)
            places += tuple(map(pod_place, child.workload.places))
        self.children.ask(record)
        return Placed(record.id, places, lender_of(workload))

    def _runs(self, record: Record, now: float) -> None:
        record.run, record.published = Run(now), None
        self.records.file(record)
        self.usage.begin(record.workload.gang, record.workload.places, now)

    def wait_again(self, record: Record) -> Decision:
        """The gang loses its nominated placement."""
        workload = record.workload
        if workload.phase is Phase.NOMINATED:
            self.state.remove(workload, Phase.WAITING)
        self.state.ask_anew(workload)
        record.published = None
        self.records.file(record)
        self.queue.try_again(self.queue.add(workload, record.order))
        return PreemptionCancelled(record.id)

    def look_at_nominated(self) -> None:
        """The next cycle looks whether others have left the places of nominated gangs."""
        for record in self.records.nominated:
            for place in record.workload.places:
                self.records.unlooked[place.slot] = None

    def drain(self, nodes: Iterable[str], now: float) -> Iterator[Decision]:
        """Gangs on these nodes are preempted, but those that test them."""
        for name in sorted(nodes):
            slots = self.state.nodes[name].slots
            there = {each.name: each for slot in slots for each in slot.pods if each.wants}
            for _, workload in sorted(there.items()):
                if workload.gang.is_preflight:
                    continue
                if workload.phase is Phase.NOMINATED:
                    yield self.wait_again(self.records.of(workload))
                elif workload.phase is Phase.RUNNING:
                    record = self.records.of(workload)
                    if workload.parent is None:
                        self._keep_of(record)
                    self.state.evict(workload)
                    yield from self._leaves(record, None, now, DRAIN)
        self._settle_kept(now + self.policy.grace_s)

    def note_freed(self, freed: Iterable[Slot | str]) -> None:
        """Gangs outside of their own cells may get some where something in the cells around them
        became free, or where any owner may bind more.
        """
        records, slots = self.records, dict[Slot, None]()
        for each in freed if records.away else ():
            if not isinstance(each, Slot):
                records.rebindable.update(records.away)
                return
            slots.update(dict.fromkeys(self.state.slots_around(each)))
        for slot in slots:
            for workload in slot.pods:
                if workload.phase is Phase.RUNNING and workload.is_away:
                    records.rebindable[records.of(workload)] = None

    def upgrade(self) -> Iterator[Decision]:
        """Gangs outside of their own cells get some around their places, the oldest first."""
        self.note_freed(self.state.freed)
        some = [each for each in self.records.rebindable if each in self.records.away]
        self.records.rebindable.clear()
        for record in sorted(some, key=_age):
            workload = record.workload
            if record.orphaned:
                continue
            owner = owner_of(workload.gang.virtual_cluster)
            priority = OPPORTUNISTIC if workload.is_surplus else workload.gang.priority
            if rebind(self.state, workload, owner, priority):
                self.records.file(record)
                if workload.is_surplus:
                    self.records.moved.add(record.id)
                else:
                    yield Upgraded(record.id)
                    yield from self.children.ask_anew(record)

    # Reservations.

    def reserve(self, record: Record, planned: Reservation, now: float) -> Decision:
        """Cells are reserved for a waiting gang."""
        if record.reserved_since is None:
            record.reserved_since = now
        planned.since = record.reserved_since
        renew(self.state, planned)
        record.reservation = planned
        self.records.file(record)
        return Reserved(record.id, named(planned.cells), planned.starts_at)

    def restore_reservation(self, restored: RestoredReservation) -> None:
        """Cells were reserved for a gang before. Where it does not wait, or some of the cells are
        not there any more, nothing is reserved.
        """
        record = self.records.all.get(restored.gang)
        is_waiting = record is not None and record.workload.phase is Phase.WAITING
        if restored.kept_of is not None and not is_waiting:
            self._keep_again(restored, restored.kept_of)
            return
        if record is not None and record.growth is not None:
            record = record.growth.asking or record
        if record is None or record.workload.phase is not Phase.WAITING or record.misnamed:
            return
        again = reserve_again(self.state, record.workload, restored)
        if again is not None:
            self._hold_reserved(record, again)

    def _keep_again(self, restored: RestoredReservation, of: KeptOf) -> None:
        """Cells of a gang that is over were kept before. The gang that follows it may wait."""
        pods = [Role(Kind(1, pin=pin), (pin,)) for pin in of.pins]
        gang = Gang(restored.gang, of.virtual_cluster, of.user, of.priority, (), of.job)
        gang = replace(gang, follows=gang.id)
        workload = workload_of(self.state, gang, pods)
        if misnaming(self.state, workload) is not None:
            return
        kept, before = reserve_again(self.state, workload, restored), self.records.kept_of(gang.id)
        if kept is not None and before is not None:  # by a message that no cycle has seen
            lift(self.state, kept)
            for slot, mask in kept.cells.items():
                before.add(slot, mask)
            renew(self.state, before)
        elif kept is not None:
            self._keep(kept)

    def _keep(self, kept: Reservation) -> None:
        """Cells of a gang that is over or leaves are kept. The gang that follows it may wait."""
        self.records.kept[kept] = None
        for record in self.records.all.values():
            is_waiting = record.workload.phase is Phase.WAITING and record.misnamed is None
            if is_waiting and _last_of(record) == kept.workload.gang.id:
                self._hand_over(kept, record)
                self.queue.try_again(self.queue.class_of(record.workload))
                return

    def _hold_reserved(self, record: Record, reservation: Reservation) -> None:
        record.reservation, record.reserved_since = reservation, reservation.since
        if reservation.is_kept:
            self.state.set_kept(record.workload, reservation.cells)
        self.records.file(record)

    def forget_reservations(self) -> None:
        """Nothing is reserved, as if it had never been."""
        for record in list(self.records.reserved):
            if record.reservation is not None:
                lift(self.state, record.reservation)
            record.reservation = record.reserved_since = None
            self.records.file(record)
        for kept in list(self.records.kept):
            self._forget_kept(kept)

    def unreserve(self, reservation: Reservation) -> Decision:
        """The cells are free for others, and the gang is tried and planned anew."""
        record = self.records.of(reservation.workload)
        end(self.state, reservation)
        record.reservation = None
        self.state.set_kept(record.workload, ())
        self.records.file(record)
        self.queue.try_again(self.queue.class_of(record.workload))
        return Reserved(record.id, (), None)

    # Reasons.

    def publish(self, record: Record, reason: Reason) -> Iterator[Decision]:
        """Why the gang waits, where its code is another one than before."""
        if record.published != reason.code:
            record.published = reason.code
            yield Deferred(record.id, reason)


def _name(workload: Workload, roles: Sequence[Role]) -> None:
    """Its gang has these roles too."""
    others = roles_without(workload.gang.roles, pods_of(roles).keys())
    workload.gang = replace(workload.gang, roles=roles_with(others, roles))


def _last_of(record: Record) -> str:
    """The job's last attempt. A gang may itself come again."""
    return record.workload.gang.follows or record.id


def _age(record: Record) -> tuple[float, str]:
    return record.workload.gang.submitted_at, record.workload.name
