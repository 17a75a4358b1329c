"""Connects HTTP requests to checked addresses only.

A name is resolved, its addresses are judged, and the connection goes to the very address that was
judged: a name that answers differently the next time (DNS rebinding) leads nowhere else. TLS still
asks for the certificate of the name.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import httpx2

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
IsAllowed = Callable[[str], bool]
"""Whether an address, as text, may be connected to."""

ADDRESSES_TRIED = 3


@cache
def public_authorities() -> ssl.SSLContext:
    """TLS that trusts whom the system trusts; all clients share it, as it takes long to read."""
    return httpx2.create_ssl_context(trust_env=False)


class AddressRefused(httpx2.TransportError):
    """A host's name leads to no address that may be connected to."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__("no address of the host may be connected to")
        self.addresses = tuple(addresses)


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
        self, resolve: Resolve, is_allowed: IsAllowed, tls: ssl.SSLContext | None = None
    ) -> None:
        # No connection is kept: a pool would share one between names with the same address.
        self._inner = httpx2.AsyncHTTPTransport(
            verify=tls if tls is not None else public_authorities(),
            trust_env=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises AddressRefused, or httpx2.ConnectError where no address answers."""
        failure: httpx2.ConnectError | None = None
        for address in (await self._checked(request))[:ADDRESSES_TRIED]:
            try:
                return await self._inner.handle_async_request(pinned(request, address))
            except httpx2.ConnectError as error:
                failure = error
        assert failure is not None
        raise failure

    async def _checked(self, request: httpx2.Request) -> list[str]:
        wait_s = request.extensions.get("timeout", {}).get("connect")
        found = await addresses_of(request.url, self._resolve, wait_s)
        allowed = [address for address in found if self._is_allowed(address)]
        if not allowed:
            raise AddressRefused(found)
        return allowed

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


async def addresses_of(url: httpx2.URL, resolve: Resolve, wait_s: float | None) -> Sequence[str]:
    """The addresses of a URL's host. Raises httpx2.ConnectError or httpx2.ConnectTimeout."""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(wait_s):
            return await resolve(url.host, port)
    except TimeoutError as error:
        raise httpx2.ConnectTimeout("the name was not resolved in time") from error
    except (OSError, UnicodeError) as error:
        raise httpx2.ConnectError(f"the name can't be resolved: {error}") from error


def pinned(request: httpx2.Request, address: str) -> httpx2.Request:
    """The same request for one address; its Host header and TLS name stay the host's."""
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
