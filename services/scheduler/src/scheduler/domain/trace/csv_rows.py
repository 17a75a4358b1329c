"""CSV, row by row, within bounds: a row's problem is reported, and the next row is read."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator

from scheduler.domain.core.config import Finding
from scheduler.domain.formats.fields import FormatError, name_problem
from scheduler.domain.trace.cells import shown

MAX_ROW_BYTES = 64 * 1024
"""The most bytes of a row, with all lines of its cells; also the most of a cell."""

MAX_COLUMNS = 1_000
"""The most columns of a list."""

_BOM = b"\xef\xbb\xbf"


class Row:
    """A row of a list: its cells by column, without spaces around them."""

    __slots__ = ("_cells", "_places", "line")

    def __init__(self, line: int, cells: list[str], places: dict[str, int]) -> None:
        self.line = line
        self._cells = cells
        self._places = places

    def cell(self, column: str) -> str:
        """The text of a cell."""
        return self._cells[self._places[column]].strip()


class _WrongRowError(Exception):
    """A row can't be read; the text is its problem."""


class Rows:
    """The rows of a list after its header."""

    def __init__(self, lines: Iterable[bytes], columns: tuple[str, ...] | None) -> None:
        """``columns``: of a list without a header; None: the first row has them. Raises
        FormatError.
        """
        self._text = _Text(lines)
        self._reader = csv.reader(self._text, skipinitialspace=True, strict=True)
        self.header = self._header() if columns is None else columns
        self._places = {column: place for place, column in enumerate(self.header)}

    def __iter__(self) -> Iterator[Row | Finding]:
        """Each row, or its problem."""
        many = len(self.header)
        while (found := self._next()) is not None:
            if isinstance(found, Finding):
                yield found
                continue
            line, cells = found
            if len(cells) == many:
                yield Row(line, cells, self._places)
            elif cells and (len(cells) > 1 or cells[0].strip()):  # else an empty line
                yield Finding("", f"has {len(cells)} cells, and there are {many} columns", line)

    def _header(self) -> tuple[str, ...]:
        found = self._next()
        while isinstance(found, tuple) and not any(cell.strip() for cell in found[1]):
            found = self._next()
        if found is None:
            raise FormatError([Finding("", "is empty; it must begin with a line of columns", 1)])
        if isinstance(found, Finding):
            raise FormatError([found])
        line, cells = found
        header = tuple(cell.strip() for cell in cells)
        findings = [Finding("", message, line) for message in _header_problems(header)]
        if findings:
            raise FormatError(findings)
        return header

    def _next(self) -> tuple[int, list[str]] | Finding | None:
        """The next row's first line and cells, or its problem; None: there is none."""
        self._text.begin_row()
        try:
            cells = next(self._reader)
        except StopIteration:
            return None
        except csv.Error as error:
            return Finding("", f"is not CSV: {error}", self._text.first)
        except _WrongRowError as error:
            return Finding("", str(error), self._text.first)
        return self._text.first, cells


def _header_problems(header: tuple[str, ...]) -> Iterator[str]:
    if len(header) > MAX_COLUMNS:
        yield f"has {len(header)} columns; {MAX_COLUMNS} are the most"
        return
    for column, count in Counter(header).items():
        if column and count > 1:
            yield f"has the column {shown(column)} {count} times; keep one"
        problem = name_problem(column) if column else None  # a column without a name is not used
        if problem is not None:
            yield f"has the column {shown(column)}, which {problem}"


class _Text:
    """Lines for the csv module, for one row no more than its bound."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._number = 0
        self._bytes = 0
        self.first = 1

    def begin_row(self) -> None:
        """Begin a row with the next line."""
        self.first = self._number + 1
        self._bytes = 0

    def __iter__(self) -> "_Text":
        return self

    def __next__(self) -> str:
        data = next(self._lines)
        self._number += 1
        self._bytes += len(data)
        if self._bytes > MAX_ROW_BYTES:
            raise _WrongRowError(
                f"is longer than {MAX_ROW_BYTES} bytes, the most in a row; is a quote left open?"
            )
        if self._number == 1:
            data = data.removeprefix(_BOM)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            where = f"byte {error.start + 1} of line {self._number}"
            raise _WrongRowError(f"is not UTF-8 from {where} on; save the file as UTF-8") from None
