"""The lead: one row. Its holder renews it; another process takes it some time after it expired.

Time is the database's. A holder that slept fails its next check: every deciding transaction begins
with `check`, which also locks the row until the transaction's end.
"""

from muster.connections import CANCEL_S
from muster.db import Connection, milliseconds

from scheduler.settings import SchedulerSettings


class Deposed(Exception):
    """Another process leads, or may."""


async def take(
    conn: Connection, holder: str, settings: SchedulerSettings, *, receives_from_bus: bool = False
) -> int | None:
    """Take the lead if it is free. Also take it if the leader is cut off from the bus and this
    process is not. Returns the new epoch, else None.

    An expiry beyond the longest possible one was written before the clock went back. It is
    shortened to the longest.
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
    """Renew the lead, and note whether messages arrive from the bus. Returns whether any message
    waits that no cycle has seen. Raises Deposed.

    If the clock went back, a start of the cut-off in the future becomes the present time.
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
    """Release the lead, so that another process can take it at once."""
    await conn.execute(
        "UPDATE leader SET expires_at = '-infinity' WHERE epoch = $1 AND holder = $2",
        epoch,
        holder,
    )


async def check(conn: Connection, epoch: int, holder: str, settings: SchedulerSettings) -> None:
    """Check that this process still leads. No other process can lead until the transaction's end.

    The database ends an idle transaction, and (from PostgreSQL 17 on) a long one. Neither limit,
    nor a statement's own, counts between the parts of a statement. Raises Deposed.
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
