"""A mapping as values: the columns of a CSV job list for the fields of a gang."""

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, TypeVar

from scheduler.domain.core.config import Finding
from scheduler.domain.formats.fields import nearest
from scheduler.domain.trace.cells import Clock

T = TypeVar("T", str, int)


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """A text of a row: of ``column``, translated by ``table``; ``default`` if the cell is empty or
    not in the table. ``column`` None: always ``default``.
    """

    column: str | None = None
    table: "dict[str, T] | None" = None
    default: T | None = None


@dataclass(frozen=True, slots=True)
class Amount:
    """A whole number for each pod: ``column`` times ``times`` times ``scale``, rounded up, and
    ``default`` if a cell is empty. ``column`` None: always ``default``.

    ``is_of_gang``: the column has it for all pods together. ``fractions``: how to treat fractional
    numbers: ``up``, ``drop`` (the row is left out) or ``refuse``.
    """

    column: str | None = None
    times: str | None = None
    scale: Fraction = Fraction(1)
    default: int | None = None
    is_of_gang: bool = False
    fractions: str = "up"


@dataclass(frozen=True, slots=True)
class Run:
    """A gang's run time: ``column``, or from ``start`` to ``end``. ``is_dropped``: rows without a
    run time above 0 are left out.
    """

    column: str | None = None
    scale: Fraction = Fraction(1)
    start: str | None = None
    end: str | None = None
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class Duration:
    """A gang's expected duration: ``column``, or its run times ``factor``."""

    column: str | None = None
    scale: Fraction = Fraction(1)
    factor: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """The selected rows: those whose ``column`` is one of ``texts``, or (not ``is_in``) none."""

    column: str
    texts: frozenset[str]
    is_in: bool


@dataclass(frozen=True, slots=True)
class PodsMapping:
    """A row's columns for its pods. ``separator``: between several GPU types."""

    name: Source[str]
    count: Amount
    gpus: Amount
    gpu_types: Source[str]
    separator: str | None
    cpu: Amount
    memory_mb: Amount


@dataclass(frozen=True, slots=True)
class Use:
    """A column that the mapping names, and where."""

    column: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping. ``columns``: of a list without a header line. ``empty``: cells without a value.

    Rows submitted before ``first_ms`` or at ``end_ms`` and later are left out; ``first_ms`` is
    second 0, None: when the first gang was submitted. ``is_joined``: rows of one id are one gang.
    """

    id: str
    job: Source[str]
    user: Source[str]
    virtual_cluster: Source[str]
    priority: Source[int]
    submitted: str
    run: Run
    expected: Duration
    limit: Duration
    pods: PodsMapping
    clock: Clock
    first_ms: int | None = None
    end_ms: int | None = None
    is_joined: bool = False
    keep: tuple[Keep, ...] = ()
    empty: frozenset[str] = frozenset()
    columns: tuple[str, ...] | None = None
    uses: tuple[Use, ...] = field(default=(), compare=False)

    def is_outside(self, submitted_ms: int) -> bool:
        """Whether a gang that was submitted then is left out."""
        return (self.first_ms is not None and submitted_ms < self.first_ms) or (
            self.end_ms is not None and submitted_ms >= self.end_ms
        )

    def absent(self, header: Collection[str]) -> list[Finding]:
        """Columns that are named here and that a list with this header lacks."""
        return [
            Finding(use.path, _absence(use.column, header), use.line)
            for use in self.uses
            if use.column not in header
        ]


def _absence(column: str, header: Collection[str]) -> str:
    near = nearest(column, header)
    fix = f"there are {', '.join(header)[:400]!a}" if near is None else f"is it {near!a}?"
    return f"names {column!a}, which is no column of the list; {fix}"
