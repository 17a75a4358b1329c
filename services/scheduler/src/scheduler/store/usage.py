"""The SQL of users' usage."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muster.db import Connection

from scheduler.domain.core.model import RestoredUsage, UserKey
from scheduler.store.keyed import Keyed

_TABLE: Keyed[UserKey] = Keyed(
    "usage",
    {"virtual_cluster": "text", "is_opportunistic": "boolean", "user_name": "text"},
    {"at": "double precision", "used": "jsonb"},
)


async def save(conn: Connection, rows: Mapping[UserKey, RestoredUsage | None]) -> None:
    """Write these users' usage; None: delete it."""
    values = {
        key: None if row is None else (row.at, json.dumps(dict(row.used)))
        for key, row in rows.items()
    }
    await _TABLE.save(conn, values)


async def load(conn: Connection) -> dict[UserKey, RestoredUsage]:
    """The usage of all users."""
    return _of_rows(await _TABLE.load(conn))


async def load_of(conn: Connection, keys: Collection[UserKey]) -> dict[UserKey, RestoredUsage]:
    """The usage of these users."""
    return _of_rows(await _TABLE.load_of(conn, keys))


def _of_rows(rows: Sequence[Any]) -> dict[UserKey, RestoredUsage]:
    return {
        (vc, is_guest, user): RestoredUsage(vc, user, is_guest, at, json.loads(used))
        for vc, is_guest, user, at, used in rows
    }
