"""A program that converts CSV job lists of public traces to events for the simulator.

`python -m scheduler.import_trace MAPPING CSV`; docs/traces.md is its manual. Its exit statuses are
those of `scheduler.simulate`. It writes only after it has read and checked everything.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from scheduler.domain.formats.fields import FormatError
from scheduler.domain.trace.csv_rows import MAX_ROW_BYTES, Rows
from scheduler.domain.trace.gangs import Imported, import_rows
from scheduler.domain.trace.mapping import Mapping
from scheduler.domain.trace.mapping_file import MAPPING_FILE, read_mapping
from scheduler.file_program import (
    DONE,
    WRONG_INPUT,
    Progress,
    is_same,
    lines,
    name_of,
    opened,
    refuse,
    run,
)


def main() -> None:
    """The program."""
    run(lambda: _import(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="muster import",
        description="Convert a CSV job list to events for the simulator, with a mapping.",
    )
    parser.add_argument("mapping", metavar="MAPPING", help="which column is what, YAML or JSON")
    parser.add_argument("csv", metavar="CSV", help="the list, plain or gzip; -: from stdin")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the events to FILE")
    arguments = parser.parse_args()
    if arguments.mapping == arguments.csv == "-":
        parser.error("MAPPING and CSV can't both be -: name a file for one of them")
    if any(is_same(arguments.output, path) for path in (arguments.mapping, arguments.csv)):
        parser.error("--output is a file that is read: name another one")
    return arguments


def _import(arguments: argparse.Namespace) -> int:
    mapping = _mapping(arguments.mapping)
    imported = None if mapping is None else _imported(arguments, mapping)
    if imported is None:
        return WRONG_INPUT
    with ExitStack() as stack:
        out = sys.stdout
        if arguments.output is not None:
            path: Path = arguments.output
            out = stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        for line in imported.lines():
            out.write(line + "\n")
    sys.stderr.write(f"{name_of(arguments.csv)}: {imported.summary()}\n")
    return DONE


def _mapping(path: str) -> Mapping | None:
    """A mapping; None if the file is wrong, which is printed."""
    try:
        with opened(path) as source:
            return read_mapping(source.read(MAPPING_FILE.max_bytes + 1))
    except FormatError as error:
        refuse(name_of(path), error)
        return None


def _imported(arguments: argparse.Namespace, mapping: Mapping) -> Imported | None:
    """The gangs of a list; None if it is wrong, which is printed."""
    with opened(arguments.csv) as source:
        progress = Progress("lines", is_shown=True)
        try:
            rows = Rows(lines(source, MAX_ROW_BYTES, progress), mapping.columns)
            absent = mapping.absent(rows.header)
            if not absent:
                return import_rows(rows, mapping)
            refuse(name_of(arguments.mapping), FormatError(absent))
        except FormatError as error:
            refuse(name_of(arguments.csv), error)
        finally:
            progress.end()
    return None


if __name__ == "__main__":
    main()
