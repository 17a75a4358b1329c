"""The routes: authorization, parsing, and 421 while this process does not lead."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import structlog
from muster.errors import Broken, Rejected, Transient
from muster.token_guard import TokenGuard
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from scheduler import store
from scheduler.api import clusters, views
from scheduler.api.advice import advice as advice_of
from scheduler.api.answers import Alone, Answer
from scheduler.api.cells import Wanted
from scheduler.api.cells import cells as cells_of
from scheduler.api.configuration import Configurations
from scheduler.api.exporting import Connect, Export, stretch_of
from scheduler.comparisons import Comparisons
from scheduler.configuring import Configuring
from scheduler.domain.core.interface import MOST_CELLS
from scheduler.domain.formats.snapshot import Taken, taking
from scheduler.domain.formats.writing import to_line, to_record
from scheduler.domain.state import State
from scheduler.settings import SchedulerSettings

_log = structlog.get_logger()


class Leading(Protocol):
    """What the answers are read from: the decider, or a test's own."""

    epoch: int
    is_leading: bool
    deciding: asyncio.Lock

    @property
    def state(self) -> State: ...

    @property
    def configuring(self) -> Configuring: ...

    def at(self) -> float: ...


DIGITS = 9

RETRY_AFTER_S = 5
"""The time limit for an export of a large cluster."""

LOOK_S, WAIT_S = 0.005, 0.05
"""A request during a cycle waits at most `WAIT_S` for the cycle's end, and checks it every
`LOOK_S`.
"""

LINES = "application/x-ndjson"
AS_OF = "X-As-Of"
"""The ``asOf`` of other answers: the number of the last cycle before the answer."""

Handle = Callable[[Request], Awaitable[Response]]


def routes(
    decider: Leading,
    settings: SchedulerSettings,
    connect: Connect,
    comparisons: Comparisons,
    guard: TokenGuard,
) -> list[Route]:
    """``/queue?offset=&limit=``, ``/gangs?offset=&limit=``, ``/gangs/{gang}``, ``/jobs/{job}/why``,
    ``/nodes?first=&last=&troubled=``,
    ``/cells?address=&virtualCluster=&offset=&limit=``, ``/virtual-clusters``,
    ``/advice?chain=&level=&cells=``, ``/configuration``,
    ``POST /configuration/check``, ``POST /configuration/what-if``, ``/export?since=&until=``.
    ``connect``: to the database.
    """
    seats, whole_seats = Seats(settings), asyncio.Semaphore(settings.whole_exports)
    configurations = Configurations(decider, settings, comparisons)

    def route(path: str, handle: Handle, method: str = "GET") -> Route:
        return Route(path, _guarded(handle, decider, guard), methods=[method])

    alone = partial(_alone, decider, settings.question_wait_s)

    async def queue(request: Request) -> Response:
        page = _page(request, settings.queue_answer)
        return await _shown(await views.queue(alone, *page))

    async def gangs(request: Request) -> Response:
        page = _page(request, settings.queue_answer)
        return await _shown(await views.gangs(alone, *page))

    async def gang(request: Request) -> Response:
        await _between_cycles(decider)
        async with alone() as state:
            found = views.gang(state, request.path_params["name"], decider.epoch)
        return await _shown(found)

    async def job(request: Request) -> Response:
        await _between_cycles(decider)
        async with alone() as state:
            found = views.job(state, request.path_params["name"], decider.epoch)
        return await _shown(found)

    async def nodes(request: Request) -> Response:
        query = request.query_params
        first, last = query.get("first", ""), query.get("last") or None
        is_troubled = query.get("troubled") == "true"
        return await _shown(await views.nodes(decider.state, first, last, is_troubled))

    async def cells(request: Request) -> Response:
        query = request.query_params
        wanted = Wanted(
            query.get("address") or None,
            query.get("virtualCluster") or None,
            *_page(request, settings.cells_answer),
        )
        return await _shown(await cells_of(decider.state, wanted))

    async def virtual_clusters(_: Request) -> Response:
        return await _shown(clusters.virtual_clusters(decider.state))

    async def export(request: Request) -> Response:
        if request.query_params:
            return await _stretch(request, connect, seats, decider)
        if whole_seats.locked():
            return _busy()
        async with whole_seats:
            return await _whole(decider)

    return [
        route("/queue", queue),
        route("/gangs", gangs),
        route("/gangs/{name}", gang),
        route("/jobs/{name}/why", job),
        route("/nodes", nodes),
        route("/cells", cells),
        route("/advice", partial(_advice, decider, alone)),
        route("/virtual-clusters", virtual_clusters),
        route("/configuration", configurations.show),
        route("/configuration/check", configurations.check, "POST"),
        route("/configuration/what-if", configurations.what_if, "POST"),
        route("/export", export),
    ]


async def _advice(decider: Leading, alone: Alone, request: Request) -> Response:
    """The moves that would free cells."""
    query, wanted = request.query_params, _number(request, "cells", 1)
    chain, level = query.get("chain") or None, query.get("level") or None
    await _between_cycles(decider)
    async with alone() as state:
        found = advice_of(state, chain, level, min(max(wanted, 1), MOST_CELLS))
    return await _shown(found)


