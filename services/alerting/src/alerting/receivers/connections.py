"""Connections to receivers: only to addresses that were judged at the connection itself, and kept
for the next message to the same receiver.
"""

import socket
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from muster.address_guard import ADDRESSES_TRIED, Resolve, public_authorities

KEPT_S = 2.0
"""How long an unused connection is kept: servers mostly close theirs after 5 s or more."""

AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]


class Refused(OSError):
    """A host's name leads to no address that may be connected to."""

    def __init__(self) -> None:
        super().__init__("no address of the host may be connected to")


class _Checked(AbstractResolver):
    """Names lead to allowed addresses only."""

    def __init__(self, resolve: Resolve, is_allowed: Callable[[str], bool]) -> None:
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The first allowed addresses. Raises Refused, or OSError where the name leads nowhere."""
        try:
            found = await self._resolve(host, port)
        except UnicodeError as error:
            raise OSError(f"the name can't be resolved: {error}") from error
        allowed = [it for it in found if self._is_allowed(it)]
        if not allowed:
            raise Refused()
        return [
            ResolveResult(hostname=host, host=it, port=port, family=family, proto=0, flags=0)
            for it in allowed[:ADDRESSES_TRIED]
        ]

    async def close(self) -> None:
        """Nothing is held."""


def connector(
    resolve: Resolve, is_allowed: Callable[[str], bool], tls: ssl.SSLContext | None
) -> aiohttp.TCPConnector:
    """Connects to allowed addresses only; TLS asks for the certificate of the name. A connection is
    kept for its name: names with one address share none. To be used after ``used_here``.
    """

    def open_socket(info: AddressInfo) -> socket.socket:
        # The last word, and the only one about an address that stands for a name.
        family, kind, protocol, _, address = info
        if not is_allowed(str(address[0])):
            raise Refused()
        _USED.get().is_kept = False
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        ssl=tls if tls is not None else public_authorities(),
        limit=0,
        use_dns_cache=False,
        resolver=_Checked(resolve, is_allowed),
        socket_factory=open_socket,
        keepalive_timeout=KEPT_S,
        happy_eyeballs_delay=None,
    )


class Connection:
    """The connection of one request. ``is_kept``: an earlier request opened it."""

    def __init__(self) -> None:
        self.is_kept = True


_USED: ContextVar[Connection] = ContextVar("connection")


def used_here() -> Connection:
    """The connection that the next request of this task uses."""
    connection = Connection()
    _USED.set(connection)
    return connection
