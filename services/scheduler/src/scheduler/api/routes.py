"""The routes: who may ask, parsing, and 503 while another process leads."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from muster.errors import Rejected
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from scheduler import record_store
from scheduler.api import clusters, views
from scheduler.api.exporting import Connect, Export, stretch_of
from scheduler.domain.state import State
from scheduler.settings import SchedulerSettings


class Leading(Protocol):
    """What the answers are read from: the decider, or a test's own."""

    epoch: int
    is_leading: bool

    @property
    def state(self) -> State: ...

    def at(self) -> float: ...


LIMIT_DIGITS = 9

LINES = "application/x-ndjson"

Answer = Callable[[Request], views.Answer | None]


def routes(decider: Leading, settings: SchedulerSettings, connect: Connect) -> list[Route]:
    """``/queue?limit=``, ``/gangs/{gang}``, ``/jobs/{job}/why``, ``/nodes``,
    ``/virtual-clusters``, ``/export?since=&until=``. ``connect``: to the database.
    """
    exporting = asyncio.Semaphore(settings.record_exports)

    def route(path: str, answer: Answer) -> Route:
        async def handle(request: Request) -> Response:
            found = answer(request)
            if found is None:
                return _error(404, "NotFoundError", "The Scheduler knows nothing of this.")
            return JSONResponse(found)

        return Route(path, _guarded(handle, decider, settings))

    async def export(request: Request) -> Response:
        if request.query_params:
            return await _stretch(request, connect, exporting, decider.at())
        return JSONResponse(clusters.export(decider.state, decider.at()))

    def queue(request: Request) -> views.Answer:
        wanted = request.query_params.get("limit", "")
        is_number = wanted.isascii() and wanted.isdecimal() and len(wanted) <= LIMIT_DIGITS
        limit = int(wanted) if is_number else settings.queue_answer
        return views.queue(decider.state, min(limit, settings.queue_answer))

    return [
        route("/queue", queue),
        route(
            "/gangs/{name}",
            lambda r: views.gang(decider.state, r.path_params["name"], decider.epoch),
        ),
        route(
            "/jobs/{name}/why",
            lambda r: views.job(decider.state, r.path_params["name"], decider.epoch),
        ),
        route("/nodes", lambda _: views.nodes(decider.state)),
        route("/virtual-clusters", lambda _: clusters.virtual_clusters(decider.state)),
        Route("/export", _guarded(export, decider, settings)),
    ]


async def _stretch(
    request: Request, connect: Connect, exporting: asyncio.Semaphore, now: float
) -> Response:
    """A part of the record, as it is read."""
    query = request.query_params
    try:
        stretch = stretch_of(query.get("since", ""), query.get("until"), now)
    except Rejected as error:
        return _error(400, error.code, str(error))
    if exporting.locked():
        return _error(503, "BusyError", "Others are exporting; try again later.")
    async with connect() as conn:
        first = await record_store.snapshot_before(conn, stretch.since)
    if first is None or first.at > stretch.until:
        return _error(404, "NotFoundError", "There is no record of that time.")
    export = Export(connect, stretch, first)

    async def content() -> AsyncIterator[bytes]:
        async with exporting:
            async for lines in export.lines():
                yield lines

    return StreamingResponse(content(), media_type=LINES)


Handle = Callable[[Request], Awaitable[Response]]


def _guarded(answer: Handle, decider: Leading, settings: SchedulerSettings) -> Handle:
    token = settings.internal_token.get_secret_value()

    async def handle(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return _error(401, "UnauthorizedError", "The internal token is missing or wrong.")
        if not decider.is_leading:
            return _error(503, "StandbyError", "Another process decides; ask that one, or wait.")
        return await answer(request)

    return handle


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status)
