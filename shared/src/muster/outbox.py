"""The outbox: records written beside the state that they tell of, until the bus has them.

What a transaction wrote is handed to the relay of its own process, which publishes it at once and
forgets the rows a little later, many in one statement. Rows that are older were left by a process
that ended, or by a bus that was away: any replica's relay takes them.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import datetime

from muster.channels import Channel, Outgoing, hash_of
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


_noting: ContextVar[tuple[Connection, list[Written]] | None] = ContextVar("noting", default=None)


@contextmanager
def noting_written(conn: Connection) -> Iterator[list[Written]]:
    """What is written over ``conn`` in the block, for who publishes it after the commit.

    What tasks that were made in the block write over other connections is not among it: their
    transactions are not this one.
    """
    rows: list[Written] = []
    token = _noting.set((conn, rows))
    try:
        yield rows
    finally:
        _noting.reset(token)


async def write(conn: Connection, rows: Sequence[OutboxRow], now: datetime) -> None:
    """Write rows in the caller's transaction. A word replaces its subject's parked ones."""
    if rows:
        ids = await conn.fetchval(_WRITE, *columns(rows, now))
        note_written(conn, rows, ids, now)


def columns(rows: Sequence[OutboxRow], now: datetime) -> list[object]:
    """The parameters of ``write_sql``."""
    texts = ([getattr(row, name) for row in rows] for name in _COLUMNS)
    return [*texts, [hash_of(row.key) for row in rows], now]


def write_sql(first: int = 1) -> str:
    """Common table expressions that write rows, given as parameters from ``first`` on; the last,
    ``written``, has their ids, which rise in the order of the rows.
    """
    values = {name: f"${n}::text[]" for n, name in enumerate(_COLUMNS, first)}
    values["key_hash"] = f"${first + len(_COLUMNS)}::integer[]"
    names = ", ".join(values)
    return f"""
        replaced AS (
            DELETE FROM outbox WHERE parked_for IS NOT NULL
            AND (kind, subject) IN (SELECT * FROM unnest({values["kind"]}, {values["subject"]}))
        ), written AS (
            INSERT INTO outbox ({names}, written_at)
            SELECT {names}, ${first + len(values)}
            FROM unnest({", ".join(values.values())}) WITH ORDINALITY AS n ({names}, place)
            ORDER BY place
            RETURNING id
        )
    """  # noqa: S608 - the names of columns, not values


def note_written(
    conn: Connection, rows: Sequence[OutboxRow], ids: Sequence[int], now: datetime
) -> None:
    """Remember what was written over ``conn``, with its ids, for who publishes it."""
    noting = _noting.get()
    if noting is not None and noting[0] is conn:
        noting[1].extend(
            Written(ident, outgoing(row, now)) for ident, row in zip(ids, rows, strict=True)
        )


def outgoing(row: OutboxRow, at: datetime) -> Outgoing:
    """The row as a record of that time."""
    return Outgoing(
        row.topic, row.key, row.value.encode(), row.event_id, at.timestamp(), row.traceparent
    )


async def take_left(
    conn: Connection, limit: int, limit_bytes: int, age_s: float, away: Collection[Channel]
) -> list[Written]:
    """Lock rows that have waited for longer than ``age_s``, the oldest first, but those of channels
    that are away: as many as come to the bytes, or one. A row from the future has waited since
    before the clock went back.
    """
    channels = [[channel.topic for channel in away], [channel.count for channel in away]]
    channels.append([channel.number for channel in away])
    return [
        Written(r["id"], outgoing(OutboxRow(*(r[name] for name in _COLUMNS)), r["written_at"]))
        for r in await conn.fetch(_LEFT, limit, age_s, limit_bytes, *channels)
    ]


async def forget(conn: Connection, ids: Sequence[int]) -> None:
    """The bus has these."""
    if ids:
        await conn.execute("DELETE FROM outbox WHERE id = ANY($1::bigint[])", ids)


async def park(conn: Connection, row: int, reason: str) -> None:
    """The bus refuses this one: it is not tried again."""
    await conn.execute("UPDATE outbox SET parked_for = $2 WHERE id = $1", row, reason)


_COLUMNS = tuple(field.name for field in fields(OutboxRow))
WRITTEN_IDS = "ARRAY(SELECT id FROM written ORDER BY id)"
_WRITE = f"WITH {write_sql()} SELECT {WRITTEN_IDS}"
_LEFT = f"""
    WITH oldest AS (
        SELECT id, octet_length(value) AS size FROM outbox
        WHERE parked_for IS NULL AND written_at NOT BETWEEN
            clock_timestamp() - $2 * interval '1 s' AND clock_timestamp() + $2 * interval '1 s'
        AND NOT EXISTS (
            SELECT FROM unnest($4::text[], $5::integer[], $6::integer[]) AS away (name, n, number)
            WHERE name = topic AND key_hash % n = number
        )
        ORDER BY id LIMIT $1
    ), few AS (SELECT id, size, sum(size) OVER (ORDER BY id) AS sum FROM oldest)
    SELECT id, {", ".join(_COLUMNS)}, written_at FROM outbox
    WHERE id IN (SELECT id FROM few WHERE sum <= $3 OR sum = size)
    ORDER BY id FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - the names of columns, not values
