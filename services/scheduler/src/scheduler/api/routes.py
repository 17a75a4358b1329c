"""The routes: who may ask, parsing, and 503 while another process leads."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog
from muster.errors import Broken, Rejected
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from scheduler import record_store
from scheduler.api import clusters, views
from scheduler.api.exporting import Connect, Export, stretch_of
from scheduler.domain.state import State
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()


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
    seats = Seats(settings)

    def route(path: str, answer: Answer) -> Route:
        async def handle(request: Request) -> Response:
            found = answer(request)
            if found is None:
                return _error(404, "NotFoundError", "The Scheduler knows nothing of this.")
            return JSONResponse(found)

        return Route(path, _guarded(handle, decider, settings))

    async def export(request: Request) -> Response:
        if request.query_params:
            return await _stretch(request, connect, seats, decider.at())
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


async def _stretch(request: Request, connect: Connect, seats: "Seats", now: float) -> Response:
    """A part of the record, as it is read."""
    query = request.query_params
    try:
        stretch = stretch_of(query.get("since", ""), query.get("until"), now)
    except Rejected as error:
        return _error(400, error.code, str(error))
    async with connect() as conn:
        first = await record_store.snapshot_before(conn, stretch.since)
    if first is None or first.at > stretch.until:
        return _error(404, "NotFoundError", "There is no record of that time.")
    return Seated(Export(connect, stretch, first), seats)


class Seats(asyncio.Semaphore):
    """Of exports that are being sent. ``stall_s``: who takes nothing for so long loses his."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings.record_exports)
        self.stall_s = settings.record_stall_s


class Seated(StreamingResponse):
    """An export, if there is a seat at the moment at which it begins. One that can't be sent to its
    end is cut off, so that it does not look whole.
    """

    def __init__(self, export: Export, seats: Seats) -> None:
        super().__init__(export.lines(), media_type=LINES)
        self._seats = seats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._seats.locked():
            busy = _error(503, "BusyError", "Others are exporting; try again later.")
            await busy(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            try:
                async with asyncio.timeout(self._seats.stall_s):
                    await send(message)
            except TimeoutError as error:
                raise Broken("Who asked for it takes nothing any more.") from error

        async with self._seats:
            try:
                await super().__call__(scope, receive, sending)
            except Broken as error:
                _log.warning("an export was cut off", error=str(error))


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
