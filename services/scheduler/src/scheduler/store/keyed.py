"""Tables whose rows are written and read whole, by their keys, many at once."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from muster.db import Connection

K = TypeVar("K", bound=tuple[Any, ...])

Types = Mapping[str, str]
"""Columns, with PostgreSQL's names of their types."""


@dataclass(frozen=True)
class Keyed(Generic[K]):
    """``key``, ``values``: the columns. JSON and arrays are given as texts; JSON is read so too."""

    table: str
    key: Types
    values: Types

    async def save(self, conn: Connection, rows: Mapping[K, Sequence[object] | None]) -> None:
        """Write these rows' values; None: the row goes."""
        gone = [key for key, values in rows.items() if values is None]
        kept = [(*key, *values) for key, values in rows.items() if values is not None]
        if gone:
            sql = f"DELETE FROM {self.table} WHERE {self._is_of_keys}"  # noqa: S608 - names of ours
            await conn.execute(sql, *_columns(gone))
        if kept:
            await conn.execute(self._save, *_columns(kept))

    async def load(self, conn: Connection) -> list[Any]:
        """All rows."""
        return list(await conn.fetch(self._rows))

    async def load_of(self, conn: Connection, keys: Collection[K]) -> list[Any]:
        """The rows of these keys."""
        if not keys:
            return []
        return list(await conn.fetch(f"{self._rows} WHERE {self._is_of_keys}", *_columns(keys)))

    @property
    def _rows(self) -> str:
        names = (f"{n}::text" if kind == "jsonb" else n for n, kind in self.values.items())
        return f"SELECT {', '.join((*self.key, *names))} FROM {self.table}"  # noqa: S608 - names of ours

    @property
    def _is_of_keys(self) -> str:
        names, given = ", ".join(self.key), _given(self.key)
        return f"({names}) IN (SELECT * FROM unnest({given}))"  # noqa: S608 - names of ours

    @property
    def _save(self) -> str:
        types = {**self.key, **self.values}
        names, key = ", ".join(types), ", ".join(self.key)
        cast = ", ".join(f"{name}::{kind}" for name, kind in types.items())
        changed = ", ".join(f"{name} = excluded.{name}" for name in self.values)
        return (
            f"INSERT INTO {self.table} ({names})"  # noqa: S608 - names of ours
            f" SELECT {cast} FROM unnest({_given(types)}) AS n ({names})"
            f" ON CONFLICT ({key}) DO UPDATE SET {changed}"
        )


def array(numbers: Sequence[float]) -> str:
    """An array as PostgreSQL writes it."""
    return "{" + ",".join(map(repr, numbers)) + "}"


def _given(types: Types) -> str:
    """The parameters, of each column one."""
    kinds = ("text" if kind == "jsonb" or kind.endswith("[]") else kind for kind in types.values())
    return ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(kinds, 1))


def _columns(rows: Collection[Sequence[object]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
