"""The routes: who may ask, parsing, and 503 while another process leads."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scheduler.api import clusters, views
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

Answer = Callable[[Request], views.Answer | None]


def routes(decider: Leading, settings: SchedulerSettings) -> list[Route]:
    """``/queue?limit=``, ``/gangs/{gang}``, ``/jobs/{job}/why``, ``/nodes``,
    ``/virtual-clusters``, ``/export``.
    """

    def route(path: str, answer: Answer) -> Route:
        return Route(path, _guarded(answer, decider, settings))

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
        route("/export", lambda _: clusters.export(decider.state, decider.at())),
    ]


def _guarded(
    answer: Answer, decider: Leading, settings: SchedulerSettings
) -> Callable[[Request], Awaitable[Response]]:
    token = settings.internal_token.get_secret_value()

    async def handle(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return _error(401, "UnauthorizedError", "The internal token is missing or wrong.")
        if not decider.is_leading:
            return _error(503, "StandbyError", "Another process decides; ask that one, or wait.")
        found = answer(request)
        if found is None:
            return _error(404, "NotFoundError", "The Scheduler knows nothing of this.")
        return JSONResponse(found)

    return handle


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status)
