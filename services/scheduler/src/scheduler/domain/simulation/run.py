"""The core in virtual time.

At each moment with an event: first the ends of runs, then the ends of grace, each by gang id; then
the file's events in their order; then one cycle. Ends that a cycle makes due at once (a grace of 0)
are another round at the same moment.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from scheduler.domain.core.config import REQUEUE_S, ClusterConfig, Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Grown,
    Placed,
    Preempted,
    PreemptionCancelled,
    Refused,
    Reserved,
    Role,
    Shrunk,
    Upgraded,
)
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, doubtful
from scheduler.domain.cores import core_of
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.formats.model import (
    ClusterChanged,
    CycleRun,
    Event,
    GangCheckpointed,
    GangGrown,
    GangReleased,
    GangRequested,
    GangRestored,
    GangsTried,
    GangWithdrawn,
    PodReleased,
    PreemptionRestored,
    ReservationRestored,
    SchedulerRestarted,
    UsageRestored,
)
from scheduler.domain.simulation.agenda import ELASTIC, Agenda, End
from scheduler.domain.simulation.gang_run import GangRun
from scheduler.domain.simulation.nodes import Warn, apply_to_node
from scheduler.domain.simulation.space import Space
from scheduler.domain.simulation.tally import Tally

USUAL = CycleRun(0.0)
"""A cycle run without an event about it."""


class Simulation:
    """A cluster and its gangs. ``warnings`` are about the configuration; ``warn`` receives those
    about events. ``runs``: gangs that are not over; ``tally``: sums.
    """

    def __init__(
        self,
        config: ClusterConfig,
        warn: Warn,
        policies: Mapping[str, OrderPolicy] = BUILT_IN,
    ) -> None:
        """Raises ConfigError if the configuration is invalid."""
        self.core = core_of(config, policies)
        self.policy = config.policy
        self._cycle = USUAL
        self._warn = warn
        self.agenda = Agenda()
        self._is_open = False
        self.runs: dict[str, GangRun] = {}
        self.tally = Tally.of(self.core.forest)
        self.warnings = (*self.core.forest.warnings, *doubtful(config.policy))

    def run(self, events: Iterable[Event]) -> Iterator[tuple[float, Decision]]:
        """Decisions and their times. Raises FormatError for an impossible event."""
        for event in events:
            yield from self.reach(event)
            self.apply(event)
        yield from self.end()

    def reach(self, event: Event) -> Iterator[tuple[float, Decision]]:
        """The decisions before an event, which is applied next."""
        if self._is_open and event.at > self.tally.now:
            yield from self._close()
        while not self._is_open:
            due_at = self._due_at()
            now = event.at if due_at is None else min(due_at, event.at)
            yield from self._open(now)
            if now < event.at:
                yield from self._close()
        if not isinstance(event, CycleRun | SchedulerRestarted):
            yield from self._finish(event.at)

    def end(self) -> Iterator[tuple[float, Decision]]:
        """The decisions after the last event."""
        if self._is_open:
            yield from self._close()
        idle = 0  # cycles in a row that only the core's timer started
        while (due_at := self._due_at()) is not None:
            if self.agenda.next_at() is not None:
                idle = 0
            elif idle > self.core.idle_cycles():
                break
            else:
                idle += 1
            yield from self._open(due_at)
            yield from self._close()

    def _due_at(self) -> float | None:
        """When the next end or cycle is due without an event; None: never."""
        ends_at = self.agenda.next_at()
        wakes_at = self.core.wakes_at() if self.policy.is_enforced else None
        due = [at for at in (ends_at, wakes_at) if at is not None]
        return min(due, default=None)

    def _open(self, now: float) -> Iterator[tuple[float, Decision]]:
        """A moment begins with ends."""
        self._is_open = True
        self.tally.advance(now)
        if (ends_at := self.agenda.next_at()) is not None and ends_at <= now:
            yield from self._finish(now)
        for end, gang in self.agenda.due(now):
            self._end(gang, end)

    def _close(self) -> Iterator[tuple[float, Decision]]:
        """A moment ends with its cycle."""
        self._is_open = False
        cycle, self._cycle = self._cycle, USUAL
        yield from self._decide(self.tally.now, cycle)

    def _finish(self, now: float) -> Iterator[tuple[float, Decision]]:
        """The rest of a bounded cycle runs before anything changes."""
        if self.core.is_under_way:
            yield from self._decide(now, USUAL)

    def _decide(self, now: float, cycle: CycleRun) -> Iterator[tuple[float, Decision]]:
        if not self.core.is_under_way:
            self.core.settle(cycle.is_settled)
        for decision in self.core.cycle(now, cycle.is_enough):
            self._follow(decision)
            yield now, decision
        self.core.rows.take_changed()  # nothing is stored

    # Effects of the core's decisions.

    def _follow(self, decision: Decision) -> None:
        """A gang starts, is preempted, or waits for another reason."""
        gang = decision.gang
        if isinstance(decision, PreemptionCancelled):  # also for withdrawn gangs
            self.tally.cancelled += 1
            return
        run = self.runs[gang]
        group = self.tally.group(run)
        match decision:
            case Placed(_, places):
                self.tally.start(run, places)
                run.start(self.tally.now, places)
                self.note_end(gang)
            case Grown(_, places):
                run.add(self.tally.now, places)
                self.note_end(gang)
                self.tally.space.take(places)
            case Shrunk(_, pods, until=until):
                for pod in pods if self.policy.is_enforced else ():
                    self.agenda.add_pod(until, gang, pod)
            case Deferred(_, reason):
                run.code = reason.code
            case Refused():
                group.refused += 1
                self._forget_refused(gang, run)
            case Preempted(until=until):
                group.preempted += 1
                if self.policy.is_enforced:
                    self.agenda.add(until, End.GRACE, gang)
            case Downgraded():
                group.downgraded += 1
            case Upgraded() | Reserved():
                self.tally.upgraded += isinstance(decision, Upgraded)
            case _:
                assert_never(decision)

    def _forget_refused(self, gang: str, run: GangRun) -> None:
        """A refused gang is over; for a running gang only its growth is refused."""
        if not run.places:
            del self.runs[gang]
            self.agenda.forget(gang)
            self.core.release(gang)
            return
        for pod in run.without_place():
            run.remove(pod)
            self.core.release_pod(gang, pod)

    # Due ends.

    def _end(self, gang: str, end: End) -> None:
        if ELASTIC in gang:
            self._shrink(*gang.split(ELASTIC))
            return
        run = self.runs.pop(gang)
        self.agenda.forget(gang)
        if end is End.RUN or not self.policy.is_requeued:
            self.core.release(gang)
        else:
            self.core.requeue(gang, self.tally.now + REQUEUE_S)
        if end is End.RUN:
            self.tally.stop(run)
            return
        self.tally.lose(run, run.places.values())
        run.stop(self.tally.now)
        if self.policy.is_requeued:
            self.runs[gang] = run
            self.core.request(run.gang)

    def _shrink(self, gang: str, pod: str) -> None:
        """A pod leaves a gang that continues without it, and requests it again."""
        run = self.runs.get(gang)
        if run is None or pod not in run.places:
            return
        place = run.shrink(self.tally.now, pod)
        self.core.release_pod(gang, pod)
        self.tally.space.give([place])
        self.note_end(gang)
        if self.policy.is_requeued:
            role = next(role for role in run.gang.roles if pod in role.pods)
            self.core.want_more(gang, (Role(role.kind, (pod,), role.name),))
        else:
            run.remove(pod)

    # Events of the file.

    def apply(self, event: Event) -> None:
        """Apply an event at the moment that was reached. Raises FormatError if it is impossible;
        then nothing changes.
        """
        match event:
            case GangRequested() | GangRestored():
                self._begin(event)
            case ReservationRestored() | UsageRestored() | PreemptionRestored():
                self._remember(event)
            case GangReleased() | GangWithdrawn():
                until = event.kept_until if isinstance(event, GangReleased) else None
                self._release(event.gang, until)
            case PodReleased():
                self._release_pod(event)
            case GangGrown():
                self._grow(event)
            case GangCheckpointed(gang=gang, saved_at=saved_at):
                if gang in self.runs:
                    saved_at = event.at if saved_at is None else saved_at
                    self.runs[gang].checkpoint(saved_at)
                    self.core.checkpointed(gang, saved_at)
            case ClusterChanged():
                self._change(event)
            case CycleRun():
                self._cycle = event
            case GangsTried(is_settled=is_settled):
                self.core.note_tried(is_settled=is_settled)
            case SchedulerRestarted():
                self._forget_all()
            case _:
                apply_to_node(event, self.core, self.tally.space, self._warn)

    def _begin(self, event: GangRequested | GangRestored) -> None:
        gang = event.file.gang.id
        if gang in self.runs:
            message = f"is {gang!a}, which is there already; release it first, or use another id"
            raise FormatError([Finding("gang.id", message, event.line)])
        if isinstance(event, GangRestored):
            self._check_places(event)
        run = GangRun.of(event.file, event.at)
        run.code = event.published
        self.runs[gang] = run
        group = self.tally.group(run)
        if isinstance(event, GangRequested):
            group.requested += 1
            self.core.request(event.file.gang)
            self.core.note_published(event.file.gang.id, event.published)
            return
        group.restored += 1
        self._restore(event, run)

    def _restore(self, event: GangRestored, run: GangRun) -> None:
        restored, running = event.restored, event.restored.running
        run.gang = restored.gang
        self.core.restore(restored, event.at)
        self.core.note_published(run.gang.id, event.published)
        if restored.started_at is None or not running:
            return
        run.start(restored.started_at, running)
        self.note_end(run.gang.id)
        if restored.checkpointed_at is not None:
            run.checkpoint(restored.checkpointed_at)
        self.tally.space.take(running)
        if restored.preempted_until is not None and self.policy.is_enforced:
            self.agenda.add(max(event.at, restored.preempted_until), End.GRACE, run.gang.id)
        for each in restored.extra if self.policy.is_enforced else ():
            if each.preempted_until is not None:
                until = max(event.at, each.preempted_until)
                self.agenda.add_pod(until, run.gang.id, each.pod)

    def _check_places(self, event: GangRestored) -> None:
        space, running = self.tally.space, event.restored.running
        for number, place in enumerate(event.restored.places):
            if not all(space.has(place.node, gpu) for gpu in (None, *place.gpus)):
                message = f"is on {place.node!a}, or on GPUs, that the cluster does not have"
                self._warn(Finding(f"placement[{number}]", message, event.line))
            if place in running and space.is_used(place):
                message = "has a GPU that another gang uses; release that gang first"
                raise FormatError([Finding(f"placement[{number}].gpus", message, event.line)])

    def is_leaving(self, gang: str) -> bool:
        """It is preempted."""
        state = self.core.gang(gang)
        return state is not None and state.preempted_until is not None

    def note_end(self, gang: str) -> None:
        """When a running gang will end by itself, which may have changed."""
        at = self.runs[gang].ends_at(is_limited=self.policy.is_enforced)
        if at is None:
            self.agenda.forget(gang, [End.RUN])
        else:
            self.agenda.add(max(self.tally.now, at), End.RUN, gang)

    def _remember(self, event: ReservationRestored | UsageRestored | PreemptionRestored) -> None:
        """A cluster's facts beside its gangs."""
        if isinstance(event, ReservationRestored):
            self.core.rows.restore_reservation(event.restored)
        elif isinstance(event, PreemptionRestored):
            self.core.rows.restore_preemption(event.restored)
        else:
            self.core.rows.restore_usage(event.restored)

    def _release(self, gang: str, kept_until: float | None = None) -> None:
        run, is_leaving = self.runs.pop(gang, None), self.is_leaving(gang)
        if kept_until is None:
            self.core.release(gang)
        else:
            self.core.requeue(gang, kept_until)
        if run is None:
            return
        self.agenda.forget(gang)
        if is_leaving:
            self.tally.lose(run, run.places.values())
        elif run.started_at is not None:
            self.tally.stop(run)

    def _release_pod(self, event: PodReleased) -> None:
        run = self.runs.get(event.gang)
        if run is None or not run.has(event.pod):
            return
        if run.is_last(event.pod) and not event.is_lost:
            self._release(event.gang)
            return
        is_leaving, place = self.is_leaving(event.gang), run.places.get(event.pod)
        if is_leaving and place is not None:
            self.tally.lose(run, [place])
        elif place is not None:
            self.tally.space.give([place])
        run.remove(event.pod)
        self.core.release_pod(event.gang, event.pod, is_lost=event.is_lost)
        if self.core.gang(event.gang) is None:  # elastic pods are not waited for
            del self.runs[event.gang]
            self.agenda.forget(event.gang)
            if run.started_at is not None:
                self.tally.stop(run)
            return
        if run.places or run.started_at is None:
            return
        if is_leaving and self.policy.is_enforced:
            self._end(event.gang, End.GRACE)
            return
        self.agenda.forget(event.gang)
        if is_leaving:
            run.stop(self.tally.now)
        else:
            run.begin_anew(self.tally.now)

    def _grow(self, event: GangGrown) -> None:
        run = self.runs.get(event.gang)
        if run is None:
            self._warn(Finding("gang", f"{event.gang!a} is not there: ignored", event.line))
            return
        roles, taken = tuple(map(run.more, event.pods)), set[str]()
        for number, (pods, more) in enumerate(zip(event.pods, roles, strict=True)):
            if run.kinds.get(pods.name, pods.kind) != pods.kind:
                message = f"{pods.name!a} want something else already; use another name"
                raise FormatError([Finding(f"pods[{number}].name", message, event.line)])
            if twice := run.twice(more, taken):
                message = f"have {twice!a}, which the gang has already; use another name"
                raise FormatError([Finding(f"pods[{number}].names", message, event.line)])
            taken.update(more.pods)
        if event.is_elastic:
            roles = tuple(replace(role, least=0) for role in roles)
            run.grow(event.pods, roles)
            self.core.want_more(event.gang, roles)
        else:
            run.grow(event.pods, roles)
            self.core.grow(event.gang, roles)
            self.core.note_published(event.gang, event.published)

    def _change(self, event: ClusterChanged) -> None:
        try:
            self.core = self.core.changed(event.config, event.at)
        except ConfigError as error:
            raise FormatError([_in_event(each, event) for each in error.findings]) from None
        before, self.policy = self.policy, event.config.policy
        if before.is_enforced != self.policy.is_enforced:
            self._enforce()
        self.tally.space.change(self.core.forest)
        for finding in self.core.forest.warnings:
            self._warn(_in_event(finding, event))

    def _enforce(self) -> None:
        """Present graces and limits are enforced from now on, or no longer."""
        for gang, run in self.runs.items():
            if run.started_at is not None and run.gang.limit_s is not None:
                self.note_end(gang)
        for gang, pod, until in self.core.leaving():
            at = max(self.tally.now, until)
            if not self.policy.is_enforced:
                self.agenda.forget(gang, [End.GRACE])
            elif pod is None:
                self.agenda.add(at, End.GRACE, gang)
            else:
                self.agenda.add_pod(at, gang, pod)

    def _forget_all(self) -> None:
        """Restore the present state from events."""
        self.core = core_of(self.core.forest.config, self.core.policies)
        self.runs.clear()
        self.agenda = Agenda()
        self.tally.space = Space(self.core.forest)


def _in_event(finding: Finding, event: ClusterChanged) -> Finding:
    return Finding(f"cluster.{finding.path}", finding.message, event.line)
