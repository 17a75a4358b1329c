"""The outbox: records written beside the state that they tell of, until the bus has them.

What a transaction wrote is handed to the relay of its own process, which publishes it at once and
forgets the rows a little later, many in one statement. Rows that are older were left by a process
that ended, or by a bus that was away: any replica's relay takes them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
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
    if not rows:
        return
    columns = zip(
        *((r.topic, r.key, r.kind, r.subject, r.event_id, r.value, r.traceparent) for r in rows),
        strict=True,
    )
    ids = await conn.fetch(_WRITE, *map(list, columns), now)
    written = _of_transaction.get()
    if written is not None:
        by_event = {row.event_id: row for row in rows}
        written += [Written(i["id"], _outgoing(by_event[i["event_id"]], now)) for i in ids]


def _outgoing(row: OutboxRow, at: datetime) -> Outgoing:
    return Outgoing(
        row.topic, row.key, row.value.encode(), row.event_id, at.timestamp(), row.traceparent
    )


async def take_left(conn: Connection, limit: int, age_s: float) -> list[Written]:
    """Lock rows that have waited for longer than ``age_s``, the oldest first."""
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
        for r in await conn.fetch(_LEFT, limit, age_s)
    ]


async def forget(conn: Connection, ids: Sequence[int]) -> None:
    """The bus has these."""
    if ids:
        await conn.execute("DELETE FROM outbox WHERE id = ANY($1::bigint[])", ids)


async def park(conn: Connection, row: int, reason: str) -> None:
    """The bus refuses this one: it is not tried again."""
    await conn.execute("UPDATE outbox SET parked_for = $2 WHERE id = $1", row, reason)


_WRITE = """
    WITH replaced AS (
        DELETE FROM outbox WHERE parked_for IS NOT NULL
        AND (kind, subject) IN (SELECT * FROM unnest($3::text[], $4::text[]))
    )
    INSERT INTO outbox (topic, key, kind, subject, event_id, value, traceparent, written_at)
    SELECT n.*, $8 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[],
                               $6::text[], $7::text[]) AS n
    RETURNING id, event_id
"""
_LEFT = """
    SELECT id, topic, key, event_id, value, traceparent, written_at FROM outbox
    WHERE parked_for IS NULL AND written_at <= clock_timestamp() - $2 * interval '1 s'
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
"""
