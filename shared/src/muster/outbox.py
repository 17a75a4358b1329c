"""The outbox: records written beside the state that they tell of, until the bus has them.

What a transaction wrote is handed to the relay of its own process, which publishes it at once and
forgets the rows a little later, many in one statement. Rows that are older were left by a process
that ended, or by a bus that was away: any replica's relay takes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import datetime

from muster.bus import Outgoing
from muster.db import Connection


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A record to be published; ``kind`` and ``subject`` where it is a word of the exchange."""

    topic: str
    key: str
    kind: str | None
    subject: str | None
    event_id: str
    value: str
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """A row that waits in the table, as the record that it will be."""

    id: int
    record: Outgoing

    @property
    def size(self) -> int:
        """Bytes of the record's value."""
        return len(self.record.value or b"")


_of_transaction: ContextVar[list[Written] | None] = ContextVar("outbox", default=None)


@contextmanager
def noting_written() -> Iterator[list[Written]]:
    """What is written in the block, for who publishes it after the commit."""
    rows: list[Written] = []
    token = _of_transaction.set(rows)
    try:
        yield rows
    finally:
        _of_transaction.reset(token)


async def write(conn: Connection, rows: Sequence[OutboxRow], now: datetime) -> None:
    """Write rows in the caller's transaction. A word replaces its subject's parked ones."""
    if rows:
        ids = await conn.fetch(_WRITE, *columns(rows, now))
        note_written(rows, [(i["id"], i["event_id"]) for i in ids], now)


def columns(rows: Sequence[OutboxRow], now: datetime) -> list[object]:
    """The parameters of ``write_sql``."""
    return [*([getattr(row, name) for row in rows] for name in _COLUMNS), now]


def write_sql(first: int = 1) -> str:
    """Common table expressions that write rows, given as parameters from ``first`` on; the last,
    ``written``, has their ids and event ids.
    """
    kind, subject = (
        f"${first + OutboxRow.__slots__.index(n)}::text[]" for n in ("kind", "subject")
    )
    values = ", ".join(f"${first + n}::text[]" for n in range(len(OutboxRow.__slots__)))
    return f"""
        replaced AS (
            DELETE FROM outbox WHERE parked_for IS NOT NULL
            AND (kind, subject) IN (SELECT * FROM unnest({kind}, {subject}))
        ), written AS (
            INSERT INTO outbox ({", ".join(OutboxRow.__slots__)}, written_at)
            SELECT n.*, ${first + len(OutboxRow.__slots__)} FROM unnest({values}) AS n
            RETURNING id, event_id
        )
    """  # noqa: S608 - the names of columns, not values


def note_written(rows: Sequence[OutboxRow], ids: Iterable[tuple[int, str]], now: datetime) -> None:
    """Remember what was written, with its ids and event ids, for who publishes it."""
    written = _of_transaction.get()
    if written is not None:
        by_event = {row.event_id: row for row in rows}
        written += [Written(ident, _outgoing(by_event[event], now)) for ident, event in ids]


def _outgoing(row: OutboxRow, at: datetime) -> Outgoing:
    return Outgoing(
        row.topic, row.key, row.value.encode(), row.event_id, at.timestamp(), row.traceparent
    )


async def take_left(conn: Connection, limit: int, limit_bytes: int, age_s: float) -> list[Written]:
    """Lock rows that have waited for longer than ``age_s``, the oldest first: as many as come to
    the bytes, or one.
    """
    return [
        Written(
            r["id"],
            Outgoing(
                r["topic"],
                r["key"],
                r["value"].encode(),
                r["event_id"],
                r["written_at"].timestamp(),
                r["traceparent"],
            ),
        )
        for r in await conn.fetch(_LEFT, limit, age_s, limit_bytes)
    ]


async def forget(conn: Connection, ids: Sequence[int]) -> None:
    """The bus has these."""
    if ids:
        await conn.execute("DELETE FROM outbox WHERE id = ANY($1::bigint[])", ids)


async def park(conn: Connection, row: int, reason: str) -> None:
    """The bus refuses this one: it is not tried again."""
    await conn.execute("UPDATE outbox SET parked_for = $2 WHERE id = $1", row, reason)


_COLUMNS = tuple(field.name for field in fields(OutboxRow))
_WRITE = f"WITH {write_sql()} SELECT id, event_id FROM written"  # noqa: S608
_LEFT = """
    WITH oldest AS (
        SELECT id, octet_length(value) AS size FROM outbox
        WHERE parked_for IS NULL AND written_at <= clock_timestamp() - $2 * interval '1 s'
        ORDER BY id LIMIT $1
    ), few AS (SELECT id, size, sum(size) OVER (ORDER BY id) AS sum FROM oldest)
    SELECT id, topic, key, event_id, value, traceparent, written_at FROM outbox
    WHERE id IN (SELECT id FROM few WHERE sum <= $3 OR sum = size)
    ORDER BY id FOR UPDATE SKIP LOCKED
"""
