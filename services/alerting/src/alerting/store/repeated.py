"""Republished conditions: dead letters of a reader and topic, gangs with wrong accounting, node
names that two machines have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg
from muster.db import Connection

from alerting.domain.clashes import CLASHES
from alerting.domain.deadletters import DEAD_LETTERS
from alerting.domain.drifts import DRIFTS
from alerting.domain.policy import Policy
from alerting.domain.repeated import Key, Repeated, Repeats
from alerting.store.rows import upsert, upsert_sql


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one kind of ``repeats``, and its key columns."""

    repeats: Repeats
    name: str
    key: tuple[str, ...]

    async def load(self, conn: Connection, keys: Iterable[Key]) -> dict[Key, Repeated]:
        """Those that are known of these, locked."""
        wanted = sorted(set(keys))
        if not wanted:
            return {}
        columns = [list(column) for column in zip(*wanted, strict=True)]
        names = ", ".join(self.key)
        given = ", ".join(f"${number}::text[]" for number, _ in enumerate(columns, 1))
        return self._read(
            await conn.fetch(
                f"SELECT * FROM {self.name} WHERE ({names}) IN (SELECT * FROM unnest({given}))"  # noqa: S608 - names of columns
                f" ORDER BY {names} FOR UPDATE",
                *columns,
            )
        )

    async def due(self, conn: Connection, now: datetime, limit: int) -> dict[Key, Repeated]:
        """Due rows that no other replica handles now, locked."""
        return self._read(
            await conn.fetch(
                f"SELECT * FROM {self.name} WHERE due_at <= $1 ORDER BY due_at LIMIT $2"  # noqa: S608 - a table's name
                " FOR UPDATE SKIP LOCKED",
                now,
                limit,
            )
        )

    async def save(
        self, conn: Connection, watches: Sequence[Repeated], known: Sequence[Key], policy: Policy
    ) -> None:
        """Write them."""
        rows = [
            dict(zip(self.key, it.key, strict=True))
            | {
                "newest_at": it.newest_at,
                "received_at": it.received_at,
                "since": it.since,
                "due_at": self.repeats.due_at(it, policy),
            }
            for it in watches
        ]
        sql = upsert_sql(self.name, (*self.key, *_COLUMNS), self.key)
        await upsert(conn, sql, rows, ["/".join(key) for key in known])

    def _read(self, rows: Sequence[asyncpg.Record]) -> dict[Key, Repeated]:
        found = [
            Repeated(
                tuple(row[name] for name in self.key),
                row["newest_at"],
                row["received_at"],
                row["since"],
            )
            for row in rows
        ]
        return {it.key: it for it in found}


_COLUMNS = ("newest_at", "received_at", "since", "due_at")

DEAD_LETTER_WATCHES = Table(DEAD_LETTERS, "dead_letter_watch", ("reader", "topic"))
DRIFT_WATCHES = Table(DRIFTS, "drift_watch", ("gang",))
CLASH_WATCHES = Table(CLASHES, "clash_watch", ("node", "address", "other_address"))
TABLES = (DEAD_LETTER_WATCHES, DRIFT_WATCHES, CLASH_WATCHES)
"""In the order in which they are locked."""
