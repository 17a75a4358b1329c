"""The SQL of reservations: cells reserved for waiting gangs, or kept for next attempts."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from muster.db import Connection

from scheduler.domain.core.model import CellUse, KeptOf, NodeGpus, RestoredReservation
from scheduler.domain.core_rows import KnownReservation

_ROWS = (
    "SELECT gang, cells::text, held::text, bound::text, starts_at, since, pods,"
    " kept_of::text FROM reservation"
)


async def save(conn: Connection, rows: Mapping[str, KnownReservation | None]) -> None:
    """Write these gangs' reservations; None: delete them."""
    gone = [gang for gang, row in rows.items() if row is None]
    kept = [row for row in rows.values() if row is not None]
    if gone:
        await conn.execute("DELETE FROM reservation WHERE gang = ANY($1)", gone)
    if kept:
        of = [row.restored for row in kept]
        await conn.execute(
            "INSERT INTO reservation"
            " (gang, cells, held, bound, starts_at, since, pods, kept_of)"
            " SELECT gang, cells::jsonb, held::jsonb, bound::jsonb, starts_at, since, pods,"
            " kept_of::jsonb FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],"
            " $5::double precision[], $6::double precision[], $7::text[], $8::text[])"
            " AS n (gang, cells, held, bound, starts_at, since, pods, kept_of)"
            " ON CONFLICT (gang) DO UPDATE SET cells = excluded.cells, held = excluded.held,"
            " bound = excluded.bound, starts_at = excluded.starts_at, since = excluded.since,"
            " pods = excluded.pods, kept_of = excluded.kept_of",
            [each.gang for each in of],
            [json.dumps(each.cells) for each in of],
            [json.dumps(each.held or ()) for each in of],
            [json.dumps([[use.cell, use.quota] for use in each.bound]) for each in of],
            [each.starts_at for each in of],
            [each.since for each in of],
            [row.pods for row in kept],
            [None if each.kept_of is None else json.dumps(astuple(each.kept_of)) for each in of],
        )


async def load(conn: Connection) -> dict[str, KnownReservation]:
    """All reservations, by gang."""
    return _of_rows(await conn.fetch(_ROWS))


async def load_of(conn: Connection, gangs: Collection[str]) -> dict[str, KnownReservation]:
    """These gangs' reservations."""
    if not gangs:
        return {}
    return _of_rows(await conn.fetch(f"{_ROWS} WHERE gang = ANY($1)", list(gangs)))


def _of_rows(rows: Sequence[Any]) -> dict[str, KnownReservation]:
    return {row["gang"]: _of_row(row) for row in rows}


def _of_row(row: Any) -> KnownReservation:
    restored = RestoredReservation(
        row["gang"],
        _cells(row["cells"]),
        row["starts_at"],
        row["since"],
        tuple(CellUse(cell, quota) for cell, quota in json.loads(row["bound"])),
        _cells(row["held"]),
        kept_of=None if row["kept_of"] is None else _kept_of(*json.loads(row["kept_of"])),
    )
    return KnownReservation(restored, row["pods"])


def _kept_of(
    virtual_cluster: str, priority: int, user: str, job: str, pins: Sequence[str]
) -> KeptOf:
    return KeptOf(virtual_cluster, priority, user, job, tuple(pins))


def _cells(text: str) -> tuple[NodeGpus, ...]:
    return tuple((node, tuple(gpus)) for node, gpus in json.loads(text))
