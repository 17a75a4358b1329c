"""The pods that a row of a CSV job list requests, computed once for equal rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from scheduler.domain.core.model import Kind
from scheduler.domain.formats.fields import MAX_COUNT, MAX_NUMBER, name_problem
from scheduler.domain.formats.gangs import MAX_PODS
from scheduler.domain.trace.cells import CellError, figure, rounded_up, shown
from scheduler.domain.trace.mapping import Amount, PodsMapping, Source

REQUESTS_REMEMBERED = 100_000
"""The most different requests; a year of a large cluster has some thousand."""

T = TypeVar("T", str, int)


@dataclass(slots=True)
class Request:
    """``count`` pods of one kind. ``problems``: columns that can't be read, and the reasons.
    ``is_dropped``: the row is left out.
    """

    name: str = ""
    count: int = 1
    kind: Kind = field(default_factory=Kind)
    problems: list[tuple[str, str]] = field(default_factory=list)
    is_dropped: bool = False


class Requests:
    """Reads the pods of rows."""

    def __init__(self, mapping: PodsMapping) -> None:
        """``columns``: those that are read here."""
        self._mapping = mapping
        self.columns = tuple(dict.fromkeys(_columns(mapping)))
        self.of = lru_cache(REQUESTS_REMEMBERED)(self._of)
        """The request of a row with these cells in ``columns``."""

    def _of(self, *texts: str) -> Request:
        mapping = self._mapping
        cells = dict(zip(self.columns, texts, strict=True))
        request = Request()
        request.count = _amount(mapping.count, cells, request, 1, MAX_PODS)
        request.name = self._name(cells, request)
        request.kind = Kind(
            gpus=_amount(mapping.gpus, cells, request),
            gpu_types=tuple(self._types(cells, request)),
            cpu=_amount(mapping.cpu, cells, request),
            memory_mb=_amount(mapping.memory_mb, cells, request, most=MAX_NUMBER),
        )
        return request

    def _name(self, cells: dict[str, str], request: Request) -> str:
        source = self._mapping.name
        cell = cells[source.column] if source.column is not None else ""
        try:
            return value_of(source, cell, a_name) or ""
        except CellError as error:
            request.problems.append((source.column or "", str(error)))
            return ""

    def _types(self, cells: dict[str, str], request: Request) -> Iterator[str]:
        source, separator = self._mapping.gpu_types, self._mapping.separator
        cell = cells[source.column] if source.column is not None else ""
        is_default = not cell
        text = cell or source.default or ""
        for part in text.split(separator) if separator is not None else (text,):
            if not (part := part.strip()):
                continue
            try:
                found = part if is_default else value_of(source, part, a_name)
            except CellError as error:
                request.problems.append((source.column or "", str(error)))
            else:
                yield found or ""


def value_of(source: Source[T], cell: str, read: Callable[[str], T]) -> T | None:
    """A cell's value; None if it is empty and has no default. Raises CellError."""
    if source.column is None:
        return source.default
    if source.table is None:
        return read(cell) if cell else source.default
    found = source.table.get(cell, source.default)
    if found is None and cell:
        raise CellError(f"is {shown(cell)}, which the table does not have; add it, or a default")
    return found


def a_name(cell: str) -> str:
    """A cell that is a name. Raises CellError."""
    problem = name_problem(cell)
    if problem is not None:
        raise CellError(problem)
    return cell


def _columns(mapping: PodsMapping) -> Iterator[str]:
    amounts = mapping.count, mapping.gpus, mapping.cpu, mapping.memory_mb
    found = [mapping.name.column, mapping.gpu_types.column]
    for amount in amounts:
        found += [amount.column, amount.times]
    return (column for column in found if column is not None)


def _amount(
    amount: Amount, cells: dict[str, str], request: Request, least: int = 0, most: int = MAX_COUNT
) -> int:
    """A number for each pod; if it can't be read, that is noted, and it is ``least``."""
    if amount.column is None:
        return least if amount.default is None else amount.default
    total = amount.scale
    for column in (amount.column, amount.times):
        if column is None:
            continue
        if not cells[column]:
            if amount.default is None:
                request.problems.append((column, "is empty; fill it, or give a default"))
            return least if amount.default is None else amount.default
        try:
            total *= figure(cells[column])
        except CellError as error:
            request.problems.append((column, str(error)))
            return least
    if amount.is_of_gang:
        total /= request.count
    is_whole = total.denominator == 1
    if not is_whole and amount.fractions == "refuse":
        fix = "set `fractions` to count it as whole (up) or to leave it out (drop)"
        request.problems.append((amount.column, f"is {float(total):.6g} for each pod; {fix}"))
    elif not is_whole and amount.fractions == "drop":
        request.is_dropped = True
    elif not least <= total <= most:
        source = f"must be from {least} to {most}, not {float(total):.6g}"
        request.problems.append((amount.column, source))
    else:
        return rounded_up(total)
    return least
