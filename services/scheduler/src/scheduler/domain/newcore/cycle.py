"""The core: gangs come and go, and each cycle decides about all that wait.

`Core.cycle` reads as the rules do. Everything that it asks is `fit` under a trial.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from scheduler.domain.core.building import build
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.forest import Forest
from scheduler.domain.core.holdings import Order
from scheduler.domain.core.model import Decision, Gang, Restored, RestoredReservation, Role
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, ordering_of
from scheduler.domain.newcore import answers
from scheduler.domain.newcore.admit import Admission
from scheduler.domain.newcore.advise import Advice, advise, wishes
from scheduler.domain.newcore.carry import carry_over
from scheduler.domain.newcore.conditions import Conditions
from scheduler.domain.newcore.costs import Costs
from scheduler.domain.newcore.gangs import parted, pods_of, workload_of
from scheduler.domain.newcore.grow import Children
from scheduler.domain.newcore.lend import Lending
from scheduler.domain.newcore.nodes import Workload
from scheduler.domain.newcore.plan import Planner
from scheduler.domain.newcore.publish import Publisher
from scheduler.domain.newcore.queue import Queue
from scheduler.domain.newcore.records import Growth, Record, Records
from scheduler.domain.newcore.refuse import misnaming
from scheduler.domain.newcore.reserve import exported_reservation
from scheduler.domain.newcore.restore import exported
from scheduler.domain.newcore.show import Cells
from scheduler.domain.newcore.state import State
from scheduler.domain.newcore.transitions import Transitions, first_of
from scheduler.domain.newcore.usage import Usage
from scheduler.domain.newcore.wake import is_due, wake

ROUNDS = 4
"""Waiting gangs are tried so often in one cycle, where decisions free something for others."""


class Core:
    """``is_settled``: gangs that can never start are refused."""

    def __init__(
        self, config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
    ) -> None:
        self.policy = config.policy
        self.policies = policies
        self.state = State(build(config))
        self.nodes = Conditions(self.state)
        self.is_settled = True
        self._ordering = ordering_of(config.policy, policies)
        usage = Usage(self.state, config.policy, self._ordering)
        records = Records()
        queue = Queue(self.state, usage)
        self._gangs = Transitions(
            self.state,
            records,
            queue,
            usage,
            Costs(records, config.policy),
            config.policy,
            Children(self.state, records, queue, usage),
        )
        self._lending = Lending(self.state, config.virtual_clusters)
        self._planner = Planner(self._gangs)
        self._publisher = Publisher(self._gangs)
        self.cells = Cells(self.state, records)
        self._pending: list[Decision] = []
        self._rest: Iterator[list[Decision]] | None = None

    @property
    def forest(self) -> Forest:
        """The cluster by its configuration."""
        return self.state.forest

    @property
    def is_under_way(self) -> bool:
        """The rest of a cycle is to come, before anything else changes."""
        return self._rest is not None

    @property
    def gangs(self) -> Mapping[str, Record]:
        """All that are not over, by id."""
        return self._gangs.records.all

    def workloads(self) -> Iterator[Workload]:
        """All that may have places."""
        for record in (*self.gangs.values(), *self._gangs.records.children.values()):
            yield record.workload
            if record.reservation is not None:
                yield record.reservation.hold
        yield from (kept.hold for kept in self._gangs.records.kept)

    # Gangs come and go. Unknown ones are ignored.

    def request(self, gang: Gang) -> None:
        """A gang wants its pods."""
        needed, spare = parted(gang.roles)
        workload = workload_of(self.state, gang, needed)
        order, wrong = self._ordering.order(gang), misnaming(self.state, workload)
        growth = Growth(spare=spare) if spare else None
        self._pending += self._gangs.add(Record(workload, order, wrong, growth=growth))

    def grow(self, gang: str, roles: Sequence[Role]) -> None:
        """A gang wants more pods, all of them at once or none."""
        record = self.gangs.get(gang)
        if record is not None:
            self._pending += self._gangs.grow(record, pods_of(roles))

    def want_more(self, gang: str, roles: Sequence[Role]) -> None:
        """A gang wants more pods that it can do without, as many as can be had without cost."""
        record = self.gangs.get(gang)
        if record is not None:
            self._gangs.want_more(record, pods_of(roles))

    def withdraw(self, gang: str) -> None:
        """A gang is not wanted any more."""
        self.release(gang)

    def release(self, gang: str) -> None:
        """A gang is over: what it held is free at once."""
        record = self.gangs.get(gang)
        if record is not None:
            self._gangs.release(record)

    def requeue(self, gang: str, until: float) -> None:
        """A gang is over by the platform's fault: a node was lost, a GPU is bad. What is healthy of
        its cells is kept until then for its job's next attempt.
        """
        record = self.gangs.get(gang)
        if record is not None:
            self._gangs.requeue(record, until)

    def release_pod(self, gang: str, pod: str) -> None:
        """One pod is over; with its last pod the gang."""
        record = self.gangs.get(gang)
        if record is not None:
            self._pending += self._gangs.release_pod(record, pod)

    def checkpointed(self, gang: str, at: float) -> None:
        """A gang's work up to then is saved."""
        record = self.gangs.get(gang)
        if record is not None and record.run is not None:
            record.run.checkpointed(at)

    def restore(self, restored: Restored) -> None:
        """A gang was placed before. Where it can't have its cells again it is downgraded; the next
        cycle publishes that.
        """
        self._pending += self._gangs.restore(restored, self._ordering.order(restored.gang))

    def restore_reservation(self, restored: RestoredReservation) -> None:
        """Cells were reserved for a waiting gang before; comes after all gangs."""
        if self.policy.is_keeping:
            self._gangs.restore_reservation(restored)

    def kept_reservations(self) -> list[RestoredReservation]:
        """All that is kept of reservations, by gang."""
        found = (each.reservation for each in self._gangs.records.reserved)
        kept = (exported_reservation(each) for each in found if each is not None)
        return sorted(kept, key=lambda each: each.gang)

    def exported(self, gang: str) -> Restored:
        """All that is kept of a gang that has places."""
        return exported(self.gangs[gang])

    # Another configuration.

    def changed(self, config: ClusterConfig, now: float) -> "Core":
        """A core of another configuration with the same gangs: what runs stays where it is. This
        one is only read. Raises ConfigError.
        """
        fresh = Core(config, self.policies)
        fresh.is_settled = self.is_settled
        fresh.nodes.take_over(self.nodes)
        fresh._gangs.costs.now = fresh._gangs.queue.now = now

        def order_of(record: Record) -> Order:
            gang = record.workload.gang
            order, is_same = fresh._ordering.order(gang), self._ordering.order(gang) == record.order
            return order if is_same else first_of(order)

        fresh._pending = [*self._pending, *carry_over(self._gangs, fresh._gangs, order_of)]
        return fresh

    # Questions: nothing is changed by them.

    def everyone(self) -> list[Workload]:
        """All that wait, or have a nominated placement, in order."""
        return answers.everyone(self._gangs)

    def why(self, gang: str) -> answers.Why | None:
        """Why a gang waits, and who is ahead; None: it does not wait."""
        record = self.gangs.get(gang)
        return None if record is None else answers.why(self._gangs, record)

    def answer(self, gang: str) -> answers.Answer:
        """What would have to be otherwise for a waiting gang to start."""
        return answers.answer(self._gangs, self._lending, self.gangs[gang])

    def advise(self, chain: str | None, cell: str | None, cells: int) -> Advice | None:
        """Which gangs would have to move so that cells are free; None: there are no such cells."""
        found = wishes(self.state.forest, chain, cell, cells)
        return advise(self._gangs, self._lending, found) if found else None

    # The cycle.

    def cycle(self, now: float, is_enough: Callable[[int], bool] | None = None) -> list[Decision]:
        """Decide about all that wait, or the rest of that. ``is_enough`` is asked between gangs,
        with the number of decisions so far. All parts go by the time of the first.
        """
        steps, self._rest = self._rest or self._steps(now), None
        decisions: list[Decision] = []
        while is_enough is None or not is_enough(len(decisions)):
            step = next(steps, None)
            if step is None:
                return decisions
            decisions += step
        self._rest = steps
        return decisions

    def _steps(self, now: float) -> Iterator[list[Decision]]:
        """The steps of a cycle, which may be left after each gang."""
        gangs = self._gangs
        pending, self._pending = self._pending, []
        gangs.begin(now)
        admission = Admission(gangs, self._lending, now)
        # 1. Gangs on drained nodes are preempted.
        yield [*pending, *gangs.drain(self.nodes.draining, now)]
        for _ in range(ROUNDS):
            # 2. Nominated gangs start where the victims have left, or lose a place that is bad.
            # 3. Classes are woken that may be helped by what has become free.
            if self.state.freed or is_due(gangs, now):
                yield list(wake(gangs, now))
            if not gangs.queue.ready:
                break
            # 4. Guaranteed gangs, in order: placed, or others leave for them, or not.
            yield from admission.admit(is_opportunistic=False)
            # 5. Those that may borrow are placed in others' idle quota.
            yield from admission.borrow()
            # 6. Opportunistic gangs, in order.
            yield from admission.admit(is_opportunistic=True)
        # 7. Gangs outside of their own cells get some where there is room, oldest first.
        yield list(gangs.upgrade())
        if gangs.queue.ready:  # what these gangs wait to grow by
            yield from admission.admit(is_opportunistic=False)
        # 8. The first of each virtual cluster that can't start gets a reservation.
        if self.policy.is_keeping and admission.tried:
            yield from self._planner.plan(admission.tried, now)
        # 9. Waiting gangs' reasons are published, where they are new.
        yield list(self._publisher.publish(admission.tried, is_settled=self.is_settled))
