"""A recording's requests without their results: each gang's owner, request, time and run time, and
the state of the nodes.

Gangs continue over restarts of the Scheduler, and over their own retries, as one. The simulation
makes its own ends, retries, cycles and preemptions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.formats.model import (
    ClusterChanged,
    CycleRun,
    Event,
    GangCheckpointed,
    GangFile,
    GangGrown,
    GangReleased,
    GangRequested,
    GangRestored,
    GangsTried,
    GangWithdrawn,
    GpuHealthChanged,
    NodeBlocked,
    NodeCordoned,
    NodeDrained,
    NodeHealthChanged,
    NodeUncordoned,
    PodReleased,
    PreemptionRestored,
    ReservationRestored,
    SchedulerRestarted,
    UsageRestored,
)
from scheduler.domain.simulation.nodes import Warn
from scheduler.domain.simulation.recording import GangHistory, Recording, is_left
from scheduler.domain.simulation.run import Simulation


def enforced(config: ClusterConfig) -> ClusterConfig:
    """A configuration in which graces end by themselves: the workload has no such events."""
    return replace(config, policy=replace(config.policy, is_enforced=True))


def enforcing(simulation: Simulation, warn: Warn) -> Simulation:
    """A new simulation of the same cluster, in which they do."""
    core = simulation.core
    return Simulation(enforced(core.forest.config), warn, core.policies)


@dataclass(slots=True)
class _Trouble:
    """A node's faults."""

    is_bad: bool = False
    is_closed: bool = False
    is_blocked: bool = False
    gpus: set[int] = field(default_factory=set)


class Workload:
    """The events of a recording that are used. ``has_changes``: also those of its cluster."""

    def __init__(self, recording: Recording, *, has_changes: bool = True) -> None:
        self._histories, self._gone = recording.histories, recording.gone
        self._has_changes = has_changes
        self._config: ClusterConfig | None = None
        self._begun: set[str] = set()
        self._begins_at: float | None = None
        self._troubles: dict[str, _Trouble] = {}
        self._before: dict[str, _Trouble] = {}
        self._restarted_at: float | None = None

    def events(self, recorded: Iterable[Event]) -> Iterator[Event]:
        """The used ones of these, and a cycle when the recording ends."""
        event: Event | None = None
        for event in recorded:
            if self._begins_at is None:
                self._begins_at = event.at
            if self._restarted_at is not None and event.at > self._restarted_at:
                yield from self._known_again(self._restarted_at)
            match event:
                case GangRequested() | GangRestored():
                    yield from self._wanted(event)
                case GangReleased() | GangWithdrawn() | PodReleased() | GangGrown():
                    yield from self._changed(event)
                case GangCheckpointed():
                    yield event
                case _:
                    yield from self._of_cluster(event)
        if event is not None:  # the moment at which the recording ends
            is_settled = not isinstance(event, CycleRun) or event.is_settled
            yield CycleRun(event.at, is_settled=is_settled)

    def _is_opening(self, event: Event) -> bool:
        """The event describes the state before the recording begins."""
        return event.at == self._begins_at

    # Gangs.

    def _wanted(self, event: GangRequested | GangRestored) -> Iterator[Event]:
        gang = event.file.gang
        history = self._histories.get(gang.id)
        if is_left(gang) or history is None:
            return
        if gang.id in self._begun:
            if history.has_run(event.at) or event.at == self._restarted_at:
                return  # it continues, is retried, or is restored again
            yield GangReleased(event.at, gang.id, line=event.line)
        self._begun.add(gang.id)
        file = replace(event.file, run_s=history.run_s(gang))
        if isinstance(event, GangRestored) and self._is_opening(event):
            yield replace(event, file=file)
        else:
            yield _requested(event, file)

    def _changed(
        self, event: GangReleased | GangWithdrawn | PodReleased | GangGrown
    ) -> Iterator[Event]:
        """Until it has run, a gang's request and run time may change. From then on it ends by
        itself and keeps its shape.
        """
        history = self._histories.get(event.gang)
        if history is None:
            return
        is_growth_reported = isinstance(event, GangGrown) and self._is_opening(event)
        if is_growth_reported or not _is_after_start(history, event.at):
            yield event

    # The cluster.

    def _of_cluster(self, event: Event) -> Iterator[Event]:
        match event:
            case SchedulerRestarted():
                self._before = self._before | self._troubles
                self._troubles = {}
                self._restarted_at = event.at
            case ClusterChanged(config=config):
                if self._has_changes and config != self._config:
                    self._config = config
                    yield replace(event, config=enforced(config))
            case CycleRun(is_settled=False):
                yield replace(event, most=None)
            case UsageRestored() | PreemptionRestored():
                if self._is_opening(event):
                    yield event
            case CycleRun() | GangsTried() | ReservationRestored():
                pass
            case _:
                self._note(event)
                yield event

    def _note(self, event: Event) -> None:
        """A node's faults, so that a later event can undo them."""
        match event:
            case NodeHealthChanged(node=node, is_healthy=is_healthy):
                self._trouble(node).is_bad = not is_healthy
            case GpuHealthChanged(node=node, gpu=gpu, is_healthy=is_healthy):
                gpus = self._trouble(node).gpus
                if is_healthy:
                    gpus.discard(gpu)
                else:
                    gpus.add(gpu)
            case NodeCordoned(node=node) | NodeDrained(node=node):
                self._trouble(node).is_closed = True
            case NodeUncordoned(node=node):
                self._trouble(node).is_closed = False
            case NodeBlocked(node=node):
                self._trouble(node).is_blocked = True

    def _trouble(self, node: str) -> _Trouble:
        return self._troubles.setdefault(node, _Trouble())

    def _known_again(self, at: float) -> Iterator[Event]:
        """A restart repeats all known facts: earlier ones that it does not repeat are over."""
        self._restarted_at = None
        for gang in self._gone.get(at, ()):
            yield GangReleased(at, gang)
        before, self._before = self._before, {}
        for node, trouble in before.items():
            now = self._troubles.get(node, _Trouble())
            if trouble.is_bad and not now.is_bad:
                yield NodeHealthChanged(at, node, True)
            if trouble.is_closed and not now.is_closed:
                yield NodeUncordoned(at, node)
            if trouble.is_blocked and not now.is_blocked:
                yield NodeBlocked(at, node)
            for gpu in sorted(trouble.gpus - now.gpus):
                yield GpuHealthChanged(at, node, gpu, True)


def _requested(event: GangRequested | GangRestored, file: GangFile) -> GangRequested:
    return GangRequested(event.at, file, line=event.line)


def _is_after_start(history: GangHistory, at: float) -> bool:
    return history.started_at is not None and at >= history.started_at
