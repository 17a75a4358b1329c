"""What gangs grow by: workloads of their own, beside their gang's.

Growth: a gang that runs wants more pods, all of them or none. It waits like a gang, and is merged
into its own when it starts. Surplus: pods that a gang can do without, each by itself, below all
gangs of their virtual cluster. They take what is idle, and leave before any gang does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.domain.core.fit import Fit, fit
from scheduler.domain.core.gangs import growth_of, surplus_of, wants_with
from scheduler.domain.core.lend import BORROWED, lender_of
from scheduler.domain.core.model import Decision, PreemptionCancelled, Reserved
from scheduler.domain.core.nodes import Phase, Workload
from scheduler.domain.core.ordering import Order
from scheduler.domain.core.queue import Queue
from scheduler.domain.core.records import Record, Records
from scheduler.domain.core.refuse import misnaming
from scheduler.domain.core.reserve import end, lift
from scheduler.domain.core.state import State, pods_in
from scheduler.domain.core.usage import Usage


@dataclass(frozen=True)
class Children:
    """Changes state, records and queue together, as `Transitions` does."""

    state: State
    records: Records
    queue: Queue
    usage: Usage

    def ask(self, record: Record) -> None:
        """What a gang that runs wants beside its pods waits from now on."""
        growth, workload = record.growth, record.workload
        if growth is None or workload.phase is not Phase.RUNNING:
            return
        if growth.wanted and growth.asking is None:
            child = growth_of(self.state, workload, growth.wanted)
            growth.asking = self._wait(child, record.order)
        for pod, kind in sorted(growth.spare.items()):
            child = surplus_of(self.state, workload, pod, kind)
            growth.surplus[pod] = self._wait(child, behind(record.order, child))
        growth.spare.clear()

    def _wait(self, child: Workload, order: Order) -> Record:
        record = Record(child, order, misnaming(self.state, child))
        self.records.add(record)
        if record.misnamed is None:
            self.queue.add(child, order)
        return record

    def withdraw(self, record: Record) -> Iterator[Decision]:
        """The growth that a gang asks for does not wait any more, and has no place."""
        child = None if record.growth is None else record.growth.asking
        if record.growth is None or child is None:
            return
        if child.workload.phase is Phase.NOMINATED:
            yield PreemptionCancelled(record.id)
        if child.reservation is not None:
            yield Reserved(record.id, (), None)
        record.growth.asking = None
        self.remove(child)

    def ask_anew(self, record: Record) -> Iterator[Decision]:
        """The gang has other cells, or wants other pods: so does what it asks for."""
        yield from self.withdraw(record)
        self.ask(record)

    def recall(self, record: Record) -> Iterator[Decision]:
        """The gang leaves: it asks for nothing more until it starts again."""
        yield from self.withdraw(record)
        growth = record.growth
        for pod, child in list(growth.surplus.items()) if growth is not None else ():
            if growth is not None and child.workload.phase is Phase.WAITING:
                (want, _), *_ = child.workload.wants
                growth.spare[pod] = want.kind
                del growth.surplus[pod]
                self.remove(child)

    def refuse(self, child: Record) -> None:
        """What a gang asks for can never start."""
        assert child.workload.parent is not None
        growth = self.records.of(child.workload.parent).growth
        assert growth is not None
        growth.wanted.clear()
        growth.asking = None
        self.remove(child)

    def remove(self, record: Record) -> None:
        """A gang is over, or a child of one: what it held is free at once."""
        workload = record.workload
        if record.reservation is not None:
            end(self.state, record.reservation)
        if record.run is not None:
            self.usage.end(workload.gang, workload.places)
        self.records.remove(record)
        is_waiting = workload.phase is Phase.WAITING
        self.state.remove(workload)
        if is_waiting:
            self.queue.leave(workload)

    # Pods change hands.

    def place_whole(self, record: Record) -> bool:
        """A gang that waits starts with all its surplus, where that costs nothing. Nothing has
        changed where it does not.
        """
        growth, state, workload = record.growth, self.state, record.workload
        if growth is None or not growth.spare:
            return False
        with state.trial() as trial:
            if record.reservation is not None:
                lift(state, record.reservation)
            state.ask(workload, wants_with(state, workload, growth.spare))
            if not isinstance(fit(state, workload, None), Fit):
                return False
            found = {p: surplus_of(state, workload, p, kind) for p, kind in growth.spare.items()}
            state.pass_on(workload, found)
            trial.commit()
        for pod, child in found.items():
            growth.surplus[pod] = Record(child, behind(record.order, child))
            self.records.add(growth.surplus[pod])
        growth.spare.clear()
        return True

    def merge(self, child: Record) -> None:
        """A gang's growth runs: its pods are the gang's."""
        parent = child.workload.parent
        assert parent is not None
        record = self.records.of(parent)
        assert record.growth is not None
        self.records.remove(child)
        self.state.pass_on(child.workload, dict.fromkeys(record.growth.wanted, parent))
        self.state.ask(parent, wants_with(self.state, parent, {}))
        record.growth.wanted.clear()
        record.growth.asking = None
        record.passed = record.passed or child.passed
        self.records.file(record)

    def adopt(self, record: Record) -> bool:
        """All pods that a gang needed are over: from now on it needs one that it could do without,
        if one has a place.
        """
        growth, workload = record.growth, record.workload
        placed = [child for child in record.children if child.run is not None]
        if growth is None or not placed:
            return False
        child = placed[0]
        (pod,) = pods_in(child.workload.wants)
        self.records.remove(child)
        del growth.surplus[pod]
        self.state.remove(workload)
        if child.workload.owner is None:
            self.state.be_opportunistic(workload)
        else:
            is_borrowed = lender_of(child.workload) is not None
            priority = BORROWED if is_borrowed else workload.gang.priority
            self.state.borrow(workload, child.workload.owner, priority)
        self.state.pass_on(child.workload, {pod: workload})
        record.orphaned = child.orphaned
        record.run = child.run
        record.leaves_by, record.leaves_for = child.leaves_by, child.leaves_for
        self.records.file(record)
        return True


def behind(order: Order, child: Workload) -> Order:
    """After all gangs of its class."""
    (of_class, *others), _ = order
    return (of_class + 1, *others), child.name