@asynccontextmanager
async def _alone(decider: Leading, wait_s: float) -> AsyncIterator[State]:
    """`Alone`, by the decider's lock. The decider holds it while a thread reads the state to
    rebuild the cluster.
    """
    try:
        async with asyncio.timeout(wait_s):
            await decider.deciding.acquire()
    except TimeoutError:
        raise Transient("The Scheduler is deciding or reconfiguring; try again later.") from None
    try:
        if not decider.is_leading:  # a standby: its memory follows the leader
            raise Transient("This Scheduler is a standby.")
        yield decider.state
    finally:
        decider.deciding.release()


async def _between_cycles(decider: Leading) -> None:
    """Wait a little for the end of a cycle that runs in parts: amid a cycle nothing is tried."""
    until = time.monotonic() + WAIT_S
    while decider.state.is_under_way and time.monotonic() < until:
        await asyncio.sleep(LOOK_S)


def _page(request: Request, most: int) -> tuple[int, int]:
    """``offset`` and ``limit``, which is at most ``most``."""
    return _number(request, "offset", 0), min(_number(request, "limit", most), most)


def _number(request: Request, name: str, default: int) -> int:
    """A number of the query; an invalid one counts as absent."""
    given = request.query_params.get(name, "")
    is_number = given.isascii() and given.isdecimal() and len(given) <= DIGITS
    return int(given) if is_number else default


async def _shown(answer: Answer | None, write: Callable[[object], str] = to_record) -> Response:
    """An answer as JSON, written in steps if it has long lists."""
    if answer is None:
        return _error(404, "NotFoundError", "The Scheduler does not know this.")
    fields: list[str] = []
    for name, value in answer.items():
        if isinstance(value, list | Iterator):
            lines: list[str] = []
            for each in value:
                lines.append(write(each))
                if len(lines) % views.STEP == 0:
                    await asyncio.sleep(0)
            fields.append(f'"{name}":[{",".join(lines)}]')
        else:
            fields.append(f'"{name}":{write(value)}')
    return Response(f"{{{','.join(fields)}}}", media_type="application/json")


async def _whole(decider: Leading) -> Response:
    """The present cluster: read between two cycles, or parts of one, and written beside them."""
    taken = Taken()
    async with decider.deciding:
        state, at = decider.state, decider.at()
        for _ in taking(state.core, taken):
            await asyncio.sleep(0)
            if not decider.is_leading:  # a standby: its memory follows the leader
                return _standing_by()
        answer = clusters.export(state, taken, at)
    return await _shown(answer, to_line)


async def _stretch(
    request: Request, connect: Connect, seats: "Seats", decider: Leading
) -> Response:
    """A part of the record, as it is read."""
    query, as_of = request.query_params, decider.state.core.cycles
    try:
        stretch = stretch_of(query.get("since", ""), query.get("until"), decider.at())
    except Rejected as error:
        return _error(400, error.code, str(error))
    async with connect() as conn:
        first = await store.record.snapshot_before(conn, stretch.since)
    if first is None or first.at > stretch.until:
        return _error(404, "NotFoundError", "There is no record of that time.")
    return Seated(Export(connect, stretch, first), seats, as_of)


class Seats(asyncio.Semaphore):
    """Slots for exports. ``stall_s``: how long a client may read nothing and keep its slot."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings.record_exports)
        self.stall_s = settings.record_stall_s


class Seated(StreamingResponse):
    """An export, if a slot is free at its start. A failed export is cut off, so that it does not
    look complete.
    """

    def __init__(self, export: Export, seats: Seats, as_of: int) -> None:
        super().__init__(export.lines(), media_type=LINES, headers={AS_OF: str(as_of)})
        self._seats = seats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._seats.locked():
            await _busy()(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            try:
                async with asyncio.timeout(self._seats.stall_s):
                    await send(message)
            except TimeoutError as error:
                raise Broken("The reader of this export has stopped reading.") from error

        async with self._seats:
            try:
                await super().__call__(scope, receive, sending)
            except Broken as error:
                _log.warning("an export was cut off", error=str(error))


def _guarded(answer: Handle, decider: Leading, guard: TokenGuard) -> Handle:
    async def handle(request: Request) -> Response:
        if (why := guard.refusal(request)) is not None:
            return _error(401, "UnauthorizedUserError", why)
        if not decider.is_leading:
            return _standing_by()
        try:
            return await answer(request)
        except Transient as error:
            return _busy(str(error)) if decider.is_leading else _standing_by()

    return handle


def _standing_by() -> JSONResponse:
    """Misdirected, not busy: REST asks the next process at once."""
    return _error(
        421, "StandbyError", "This Scheduler is a standby: ask the leader, or try again later."
    )


def _busy(why: str = "Too many exports are running. Try again later.") -> JSONResponse:
    busy = _error(503, "BusyError", why)
    busy.headers["retry-after"] = str(RETRY_AFTER_S)
    return busy


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status)
