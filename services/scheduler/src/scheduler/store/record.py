"""The SQL of the record: it appends cycles and snapshots, reads them and removes the oldest.

Rows never change. Removal stops at a snapshot, so that the record begins with one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from muster.db import Connection

from scheduler.domain.given import Noted


@dataclass(frozen=True, slots=True)
class End:
    """The record's end. ``at``: time of its last cycle or snapshot, in seconds since 1970."""

    number: int = 0
    at: float = 0.0
    bytes_to: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A cycle to store."""

    number: int
    noted: Noted
    memory_at: float
    bytes_to: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the snapshot of ``at``, which includes the cycles up to ``number``."""

    at: float
    part: int
    number: int
    memory_at: float
    is_last: bool
    lines: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A snapshot whose parts are all stored."""

    at: float
    number: int
    memory_at: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """A stored cycle."""

    number: int
    at: float
    memory_at: float
    lines: str


@dataclass(frozen=True, slots=True)
class Size:
    """Sums of the record; ``since``: the time of the first snapshot, None: there is none."""

    cycles: int
    size_bytes: int
    since: float | None


async def end(conn: Connection) -> End:
    """The record's end, from which a new leader continues."""
    row = await conn.fetchrow(
        "SELECT coalesce(max(number), 0) AS number, coalesce(max(at), 0) AS at,"
        " coalesce(max(bytes_to), 0)::bigint AS bytes_to FROM"
        " ((SELECT number, at, bytes_to FROM recorded_cycle ORDER BY number DESC LIMIT 1)"
        " UNION ALL (SELECT number, at, 0 FROM recorded_snapshot ORDER BY at DESC LIMIT 1)) AS n"
    )
    assert row is not None
    return End(row["number"], row["at"], row["bytes_to"])


async def add(conn: Connection, rows: Sequence[Row]) -> None:
    """Append cycles in the transaction of their decisions, which begins with the epoch check.
    Raises asyncpg.UniqueViolationError if another process has written them.
    """
    await conn.execute(
        "INSERT INTO recorded_cycle (number, at, memory_at, bytes_to, lines, epoch)"
        " SELECT *, (SELECT epoch FROM leader) FROM unnest($1::bigint[], $2::double precision[],"
        " $3::double precision[], $4::bigint[], $5::text[])",
        [row.number for row in rows],
        [row.noted.at for row in rows],
        [row.memory_at for row in rows],
        [row.bytes_to for row in rows],
        ["\n".join(row.noted.lines) for row in rows],
    )


async def add_part(conn: Connection, part: Part) -> None:
    """Append a part of a snapshot, in a transaction that begins with the epoch check; does nothing
    if the part exists.
    """
    await conn.execute(
        "INSERT INTO recorded_snapshot (at, part, number, memory_at, epoch, is_last, bytes, lines)"
        " VALUES ($1, $2, $3, $4, (SELECT epoch FROM leader), $5, $6, $7) ON CONFLICT DO NOTHING",
        part.at,
        part.part,
        part.number,
        part.memory_at,
        part.is_last,
        len(part.lines.encode()),
        part.lines,
    )


async def snapshot_before(conn: Connection, at: float) -> Whole | None:
    """The last whole snapshot up to this time, else the first of all."""
    row = await conn.fetchrow(
        "SELECT at, number, memory_at FROM recorded_snapshot WHERE is_last"
        " ORDER BY at > $1, abs(at - $1) LIMIT 1",
        at,
    )
    return None if row is None else Whole(row["at"], row["number"], row["memory_at"])


async def has_whole(conn: Connection, at: float) -> bool:
    """Whether the snapshot of this time is stored whole."""
    found: bool = await conn.fetchval(
        "SELECT EXISTS (SELECT 1 FROM recorded_snapshot WHERE at = $1 AND is_last)", at
    )
    return found


async def part_of(conn: Connection, at: float, part: int) -> tuple[str, bool] | None:
    """The lines of a part of a snapshot, and whether it is the last; None: it was removed."""
    row = await conn.fetchrow(
        "SELECT lines, is_last FROM recorded_snapshot WHERE at = $1 AND part = $2", at, part
    )
    return None if row is None else (row["lines"], row["is_last"])


async def page(conn: Connection, after: int, most_bytes: int) -> list[Cycle]:
    """The next cycles: one, and those that begin within so many bytes after it. Removed cycles are
    skipped.
    """
    rows = await conn.fetch(
        "SELECT number, at, memory_at, lines FROM recorded_cycle WHERE number > $1"
        " AND bytes_to - octet_length(lines) <= $2 + (SELECT bytes_to - octet_length(lines)"
        " FROM recorded_cycle WHERE number > $1 ORDER BY number LIMIT 1)"
        " ORDER BY number LIMIT $3",
        after,
        most_bytes,
        ROWS_READ,
    )
    return [Cycle(row["number"], row["at"], row["memory_at"], row["lines"]) for row in rows]


ROWS_READ = 2000
"""The most at once."""


async def clock(conn: Connection) -> float:
    """Seconds since 1970 by the database."""
    now: float = await conn.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    return now


async def size(conn: Connection) -> Size:
    """The record's size."""
    row = await conn.fetchrow(
        "SELECT coalesce(last.number - first.number + 1, 0) AS cycles,"
        " coalesce(last.bytes_to - first.bytes_from, 0)::bigint"
        " + (SELECT coalesce(sum(bytes), 0)::bigint FROM recorded_snapshot) AS bytes,"
        " (SELECT min(at) FROM recorded_snapshot WHERE is_last) AS since FROM (SELECT) AS one"
        " LEFT JOIN (SELECT number, bytes_to - octet_length(lines) AS bytes_from"
        " FROM recorded_cycle ORDER BY number LIMIT 1) AS first ON true"
        " LEFT JOIN (SELECT number, bytes_to FROM recorded_cycle ORDER BY number DESC LIMIT 1)"
        " AS last ON true"
    )
    assert row is not None
    return Size(row["cycles"], row["bytes"], row["since"])


async def keep_from(conn: Connection, before: float | None) -> Whole | None:
    """The snapshot with which the record shall begin: the last whole one before a time; None: the
    second of all. Returns None if nothing can be removed.
    """
    row = await conn.fetchrow(
        "SELECT at, number, memory_at FROM recorded_snapshot WHERE is_last AND at <= $1"
        " ORDER BY at DESC LIMIT 1"
        if before is not None
        else "SELECT at, number, memory_at FROM recorded_snapshot WHERE is_last AND $1::float8 IS"
        " NULL ORDER BY at OFFSET 1 LIMIT 1",
        before,
    )
    return None if row is None else Whole(row["at"], row["number"], row["memory_at"])


async def remove_before(conn: Connection, first: Whole, most: int) -> bool:
    """Remove at most so many cycles that this snapshot includes, then an older snapshot. Returns
    whether more may be left. The cycle right before it stays: its number is needed.
    """
    removed = await conn.fetch(
        "DELETE FROM recorded_cycle WHERE number IN (SELECT number FROM recorded_cycle"
        " WHERE number < $1 ORDER BY number LIMIT $2) RETURNING 1",
        first.number,
        most,
    )
    if len(removed) == most:
        return True
    removed = await conn.fetch(
        "DELETE FROM recorded_snapshot WHERE at ="
        " (SELECT min(at) FROM recorded_snapshot WHERE at < $1) RETURNING 1",
        first.at,
    )
    return bool(removed)
