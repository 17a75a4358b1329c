"""From the rows of a CSV job list to gangs, and to EVENTS in the order of time.

All problems of a list are reported at once; rows that the mapping leaves out are counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scheduler.domain.core.config import Finding
from scheduler.domain.core.model import Gang, Kind
from scheduler.domain.formats.export import Fields, gang_fields
from scheduler.domain.formats.fields import MAX_FINDINGS, MAX_NAME, FormatError
from scheduler.domain.formats.gangs import MAX_PODS
from scheduler.domain.formats.model import GangFile, Pods
from scheduler.domain.formats.writing import to_line, whole
from scheduler.domain.trace.cells import shown
from scheduler.domain.trace.csv_rows import Row
from scheduler.domain.trace.mapping import Duration, Mapping
from scheduler.domain.trace.row_reader import BY_TIME, Owner, RowReader, RowRequest

MAX_ROWS = 2_000_000
"""The most rows that become gangs: all are in memory until the last is read."""

NUMBERED = 8
"""Characters that names leave free for a number."""


@dataclass(slots=True)
class _Gang:
    """A gang of one row or several, the first of them in ``line``. ``dropped``: the reason why all
    of them are left out.
    """

    id: str
    line: int
    owner: Owner
    submitted_ms: int
    run_ms: int = 0
    expected_ms: int | None = None
    limit_ms: int | None = None
    pods: dict[tuple[str, Kind], int] = field(default_factory=dict)
    count: int = 0
    rows: int = 0
    dropped: str | None = None

    def join(self, requested: RowRequest) -> None:
        """One more of its rows. Its pods start together, and end with the last of them."""
        self.rows += 1
        self.dropped = self.dropped or requested.dropped
        self.submitted_ms = min(self.submitted_ms, requested.submitted_ms)
        self.run_ms = max(self.run_ms, requested.run_ms or 0)
        self.expected_ms = max(self.expected_ms or 0, requested.expected_ms or 0) or None
        self.limit_ms = max(self.limit_ms or 0, requested.limit_ms or 0) or None
        request = requested.request
        key = request.name, request.kind
        self.pods[key] = self.pods.get(key, 0) + request.count
        self.count += request.count


@dataclass(frozen=True, slots=True)
class Imported:
    """Gangs in the order of time; rows that were read, and how many were left out and why."""

    gangs: list[_Gang]
    first_ms: int
    mapping: Mapping
    rows: int
    left_out: Counter[str]

    @property
    def pods(self) -> int:
        """How many pods all gangs have together."""
        return sum(gang.count for gang in self.gangs)

    def lines(self) -> Iterator[str]:
        """EVENTS, without the lines' ends."""
        for gang in self.gangs:
            at = _seconds(gang.submitted_ms - self.first_ms)
            event: Fields = {"at": whole(at), "event": "gang-requested"}
            yield to_line(event | {"gang": gang_fields(_file(gang, at, self.mapping))})

    def summary(self) -> str:
        """The result for the rows, as text."""
        gangs, pods = _many(len(self.gangs), "gang"), _many(self.pods, "pod")
        source = f"{_many(self.rows, 'row')}: {gangs} with {pods}"
        left = [f"{self.left_out[why]:,} by {why}" for why in sorted(self.left_out)]
        return f"{source}; left out: {', '.join(left)}" if left else source


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def import_rows(rows: Iterable[Row | Finding], mapping: Mapping) -> Imported:
    """The gangs of a list. Raises FormatError with all problems of it."""
    joiner = _Joiner(mapping)
    for row in rows:
        if isinstance(row, Finding):
            joiner.note(row)
        elif not joiner.take(row):
            break
    return joiner.imported()


