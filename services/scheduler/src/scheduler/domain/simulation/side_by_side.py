"""Two simulations over one reading of the same events: of a cluster, and of a changed one.

Both receive each event before the next one is read. For each gang some numbers are kept.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from scheduler.domain.core.config import Finding
from scheduler.domain.core.model import Decision, Gang, Placed, Preempted, Refused
from scheduler.domain.formats.cluster_change import ClusterChange
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.formats.model import (
    ClusterChanged,
    Event,
    GangReleased,
    GangRequested,
    GangRestored,
    GangWithdrawn,
    PodReleased,
    SchedulerRestarted,
)
from scheduler.domain.simulation.nodes import Warn
from scheduler.domain.simulation.recording import Recording
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.tally import GroupName, group_name

NEVER = math.nan

SAME_S = 1.0
"""A difference below this many seconds counts as none."""

NEAR_S = 60.0
"""A start within so many seconds of the recorded one counts as the same."""

REMEMBERED = 1000
"""The least ids of ended gangs before they are forgotten."""


class WarnOnce:
    """Warnings of both simulations are given once; those of the second alone have a mark."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._noted: set[Finding] = set()
        self._line = 0

    def before(self, finding: Finding) -> None:
        """A warning of the first one, which receives each event first."""
        self._note(finding)
        self._warn(finding)

    def _note(self, finding: Finding) -> None:
        if finding.line != self._line:
            self._line = finding.line
            self._noted.clear()
        self._noted.add(finding)

    def again(self, finding: Finding) -> None:
        """The same, if an earlier reading of the events has given it."""
        self._note(finding)

    def after(self, finding: Finding) -> None:
        """A warning of the second one."""
        if finding not in self._noted:
            self._warn(_with_change(finding))


def _with_change(finding: Finding) -> Finding:
    return replace(finding, message=f"with the change: {finding.message}")


@dataclass(slots=True)
class Side:
    """One of the two, and the results of its gangs, by number. ``starts``: the first start of each;
    ``waits_s``: its total wait. NEVER if it did not start, or never waited.
    """

    simulation: Simulation
    starts: "array[float]" = field(default_factory=lambda: array("d"))
    waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    preempted: "Counter[int]" = field(default_factory=Counter)
    refused: set[int] = field(default_factory=set)

    def add(self) -> None:
        """One gang more."""
        self.starts.append(NEVER)
        self.waits_s.append(NEVER)

    def start(self, number: int, at: float) -> None:
        """A gang runs."""
        if math.isnan(self.starts[number]):
            self.starts[number] = at

    def wait(self, number: int, waited_s: float) -> None:
        """Add one more wait of a gang."""
        before_s = self.waits_s[number]
        self.waits_s[number] = waited_s if math.isnan(before_s) else before_s + waited_s

    def follow(self, at: float, decision: Decision, number: int) -> None:
        """A decision about a gang."""
        run = self.simulation.runs.get(decision.gang)
        match decision:
            case Placed() if run is not None:
                self.start(number, at)
                self.wait(number, at - run.waits_since)
            case Preempted():
                self.preempted[number] += 1
            case Refused() if run is None:
                self.refused.add(number)
            case _:
                pass


@dataclass(slots=True)
class AsRecorded:
    """How close the first of two simulations is to its recording. ``started``: gangs that start in
    both; ``near``: those within `NEAR_S`.
    """

    recording: Recording
    started: int = 0
    near: int = 0

    def start(self, gang: str, at: float) -> None:
        """A gang starts to run."""
        history = self.recording.histories.get(gang)
        if history is not None and history.started_at is not None:
            self.started += 1
            self.near += abs(at - history.started_at) <= NEAR_S


