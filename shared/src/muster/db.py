"""PostgreSQL: one pool per process, rows as dataclasses, and which failures pass by themselves."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar, cast

import asyncpg

from muster.channels import Outgoing
from muster.connections import CANCEL_S, SERVER_SETTINGS, BoundedConnection
from muster.errors import Transient
from muster.settings import DatabaseSettings

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Pool = asyncpg.Pool
Row = TypeVar("Row")

TRANSIENT_STATES = ("08", "25006", "25P03", "40", "53", "55", "57", "58")
"""SQLSTATE classes that pass by themselves: connection, a server that is read-only (a standby, in a
failover), a process that stood still within a transaction, rollback (serialisation, deadlock),
resources (full disk, too many connections), lock not available, operator intervention (shutdown,
statement timeout), system error."""

TRANSIENT_ERRORS = (
    Transient,
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""The last is what asyncpg raises, among others, where a connection ends within an operation."""

ANSWER_TIMEOUT_S = 2.0

LOCK_SHARE = 0.8
"""The part of a statement's time limit."""

LONGEST_MS = 2**31 - 1
"""What the server takes as a time: 24 days. One that is to be longer is as long as that."""


async def open_pool(settings: DatabaseSettings, schema: str, *, is_reserved: bool = False) -> Pool:
    """Open the pool of a service whose tables are in ``schema``, or its reserved one: small, made
    at its first use, for what must not wait behind slow statements.

    Raises OSError or asyncpg.PostgresError where the database can't be reached.
    """

    async def set_up(conn: Connection) -> None:
        await conn.set_type_codec(
            "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )

    return await asyncpg.create_pool(
        settings.database_url.get_secret_value(),
        min_size=0 if is_reserved else 1,
        max_size=(settings.reserved_connections if is_reserved else settings.database_connections),
        init=set_up,
        reset=_leave_as_it_is,
        timeout=10,
        command_timeout=settings.statement_timeout_s,
        max_inactive_connection_lifetime=60,
        connection_class=BoundedConnection,
        server_settings={
            **SERVER_SETTINGS,
            "search_path": schema,
            "application_name": f"muster-{schema}",
            "jit": "off",
            "idle_in_transaction_session_timeout": milliseconds(settings.idle_transaction_s),
            # Waiting for a lock is no slow statement: it is tried again without end.
            "lock_timeout": milliseconds(settings.statement_timeout_s * LOCK_SHARE),
            "statement_timeout": milliseconds(settings.statement_timeout_s + CANCEL_S),
        },
    )


def milliseconds(seconds: float) -> str:
    """A time as the server takes it."""
    return str(int(min(seconds * 1000, LONGEST_MS)))


async def _leave_as_it_is(_conn: Connection) -> None:
    """Do nothing: no code here changes a session (no LISTEN, no advisory locks, only SET LOCAL), so
    that the round trip of a reset is saved.
    """


def is_transient(error: BaseException) -> bool:
    """Whether a retry can succeed, at most with the operator's help."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(TRANSIENT_STATES)
    return isinstance(error, TRANSIENT_ERRORS)


async def fetch(row: type[Row], conn: Connection, sql: str, *args: object) -> list[Row]:
    """The rows of a query as dataclasses; its columns are their fields, in any order."""
    names = [field.name for field in fields(cast(Any, row))]
    return [row(**{n: record[n] for n in names}) for record in await conn.fetch(sql, *args)]


async def answers(pool: Pool) -> bool:
    """Whether the database answers at once."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await pool.fetchval("SELECT 1")
    except Exception:
        return False
    return True


def is_too_slow(error: BaseException) -> bool:
    """Whether a statement took longer than any may. Less at once can help, waiting may not."""
    return isinstance(error, asyncpg.QueryCanceledError | TimeoutError)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction, and what is published because of it: ``outgoing`` from memory after the
    commit, ``notices`` from a table of their own. ``now``: the database's time. ``strays``: pods
    with a message from an agent that is not the other side. ``floor``: what is published gets a
    revision above it.
    """

    conn: Connection
    now: datetime
    outgoing: list[Outgoing] = field(default_factory=list)
    notices: list[Outgoing] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    floor: int = 0


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[Connection]:
    """A connection of the pool, in a transaction."""
    try:
        async with pool.acquire() as conn, conn.transaction():
            yield conn
    except asyncpg.ReadOnlySQLTransactionError:
        await pool.expire_connections()  # the next ones may find the server that takes writes
        raise