class _Joiner:
    """Makes gangs of rows."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._reader = RowReader(mapping, self.note)
        self._gangs: dict[str, _Gang] = {}
        self._rows = 0
        self._kept = 0
        self._left_out: Counter[str] = Counter()
        self._found: list[Finding] = []
        self._more = 0

    def note(self, finding: Finding) -> None:
        """Something is wrong."""
        if len(self._found) < MAX_FINDINGS:
            self._found.append(finding)
        else:
            self._more += 1

    def take(self, row: Row) -> bool:
        """Take a row; False where no more are taken."""
        self._rows += 1
        why = self._reader.left_out(row)
        if why is not None:
            self._left_out[why] += 1
            return True
        self._kept += 1
        if self._kept > MAX_ROWS:
            fix = "take fewer by `keep`, or a stretch of time by `from` and `until`"
            source = f"is one more than the {MAX_ROWS} rows that are taken; {fix}"
            self.note(Finding("", source, row.line))
            return False
        requested = self._reader.read(row)
        if requested is not None:
            self._join(row, requested)
        return True

    def _join(self, row: Row, requested: RowRequest) -> None:
        mapping = self._mapping
        gang = self._gangs.get(requested.id)
        if gang is None:
            gang = _Gang(requested.id, row.line, requested.owner, requested.submitted_ms)
            self._gangs[requested.id] = gang
        elif not mapping.is_joined:
            fix = "if rows of one id are one gang, set `joinRows: true`"
            source = f"is {shown(requested.id)}, as in line {gang.line}; {fix}"
            self._reader.wrong(row, mapping.id, source)
        elif gang.owner != requested.owner:
            self._distinguish(row, gang, requested.owner)
        was = gang.count
        gang.join(requested)
        if was <= MAX_PODS < gang.count:
            source = f"gives {shown(gang.id)} more than {MAX_PODS} pods, the most in a gang"
            self._reader.wrong(row, mapping.id, source)

    def _distinguish(self, row: Row, gang: _Gang, owner: Owner) -> None:
        mapping, first = self._mapping, gang.owner
        for column, mine, others in (
            (mapping.job.column, owner.job, first.job),
            (mapping.user.column, owner.user, first.user),
            (mapping.virtual_cluster.column, owner.virtual_cluster, first.virtual_cluster),
            (mapping.priority.column, owner.priority, first.priority),
        ):
            if mine != others:
                source = f"means {mine!a}, and {others!a} in line {gang.line} of the same gang"
                self._reader.wrong(row, column or "", f"{source}; rows of a gang must agree")

    def imported(self) -> Imported:
        """The result for the rows. Raises FormatError."""
        if self._found:
            raise FormatError(self._found, self._more)
        gangs: list[_Gang] = []
        for gang in self._gangs.values():
            is_outside = self._mapping.is_outside(gang.submitted_ms)
            why = gang.dropped or (BY_TIME if is_outside else None)
            if why is None:
                gangs.append(gang)
            else:
                self._left_out[why] += gang.rows
        gangs.sort(key=lambda gang: (gang.submitted_ms, gang.line))
        first_ms = self._mapping.first_ms
        if first_ms is None:
            first_ms = gangs[0].submitted_ms if gangs else 0
        return Imported(gangs, first_ms, self._mapping, self._rows, self._left_out)


def _file(gang: _Gang, at: float, mapping: Mapping) -> GangFile:
    owner = gang.owner
    requested = Gang(
        id=gang.id,
        virtual_cluster=owner.virtual_cluster,
        user=owner.user,
        priority=owner.priority,
        roles=(),  # its entries are written instead
        job=owner.job,
        submitted_at=at,
        expected_s=_duration(gang.expected_ms, mapping.expected, gang.run_ms),
        limit_s=_duration(gang.limit_ms, mapping.limit, gang.run_ms),
    )
    return GangFile(requested, tuple(_entries(gang)), run_s=_seconds(gang.run_ms))


def _duration(found_ms: int | None, duration: Duration, run_ms: int) -> float | None:
    if duration.factor is not None:
        return _seconds(max(1, round(run_ms * duration.factor)))
    return None if found_ms is None else _seconds(found_ms)


def _seconds(ms: int) -> float:
    return ms / 1000


def _entries(gang: _Gang) -> Iterator[Pods]:
    """One for each kind of pod, under a unique name."""
    names = {name for name, _ in gang.pods}
    taken: set[str] = set()
    for (name, kind), count in gang.pods.items():
        own, number = name, 1
        while own in taken or (number > 1 and own in names):
            number += 1
            own = f"{name[: MAX_NAME - NUMBERED]}-{number}"
        taken.add(own)
        yield Pods(own, count, kind)
