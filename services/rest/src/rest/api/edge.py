"""What every request passes on its way in: the limits of its caller, a bound on its body, a span, a
measure of its time.
"""

import asyncio
import time
from collections.abc import Callable

from muster.errors import Rejected
from muster.protocol import MAX_BYTES
from muster.telemetry import span
from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rest.api.context import Context, address_of, bearer
from rest.api.errors import rejection
from rest.api.router import PREFIX
from rest.domain.throttle import TooManyRequests

JOBS_PATH = f"{PREFIX}/jobs"
CONFIG_PATH = f"{PREFIX}/cluster/config"
WHAT_IF_PATH = f"{CONFIG_PATH}/what-if"
ALERTMANAGER_PATH = f"{PREFIX}/alerts/alertmanager"
ALERTMANAGER_BYTES = 16 * 1024 * 1024
"""Some ten thousand alerts: it drops what is refused."""
PUBLIC = frozenset(
    {
        f"{PREFIX}/info",
        f"{PREFIX}/authn/info",
        f"{PREFIX}/authn/basic/login",
        f"{PREFIX}/token",
        f"{PREFIX}/protocol/schema.json",
    }
)
"""Paths that need no token."""

UNTRACED = ("/healthz", "/readyz", "/metrics")

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""Other methods share one label: a client can invent any number of them."""

DRAIN_BYTES = 16 * 1024 * 1024
DRAIN_S = 5.0

CLOSE = {"Connection": "close"}

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)


class Edge:
    """ASGI middleware around the whole API."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._access = context.access
        self._limits = context.limits
        self._metrics = context.metrics
        self._settings = context.settings
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        started = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                added = [pair for pair in SECURITY_HEADERS if pair[0] not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        body = _Body(receive, headers, self._limit(scope), self._hold)
        body.until = asyncio.get_running_loop().time() + self._settings.body_timeout_s
        with span(
            str(scope["method"]), kind=SpanKind.SERVER, parent=headers.get("traceparent")
        ) as opened:
            try:
                address = await address_of(Request(scope))
                with self._limits.request(self._user(headers), address):
                    await self._app(scope, body, sending)
            except TooManyRequests as error:
                await rejection(error)(scope, receive, sending)
            finally:
                self._held -= body.held
                method = scope["method"] if scope["method"] in METHODS else "other"
                route = _route(scope)
                opened.update_name(f"{scope['method']} {route}")
                opened.set_attribute("http.response.status_code", status)
                self._metrics.requests.labels(route, method, str(status)).observe(
                    time.perf_counter() - started
                )

    def _user(self, headers: Headers) -> str | None:
        """Whose request it is, if their token has been valid here. The database is not asked: a
        made-up token counts against the address first.
        """
        try:
            _, token = bearer(headers.get("authorization", ""))
        except Rejected:
            return None
        return self._access.user_of(token)

    def _limit(self, scope: Scope) -> int:
        match scope["method"], scope["path"]:
            case ("POST", path) if path == JOBS_PATH:
                return MAX_BYTES
            case ("POST", path) if path == ALERTMANAGER_PATH:
                return ALERTMANAGER_BYTES
            case ("PUT", path) if path == CONFIG_PATH:
                return self._settings.config_bytes
            case ("POST", path) if path == WHAT_IF_PATH:
                return self._settings.config_bytes
        return self._settings.body_bytes

    def _hold(self, count: int) -> None:
        """Count bytes of bodies in memory. Raises HTTPException where they are too many."""
        if self._held + count > self._settings.bodies_bytes:
            raise HTTPException(503, "The server receives too many requests. Try again later.")
        self._held += count


def _route(scope: Scope) -> str:
    """The template of the request's path; one label for all unknown paths."""
    path: str = getattr(scope.get("route"), "path", "none")
    return path


class _Body:
    """Reads no more than ``limit`` bytes of a request's body, and waits for them no longer than
    ``until`` (the loop's clock); ``held`` of them are in memory.
    """

    def __init__(
        self, receive: Receive, headers: Headers, limit: int, hold: Callable[[int], None]
    ) -> None:
        self._receive = receive
        self._declared = headers.get("content-length", "")
        self._limit = limit
        self._hold = hold
        self._is_whole = False
        self.held = 0
        self.until = 0.0

    async def __call__(self) -> Message:
        if self._declared.isdigit() and int(self._declared[:20]) > self._limit:
            raise await _too_large(self._receive, self._limit)
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self.until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(
                408, "The body was not received in time. Send it again.", CLOSE
            ) from None
        self._is_whole = not message.get("more_body", False)
        count = len(message.get("body", b""))
        if self.held + count > self._limit:
            raise await _too_large(self._receive, self._limit)
        self._hold(count)
        self.held += count
        return message


async def _too_large(receive: Receive, limit: int) -> HTTPException:
    """The refusal. Most clients read it only once they have sent all, so some more is taken and
    thrown away; who sends without end is cut off.
    """
    headers: dict[str, str] | None = CLOSE
    taken = 0
    try:
        async with asyncio.timeout(DRAIN_S):
            while taken < DRAIN_BYTES:
                message = await receive()
                taken += len(message.get("body", b""))
                if not message.get("more_body", False):
                    headers = None
                    break
    except TimeoutError:
        pass
    message_text = f"The body is larger than the limit of {limit} bytes."
    return HTTPException(413, message_text, headers)
