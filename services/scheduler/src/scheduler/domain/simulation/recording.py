"""A recording's requests and run times, from which another cluster's results can be simulated.

A recording has the ends of gangs, which don't fit a cluster that starts them at other times. A
first replay learns each gang's run time. Then the recording is read again as a `Workload`: a gang
that ends by itself does so after its run time, wherever and whenever it runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.domain.core.model import NO_ONE, Decision, Gang, Placed
from scheduler.domain.formats.model import (
    Event,
    GangReleased,
    GangRequested,
    GangRestored,
    GangWithdrawn,
    PodReleased,
    SchedulerRestarted,
)
from scheduler.domain.simulation.gang_run import GangRun
from scheduler.domain.simulation.run import Simulation


@dataclass(slots=True)
class GangHistory:
    """The record of a gang, which may have run several times.

    ``work_s``: its run time without the costs of preemptions; ``cut_s``: that of its last run,
    after which it was withdrawn. ``started_at``: first, None: never. ``is_over``: no pod of it is
    left at the end of the recording.
    """

    work_s: float = 0.0
    cut_s: float = 0.0
    started_at: float | None = None
    is_over: bool = False

    def run_s(self, gang: Gang) -> float | None:
        """Its run time: the recorded one, or, if it never ran, its expected one; None: unknown."""
        if self.started_at is None:
            return gang.limit_s if gang.expected_s is None else gang.expected_s
        return self.work_s + self.cut_s if self.is_over else None

    def has_run(self, at: float) -> bool:
        """Whether it has run by then."""
        return self.started_at is not None and self.started_at < at


@dataclass(slots=True)
class Recording:
    """The records of its gangs, by id. ``gone``: gangs that waited at a restart, by its time, and
    are unknown after it. ``ends_at``: the time of the last replayed event.
    """

    histories: dict[str, GangHistory] = field(default_factory=dict)
    gone: dict[float, list[str]] = field(default_factory=dict)
    ends_at: float = 0.0

    @property
    def unended(self) -> int:
        """How many had run, and were not over."""
        return sum(
            history.started_at is not None and not history.is_over
            for history in self.histories.values()
        )

    @property
    def never_ran(self) -> int:
        """How many never started."""
        return sum(history.started_at is None for history in self.histories.values())


class Replay:
    """Reads a recording; ``simulation`` has its first cluster."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.found = Recording()
        self._unreported: dict[str, GangRun] = {}
        self._restarted_at = 0.0

    def run(self, events: Iterable[Event]) -> Recording:
        """The result. Raises FormatError for an impossible event."""
        for event in events:
            self._follow(self._simulation.reach(event))
            if self._unreported and event.at > self._restarted_at:
                self._end_unreported()
            self._apply(event)
            self.found.ends_at = event.at
        self._follow(self._simulation.end())
        return self.found

    def _follow(self, decisions: Iterable[tuple[float, Decision]]) -> None:
        for at, decision in decisions:
            history = self.found.histories.get(decision.gang)
            if isinstance(decision, Placed) and history is not None and history.started_at is None:
                history.started_at = at

    def _apply(self, event: Event) -> None:
        match event:
            case GangRequested() | GangRestored():
                self._begin(event)
            case GangReleased(gang=gang) | GangWithdrawn(gang=gang) | PodReleased(gang=gang):
                self._end_some(event, gang)
                return
            case SchedulerRestarted():
                self._end_unreported()
                self._restarted_at = event.at
                self._unreported = dict(self._simulation.runs)
        self._simulation.apply(event)

    def _begin(self, event: GangRequested | GangRestored) -> None:
        gang = event.file.gang
        if is_left(gang):
            return
        history = self.found.histories.setdefault(gang.id, GangHistory())
        history.is_over, history.cut_s = False, 0.0
        started_at = None
        if isinstance(event, GangRestored):
            started_at = event.restored.started_at
            if history.started_at is None:
                history.started_at = started_at
        before = self._unreported.pop(gang.id, None)
        if before is not None and before.started_at != started_at:
            history.work_s += _ran_s(before, self._restarted_at)

    def _end_some(self, event: GangReleased | GangWithdrawn | PodReleased, gang: str) -> None:
        """A gang may end with it."""
        runs, history = self._simulation.runs, self.found.histories.get(gang)
        run = runs.get(gang)
        if run is None or history is None:
            self._simulation.apply(event)
            return
        ran_s = cut_s = 0.0
        was_running = run.started_at is not None
        if was_running:
            ran_s = run.ran_s(event.at)
            if self._simulation.is_leaving(gang):
                cut_s = run.lost_s(event.at)
        self._simulation.apply(event)
        history.is_over = gang not in runs
        if was_running and (history.is_over or run.started_at is None):
            history.work_s += ran_s - cut_s
            history.cut_s = cut_s if history.is_over else 0.0

    def _end_unreported(self) -> None:
        """End gangs that a restarted Scheduler did not know, right before the restart."""
        for gang, run in self._unreported.items():
            history = self.found.histories.get(gang)
            if history is not None:
                history.work_s += _ran_s(run, self._restarted_at)
                history.is_over = True
                if run.started_at is None:
                    self.found.gone.setdefault(self._restarted_at, []).append(gang)
        self._unreported = {}


def is_left(gang: Gang) -> bool:
    """It holds an ended pod's resources, for a moment."""
    return gang.virtual_cluster == NO_ONE


def _ran_s(run: GangRun, at: float) -> float:
    return 0.0 if run.started_at is None else run.ran_s(at)
