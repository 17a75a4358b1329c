"""A program that runs the core in virtual time: files in, decisions or their sums out, or the
effects of a change of the cluster.

`python -m scheduler.simulate CLUSTER EVENTS`; docs/simulator.md is its manual. Exit statuses: 0; 2
if a file or the command is wrong (stderr has all problems, as `file:line: field: message`); 9 if an
output can't be written; 130 after an interrupt.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from scheduler import order_policies
from scheduler.domain.core.config import Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.formats.cluster_change import ClusterChange, read_change
from scheduler.domain.formats.cluster_file import CLUSTER_FILE, ClusterFile, read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import MAX_LINE_BYTES, read_events
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError, finding_text
from scheduler.domain.formats.model import Event
from scheduler.domain.simulation.comparison import compare
from scheduler.domain.simulation.comparison_text import comparison_data, comparison_text
from scheduler.domain.simulation.figures import Data
from scheduler.domain.simulation.recording import Recording, Replay
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.side_by_side import SideBySide, WarnOnce
from scheduler.domain.simulation.summary import summary, summary_text
from scheduler.domain.simulation.workload import Workload, enforcing
from scheduler.file_program import (
    DONE,
    Progress,
    is_same,
    lines,
    name_of,
    opened,
    read_twice,
    refuse,
    run,
)


def main() -> None:
    """The program."""
    run(lambda: _simulate(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="muster simulate",
        description="Run the scheduler's core in virtual time; print its decisions as JSON lines.",
    )
    parser.add_argument("cluster", metavar="CLUSTER", help="the cluster, YAML or JSON")
    parser.add_argument(
        "events", metavar="EVENTS", help="what happens, JSON lines, plain or gzip; -: from stdin"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write decisions to FILE")
    parser.add_argument("--summary", action="store_true", help="print sums instead of decisions")
    parser.add_argument("--json", action="store_true", help="print the sums as JSON")
    parser.add_argument(
        "--what-if",
        metavar="FILE",
        help="print what FILE would change: another cluster, or only policy and virtualClusters",
    )
    arguments = parser.parse_args()
    if arguments.summary and arguments.what_if is not None:
        parser.error("--what-if has sums of its own: leave --summary out")
    if arguments.json and not arguments.summary and arguments.what_if is None:
        parser.error("--json goes with --summary or --what-if: decisions are JSON anyway")
    files = [arguments.cluster, arguments.events, arguments.what_if]
    if files.count("-") > 1:
        parser.error("only one file can be -: name a file for each other one")
    if any(is_same(arguments.output, path) for path in files if path is not None):
        parser.error("--output is a file that is read: name another one")
    return arguments


def _simulate(arguments: argparse.Namespace) -> int:
    """Decisions of one simulation, or of the changed one of two; then their sums."""
    warnings = _Warnings(name_of(arguments.cluster))
    with ExitStack() as stack:
        try:
            given = _input(arguments, warnings, stack)
        except FormatError as error:
            return refuse(warnings.file, error)
        warnings.file = name_of(arguments.events)
        try:
            _decide(arguments, given, stack)
        except FormatError as error:
            return refuse(warnings.file, error)
        finally:
            warnings.end()
    if given.pair is not None:
        comparison = compare(given.pair)
        _print(arguments, comparison_data(comparison), comparison_text(comparison))
    elif arguments.summary:
        content = summary(given.simulation.tally, given.simulation.runs)
        _print(arguments, content, summary_text(content))
    return DONE


@dataclass(slots=True)
class _Input:
    """The input of the simulation, from the events in ``path``. ``recording``: their recording,
    None: the events are used as they are.
    """

    simulation: Simulation
    path: str
    pair: SideBySide | None = None
    recording: Recording | None = None


def _input(arguments: argparse.Namespace, warnings: "_Warnings", stack: ExitStack) -> _Input:
    """Raises FormatError."""
    once = WarnOnce(warnings)
    file, simulation = _simulation(arguments.cluster, warnings, once)
    given = _Input(simulation, arguments.events)
    if arguments.what_if is None:
        return given
    warnings.file = name_of(arguments.what_if)
    change, changed = _changed(arguments, file, simulation, warnings, once)
    if not file.config.policy.is_enforced:
        warnings.file = name_of(arguments.events)
        given.path = read_twice(arguments.events, stack)
        before, changed = enforcing(simulation, once.again), enforcing(changed, once.after)
        given.recording = _replayed(given.path, warnings.file, simulation)
        simulation = before
    if arguments.output is None:  # nothing reads wait reasons
        simulation.core.is_explaining = changed.core.is_explaining = False
    given.pair = SideBySide(simulation, changed, change, once.after, given.recording)
    return given


def _replayed(path: str, name: str, simulation: Simulation) -> Recording:
    """A recording's workload. Raises FormatError."""
    with opened(path, name) as source:
        progress = Progress("events, of which run times are learnt", is_shown=True)
        events = read_events(lines(source, MAX_LINE_BYTES, progress))
        try:
            return Replay(simulation).run(events)
        except FormatError as error:
            raise _with_the_rest(error, events) from None


