"""Rows as JSON: a whole batch is one parameter of one statement."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from muster.db import Connection
from muster.errors import Transient


def plain(row: Mapping[str, object]) -> dict[str, object]:
    """A row as JSON. PostgreSQL takes no NUL character; texts of foreign records may have one."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(it) for it in value]
    if isinstance(value, Mapping):
        return {text(str(name)): _plain(it) for name, it in value.items()}
    return value


def text(value: str) -> str:
    """A text that PostgreSQL takes."""
    return value.replace("\x00", "\ufffd") if "\x00" in value else value


async def upsert(
    conn: Connection, sql: str, rows: Sequence[Mapping[str, object]], known: Sequence[str]
) -> None:
    """Write rows: those of ``known`` keys are locked by this transaction, the others are new.

    Raises Transient where another replica has just made one of the new ones.
    """
    if not rows:
        return
    done = await conn.execute(sql, [plain(row) for row in rows], list(known))
    if done != f"INSERT 0 {len(rows)}":
        raise Transient("another replica has just made the same row")


def upsert_sql(table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """The statement for ``upsert``; ``known`` keys are their columns joined by a slash."""
    names = ", ".join(columns)
    changed = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in key)
    joined = " || '/' || ".join(f"{table}.{c}" for c in key)
    return (
        f"INSERT INTO {table} ({names})"  # noqa: S608 - the names of columns, not values
        f" SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)"
        f" ORDER BY {', '.join(key)}"
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed} WHERE {joined} = ANY($2)"
    )
