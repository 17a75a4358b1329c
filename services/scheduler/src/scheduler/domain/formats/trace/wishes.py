"""What a row of a CSV job list wants for its pods, worked out once for rows that say the same."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from scheduler.domain.core.model import Kind
from scheduler.domain.formats.fields import MAX_COUNT, MAX_NUMBER, name_problem
from scheduler.domain.formats.gangs import MAX_PODS
from scheduler.domain.formats.trace.cells import CellError, figure, rounded_up, shown
from scheduler.domain.formats.trace.mapping import Amount, PodsMapping, Said

WISHES_REMEMBERED = 100_000
"""Rows that want something different; a year of a large cluster has some thousand."""

T = TypeVar("T", str, int)


@dataclass(slots=True)
class Wish:
    """``count`` pods of one kind. ``problems``: columns that can't be read, and why.
    ``is_dropped``: the row is to be left out.
    """

    name: str = ""
    count: int = 1
    kind: Kind = field(default_factory=Kind)
    problems: list[tuple[str, str]] = field(default_factory=list)
    is_dropped: bool = False


class Wishes:
    """Reads the pods of rows."""

    def __init__(self, mapping: PodsMapping) -> None:
        """``columns``: those that have to do with it."""
        self._mapping = mapping
        self.columns = tuple(dict.fromkeys(_columns(mapping)))
        self.of = lru_cache(WISHES_REMEMBERED)(self._of)
        """What a row wants whose cells in ``columns`` are these."""

    def _of(self, *texts: str) -> Wish:
        mapping = self._mapping
        cells = dict(zip(self.columns, texts, strict=True))
        wish = Wish()
        wish.count = _amount(mapping.count, cells, wish, 1, MAX_PODS)
        wish.name = self._name(cells, wish)
        wish.kind = Kind(
            gpus=_amount(mapping.gpus, cells, wish),
            gpu_types=tuple(self._types(cells, wish)),
            cpu=_amount(mapping.cpu, cells, wish),
            memory_mb=_amount(mapping.memory_mb, cells, wish, most=MAX_NUMBER),
        )
        return wish

    def _name(self, cells: dict[str, str], wish: Wish) -> str:
        said = self._mapping.name
        cell = cells[said.column] if said.column is not None else ""
        try:
            return word(said, cell, a_name) or ""
        except CellError as error:
            wish.problems.append((said.column or "", str(error)))
            return ""

    def _types(self, cells: dict[str, str], wish: Wish) -> Iterator[str]:
        said, separator = self._mapping.gpu_types, self._mapping.separator
        cell = cells[said.column] if said.column is not None else ""
        is_default = not cell
        text = cell or said.default or ""
        for part in text.split(separator) if separator is not None else (text,):
            if not (part := part.strip()):
                continue
            try:
                found = part if is_default else word(said, part, a_name)
            except CellError as error:
                wish.problems.append((said.column or "", str(error)))
            else:
                yield found or ""


def word(said: Said[T], cell: str, read: Callable[[str], T]) -> T | None:
    """What a cell says; None where it is empty and has no default. Raises CellError."""
    if said.column is None:
        return said.default
    if said.table is None:
        return read(cell) if cell else said.default
    found = said.table.get(cell, said.default)
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
    amount: Amount, cells: dict[str, str], wish: Wish, least: int = 0, most: int = MAX_COUNT
) -> int:
    """A figure of each pod; where it can't be read, that is noted, and it is ``least``."""
    if amount.column is None:
        return least if amount.default is None else amount.default
    total = amount.scale
    for column in (amount.column, amount.times):
        if column is None:
            continue
        if not cells[column]:
            if amount.default is None:
                wish.problems.append((column, "is empty; fill it, or give a default"))
            return least if amount.default is None else amount.default
        try:
            total *= figure(cells[column])
        except CellError as error:
            wish.problems.append((column, str(error)))
            return least
    if amount.is_of_gang:
        total /= wish.count
    is_whole = total.denominator == 1
    if not is_whole and amount.fractions == "refuse":
        mend = "say by `fractions` whether it counts as whole (up) or is left out (drop)"
        wish.problems.append((amount.column, f"is {float(total):.6g} for each pod; {mend}"))
    elif not is_whole and amount.fractions == "drop":
        wish.is_dropped = True
    elif not least <= total <= most:
        said = f"must be from {least} to {most}, not {float(total):.6g}"
        wish.problems.append((amount.column, said))
    else:
        return rounded_up(total)
    return least
