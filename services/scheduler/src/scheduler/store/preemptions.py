"""The SQL of preemptions of the last hour."""

from collections.abc import Collection, Sequence
from typing import Any

from muster.db import Connection

from scheduler.domain.core.model import RestoredPreemption
from scheduler.domain.core.preemptions import HOUR_S

_ROWS = "SELECT preempted_at, job, for_job, virtual_cluster FROM preemption"


async def add(conn: Connection, preemptions: Sequence[RestoredPreemption]) -> None:
    """Add these preemptions in this order; delete those that are an hour older."""
    if not preemptions:
        return
    await conn.execute(
        "DELETE FROM preemption WHERE preempted_at <= $1", preemptions[-1].at - HOUR_S
    )
    await conn.execute(
        "INSERT INTO preemption (preempted_at, job, for_job, virtual_cluster)"
        " SELECT preempted_at, job, for_job, virtual_cluster FROM unnest($1::double precision[],"
        " $2::text[], $3::text[], $4::text[]) WITH ORDINALITY"
        " AS n (preempted_at, job, for_job, virtual_cluster, number) ORDER BY n.number",
        [each.at for each in preemptions],
        [each.job for each in preemptions],
        [each.for_job for each in preemptions],
        [each.virtual_cluster for each in preemptions],
    )


async def load(conn: Connection) -> list[RestoredPreemption]:
    """All, in the order in which they were decided."""
    return _of_rows(await conn.fetch(f"{_ROWS} ORDER BY number"))


async def load_of(conn: Connection, numbers: Collection[int]) -> list[RestoredPreemption]:
    """Those of these numbers that are not too old by now, in order."""
    if not numbers:
        return []
    rows = await conn.fetch(f"{_ROWS} WHERE number = ANY($1) ORDER BY number", list(numbers))
    return _of_rows(rows)


def _of_rows(rows: Sequence[Any]) -> list[RestoredPreemption]:
    return [
        RestoredPreemption(row["preempted_at"], row["job"], row["for_job"], row["virtual_cluster"])
        for row in rows
    ]
