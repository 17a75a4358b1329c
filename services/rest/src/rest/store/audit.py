"""The audit log: every write, in the transaction of the write."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.db import Connection, fetch


@dataclass(frozen=True, slots=True)
class Entry:
    """Who did what to which thing, from where. ``detail`` never holds a secret."""

    username: str
    action: str
    object: str
    address: str
    detail: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry with its time."""

    id: int
    at: datetime
    username: str
    action: str
    object: str
    address: str
    detail: dict[str, Any] | None


async def record(conn: Connection, entries: Sequence[Entry]) -> None:
    """Write entries."""
    await conn.execute(
        "INSERT INTO audit (username, action, object, address, detail)"
        " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[])",
        [entry.username for entry in entries],
        [entry.action for entry in entries],
        [entry.object for entry in entries],
        [entry.address for entry in entries],
        [entry.detail for entry in entries],
    )


async def forget_old(conn: Connection, days: int, most: int) -> int:
    """Forget entries that are too old, at most so many; how many."""
    done: str = await conn.execute(
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit"
        " WHERE at < now() - $1 * interval '1 day' ORDER BY at LIMIT $2)",
        float(days),
        most,
    )
    return int(done.split()[-1])


async def read(conn: Connection, offset: int, limit: int) -> list[Recorded]:
    """Entries, newest first, after the first ``offset``."""
    return await fetch(
        Recorded,
        conn,
        "SELECT id, at, username, action, object, address, detail FROM audit"
        " ORDER BY id DESC OFFSET $1 LIMIT $2",
        offset,
        limit,
    )
