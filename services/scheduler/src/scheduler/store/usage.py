"""The SQL of what users have used."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muster.db import Connection

from scheduler.domain.core.model import RestoredUsage
from scheduler.domain.core.usage import UserKey

_ROWS = "SELECT virtual_cluster, is_opportunistic, user_name, at, used::text FROM usage"
_OF_KEYS = (
    "(virtual_cluster, is_opportunistic, user_name) IN"
    " (SELECT * FROM unnest($1::text[], $2::boolean[], $3::text[]))"
)


async def save(conn: Connection, rows: Mapping[UserKey, RestoredUsage | None]) -> None:
    """Write what these have used; None: nothing that counts."""
    gone = [key for key, row in rows.items() if row is None]
    kept = [(key, row) for key, row in rows.items() if row is not None]
    if gone:
        await conn.execute(f"DELETE FROM usage WHERE {_OF_KEYS}", *_columns(gone))  # noqa: S608
    if kept:
        await conn.execute(
            "INSERT INTO usage (virtual_cluster, is_opportunistic, user_name, at, used)"
            " SELECT virtual_cluster, is_opportunistic, user_name, at, used::jsonb"
            " FROM unnest($1::text[], $2::boolean[], $3::text[], $4::double precision[],"
            " $5::text[]) AS n (virtual_cluster, is_opportunistic, user_name, at, used)"
            " ON CONFLICT (virtual_cluster, is_opportunistic, user_name)"
            " DO UPDATE SET at = excluded.at, used = excluded.used",
            *_columns([key for key, _ in kept]),
            [row.at for _, row in kept],
            [json.dumps(dict(row.used)) for _, row in kept],
        )


async def load(conn: Connection) -> dict[UserKey, RestoredUsage]:
    """What all have used."""
    return _of_rows(await conn.fetch(_ROWS))


async def load_of(conn: Connection, keys: Collection[UserKey]) -> dict[UserKey, RestoredUsage]:
    """What these have used."""
    if not keys:
        return {}
    return _of_rows(await conn.fetch(f"{_ROWS} WHERE {_OF_KEYS}", *_columns(keys)))


def _columns(keys: Collection[UserKey]) -> tuple[list[str], list[bool], list[str]]:
    return [key[0] for key in keys], [key[1] for key in keys], [key[2] for key in keys]


def _of_rows(rows: Sequence[Any]) -> dict[UserKey, RestoredUsage]:
    return {
        (row["virtual_cluster"], row["is_opportunistic"], row["user_name"]): RestoredUsage(
            row["virtual_cluster"],
            row["user_name"],
            row["is_opportunistic"],
            row["at"],
            json.loads(row["used"]),
        )
        for row in rows
    }
