"""The SQL of the outcomes of expected starts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muster.db import Connection

_ROWS = "SELECT kind, ratios FROM calibration"


async def save(conn: Connection, rows: Mapping[str, Sequence[float]]) -> None:
    """Write the outcomes for these kinds."""
    for kind, ratios in rows.items():
        await conn.execute(
            "INSERT INTO calibration (kind, ratios) VALUES ($1, $2)"
            " ON CONFLICT (kind) DO UPDATE SET ratios = excluded.ratios",
            kind,
            list(ratios),
        )


async def load(conn: Connection) -> dict[str, Sequence[float]]:
    """The outcomes for all kinds."""
    return _of_rows(await conn.fetch(_ROWS))


async def load_of(conn: Connection, kinds: Collection[str]) -> dict[str, Sequence[float]]:
    """The outcomes for these kinds."""
    if not kinds:
        return {}
    return _of_rows(await conn.fetch(f"{_ROWS} WHERE kind = ANY($1)", list(kinds)))


def _of_rows(rows: Sequence[Any]) -> dict[str, Sequence[float]]:
    return {row["kind"]: tuple(row["ratios"]) for row in rows}