class SideBySide:
    """``before`` and ``after`` are new simulations of a cluster, and of the same with ``change``.
    ``warn`` receives events that are impossible in the second one; they are left out there, and
    ``ignored`` counts them. ``gpus_used``: the share of all GPUs that each uses over the same time.

    Gangs are numbered as they begin; ``gangs``: their number. ``groups`` and ``users``: names;
    ``group_of`` and ``user_of``: each gang's entry. ``shorter_s``: by number, how much shorter an
    event made a gang's run. ``as_recorded``: for the workload of a ``recording``, else None.
    """

    def __init__(
        self,
        before: Simulation,
        after: Simulation,
        change: ClusterChange,
        warn: Warn,
        recording: Recording | None = None,
    ) -> None:
        self.before, self.after = Side(before), Side(after)
        self.groups: dict[GroupName, int] = {}
        self.users: dict[str, int] = {}
        self.group_of, self.user_of = array("l"), array("l")
        self.shorter_s: dict[int, float] = {}
        self.ignored = 0
        self.gpus_used: tuple[float | None, float | None] = (None, None)
        self.as_recorded = None if recording is None else AsRecorded(recording)
        self._change = change
        self._warn = warn
        self._numbers: dict[str, int] = {}
        self._reported_anew: set[str] = set()

    @property
    def gangs(self) -> int:
        """The number of gangs."""
        return len(self.group_of)

    def run(self, events: Iterable[Event]) -> Iterator[tuple[float, Decision]]:
        """The changed cluster's decisions. Raises FormatError for an impossible event."""
        for event in events:
            self._follow(self.before, self.before.simulation.reach(event))
            yield from self._reported(self.after, self.after.simulation.reach(event))
            self._apply(event)
        self._measure_use()
        self._follow(self.before, self.before.simulation.end())
        yield from self._reported(self.after, self.after.simulation.end())
        if None in self.gpus_used:
            self._measure_use()

    def _measure_use(self) -> None:
        """From the first event to the last. If all events are at one time: until nothing happens
        any more in either.
        """
        before, after = (side.simulation.tally for side in (self.before, self.after))
        until = max(before.now, after.now)
        self.gpus_used = before.share("used", "all", until), after.share("used", "all", until)

    def _follow(self, side: Side, decisions: Iterator[tuple[float, Decision]]) -> None:
        for _ in self._reported(side, decisions):
            pass

    def _reported(
        self, side: Side, decisions: Iterator[tuple[float, Decision]]
    ) -> Iterator[tuple[float, Decision]]:
        for at, decision in decisions:
            number = self._numbers.get(decision.gang)
            if number is not None:
                if side is self.before and isinstance(decision, Placed):
                    self._compare(decision.gang, number, at)
                side.follow(at, decision, number)
            yield at, decision

    def _compare(self, gang: str, number: int, at: float) -> None:
        if self.as_recorded is not None and math.isnan(self.before.starts[number]):
            self.as_recorded.start(gang, at)

    # Events.

    def _apply(self, event: Event) -> None:
        match event:
            case GangReleased() | GangWithdrawn() | PodReleased():
                self._note_shorter(event)
            case GangRequested() | GangRestored():
                self._make_way(event)
            case SchedulerRestarted():
                self._note_waits(event.at)
        self.before.simulation.apply(event)
        is_taken = self._apply_after(event)
        if isinstance(event, GangRequested | GangRestored):
            if is_taken:
                self._begin(event)
            else:
                self._numbers.pop(event.file.gang.id, None)

    def _apply_after(self, event: Event) -> bool:
        """The event in the changed cluster; returns whether it is possible."""
        if isinstance(event, ClusterChanged):
            self._apply_change(event)
            return True
        try:
            self.after.simulation.apply(event)
        except FormatError as error:
            for each in error.findings:
                self._leave_out(Finding(each.path, f"{each.message}: ignored", each.line))
            return False
        return True

    def _apply_change(self, event: ClusterChanged) -> None:
        if self._change.whole is not None:
            message = "is ignored: the changed cluster is a whole one, and stays as it is"
            self._leave_out(Finding("cluster", message, event.line))
            return
        try:
            self.after.simulation.apply(replace(event, config=self._change.of(event.config)))
        except FormatError as error:
            findings = [_with_change(each) for each in error.findings]
            raise FormatError(findings, error.more) from None

    def _leave_out(self, finding: Finding) -> None:
        self.ignored += 1
        self._warn(finding)

    def _make_way(self, event: GangRequested | GangRestored) -> None:
        """A gang's id is used again; in the changed cluster its first gang is not over yet."""
        gang, after = event.file.gang.id, self.after.simulation
        if gang in after.runs and gang not in self.before.simulation.runs:
            after.apply(GangReleased(event.at, gang, line=event.line))
            message = f"is {gang!a}, which would still be there: that one is released"
            self._leave_out(Finding("gang.id", message, event.line))

    # Gangs.

    def _begin(self, event: GangRequested | GangRestored) -> None:
        gang = event.file.gang
        is_known = gang.id in self._reported_anew and gang.id in self._numbers
        if is_known:
            self._reported_anew.remove(gang.id)
        else:
            self._number(gang)
        number = self._numbers[gang.id]
        for side in (self.before, self.after):
            started_at = side.simulation.runs[gang.id].started_at
            if started_at is not None:
                side.start(number, event.at if is_known else started_at)

    def _number(self, gang: Gang) -> None:
        alive_gangs = (self.before.simulation.runs, self.after.simulation.runs, self._reported_anew)
        if len(self._numbers) > REMEMBERED + 2 * sum(map(len, alive_gangs)):
            alive = set[str]().union(*alive_gangs)
            self._numbers = {name: each for name, each in self._numbers.items() if name in alive}
        self._numbers[gang.id] = self.gangs
        self.group_of.append(self.groups.setdefault(group_name(gang), len(self.groups)))
        self.user_of.append(self.users.setdefault(gang.user, len(self.users)))
        self.before.add()
        self.after.add()

    def _note_waits(self, at: float) -> None:
        """All gangs are forgotten, and restored by events: those are the same gangs."""
        for side in (self.before, self.after):
            for gang, run in side.simulation.runs.items():
                if run.started_at is None and gang in self._numbers:
                    side.wait(self._numbers[gang], at - run.waits_since)
        self._reported_anew = set(self.before.simulation.runs)

    def _note_shorter(self, event: GangReleased | GangWithdrawn | PodReleased) -> None:
        """An event ends a gang at its time, also before its run time is over."""
        run = self.before.simulation.runs.get(event.gang)
        other = self.after.simulation.runs.get(event.gang)
        number = self._numbers.get(event.gang)
        if run is None or run.started_at is None or other is None or number is None:
            return
        if isinstance(event, PodReleased) and not run.is_last(event.pod):
            return
        ran_s = 0.0 if other.started_at is None else event.at - other.started_at
        shorter_s = event.at - run.started_at - ran_s
        if shorter_s >= SAME_S:
            self.shorter_s[number] = shorter_s
