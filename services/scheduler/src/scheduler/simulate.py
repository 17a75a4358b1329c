"""The core in virtual time, as a program: files in, decisions or their sums out.

`python -m scheduler.simulate CLUSTER EVENTS`; docs/simulator.md is its manual. It ends with 0; 2
where a file or the command is wrong (all that is, on stderr, as `file:line: field: message`); 9
where something can't be written; 130 where it was interrupted.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from scheduler.domain.core.config import Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.formats.cluster_file import CLUSTER_FILE, read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import MAX_LINE_BYTES, read_events
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError, told
from scheduler.domain.formats.model import Event
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.summary import summary, summary_text
from scheduler.file_program import (
    DONE,
    WRONG_INPUT,
    Progress,
    is_same,
    lines,
    name_of,
    opened,
    read,
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
    arguments = parser.parse_args()
    if arguments.json and not arguments.summary:
        parser.error("--json goes with --summary: decisions are JSON anyway")
    if arguments.cluster == arguments.events == "-":
        parser.error("CLUSTER and EVENTS can't both be -: name a file for one of them")
    if any(is_same(arguments.output, path) for path in (arguments.cluster, arguments.events)):
        parser.error("--output is a file that is read: name another one")
    return arguments


def _simulate(arguments: argparse.Namespace) -> int:
    warnings = _Warnings(arguments.cluster)
    simulation = _simulation(arguments.cluster, warnings)
    if simulation is None:
        return WRONG_INPUT
    warnings.file = name_of(arguments.events)
    with ExitStack() as stack:
        source = stack.enter_context(opened(arguments.events))
        out = _output(arguments, stack)
        progress = Progress("events", is_shown=out is not sys.stdout)
        events = read_events(lines(source, MAX_LINE_BYTES, progress))
        try:
            for at, decision in simulation.run(events):
                if out is not None:
                    out.write(decision_line(at, decision) + "\n")
        except FormatError as error:
            return refuse(warnings.file, _with_the_rest(error, events))
        finally:
            warnings.end()
    if arguments.summary:
        content = summary(simulation.tally, simulation.runs)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        sys.stdout.write(text if arguments.json else summary_text(content))
    return DONE


def _simulation(path: str, warn: "_Warnings") -> Simulation | None:
    """The simulation of a cluster; None where the file is wrong, which is told."""
    try:
        with opened(path) as source:
            file = read_cluster(read(source, CLUSTER_FILE.max_bytes + 1))
        try:
            simulation = Simulation(file.config, warn)
        except ConfigError as error:
            raise FormatError(file.placed(error.findings)) from None
    except FormatError as error:
        refuse(path, error)
        return None
    for finding in file.placed(simulation.warnings):
        warn(finding)
    return simulation


def _with_the_rest(error: FormatError, events: Iterator[Event]) -> FormatError:
    """What is wrong, and what else is wrong with the form of the events that follow."""
    try:
        for _ in events:
            pass
    except FormatError as rest:
        return FormatError([*error.findings, *rest.findings], error.more + rest.more)
    return error


def _output(arguments: argparse.Namespace, stack: ExitStack) -> TextIO | None:
    """Where decisions go; None: nowhere."""
    if arguments.output is None:
        return None if arguments.summary else sys.stdout
    path: Path = arguments.output
    return stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))


class _Warnings:
    """Says what has no effect, up to a bound; ``file`` is where it stands."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._said = 0

    def __call__(self, finding: Finding) -> None:
        """Say one."""
        self._said += 1
        if self._said <= MAX_FINDINGS:
            sys.stderr.write(f"{told(self.file, finding, 'warning: ')}\n")

    def end(self) -> None:
        """Say how many were not said."""
        if self._said > MAX_FINDINGS:
            sys.stderr.write(f"and {self._said - MAX_FINDINGS} warnings more\n")


if __name__ == "__main__":
    main()
