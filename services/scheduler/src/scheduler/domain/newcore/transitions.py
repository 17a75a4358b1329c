"""What becomes of gangs: each change of a gang's state, record, queue and usage, in one piece.

A decision is returned where there is one to publish.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from scheduler.domain.core.config import Policy
from scheduler.domain.core.ends import bounds_of
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    GangClass,
    Placed,
    Preempted,
    PreemptionCancelled,
    Reason,
    Refused,
    Reserved,
    Restored,
    Upgraded,
)
from scheduler.domain.core.owning import owner_of
from scheduler.domain.newcore.costs import Costs
from scheduler.domain.newcore.fit import ORDER, Fit
from scheduler.domain.newcore.lend import lender_of
from scheduler.domain.newcore.nodes import Phase, Slot, Workload
from scheduler.domain.newcore.queue import Queue
from scheduler.domain.newcore.rebind import rebind
from scheduler.domain.newcore.records import Backfill, Record, Records, Reservation, Run
from scheduler.domain.newcore.reserve import lift, renew
from scheduler.domain.newcore.restore import pod_place
from scheduler.domain.newcore.state import State
from scheduler.domain.newcore.usage import Usage

PREEMPTING = Reason("preempting", "Others leave for it.", {})


@dataclass(frozen=True)
class Transitions:
    """All that a gang is known to: changed together here, and read by the steps of a cycle."""

    state: State
    records: Records
    queue: Queue
    usage: Usage
    costs: Costs
    policy: Policy

    def begin(self, now: float) -> None:
        """A cycle begins."""
        self.queue.now = now
        self.costs.begin(now)
        if self.policy.is_strict:
            for found in self.queue.classes.values():
                if found.no is not None and found.no.code == ORDER:
                    self.queue.try_again(found)
        self.usage.settle(now)

    # Gangs come and go.

    def add(self, record: Record) -> Iterator[Decision]:
        """A gang comes. What was kept of its job's last attempt is reserved for it, and it is first
        in its virtual cluster.
        """
        self.records.add(record)
        if record.misnamed is not None:
            return
        kept = self.records.kept_for(record.workload)
        if kept is not None:
            lift(self.state, kept)
            del self.records.kept[kept]
            self.state.set_kept(record.workload, kept.cells)
            (rank, *others), name = record.order
            record.order = (rank, *(-inf for _ in others)), name
            again = Reservation(record.workload, kept.cells, kept.starts_at, kept.since)
            yield self.reserve(record, again, kept.since)
        self.queue.add(record.workload, record.order)

    def restore(self, record: Record, restored: Restored) -> Iterator[Decision]:
        """A gang comes that was placed before, as `restore` has put it into the state."""
        workload = record.workload
        record.leaves_by, record.leaves_for = restored.preempted_until, restored.preempted_for
        if workload.phase in (Phase.RUNNING, Phase.LEAVING):
            record.run = Run(restored.started_at or 0.0, restored.checkpointed_at)
            if restored.passed is not None:
                bounds = [s for s in bounds_of(workload.gang) if s is not None]
                until = record.run.started_at + max(bounds, default=0.0)
                record.backfill = Backfill(restored.passed, until)
            self.usage.resume(workload.gang, workload.places)
        self.records.add(record)
        if not workload.places:
            self.queue.add(workload, record.order)
        is_guaranteed = restored.gang_class in (None, GangClass.GUARANTEED)
        if record in self.records.away and workload.is_opportunistic and is_guaranteed:
            yield Downgraded(record.id, None)

    def release(self, record: Record) -> None:
        """The gang is over: what it held is free at once."""
        workload = record.workload
        if record.reservation is not None:
            lift(self.state, record.reservation)
        if record.run is not None:
            self.usage.end(workload.gang, workload.places)
        self.records.remove(record)
        is_waiting = workload.phase is Phase.WAITING
        self.state.remove(workload)
        if is_waiting:
            self.queue.leave(workload)

    def requeue(self, record: Record, until: float) -> None:
        """The gang is over by the platform's fault. What is healthy of its cells is kept until then
        for its job's next attempt.
        """
        workload, cells = record.workload, dict[Slot, int]()
        if workload.phase is Phase.RUNNING and not (workload.is_opportunistic or workload.is_away):
            for place in workload.places:
                if good := place.charge & place.slot.good:
                    cells[place.slot] = cells.get(place.slot, 0) | good
        self.release(record)
        if cells:
            kept = Reservation(workload, cells, until, self.costs.now)
            renew(self.state, kept)
            self.records.kept[kept] = None

    def forget_kept(self, now: float) -> None:
        """What was kept for attempts that have not come in time is free."""
        for kept in [each for each in self.records.kept if each.starts_at < now]:
            lift(self.state, kept)
            del self.records.kept[kept]

    def release_pod(self, record: Record, pod: str) -> Iterator[Decision]:
        """One pod is over; with its last pod the gang."""
        workload = record.workload
        if workload.phase is Phase.NOMINATED:
            yield self.wait_again(record)
        if record.run is not None:
            self.usage.end(workload.gang, [p for p in workload.places if p.pod == pod])
        self.state.drop(workload, pod)
        if not workload.wants:
            self.release(record)
        elif workload.phase is Phase.WAITING:
            yield from self._ask_for_less(record)

    def _ask_for_less(self, record: Record) -> Iterator[Decision]:
        """A waiting gang wants fewer pods: it is of another class now."""
        if record.reservation is not None:
            yield self.unreserve(record.reservation)
        before = record.workload
        record.workload = replace(before)
        self.state.remove(before)
        self.queue.leave(before)
        if record.misnamed is None:
            self.queue.add(record.workload, record.order)

    def refuse(self, record: Record, reason: Reason) -> Decision:
        """The gang can never start here."""
        self.release(record)
        return Refused(record.id, reason)

    # Gangs get places, and lose them.

    def placed(self, record: Record, answer: Fit, now: float) -> Iterator[Decision]:
        """`fit` has placed the gang: it starts, or waits for the victims to leave."""
        workload = record.workload
        self.queue.new.pop(workload, None)
        for victim in answer.victims:
            other = self.records.of(victim)
            if victim.phase is Phase.WAITING:  # it was nominated
                yield self.wait_again(other)
            else:
                yield self._preempted(other, workload, now)
        for each in answer.downgraded:
            other = self.records.of(each)
            self.records.file(other)
            yield Downgraded(other.id, record.id)
        if not answer.is_waiting or self.state.start(workload):
            yield self.started(record, now)
        else:
            self.records.file(record)
            yield from self.publish(record, PREEMPTING)

    def _preempted(self, victim: Record, asking: Workload, now: float) -> Decision:
        victim.leaves_by, victim.leaves_for = now + self.policy.grace_s, asking.gang.id
        self.records.file(victim)
        self.costs.preempted(asking, victim.workload, now)
        reason = Reason("preempted", f"It leaves for {asking.gang.id}.", {})
        return Preempted(victim.id, asking.gang.id, victim.leaves_by, reason)

    def started(self, record: Record, now: float) -> Decision:
        """The gang runs from now on."""
        workload = record.workload
        record.run, record.published = Run(now), None
        self.records.file(record)
        self.usage.begin(workload.gang, workload.places, now)
        return Placed(record.id, tuple(map(pod_place, workload.places)), lender_of(workload))

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

    def drain(self, nodes: Iterable[str], now: float) -> Iterator[Decision]:
        """Gangs on these nodes are preempted."""
        for name in sorted(nodes):
            slots = self.state.nodes[name].slots
            there = {each.name: each for slot in slots for each in slot.pods if each.wants}
            for _, workload in sorted(there.items()):
                record = self.records.of(workload)
                if workload.phase is Phase.NOMINATED:
                    yield self.wait_again(record)
                elif workload.phase is Phase.RUNNING:
                    yield self._drained(record, name, now)

    def _drained(self, record: Record, node: str, now: float) -> Decision:
        self.state.evict(record.workload)
        record.leaves_by, record.leaves_for = now + self.policy.grace_s, None
        self.records.file(record)
        reason = Reason("drained", f"The node {node} is drained.", {"node": node})
        return Preempted(record.id, None, record.leaves_by, reason)

    def upgrade(self) -> Iterator[Decision]:
        """Gangs outside of their own cells get some around their places, the oldest first."""
        for record in sorted(self.records.away, key=_age):
            gang = record.workload.gang
            owner = owner_of(gang.virtual_cluster)
            if rebind(self.state, record.workload, owner, gang.priority):
                self.records.file(record)
                yield Upgraded(record.id)

    # Reservations.

    def reserve(self, record: Record, planned: Reservation, now: float) -> Decision:
        """Cells are reserved for a waiting gang."""
        if record.reserved_since is None:
            record.reserved_since = now
        planned.since = record.reserved_since
        renew(self.state, planned)
        record.reservation = planned
        self.records.file(record)
        cells = tuple(
            (slot.node.name, slot.fixed.indices(mask))
            for slot, mask in planned.cells.items()
            if slot.fixed
        )
        return Reserved(record.id, cells, planned.starts_at)

    def unreserve(self, reservation: Reservation) -> Decision:
        """The cells are free for others, and the gang is tried and planned anew."""
        record = self.records.of(reservation.workload)
        lift(self.state, reservation)
        record.reservation = None
        self.records.file(record)
        self.queue.try_again(self.queue.class_of(record.workload))
        return Reserved(record.id, (), None)

    # Reasons.

    def publish(self, record: Record, reason: Reason) -> Iterator[Decision]:
        """Why the gang waits, where its code is another one than before."""
        if record.published != reason.code:
            record.published = reason.code
            yield Deferred(record.id, reason)


def _age(record: Record) -> tuple[float, str]:
    return record.workload.gang.submitted_at, record.id
