"""The SQL of learnt run times."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muster.db import Connection

from scheduler.domain.run_times import History, Key

_ROWS = "SELECT user_name, name, shape, ended_at, seconds FROM run_time"
_OF_KEYS = "(user_name, name, shape) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))"


async def save(conn: Connection, histories: Mapping[Key, History | None]) -> None:
    """Write what is known of these keys; None: nothing any more."""
    gone = [key for key, history in histories.items() if history is None]
    kept = [(key, history) for key, history in histories.items() if history is not None]
    if gone:
        await conn.execute(f"DELETE FROM run_time WHERE {_OF_KEYS}", *_columns(gone))  # noqa: S608
    if kept:
        await conn.execute(
            "INSERT INTO run_time (user_name, name, shape, ended_at, seconds)"
            " SELECT user_name, name, shape, ended_at::double precision[], seconds::integer[]"
            " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])"
            " AS n (user_name, name, shape, ended_at, seconds)"
            " ON CONFLICT (user_name, name, shape)"
            " DO UPDATE SET ended_at = excluded.ended_at, seconds = excluded.seconds",
            *_columns([key for key, _ in kept]),
            [_array(history.ended_at) for _, history in kept],
            [_array(history.seconds) for _, history in kept],
        )


async def load(conn: Connection) -> dict[Key, History]:
    """All that is known."""
    return _histories(await conn.fetch(_ROWS))


async def load_of(conn: Connection, keys: Collection[Key]) -> dict[Key, History]:
    """What is known of these keys."""
    if not keys:
        return {}
    return _histories(await conn.fetch(f"{_ROWS} WHERE {_OF_KEYS}", *_columns(keys)))


def _columns(keys: Collection[Key]) -> tuple[list[str], list[str], list[str]]:
    return [k.user for k in keys], [k.name for k in keys], [k.shape for k in keys]


def _array(numbers: Sequence[float]) -> str:
    return "{" + ",".join(map(repr, numbers)) + "}"


def _histories(rows: Sequence[Any]) -> dict[Key, History]:
    return {
        Key(row["user_name"], row["name"], row["shape"]): History(
            tuple(row["ended_at"]), tuple(row["seconds"])
        )
        for row in rows
    }