def _decide(arguments: argparse.Namespace, given: _Input, stack: ExitStack) -> None:
    """Raises FormatError."""
    source = stack.enter_context(opened(given.path, name_of(arguments.events)))
    out = _output(arguments, stack)
    progress = Progress("events", is_shown=out is not sys.stdout)
    read_ones = read_events(lines(source, MAX_LINE_BYTES, progress))
    events: Iterator[Event] = read_ones
    if given.recording is not None:
        events = Workload(given.recording).events(read_ones)
    try:
        for at, decision in (given.pair or given.simulation).run(events):
            if out is not None:
                out.write(decision_line(at, decision) + "\n")
    except FormatError as error:
        raise _with_the_rest(error, read_ones) from None


def _print(arguments: argparse.Namespace, content: Data, text: str) -> None:
    data = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(data if arguments.json else text)


def _simulation(path: str, warnings: "_Warnings", once: WarnOnce) -> tuple[ClusterFile, Simulation]:
    """The simulation of a cluster. Raises FormatError."""
    with opened(path) as source:
        file = read_cluster(source.read(CLUSTER_FILE.max_bytes + 1))
    try:
        policies = order_policies.load(order_policies.once(warnings.policy_failed))
        simulation = Simulation(file.config, once.before, policies)
    except ConfigError as error:
        raise FormatError(file.placed(error.findings)) from None
    for finding in file.placed(simulation.warnings):
        warnings(finding)
    return file, simulation


def _changed(
    arguments: argparse.Namespace,
    cluster: ClusterFile,
    before: Simulation,
    warnings: "_Warnings",
    once: WarnOnce,
) -> tuple[ClusterChange, Simulation]:
    """The change, and the simulation of the changed cluster. Raises FormatError."""
    with opened(arguments.what_if) as source:
        data = source.read(CLUSTER_FILE.max_bytes + 1)
    file = read_change(data, cluster.config)
    try:
        simulation = Simulation(file.changed.config, once.after, before.core.policies)
    except ConfigError as error:
        raise FormatError(file.changed.placed(error.findings)) from None
    for finding in simulation.warnings:
        if file.change.is_about(finding.path):
            warnings(*file.changed.placed([finding]))
        elif finding not in before.warnings:  # of a pin without an owner after the change
            warnings.report(name_of(arguments.cluster), *cluster.placed([finding]))
    return file.change, simulation


def _with_the_rest(error: FormatError, events: Iterator[Event]) -> FormatError:
    """The problem, and further format errors in the events that follow."""
    try:
        for _ in events:
            pass
    except FormatError as rest:
        return FormatError([*error.findings, *rest.findings], error.more + rest.more)
    return error


def _output(arguments: argparse.Namespace, stack: ExitStack) -> TextIO | None:
    """The output of decisions; None: nowhere."""
    if arguments.output is None:
        has_sums = arguments.summary or arguments.what_if is not None
        return None if has_sums else sys.stdout
    path: Path = arguments.output
    return stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))


class _Warnings:
    """Prints parts without effect, up to a bound; ``file``: the file with them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._reported = 0

    def __call__(self, finding: Finding) -> None:
        """Print one."""
        self.report(self.file, finding)

    def report(self, file: str, finding: Finding) -> None:
        """Print one about another file."""
        self._reported += 1
        if self._reported <= MAX_FINDINGS:
            sys.stderr.write(f"{finding_text(file, finding, 'warning: ')}\n")

    def policy_failed(self, name: str, how: str) -> None:
        """A site's policy of the order has failed."""
        self(Finding("", order_policies.failure_text(name, how)))

    def end(self) -> None:
        """Print how many were left out."""
        if self._reported > MAX_FINDINGS:
            sys.stderr.write(f"and {self._reported - MAX_FINDINGS} warnings more\n")


if __name__ == "__main__":
    main()
