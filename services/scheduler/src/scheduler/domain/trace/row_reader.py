"""The request in a row of a CSV job list, by the mapping; all problems of the row are reported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from muster.protocol.problems import join_path

from scheduler.domain.core.config import Finding
from scheduler.domain.core.model import HIGHEST_PRIORITY, OPPORTUNISTIC
from scheduler.domain.formats.fields import count_problem
from scheduler.domain.trace.cells import CellError, duration_ms, figure, shown
from scheduler.domain.trace.csv_rows import Row
from scheduler.domain.trace.mapping import Duration, Mapping, Source
from scheduler.domain.trace.requests import Request, Requests, a_name, value_of

BY_KEEP, BY_TIME, BY_RUN, BY_GPUS = "keep", "time", "missing run", "fractions of GPUs"
"""The reasons why rows are left out."""

T = TypeVar("T", str, int)


@dataclass(frozen=True, slots=True)
class Owner:
    """The values that all rows of a gang share. ``job`` empty: the gang's id."""

    job: str
    user: str
    virtual_cluster: str
    priority: int


@dataclass(slots=True)
class RowRequest:
    """A row's request. ``run_ms`` None: it is unknown, and the row is left out.

    ``expected_ms`` and ``limit_ms``: if columns have them.
    """

    id: str
    owner: Owner
    submitted_ms: int
    run_ms: int | None
    expected_ms: int | None
    limit_ms: int | None
    request: Request

    @property
    def dropped(self) -> str | None:
        """The reason why it is left out, if it is."""
        if self.run_ms is None:
            return BY_RUN
        return BY_GPUS if self.request.is_dropped else None


class RowReader:
    """Reads rows. ``note`` receives each problem."""

    def __init__(self, mapping: Mapping, note: Callable[[Finding], None]) -> None:
        self._mapping = mapping
        self._note = note
        self._requests = Requests(mapping.pods)
        self._owners: dict[Owner, Owner] = {}
        self._id: Source[str] = Source(mapping.id)
        self._count = 0

    def left_out(self, row: Row) -> str | None:
        """The reason why a row is skipped; None: it is not."""
        mapping = self._mapping
        for keep in mapping.keep:
            if (self._cell(row, keep.column) in keep.texts) is not keep.is_in:
                return BY_KEEP
        if mapping.is_joined or (mapping.first_ms is None and mapping.end_ms is None):
            return None  # of a gang's rows the first to be submitted has its time
        try:
            submitted_ms = mapping.clock.ms(self._cell(row, mapping.submitted))
        except CellError:  # reading the row reports it
            return None
        return BY_TIME if mapping.is_outside(submitted_ms) else None

    def read(self, row: Row) -> RowRequest | None:
        """A row's request; None if something is wrong."""
        mapping, requests = self._mapping, self._requests
        before = self._count
        run_ms = self._run(row)
        requested = RowRequest(
            self._source(row, self._id, a_name) or "",
            self._read_owner(row),
            self._submitted(row, is_dropped=run_ms is None) or 0,
            run_ms,
            self._duration(row, mapping.expected),
            self._duration(row, mapping.limit),
            requests.of(*[self._cell(row, column) for column in requests.columns]),
        )
        for column, problem in requested.request.problems:
            self.wrong(row, column, problem)
        return requested if self._count == before else None

    def wrong(self, row: Row, column: str, message: str) -> None:
        """Report a problem of a cell."""
        self._count += 1
        self._note(Finding(join_path((column,)), message, row.line))

    def _cell(self, row: Row, column: str) -> str:
        text = row.cell(column)
        return "" if text in self._mapping.empty else text

    def _source(self, row: Row, source: Source[T], read: Callable[[str], T]) -> T | None:
        """A row's value; None if it is wrong."""
        if source.column is None:
            return source.default
        try:
            found = value_of(source, self._cell(row, source.column), read)
        except CellError as error:
            self.wrong(row, source.column, str(error))
            return None
        if found is None:
            self.wrong(row, source.column, "is empty; fill it, or give a default")
        return found

    def _read_owner(self, row: Row) -> Owner:
        mapping, job = self._mapping, self._mapping.job
        is_own = job.column is None or (job.default is None and not self._cell(row, job.column))
        owner = Owner(
            job.default or "" if is_own else self._source(row, job, a_name) or "",
            self._source(row, mapping.user, a_name) or "",
            self._source(row, mapping.virtual_cluster, a_name) or "",
            self._source(row, mapping.priority, a_priority) or 0,
        )
        return self._owners.setdefault(owner, owner)  # the same few, thousands of times

    def _submitted(self, row: Row, *, is_dropped: bool) -> int | None:
        """None if it is wrong, or unknown for a row that is left out."""
        column = self._mapping.submitted
        cell = self._cell(row, column)
        try:
            if cell:
                return self._mapping.clock.ms(cell)
        except CellError as error:
            self.wrong(row, column, str(error))
        else:
            if not is_dropped:
                self.wrong(row, column, "is empty; fill it, or leave such rows out by `keep`")
        return None

    def _run(self, row: Row) -> int | None:
        """None if it is unknown, or wrong."""
        run, clock = self._mapping.run, self._mapping.clock
        columns = [column for column in (run.column, run.start, run.end) if column is not None]
        missing = [column for column in columns if not self._cell(row, column)]
        found = 0
        for column in columns:
            if column in missing:
                continue
            cell = self._cell(row, column)
            try:
                moment = clock.ms(cell) if run.column is None else duration_ms(cell, run.scale)
            except CellError as error:
                self.wrong(row, column, str(error))
                return None
            found = -moment if column == run.start else found + moment
        if found > 0 and not missing:
            return found
        if not run.is_dropped:
            source = "is empty" if missing else "gives a run that is not above 0"
            column = missing[0] if missing else columns[-1]
            self.wrong(row, column, f"{source}; `missing: drop` leaves such rows out")
        return None

    def _duration(self, row: Row, duration: Duration) -> int | None:
        """A column's duration; None if there is none, or it is wrong."""
        if duration.column is None or not (cell := self._cell(row, duration.column)):
            return None
        try:
            found = duration_ms(cell, duration.scale)
        except CellError as error:
            self.wrong(row, duration.column, str(error))
            return None
        if found <= 0:
            self.wrong(row, duration.column, f"must be above 0, not {shown(cell)}")
        return found


def a_priority(cell: str) -> int:
    """A cell that is a priority. Raises CellError."""
    found = figure(cell)
    value = found.numerator if found.denominator == 1 else float(found)
    problem = count_problem(value, OPPORTUNISTIC, HIGHEST_PRIORITY)
    if problem is not None:
        raise CellError(problem)
    return int(found)
