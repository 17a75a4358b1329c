"""The core: gangs come and go, and each cycle decides about all that wait.

`Core.cycle` reads as the rules do. Everything that it asks is `fit` under a trial.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from math import inf, nextafter

from scheduler.domain.core.admit import Admission
from scheduler.domain.core.audit import audit
from scheduler.domain.core.building import build
from scheduler.domain.core.carry import carry_over
from scheduler.domain.core.conditions import Conditions
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.costs import Costs
from scheduler.domain.core.forest import Forest
from scheduler.domain.core.gangs import parted, workload_of
from scheduler.domain.core.grow import Children
from scheduler.domain.core.interface import Drift, GangState, Leaving
from scheduler.domain.core.lend import Lending
from scheduler.domain.core.model import Decision, Gang, Restored, Role
from scheduler.domain.core.nodes import Workload
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, ordering_of
from scheduler.domain.core.plan import Planner
from scheduler.domain.core.publish import Publisher
from scheduler.domain.core.questions import Questions
from scheduler.domain.core.queue import Queue
from scheduler.domain.core.records import Growth, Record, Records
from scheduler.domain.core.refuse import misnaming
from scheduler.domain.core.restore import exported, state_of
from scheduler.domain.core.rows import Rows
from scheduler.domain.core.show import Cells
from scheduler.domain.core.state import State, pods_in
from scheduler.domain.core.transitions import Transitions
from scheduler.domain.core.usage import Usage
from scheduler.domain.core.wake import is_due, wake

ROUNDS = 4
"""Waiting gangs are tried so often in one cycle, where decisions free something for others."""


class Core:
    """Implements `interface.Core`. ``is_settled``: gangs that can never start are refused."""

    def __init__(
        self, config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
    ) -> None:
        self.policy = config.policy
        self.policies = policies
        self.state = State(build(config))
        self.nodes = Conditions(self.state)
        self.is_settled = True
        self.cycles = 0
        self._ordering = ordering_of(config.policy, policies)
        usage = Usage(self.state, config.policy, self._ordering)
        records = Records()
        queue = Queue(self.state, usage)
        self._gangs = Transitions(
            self.state,
            records,
            queue,
            usage,
            Costs(records, config.policy, self._ordering),
            config.policy,
            Children(self.state, records, queue, usage),
        )
        self._lending = Lending(self.state, config.virtual_clusters)
        self._planner = Planner(self._gangs)
        self._publisher = Publisher(self._gangs)
        self.cells = Cells(self.state, records)
        self.rows = Rows(self._gangs)
        self.questions = Questions(self._gangs, self._lending, lambda: self.is_under_way)
        self._pending: list[Decision] = []
        self._rest: Iterator[list[Decision]] | None = None

    @property
    def forest(self) -> Forest:
        """The cluster by its configuration."""
        return self.state.forest

    @property
    def explained(self) -> int:
        """How many reasons were found."""
        return self._publisher.explained

    @property
    def is_explaining(self) -> bool:
        """Waiting gangs get reasons."""
        return self._publisher.is_explaining

    @is_explaining.setter
    def is_explaining(self, is_explaining: bool) -> None:
        self._publisher.is_explaining = is_explaining

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
        self._gangs.add(Record(workload, order, wrong, growth=growth))

    def grow(self, gang: str, roles: Sequence[Role]) -> None:
        """A gang wants more pods, all of them at once or none."""
        record = self.gangs.get(gang)
        if record is not None:
            self._pending += self._gangs.grow(record, roles)

    def want_more(self, gang: str, roles: Sequence[Role]) -> None:
        """A gang wants more pods that it can do without, as many as can be had without cost."""
        record = self.gangs.get(gang)
        if record is not None:
            self._gangs.want_more(record, roles)

    def release(self, gang: str) -> None:
        """A gang is over: what it held, or is kept of it, is free at once."""
        self._gangs.forget_kept_of(gang)
        record = self.gangs.get(gang)
        if record is not None:
            self._gangs.release(record)
            self._drop_pending(gang)

    def requeue(self, gang: str, until: float) -> None:
        """A gang is over by the platform's fault: a node was lost or drained, a GPU is bad. What is
        healthy of its cells is kept until then for its job's next attempt, and others for the rest.
        """
        record = self.gangs.get(gang)
        if record is not None:
            self._gangs.requeue(record, until)
            self._drop_pending(gang)

    def _drop_pending(self, gang: str) -> None:
        """Nothing is published of a gang that is over."""
        self._pending = [each for each in self._pending if each.gang != gang]

    def release_pod(self, gang: str, pod: str, *, is_lost: bool = False) -> None:
        """One pod is over; with its last pod the gang. ``is_lost``: by the platform's fault."""
        record = self.gangs.get(gang)
        if record is not None:
            self._pending += self._gangs.release_pod(record, pod, is_lost=is_lost)
            if gang not in self.gangs:
                self._drop_pending(gang)

    def checkpointed(self, gang: str, at: float) -> bool:
        """A gang's work up to then is saved. Whether it runs, and had not saved so much."""
        record = self.gangs.get(gang)
        return record is not None and record.run is not None and record.run.checkpointed(at)

    def restore(self, restored: Restored, now: float = 0.0) -> None:
        """A gang was placed before. Where it can't have its cells again it is downgraded; the next
        cycle publishes that.
        """
        self._gangs.costs.now = max(self._gangs.costs.now, now)
        self._pending += self._gangs.restore(restored, self._ordering.order(restored.gang))

    def note_published(self, gang: str, code: str | None) -> None:
        """The code of a gang's last published reason."""
        record = self.gangs.get(gang)
        if record is not None:
            asking = None if record.growth is None else record.growth.asking
            (asking or record).published = code

    def forget(self, gang: str) -> None:
        """As if the gang had never been there."""
        self.release(gang)
        self._gangs.usage.forget(gang)

    def exported(self, gang: str) -> Restored:
        """All that is kept of a gang that has places."""
        return exported(self.gangs[gang])

    def gang(self, gang: str) -> GangState | None:
        """A gang as it is shown; None: there is none of this id."""
        record = self.gangs.get(gang)
        return None if record is None else state_of(record)

    def gang_ids(self) -> Collection[str]:
        """All that are not over."""
        return self.gangs.keys()

    def leaving(self) -> list[Leaving]:
        """Preempted gangs that have not ended, and such pods alone."""
        found: list[Leaving] = []
        for record in self.gangs.values():
            if record.leaves_by is not None:
                found.append(Leaving(record.id, None, record.leaves_by))
                continue
            for child in record.children:
                if child.leaves_by is not None:
                    (pod,) = pods_in(child.workload.wants)
                    found.append(Leaving(record.id, pod, child.leaves_by))
        return found

    # Another configuration.

    def changed(self, config: ClusterConfig, now: float) -> "Core":
        """A core of another configuration with the same gangs: what runs stays where it is. This
        one is only read. Raises ConfigError.
        """
        fresh = Core(config, self.policies)
        fresh.is_settled, fresh.is_explaining = self.is_settled, self.is_explaining
        fresh.cycles = self.cycles
        fresh.nodes.take_over(self.nodes)
        fresh._gangs.costs.now = fresh._gangs.queue.now = now
        carried = carry_over(self._gangs, fresh._gangs, fresh._ordering.order)
        fresh._pending = [*self._pending, *carried]
        return fresh

    # The cycle.

    def settle(self, is_settled: bool) -> None:
        """Whether gangs that can never start are refused from now on."""
        if is_settled != self.is_settled:
            self.is_settled = is_settled
            for found in self._gangs.queue.classes.values():
                found.reason = None
                self._gangs.queue.try_again(found)

    def wakes_at(self) -> float | None:
        """When a cycle is due without an event; None: never."""
        costs, records = self._gangs.costs, self._gangs.records
        starts = (each.starts_at for each in (*records.reservations(), *records.kept))
        overstays = (records.stays_until(each) for each in records.backfilled)
        later = (until for until in overstays if until > costs.now)
        at = min((*(nextafter(start, inf) for start in starts), *later, costs.again_at))
        return None if at == inf else max(at, costs.now)

    def idle_cycles(self) -> float:
        """How many cycles without an event, one after the other, may still lead to a decision."""
        records = self._gangs.records
        if self._gangs.costs.again_at < inf:
            return inf
        may_pass = any(found.is_bounded for found in self._gangs.queue.classes.values())
        if not (records.backfilled or records.kept or may_pass):
            return -1
        return len(records.reserved) + len(records.kept)

    def unpublished(self) -> set[str]:
        """Gangs about which the next cycle publishes what happened since the last one."""
        return {decision.gang for decision in self._pending}

    def was_tried(self) -> bool:
        """Gangs wait, and none for the next cycle."""
        queue = self._gangs.queue
        return bool(queue.classes) and not queue.ready and not self.is_under_way

    def note_tried(self, *, is_settled: bool) -> None:
        """All is as after a cycle: gangs with a published reason were tried."""
        self.is_settled = is_settled
        self._gangs.queue.note_tried(lambda each: self._gangs.records.of(each).published)
        self.state.freed.clear()
        self._gangs.look_at_nominated()

    def audit(self) -> Generator[None, None, list[Drift]]:
        """Compare accounting with placements. Cycles may run at each step."""
        return audit(self.state, self.workloads)

    def cycle(self, now: float, is_enough: Callable[[int], bool] | None = None) -> list[Decision]:
        """Decide about all that wait, or the rest of that. ``is_enough`` is asked between gangs,
        with the number of decisions so far. All parts go by the time of the first.
        """
        self.cycles += 1
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
        self._planner.begin()
        planner = self._planner if self.policy.is_keeping else None
        admission = Admission(gangs, self._lending, planner, now)
        # 1. Gangs on drained nodes are preempted.
        yield [*pending, *gangs.drain(self.nodes.draining, now)]
        for _ in range(ROUNDS):
            # 2. Nominated gangs start where the victims have left, or lose a place that is bad.
            # 3. Classes are woken that may be helped by what has become free.
            if is_due(gangs, now) or self.state.freed:
                yield list(wake(gangs, now))
            if all(each.is_opportunistic for each in gangs.queue.ready):
                break
            # 4. Guaranteed gangs, in order: placed, or others leave for them, or not.
            yield from admission.admit(is_opportunistic=False)
            # 5. Those that may borrow are placed in others' idle quota.
            yield from admission.borrow()
        # 6. The first of each virtual cluster that can't start gets a reservation.
        if planner is not None:
            yield from planner.plan(admission.tried, now)
        # 7. Opportunistic gangs, in order. None that starts here is preempted in the same cycle.
        yield from admission.admit(is_opportunistic=True)
        # 8. Gangs outside of their own cells get some where there is room, oldest first.
        yield list(gangs.upgrade())
        if gangs.queue.ready:  # what these gangs wait to grow by
            yield from admission.admit(is_opportunistic=False)
        # 9. Waiting gangs' reasons are published, where they are new.
        yield list(self._publisher.publish(admission.tried, is_settled=self.is_settled))
