"""The core: gangs come and go, and each cycle decides about all that wait.

`Core.cycle` reads as the rules do. Everything that it asks is `fit` under a trial.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

from scheduler.domain.core.building import build
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.ends import end_of
from scheduler.domain.core.holdings import Order
from scheduler.domain.core.machines import NEVER
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Gang,
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
from scheduler.domain.core.names import wrong_in
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, Rank, ordering_of
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.wording import wanted_of
from scheduler.domain.newcore.conditions import Conditions
from scheduler.domain.newcore.explain import PREEMPTING, Explainer
from scheduler.domain.newcore.fit import ROOM, Fit, No, fit
from scheduler.domain.newcore.gangs import workload_of
from scheduler.domain.newcore.home import come_home
from scheduler.domain.newcore.lend import Lending, lender_of
from scheduler.domain.newcore.nodes import Phase, Place, Pool, Slot, Workload
from scheduler.domain.newcore.queue import Failed, Freed, Queue, WorkloadClass
from scheduler.domain.newcore.refuse import refusal
from scheduler.domain.newcore.reserve import Reservation, lift, may_pass, plan, renew
from scheduler.domain.newcore.restore import exported, pod_place, restore
from scheduler.domain.newcore.state import State
from scheduler.domain.newcore.tolls import Run, Tolls
from scheduler.domain.newcore.usage import Usage

ROUNDS = 4
"""In one cycle who waits is tried so often, where decisions free something for others."""

PLANNED = 4
"""Gangs of a virtual cluster for which a reservation is sought in one cycle."""


@dataclass(eq=False)
class Record:
    """What the core keeps of a gang beside its places. ``told``: the code of its last reason.
    ``leaves_by``: when it was told to leave by, and for which gang.
    """

    workload: Workload
    order: Order
    told: str | None = None
    leaves_by: tuple[float | None, str | None] = (None, None)
    reserved_since: float | None = None


class Core:
    """``gangs``: by id, all that are not over. ``is_settled``: what can never start is refused."""

    def __init__(
        self, config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
    ) -> None:
        self.policy = config.policy
        self.state = State(build(config))
        self.gangs: dict[str, Record] = {}
        self.is_settled = True
        self._ordering = ordering_of(config.policy, policies)
        self._queue = Queue(self.state)
        self._records: dict[Workload, Record] = {}
        self._runs: dict[Workload, Run] = {}
        self._nominated: dict[Workload, None] = {}
        self._downgraded: dict[Workload, None] = {}
        self._loans: dict[Workload, None] = {}
        self._lending = Lending(self.state, config.virtual_clusters)
        self._new: dict[Workload, WorkloadClass] = {}
        self._misnamed: dict[Workload, Reason] = {}
        self._said: list[Decision] = []
        self._tolls = Tolls(
            self._runs,
            config.policy.min_run_s,
            config.policy.preemptions_per_hour,
            config.policy.is_lazy,
        )
        self._usage = Usage(self.state, self.policy, self._ordering)
        self._explainer = Explainer(self.state)
        self.nodes = Conditions(self.state)
        self._reservations: dict[Workload, Reservation] = {}
        self._hopeless: dict[WorkloadClass, None] = {}
        self._unwell: dict[Slot, int] = {}

    def workloads(self) -> Iterator[Workload]:
        """All that may have places."""
        yield from (record.workload for record in self.gangs.values())
        yield from (reservation.hold for reservation in self._reservations.values())

    # What happens.

    def request(self, gang: Gang) -> None:
        """A gang wants its pods."""
        assert gang.id not in self.gangs, gang.id
        workload = workload_of(self.state, gang, gang.roles)
        record = Record(workload, self._ordering.order(gang))
        self.gangs[gang.id] = self._records[workload] = record
        wrong = wrong_in(self.state.forest, gang, (role.kind for role in gang.roles))
        if wrong is None:
            self._enqueue(workload)
        else:
            self._misnamed[workload] = Reason(*wrong, wanted_of(workload.kinds))

    def withdraw(self, gang: str) -> None:
        """A gang is not wanted any more."""
        self.release(gang)

    def release(self, gang: str) -> None:
        """A gang is over: what it held is free at once. Unknown ones are ignored."""
        record = self.gangs.pop(gang, None)
        if record is None:
            return
        workload = record.workload
        if (reservation := self._reservations.pop(workload, None)) is not None:
            lift(self.state, reservation)
        if workload in self._runs:
            self._usage.end(workload.gang, workload.places)
        self.state.remove(workload)
        del self._records[workload]
        self._runs.pop(workload, None)
        self._misnamed.pop(workload, None)
        self._nominated.pop(workload, None)
        self._downgraded.pop(workload, None)
        self._loans.pop(workload, None)
        found = self._new.pop(workload, None)
        if found is not None and found.head(self._rank_of) is None:
            self._queue.forget(found)

    def release_pod(self, gang: str, pod: str) -> None:
        """One pod is over; with its last pod the gang. Unknown ones are ignored."""
        record = self.gangs.get(gang)
        if record is None:
            return
        workload = record.workload
        if workload.phase is Phase.NOMINATED:
            self._said.append(self._wait_again(workload))
        if workload in self._runs:
            self._usage.end(workload.gang, [p for p in workload.places if p.pod == pod])
        self.state.drop(workload, pod)
        if not workload.wants:
            self.release(gang)
        elif workload.phase is Phase.WAITING:
            self._ask_for_less(record)

    def _ask_for_less(self, record: Record) -> None:
        """A waiting gang wants fewer pods: it is of another class now."""
        before = record.workload
        if (reservation := self._reservations.get(before)) is not None:
            self._said.append(self._unreserve(reservation))
        workload = record.workload = replace(before)
        wrong = self._misnamed.get(before)
        self.state.remove(before)
        for each in (self._new, self._records, self._misnamed):
            each.pop(before, None)
        self._records[workload] = record
        if wrong is None:
            self._enqueue(workload)
        else:
            self._misnamed[workload] = wrong

    def checkpointed(self, gang: str, at: float) -> None:
        """A gang's work up to then is saved. Unknown ones are ignored."""
        record = self.gangs.get(gang)
        run = None if record is None else self._runs.get(record.workload)
        if run is not None and at > (run.checkpointed_at or run.started_at):
            run.checkpointed_at = at

    def restore(self, restored: Restored) -> None:
        """A gang was placed before. Where it can't have its cells again it is downgraded; the next
        cycle says so.
        """
        gang = restored.gang
        workload = restore(self.state, restored)
        record = Record(workload, self._ordering.order(gang))
        self.gangs[gang.id] = self._records[workload] = record
        if restored.preempted_until is not None:
            record.leaves_by = restored.preempted_until, restored.preempted_for
        if not workload.places:
            self._enqueue(workload)
        elif workload.phase is Phase.NOMINATED:
            self._nominated[workload] = None
        else:
            self._runs[workload] = Run(restored.started_at or 0.0, restored.checkpointed_at)
            self._usage.begin(gang, workload.places, self._tolls.now)
            self._sort_in(workload, restored)

    def _sort_in(self, workload: Workload, restored: Restored) -> None:
        if workload.phase is Phase.LEAVING:
            return
        if lender_of(workload) is not None:
            self._loans[workload] = None
        elif workload.is_guest and any(place.charge for place in workload.places):
            self._downgraded[workload] = None
            if restored.gang_class in (None, GangClass.GUARANTEED):
                self._said.append(Downgraded(workload.gang.id, None))

    def exported(self, gang: str) -> Restored:
        """All that is kept of a gang that has places."""
        record = self.gangs[gang]
        run = self._runs.get(record.workload)
        until, by = record.leaves_by
        found = exported(record.workload, None if run is None else run.started_at, until, by)
        return found if run is None else replace(found, checkpointed_at=run.checkpointed_at)

    # The cycle.

    def cycle(self, now: float) -> list[Decision]:
        """Decide about all that wait."""
        self._tolls.now = now
        self._usage.settle(now)
        decisions, self._said = self._said, []
        failed = Failed()
        tried: dict[WorkloadClass, None] = {}
        # 1. Gangs on drained nodes are told to leave.
        decisions += self._drain(now)
        for _ in range(ROUNDS):
            # 2. Nominated gangs start where the others have left; who has lost its place waits.
            # 3. Classes are woken that may be helped by what has become free.
            if self.state.freed or self._is_due(now):
                decisions += self._wake(now)
                failed.clear()
            if not self._queue.ready:
                break
            # 4. All that are to be tried, in order: placed, or others leave for them, or not.
            decisions += self._admit(failed, tried, now)
            # 5. Those that may borrow are placed in others' idle quota, after all others.
            decisions += self._borrow(tried, now)
        # 6. Downgraded gangs and loans get cells of their own where there is room, oldest first.
        decisions += self._upgrade()
        # 7. The first of each virtual cluster that can't start gets a reservation.
        if self.policy.is_keeping and tried:
            decisions += self._reserve(tried, now)
        # 8. Who waits is told why, where that is new.
        decisions += self._explain(tried)
        return decisions

    def _is_due(self, now: float) -> bool:
        """Time alone may help somebody: a protection or a reservation has ended."""
        if now >= self._tolls.again_at:
            self._tolls.again_at = inf
            for found in self._queue.classes.values():
                if found.no is not None and found.owner is not None:
                    self._queue.try_again(found)
            return True
        return any(each.is_broken(now) for each in self._reservations.values())

    def _drain(self, now: float) -> Iterator[Decision]:
        for name in sorted(self.nodes.draining):
            slots = self.state.nodes[name].slots
            there = {each.name: each for slot in slots for each in slot.pods if each.wants}
            for _, workload in sorted(there.items()):
                if workload.phase is Phase.NOMINATED:
                    yield self._wait_again(workload)
                elif workload.phase is Phase.RUNNING:
                    self.state.evict(workload)
                    self._downgraded.pop(workload, None)
                    self._loans.pop(workload, None)
                    until = now + self.policy.grace_s
                    self._records[workload].leaves_by = until, None
                    reason = Reason("drained", f"The node {name} is drained.", {"node": name})
                    yield Preempted(workload.gang.id, None, until, reason)

    def _wake(self, now: float) -> Iterator[Decision]:
        freed = Freed(self.state, self.state.freed)
        if self._unwell != (unwell := {slot: slot.good for slot in self.state.unwell}):
            self._unwell = unwell
            self._hopeless.clear()
        self.state.freed.clear()
        for workload in list(self._nominated):
            places = [place for place in workload.places if place.slot in freed.slots]
            if not places:
                continue
            if any(_is_bad(place) for place in places):
                yield self._wait_again(workload)
            elif self.state.is_ready(workload):
                yield from self._start(workload, now)
        for reservation in list(self._reservations.values()):
            if reservation.is_broken(now):
                yield self._unreserve(reservation)
            elif any(slot in freed.slots for slot in reservation.cells):
                renew(self.state, reservation)
                self._queue.try_again(self._queue.class_of(reservation.workload))
        for found in list(self._queue.classes.values()):
            if found.no is not None and freed.helps(found):
                self._queue.try_again(found)

    def _admit(
        self, failed: Failed, tried: dict[WorkloadClass, None], now: float
    ) -> Iterator[Decision]:
        ready, self._queue.ready = self._queue.ready, {}
        heap: list[tuple[Rank, int, WorkloadClass, Workload]] = []
        for number, found in enumerate(ready):
            if (head := found.head(self._rank_of)) is not None:
                heap.append((head[0], number, found, head[1]))
            else:
                self._queue.forget(found)
        heap.sort(key=lambda each: each[:2])
        while heap:
            rank, number, found, workload = heappop(heap)
            if self._ordering.has_users and (head := found.head(self._rank_of)) is not None:
                if head[0] > rank:  # its user has more by now
                    heappush(heap, (head[0], number, found, head[1]))
                    continue
                workload = head[1]
            if failed.covers(found) and workload not in self._reservations:
                answer: Fit | No = No(ROOM)
            else:
                answer = self._attempt(workload, now)
            if isinstance(answer, No):
                found.no = answer
                tried[found] = None
                if answer.code == ROOM:
                    failed.add(found)
                continue
            yield from self._decided(workload, answer, now)
            if answer.victims or answer.downgraded:
                failed.clear()
            if (head := found.head(self._rank_of)) is not None:
                heappush(heap, (head[0], number, found, head[1]))
            else:
                self._queue.forget(found)

    def _attempt(self, workload: Workload, now: float) -> Fit | No:
        """On its own reservation and those of gangs behind it; else, where it will be gone in time,
        at nobody's cost on those of gangs before it. Without GPUs, where there is no room for it in
        its cells, as a guest.
        """
        mine = self._reservations.pop(workload, None)
        others = self._beside(workload)
        behind = [each for each in others if workload.priority > each.workload.priority]
        before = [each for each in others if each not in behind]
        with self.state.trial() as trial:
            self._lift(behind)
            if mine is not None:
                lift(self.state, mine)
            answer = fit(self.state, workload, self._tolls)
            passed = [each for each in before if may_pass(workload, each, self.policy, now)]
            if isinstance(answer, No) and passed:
                self._lift(passed)
                answer = fit(self.state, workload, None)
            if isinstance(answer, No) and not workload.is_guest and _costs_no_gpus(workload):
                self.state.be_guest(workload)
                answer = fit(self.state, workload, self._tolls)
            if isinstance(answer, Fit):
                for each in (*behind, *passed):
                    renew(self.state, each)
                trial.commit()
        if isinstance(answer, No) and mine is not None:
            self._reservations[workload] = mine
        return answer

    def _beside(self, workload: Workload) -> list[Reservation]:
        return [
            each for each in self._reservations.values() if each.workload.owner == workload.owner
        ]

    def _lift(self, reservations: Iterable[Reservation]) -> None:
        with self.state.unnoticed():
            for each in reservations:
                lift(self.state, each)

    def _borrow(self, tried: Iterable[WorkloadClass], now: float) -> Iterator[Decision]:
        waiting = [
            (self._rank_of(each.gang, self._records[each].order), each)
            for found in tried
            for each in found.waiting()
            if each.gang.is_borrowing and each.owner is not None
        ]
        for _, workload in sorted(waiting, key=lambda each: each[0]):
            if any(want.kind.pin for want, _ in workload.wants) or workload in self._reservations:
                continue
            lender = self._lending.borrow(workload, self._loans)
            if lender is not None:
                self._loans[workload] = None
                yield from self._decided(workload, Fit(), now)

    def _upgrade(self) -> Iterator[Decision]:
        for workload in sorted([*self._downgraded, *self._loans], key=_age):
            owner = owner_of(workload.gang.virtual_cluster)
            if come_home(self.state, workload, owner, workload.gang.priority):
                self._downgraded.pop(workload, None)
                self._loans.pop(workload, None)
                yield Upgraded(workload.gang.id)

    def _reserve(self, tried: Iterable[WorkloadClass], now: float) -> Iterator[Decision]:
        """One reservation for each virtual cluster and pool, for the first gangs that failed."""
        for owner in dict.fromkeys(found.owner for found in tried if found.owner is not None):
            heads = [
                (head[0], found, head[1])
                for found in self._queue.classes.values()
                if found.owner == owner
                and found.no is not None
                and found not in self._hopeless
                and (head := found.head(self._rank_of)) is not None
            ]
            heads.sort(key=lambda each: each[0])
            for _, found, workload in heads[:PLANNED]:
                yield from self._reserve_for(found, workload, now)

    def _reserve_for(
        self, found: WorkloadClass, workload: Workload, now: float
    ) -> Iterator[Decision]:
        if workload in self._reservations:
            return
        others = self._beside(workload)
        behind = [each for each in others if workload.priority > each.workload.priority]
        taken = {pool for each in others if each not in behind for pool in each.pools}
        if taken and not self._may_be_elsewhere(workload, taken):
            return
        toll_of = self._tolls.of(workload)
        ends = [
            (end_of(each.gang, run.started_at, self.policy, now), each)
            for each, run in self._runs.items()
            if each.owner == workload.owner and each.phase is Phase.RUNNING and not toll_of(each)
        ]
        with self.state.trial():
            self._lift(behind)
            planned = plan(self.state, workload, ends, now, taken)
        if planned is None:
            if not (taken or self._nominated):  # else these are perhaps in its way
                self._hopeless[found] = None
            return
        for each in behind:
            if each.pools & planned.pools:
                yield self._unreserve(each)
        record = self._records[workload]
        if record.reserved_since is None:
            record.reserved_since = now
        planned.since = record.reserved_since
        renew(self.state, planned)
        self._reservations[workload] = planned
        cells = tuple(
            (s.node.name, s.fixed.indices(m)) for s, m in planned.cells.items() if s.fixed
        )
        yield Reserved(workload.gang.id, cells, planned.starts_at)

    def _may_be_elsewhere(self, workload: Workload, taken: Collection[Pool]) -> bool:
        pools = [pool for pool in self.state.pools if pool not in taken]
        return all(
            any(want.least(pool.models) != NEVER for pool in pools) for want, _ in workload.wants
        )

    def _unreserve(self, reservation: Reservation) -> Decision:
        """The cells are anybody's again, and the gang is tried and planned anew."""
        workload = reservation.workload
        lift(self.state, reservation)
        del self._reservations[workload]
        if workload.phase is Phase.WAITING and workload.gang.id in self.gangs:
            self._queue.try_again(self._queue.class_of(workload))
        return Reserved(workload.gang.id, (), None)

    def _decided(self, workload: Workload, answer: Fit, now: float) -> Iterator[Decision]:
        self._new.pop(workload, None)
        for victim in answer.victims:
            if victim.phase is Phase.WAITING:  # it was nominated
                yield self._wait_again(victim)
                continue
            self._downgraded.pop(victim, None)
            self._loans.pop(victim, None)
            reason = Reason("preempted", f"It leaves for {workload.gang.id}.", {})
            until = now + self.policy.grace_s
            self._records[victim].leaves_by = until, workload.gang.id
            self._tolls.preempted(workload, victim, now)
            yield Preempted(victim.gang.id, workload.gang.id, until, reason)
        for each in answer.downgraded:
            self._loans.pop(each, None)
            self._downgraded[each] = None
            yield Downgraded(each.gang.id, workload.gang.id)
        if not answer.is_waiting or self.state.is_ready(workload):
            yield from self._start(workload, now)
            return
        self._nominated[workload] = None
        yield from self._tell(workload, PREEMPTING)

    def _start(self, workload: Workload, now: float) -> Iterator[Decision]:
        self._nominated.pop(workload, None)
        if workload.phase is Phase.NOMINATED:
            self.state.start(workload)
        self._runs[workload] = Run(now)
        self._usage.begin(workload.gang, workload.places, now)
        self._records[workload].told = None
        places = tuple(pod_place(place) for place in workload.places)
        yield Placed(workload.gang.id, places, lender_of(workload))

    def _wait_again(self, workload: Workload) -> Decision:
        self._nominated.pop(workload, None)
        if workload.phase is Phase.NOMINATED:
            self.state.remove(workload, Phase.WAITING)
            self.state.ask_anew(workload)
        self._records[workload].told = None
        self._queue.try_again(self._enqueue(workload))
        return PreemptionCancelled(workload.gang.id)

    def _enqueue(self, workload: Workload) -> WorkloadClass:
        record = self._records[workload]
        user = workload.gang.user if self._ordering.has_users else ""
        found = self._new[workload] = self._queue.add(workload, record.order, user)
        return found

    def _rank_of(self, gang: Gang, order: Order) -> Rank:
        """Its place among all that wait, now."""
        if not self._ordering.has_users:
            return order
        return self._ordering.rank(order, self._usage.ranks(gang, self._tolls.now))

    def _refuse(self, tried: dict[WorkloadClass, None]) -> Iterator[Decision]:
        """Those of which counts or names prove that they can never start."""
        for misnamed, why in list(self._misnamed.items()):
            yield Refused(misnamed.gang.id, why)
            self.release(misnamed.gang.id)
        for found in list(tried):
            head = found.head(self._rank_of)
            if head is None or found.reason is not None:
                continue  # it was looked at when it was told why it waits
            reason = refusal(self.state, head[1])
            if reason is not None:
                del tried[found]
                for workload in list(found.waiting()):
                    yield Refused(workload.gang.id, reason)
                    self.release(workload.gang.id)

    def _explain(self, tried: dict[WorkloadClass, None]) -> Iterator[Decision]:
        if not (tried or self._new or self._misnamed):
            return
        if self.is_settled:
            yield from self._refuse(tried)
        waiting = {found: head[1] for found in tried if (head := found.head(self._rank_of))}
        for found, reason in self._explainer.reasons(waiting):
            if found.reason is None or found.reason.code != reason.code:
                for workload in found.waiting():
                    yield from self._tell(workload, reason)
            found.reason = reason
        for workload, found in self._new.items():
            if found.reason is not None and workload.phase is Phase.WAITING:
                yield from self._tell(workload, found.reason)
        self._new.clear()

    def _tell(self, workload: Workload, reason: Reason) -> Iterator[Decision]:
        record = self._records[workload]
        if record.told != reason.code:
            record.told = reason.code
            yield Deferred(workload.gang.id, reason)


def _is_bad(place: Place) -> bool:
    leaves = place.charge | place.gpus
    return leaves & ~place.slot.good != 0 or not place.slot.node.is_open


def _age(workload: Workload) -> tuple[float, str]:
    return workload.gang.submitted_at, workload.name


def _costs_no_gpus(workload: Workload) -> bool:
    return all(want.kind.costs_nothing for want, _ in workload.wants)
