"""A proxy before the API server, which treats the requests of one client as a test wants."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
from aiohttp import hdrs, web
from kube_plane import KubePlane

Pass = Callable[[], Awaitable[web.StreamResponse]]
"""Has the API server answer the request."""
Treat = Callable[[web.BaseRequest, Pass], Awaitable[web.StreamResponse]]

SENT = (hdrs.AUTHORIZATION, hdrs.CONTENT_TYPE, hdrs.ACCEPT)
RETURNED = (hdrs.CONTENT_TYPE, hdrs.RETRY_AFTER)


async def passed(_request: web.BaseRequest, answer: Pass) -> web.StreamResponse:
    """Treats it like no proxy."""
    return await answer()


def lost(request: web.BaseRequest) -> web.Response:
    """The client gets no answer: its connection breaks."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


class KubeProxy:
    """`treat` answers each request. `url` is of plain HTTP."""

    def __init__(self, plane: KubePlane) -> None:
        self.treat: Treat = passed
        self.url = ""
        self._plane = plane
        self._watches: list[web.BaseRequest] = []

    def cut(self) -> None:
        """Breaks the connections of all watches."""
        for request in self._watches:
            lost(request)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["KubeProxy"]:
        """Serve while the block runs."""
        trusted = ssl.create_default_context(cafile=self._plane.ca_path)
        connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
        forever = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=forever) as session:

            async def handle(request: web.BaseRequest) -> web.StreamResponse:
                await request.read()  # also for a later time, when its client may be gone
                return await self.treat(request, lambda: self._ask(session, request))

            runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0][:2]
                self.url = f"http://{host}:{port}"
                yield self
            finally:
                await runner.cleanup()

    async def _ask(
        self, session: aiohttp.ClientSession, request: web.BaseRequest
    ) -> web.StreamResponse:
        sent = {name: request.headers[name] for name in SENT if name in request.headers}
        async with session.request(
            request.method,
            f"{self._plane.url}{request.path_qs}",
            headers=sent,
            data=await request.read(),
        ) as answer:
            returned = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
            if "watch" not in request.query:
                content = await answer.read()
                return web.Response(status=answer.status, headers=returned, body=content)
            stream = web.StreamResponse(status=answer.status, headers=returned)
            self._watches.append(request)
            try:
                await stream.prepare(request)
                async for piece in answer.content.iter_any():
                    await stream.write(piece)
            finally:
                self._watches.remove(request)
            return stream
