"""Connects webhooks to checked addresses only.

A name is resolved, its addresses are judged, and the connection goes to the very address that was
judged: a name that answers differently the next time (DNS rebinding) leads nowhere else. TLS still
asks for the certificate of the name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx2

from alerting.domain.addresses import Network, is_allowed

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

ADDRESSES_TRIED = 3


class AddressRefused(httpx2.TransportError):
    """The receiver's name leads to no address that webhooks may be sent to."""


class Resolver:
    """Looks names up in threads of its own: a name server that hangs delays nothing else."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a name, in the system's order. Raises OSError where there are none."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def close(self) -> None:
        """Let the threads end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request to an address that was checked just before."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, resolve: Resolve, allowed: Sequence[Network]
    ) -> None:
        self._inner = inner
        self._resolve = resolve
        self._allowed = tuple(allowed)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises AddressRefused, or httpx2.ConnectError where no address answers."""
        failure: httpx2.ConnectError | None = None
        for address in (await self._checked(request))[:ADDRESSES_TRIED]:
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except httpx2.ConnectError as error:
                failure = error
        assert failure is not None
        raise failure

    async def _checked(self, request: httpx2.Request) -> list[str]:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await self._resolve(url.host, port)
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"the name can't be resolved: {error}") from error
        allowed = [address for address in found if is_allowed(address, self._allowed)]
        if not allowed:
            raise AddressRefused(
                "its addresses are private or reserved: subscribe a public one,"
                " or let the operator allow the network in MUSTER_WEBHOOK_ALLOW_NETWORKS"
            )
        return allowed

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _pinned(request: httpx2.Request, address: str) -> httpx2.Request:
    """The same request for one address; its Host header and TLS name stay the receiver's."""
    host = request.url.host
    extensions = dict(request.extensions)
    if host != address:
        extensions["sni_hostname"] = host
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=extensions,
    )
