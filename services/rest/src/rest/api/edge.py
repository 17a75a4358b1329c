"""What every request passes on its way in: a bound on its body, a span, a measure of its time."""

import asyncio
import time

from muster.protocol import MAX_BYTES
from muster.telemetry import span
from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rest.metrics import RestMetrics

JOBS_PATH = "/api/v2/jobs"
UNTRACED = ("/healthz", "/readyz", "/metrics")

DRAIN_BYTES = 16 * 1024 * 1024
DRAIN_S = 5.0

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)


class Edge:
    """ASGI middleware around the whole API."""

    def __init__(self, app: ASGIApp, metrics: RestMetrics, body_bytes: int) -> None:
        self._app = app
        self._metrics = metrics
        self._body_bytes = body_bytes

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

        limit = self._limit(scope)
        with span(
            str(scope["method"]), kind=SpanKind.SERVER, parent=headers.get("traceparent")
        ) as opened:
            try:
                await self._app(scope, _bounded(receive, headers, limit), sending)
            finally:
                route = getattr(scope.get("route"), "path", "none")
                opened.update_name(f"{scope['method']} {route}")
                opened.set_attribute("http.response.status_code", status)
                self._metrics.requests.labels(route, scope["method"], str(status)).observe(
                    time.perf_counter() - started
                )

    def _limit(self, scope: Scope) -> int:
        is_submission = scope["method"] == "POST" and scope["path"] == JOBS_PATH
        return MAX_BYTES if is_submission else self._body_bytes


def _bounded(receive: Receive, headers: Headers, limit: int) -> Receive:
    """Passes on no more than ``limit`` bytes of the body."""
    said = headers.get("content-length", "")
    read = 0

    async def receiving() -> Message:
        nonlocal read
        if said.isdigit() and int(said[:20]) > limit:
            raise await _too_large(receive, limit)
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise await _too_large(receive, limit)
        return message

    return receiving


async def _too_large(receive: Receive, limit: int) -> HTTPException:
    """The refusal. Most clients read it only once they have sent all, so some more is taken and
    thrown away; who sends without end is cut off.
    """
    headers: dict[str, str] | None = {"Connection": "close"}
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
    message_text = f"The body is larger than {limit} bytes, which are the most here."
    return HTTPException(413, message_text, headers)
