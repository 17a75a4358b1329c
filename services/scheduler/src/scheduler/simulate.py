"""The core in virtual time, as a program: files in, decisions or their sums out.

`python -m scheduler.simulate CLUSTER EVENTS`; docs/simulator.md is its manual. It ends with 0; 2
where a file or the command is wrong (all that is, on stderr, as `file:line: field: message`); 9
where something can't be written; 130 where it was interrupted.
"""

import argparse
import gzip
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

DONE, WRONG_INPUT, FAILED, INTERRUPTED = 0, 2, 9, 130

GZIP = b"\x1f\x8b"
PROGRESS_S = 2.0
"""Seconds before progress is shown, and between two times."""

Source = io.BufferedReader | gzip.GzipFile


class InputError(Exception):
    """A file can't be read."""


def main() -> None:
    """The program."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        code = _simulate(_arguments())
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output is gone; Python would try once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        code = WRONG_INPUT
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        code = FAILED
    sys.exit(code)


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
    if any(_is_same(arguments.output, read) for read in (arguments.cluster, arguments.events)):
        parser.error("--output is a file that is read: name another one")
    return arguments


def _is_same(output: Path | None, read: str) -> bool:
    """Whether a file that is read would be written over."""
    try:
        return output is not None and read != "-" and output.is_file() and output.samefile(read)
    except OSError:  # it is told where it is opened
        return False


def _simulate(arguments: argparse.Namespace) -> int:
    warnings = _Warnings(arguments.cluster)
    simulation = _simulation(arguments.cluster, warnings)
    if simulation is None:
        return WRONG_INPUT
    warnings.file = "stdin" if arguments.events == "-" else arguments.events
    with ExitStack() as opened:
        source = opened.enter_context(_opened(arguments.events))
        out = _output(arguments, opened)
        events = read_events(_lines(source, _Progress(is_shown=out is not sys.stdout)))
        try:
            for at, decision in simulation.run(events):
                if out is not None:
                    out.write(decision_line(at, decision) + "\n")
        except FormatError as error:
            return _refuse(warnings.file, _with_the_rest(error, events))
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
        with _opened(path) as source:
            file = read_cluster(_read(source, CLUSTER_FILE.max_bytes + 1))
        try:
            simulation = Simulation(file.config, warn)
        except ConfigError as error:
            raise FormatError(file.placed(error.findings)) from None
    except FormatError as error:
        _refuse(path, error)
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


# Files.


@contextmanager
def _opened(path: str) -> Iterator[Source]:
    """A file or stdin, unpacked where it is packed."""
    with ExitStack() as opened:
        try:
            if path == "-":
                source = opened.enter_context(os.fdopen(0, "rb", closefd=False))
            else:
                source = opened.enter_context(Path(path).open("rb"))
            is_packed = source.peek(len(GZIP))[: len(GZIP)] == GZIP
        except OSError as error:
            raise InputError(str(error)) from None
        yield opened.enter_context(gzip.open(source)) if is_packed else source


def _read(source: Source, most: int, *, is_line: bool = False) -> bytes:
    """At most so many bytes. Raises InputError."""
    try:
        return source.readline(most) if is_line else source.read(most)
    except (OSError, EOFError) as error:  # EOFError: packed, and cut off
        raise InputError(f"{getattr(source, 'name', 'stdin')}: {error}") from None


def _lines(source: Source, progress: "_Progress") -> Iterator[bytes]:
    """Lines; of one that is too long its beginning, which is too long too."""
    while line := _read(source, MAX_LINE_BYTES + 1, is_line=True):
        progress.step()
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = _read(source, MAX_LINE_BYTES + 1, is_line=True)
    progress.end()


def _output(arguments: argparse.Namespace, opened: ExitStack) -> TextIO | None:
    """Where decisions go; None: nowhere."""
    if arguments.output is None:
        return None if arguments.summary else sys.stdout
    path: Path = arguments.output
    return opened.enter_context(path.open("w", encoding="utf-8", newline="\n"))


# What is said on stderr.


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


class _Progress:
    """How many events were read, on a terminal, where it takes long."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown and sys.stderr.isatty()
        self._count = 0
        self._was_shown = False
        self._next_at = time.monotonic() + PROGRESS_S

    def step(self) -> None:
        """One more."""
        self._count += 1
        if self._is_shown and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + PROGRESS_S
            self._was_shown = True
            sys.stderr.write(f"\r{self._count:,} events")
            sys.stderr.flush()

    def end(self) -> None:
        """All are read; what was shown goes away."""
        if self._was_shown:
            sys.stderr.write("\r\x1b[K")


def _refuse(file: str, error: FormatError) -> int:
    said = [told(file, finding) for finding in error.findings]
    if error.more:
        said.append(f"and {error.more} more")
    sys.stderr.write("\n".join(said) + "\n")
    return WRONG_INPUT


if __name__ == "__main__":
    main()
