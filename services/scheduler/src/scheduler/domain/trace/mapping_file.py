"""MAPPING: its form, as docs/traces.md has it, read as values.

`Mapping.absent` checks whether a list has the named columns.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeVar

from muster.protocol.document import Limits
from muster.protocol.problems import join_path

from scheduler.domain.core.model import HIGHEST_PRIORITY, OPPORTUNISTIC
from scheduler.domain.formats.cluster_file import read_tree
from scheduler.domain.formats.fields import (
    MAX_COUNT,
    MAX_NUMBER,
    Findings,
    FormatError,
    Place,
    Table,
)
from scheduler.domain.formats.gangs import MAX_PODS
from scheduler.domain.trace.cells import CellError, Clock
from scheduler.domain.trace.mapping import (
    Amount,
    Duration,
    Keep,
    Mapping,
    PodsMapping,
    Run,
    Source,
    Use,
)

MAPPING_FILE = Limits("a mapping", max_bytes=1024 * 1024, max_nodes=20_000)

MAX_SCALE = 10**12
"""The largest factor of a number."""

MAX_FACTOR = 100
"""The largest factor from a gang's run time to its expected duration."""

_FILE = frozenset(("columns", "empty", "keep", "joinRows", "time", "gang"))
_KEEP = frozenset(("column", "is", "isNot"))
_TIME = frozenset(("form", "scale", "from", "until"))
_GANG = frozenset(
    (
        "id",
        "job",
        "user",
        "virtualCluster",
        "priority",
        "submittedAt",
        "runSeconds",
        "expectedSeconds",
        "limitSeconds",
        "pods",
    )
)
_COLUMN = frozenset(("column",))
_TEXT = frozenset(("column", "value", "table", "default"))
_RUN = frozenset(("column", "scale", "start", "end", "missing"))
_DURATION = frozenset(("column", "scale", "factor"))
_PODS = frozenset(("name", "count", "gpus", "gpuTypes", "cpu", "memoryMB"))
_COUNT = frozenset(("column", "value", "times", "scale", "default"))
_AMOUNT = _COUNT | {"per"}
_GPUS = _AMOUNT | {"fractions"}
_TYPES = _TEXT | {"separator"}

T = TypeVar("T", str, int)


def read_mapping(data: bytes) -> Mapping:
    """A mapping. Raises FormatError with all problems of it."""
    root = read_tree(data, MAPPING_FILE)
    findings = Findings()
    table = Table(root.value, _FILE, Place(root.line, node=root), findings)
    mapping = _Reader(table).mapping()
    if findings.found:
        raise FormatError(findings.found)
    return mapping


