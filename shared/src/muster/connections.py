"""Connections to PostgreSQL that a task can abandon, whatever the network does.

asyncpg asks the server to cancel an abandoned statement, and waits for the answer as long as a
statement may take: minutes where packets are dropped silently, or the server is stopped. And a task
that is cancelled in a transaction, whose connection then ends, would only get the connection's
error, and go on.
"""

import asyncio
import socket
from typing import Any, Literal

import asyncpg
from asyncpg.transaction import Transaction

from muster.errors import Transient

Isolation = Literal["read_committed", "read_uncommitted", "serializable", "repeatable_read"]

CANCEL_S = 1.0
"""An abandoned statement has this long to end in order; then its connection is closed."""

SILENT_S = 5.0
"""A connection whose peer has taken no data for this long is closed, on both sides. That releases
its locks, also where the server waits to send its answer. A statement that the server executes, or
that waits for a lock, continues first: to its end, or to the time limit (`muster.db`)."""

_PROBE_AFTER_S, _PROBE_EVERY_S = 2, 1
_PROBES = int(SILENT_S) - _PROBE_AFTER_S

SERVER_SETTINGS = {
    "tcp_user_timeout": str(int(SILENT_S * 1000)),
    "tcp_keepalives_idle": str(_PROBE_AFTER_S),
    "tcp_keepalives_interval": str(_PROBE_EVERY_S),
    "tcp_keepalives_count": str(_PROBES),
}
"""The server's side of it, which has no effect where the system can't do it."""

_SOCKET_OPTIONS = (
    ("TCP_KEEPIDLE", _PROBE_AFTER_S),
    ("TCP_KEEPINTVL", _PROBE_EVERY_S),
    ("TCP_KEEPCNT", _PROBES),
    ("TCP_USER_TIMEOUT", int(SILENT_S * 1000)),
)


_ENDED = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresError)
"""What a rollback raises on a closed connection."""


class BoundedTransaction(Transaction):
    """A transaction whose error is its cause, not the end of its connection."""

    async def __aexit__(self, kind: object, error: object, at: object) -> None:
        """Commit, or roll back. Raises Transient where the commit is not answered: a slow standby
        or disk does not make the transaction itself wrong.
        """
        try:
            await super().__aexit__(kind, error, at)
        except TimeoutError as slow:
            if error is None:
                raise Transient("the database does not answer a commit") from slow
        except _ENDED:
            if error is None:
                raise


class BoundedConnection(asyncpg.Connection):
    """A connection on which no wait lasts for ever."""

    def __init__(self, protocol: Any, transport: asyncio.Transport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        used = transport.get_extra_info("socket")
        if used is None or used.family not in (socket.AF_INET, socket.AF_INET6):
            return
        used.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET_OPTIONS:
            if hasattr(socket, name):
                used.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def transaction(
        self,
        *,
        isolation: Isolation | None = None,
        readonly: bool = False,
        deferrable: bool = False,
    ) -> Transaction:
        """A transaction, or a savepoint within one."""
        return BoundedTransaction(self, isolation, readonly, deferrable)

    def _cancel_current_command(
        self, sent: asyncio.Future[None], acknowledged: asyncio.Future[None] | None = None
    ) -> None:
        # asyncpg has no public way to bound it; tests/muster/test_connections.py guards the name.
        super()._cancel_current_command(sent, acknowledged)  # type: ignore[misc]
        asyncio.get_running_loop().call_later(CANCEL_S, self._end_unless_done, acknowledged or sent)

    def _end_unless_done(self, cancelled: asyncio.Future[None]) -> None:
        if not cancelled.done():
            self.terminate()
