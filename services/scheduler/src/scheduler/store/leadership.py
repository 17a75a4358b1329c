"""Who decides: one row, renewed by its holder, taken by another some time after it expired.

Time is the database's. A holder that slept wakes up into a check that fails: every deciding
transaction begins with `check`, which also keeps the row as it is until the transaction's end.
"""

from muster.connections import CANCEL_S
from muster.db import Connection, milliseconds

from scheduler.settings import SchedulerSettings


class Deposed(Exception):
    """Another process leads, or may."""


async def take(
    conn: Connection, holder: str, settings: SchedulerSettings, *, receives_from_bus: bool = False
) -> int | None:
    """Lead if nobody does, or only one who is deaf to the bus and this one is not: the new epoch;
    else None.

    A row that expires later than its holder can have written it is from before the clock went back:
    from now on it lasts as long as any.
    """
    await conn.execute(
        "UPDATE leader SET expires_at = clock_timestamp() + $1 * interval '1 s'"
        " WHERE expires_at > clock_timestamp() + 2 * $1 * interval '1 s'",
        settings.leader_expiry_s,
    )
    epoch: int | None = await conn.fetchval(
        "UPDATE leader SET epoch = epoch + 1, holder = $1, cut_off_since = NULL,"
        " expires_at = clock_timestamp() + $2 * interval '1 s'"
        " WHERE expires_at + $3 * interval '1 s' < clock_timestamp()"
        " OR $4 AND cut_off_since + $5 * interval '1 s' < clock_timestamp() RETURNING epoch",
        holder,
        settings.leader_expiry_s,
        settings.leader_take_s,
        receives_from_bus,
        settings.leader_cut_off_s,
    )
    return epoch


async def renew(
    conn: Connection,
    epoch: int,
    holder: str,
    settings: SchedulerSettings,
    *,
    receives_from_bus: bool = True,
) -> bool:
    """Lead on, and say whether the bus is heard; whether words wait that no cycle has seen. Raises
    Deposed.

    Who is deaf since a time to come is so since now: the clock went back.
    """
    has_messages: bool | None = await conn.fetchval(
        "UPDATE leader SET expires_at = clock_timestamp() + $3 * interval '1 s',"
        " cut_off_since = CASE WHEN NOT $4 THEN least(cut_off_since, clock_timestamp()) END"
        " WHERE epoch = $1 AND holder = $2"
        " RETURNING EXISTS (SELECT 1 FROM gang WHERE is_dirty)",
        epoch,
        holder,
        settings.leader_expiry_s,
        receives_from_bus,
    )
    if has_messages is None:
        raise Deposed
    return has_messages


async def resign(conn: Connection, epoch: int, holder: str) -> None:
    """Let another lead at once."""
    await conn.execute(
        "UPDATE leader SET expires_at = '-infinity' WHERE epoch = $1 AND holder = $2",
        epoch,
        holder,
    )


async def check(conn: Connection, epoch: int, holder: str, settings: SchedulerSettings) -> None:
    """Make sure that this process still leads. Nobody else can until the transaction's end.

    That end comes: the database ends a transaction that idles, and (from PostgreSQL 17 on) one that
    lasts. Between the parts of a statement neither that nor a statement's own end counts. Raises
    Deposed.
    """
    found: int | None = await conn.fetchval(
        "SELECT epoch, CASE WHEN current_setting('transaction_timeout', true) <> ''"
        " THEN set_config('transaction_timeout', $4, true) END"
        " FROM leader, set_config('idle_in_transaction_session_timeout', $3, true)"
        " WHERE epoch = $1 AND holder = $2 FOR SHARE OF leader",
        epoch,
        holder,
        milliseconds(settings.deciding_timeout_s),
        milliseconds(settings.statement_timeout_s + CANCEL_S),
    )
    if found is None:
        raise Deposed
