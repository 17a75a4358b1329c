"""Records on no subject: dead letters and alerts. Nobody acknowledges them, so a small table holds
each until the bus has it.
"""

from collections.abc import Collection, Sequence
from dataclasses import fields

from muster.channels import Outgoing
from muster.db import Connection


async def write(conn: Connection, notices: Sequence[Outgoing]) -> None:
    """Write them in the caller's transaction."""
    if notices:
        values = [[getattr(each, name) for each in notices] for name in _COLUMNS]
        await conn.execute(_WRITE, *values)


async def take(
    conn: Connection, limit: int, away_topics: Collection[str]
) -> list[tuple[int, Outgoing]]:
    """Lock the oldest, but those of ``away_topics``; with the number of each."""
    rows = await conn.fetch(_TAKE, limit, list(away_topics))
    return [(row["id"], Outgoing(*(row[name] for name in _COLUMNS))) for row in rows]


async def delete(conn: Connection, ids: Sequence[int]) -> None:
    """The bus has these."""
    await conn.execute("DELETE FROM notice WHERE id = ANY($1::bigint[])", ids)


_COLUMNS = tuple(field.name for field in fields(Outgoing))
_LIST = ", ".join(_COLUMNS)
_WRITE = f"""
    INSERT INTO notice ({_LIST})
    SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::float8[], $6::text[])
"""  # noqa: S608 - the names of columns, not values
_TAKE = f"""
    SELECT id, {_LIST} FROM notice WHERE topic <> ALL($2::text[])
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - columns