class _Reader:
    """Reads a mapping; the named columns are noted on the way."""

    def __init__(self, file: Table) -> None:
        self._file = file
        self._uses: list[Use] = []

    def mapping(self) -> Mapping:
        """The whole file."""
        file = self._file
        file.needs("gang")
        gang = file.table("gang", _GANG) or Table({}, _GANG, file.place, Findings())
        gang.needs("id", "user", "virtualCluster", "priority", "submittedAt", "runSeconds", "pods")
        clock, first_ms, end_ms = self._time()
        priority = gang.table_of("priority", "column", _TEXT)
        return Mapping(
            id=self._only_column(gang, "id"),
            job=self._source(gang.table_of("job", "column", _TEXT)),
            user=self._source(gang.table_of("user", "column", _TEXT)),
            virtual_cluster=self._source(gang.table_of("virtualCluster", "column", _TEXT)),
            priority=Source() if priority is None else self._read_source(priority, _priority),
            submitted=self._only_column(gang, "submittedAt"),
            run=self._run(gang),
            expected=self._duration(gang, "expectedSeconds"),
            limit=self._duration(gang, "limitSeconds"),
            pods=self._pods(gang),
            clock=clock,
            first_ms=first_ms,
            end_ms=end_ms,
            is_joined=bool(file.flag("joinRows")),
            keep=tuple(self._keep()),
            empty=file.texts("empty"),
            columns=self._columns(),
            uses=tuple(self._uses),
        )

    def _columns(self) -> tuple[str, ...] | None:
        columns = self._file.names("columns")
        if columns is not None and not columns:
            self._file.wrong("columns", "must not be empty; null takes them from the first line")
        return columns

    def _keep(self) -> Iterator[Keep]:
        for entry in self._file.tables("keep", _KEEP) or ():
            column = self._column(entry, "column")
            is_in = entry.has_value("is")
            if is_in == entry.has_value("isNot"):
                entry.wrong("is", "must be there, or isNot, and not both")
            entry.needs("column")
            name = "is" if is_in else "isNot"
            if entry.items(name) == []:
                entry.wrong(name, "must not be empty")
            yield Keep(column or "", entry.texts(name), is_in)

    def _time(self) -> tuple[Clock, int | None, int | None]:
        time = self._file.table("time", _TIME)
        if time is None:
            return Clock(), None, None
        is_date = time.choice("form", "number", "date") == "date"
        if is_date and time.has_value("scale"):
            time.wrong("scale", "can't be there where form is date")
        clock = Clock(is_date, time.number("scale", MAX_SCALE) or Fraction(1))
        first_ms, end_ms = _moment(time, "from", clock), _moment(time, "until", clock)
        if first_ms is not None and end_ms is not None and end_ms <= first_ms:
            time.wrong("until", "must be after from")
        return clock, first_ms, end_ms

    # Fields of a gang.

    def _only_column(self, gang: Table, name: str) -> str:
        table = gang.table_of(name, "column", _COLUMN)
        if table is None:
            return ""
        table.needs("column")
        return self._column(table, "column", table.place) or ""

    def _source(self, table: Table | None) -> Source[str]:
        return Source() if table is None else self._read_source(table, Table.name)

    def _read_source(self, table: Table, read: Callable[[Table, str], T | None]) -> Source[T]:
        if not self._is_of_column(table, ("table", "default")):
            return Source(default=read(table, "value"))
        translated = table.read_by_name("table", read) if table.has_value("table") else None
        return Source(
            self._column(table, "column", table.place), translated, read(table, "default")
        )

    def _run(self, gang: Table) -> Run:
        table = gang.table_of("runSeconds", "column", _RUN)
        if table is None:
            return Run()
        if table.has_value("column") == (table.has_value("start") or table.has_value("end")):
            table.wrong("column", "must be there, or start and end, and not both")
        elif not table.has_value("column"):
            table.needs("start", "end")
            if table.has_value("scale"):
                table.wrong("scale", "can't be there beside start and end; time has theirs")
        return Run(
            self._column(table, "column", table.place),
            table.number("scale", MAX_SCALE) or Fraction(1),
            self._column(table, "start"),
            self._column(table, "end"),
            table.choice("missing", "refuse", "drop") == "drop",
        )

    def _duration(self, gang: Table, name: str) -> Duration:
        table = gang.table_of(name, "column", _DURATION)
        if table is None:
            return Duration()
        if table.has_value("column") == table.has_value("factor"):
            table.wrong("column", "must be there, or factor, and not both")
        elif table.has_value("factor") and table.has_value("scale"):
            table.wrong("scale", "can't be there beside factor")
        return Duration(
            self._column(table, "column", table.place),
            table.number("scale", MAX_SCALE) or Fraction(1),
            table.number("factor", MAX_FACTOR),
        )

    def _pods(self, gang: Table) -> PodsMapping:
        pods = gang.table("pods", _PODS) or Table({}, _PODS, gang.place, Findings())
        pods.needs("gpus")
        name = pods.table_of("name", "column", _TEXT)
        types = pods.table_of("gpuTypes", "column", _TYPES)
        return PodsMapping(
            name=Source(default="pod") if name is None else self._source(name),
            count=self._amount(pods, "count", _COUNT) or Amount(default=1),
            gpus=self._amount(pods, "gpus", _GPUS) or Amount(),
            gpu_types=self._source(types),
            separator=None if types is None else types.name("separator"),
            cpu=self._amount(pods, "cpu", _AMOUNT) or Amount(default=0),
            memory_mb=self._amount(pods, "memoryMB", _AMOUNT) or Amount(default=0),
        )

    def _amount(self, pods: Table, name: str, known: frozenset[str]) -> Amount | None:
        table = pods.table_of(name, "column", known)
        if table is None:
            return None
        least = 1 if name == "count" else 0
        most = {"count": MAX_PODS, "memoryMB": MAX_NUMBER}.get(name, MAX_COUNT)
        of_column = ("times", "scale", "per", "fractions", "default")
        if not self._is_of_column(table, of_column):
            return Amount(default=table.count("value", least, most))
        return Amount(
            self._column(table, "column", table.place),
            self._column(table, "times"),
            table.number("scale", MAX_SCALE) or Fraction(1),
            table.count("default", least, most),
            table.choice("per", "pod", "gang") == "gang",
            (table.choice("fractions", "up", "drop", "refuse") or "refuse")
            if "fractions" in known
            else "up",
        )

    def _is_of_column(self, table: Table, others: tuple[str, ...]) -> bool:
        """Whether it has a column, and not one value. ``others``: fields that need a column."""
        has_value = table.has_value("value")
        if has_value == table.has_value("column"):
            table.wrong("column", "must be there, or value, and not both")
        elif has_value:
            for other in others:
                if table.has_value(other):
                    table.wrong(other, "can't be there beside value")
        return not has_value

    def _column(self, table: Table, name: str, place: Place | None = None) -> str | None:
        """The name of a column, which is noted. ``place``: for messages, None: the field."""
        column = table.name(name)
        if column is not None:
            at = table.place.at(name) if place is None else place
            self._uses.append(Use(column, join_path(at.parts), at.line))
        return column


def _priority(table: Table, name: str) -> int | None:
    return table.count(name, OPPORTUNISTIC, HIGHEST_PRIORITY)


def _moment(time: Table, name: str, clock: Clock) -> int | None:
    """A moment in the list's own form, in milliseconds."""
    text = time.text(name)
    if text is None:
        return None
    try:
        return clock.ms(text)
    except CellError as error:
        time.wrong(name, str(error))
        return None
