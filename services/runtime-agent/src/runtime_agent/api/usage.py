"""What the pods of this node have used, over HTTP, for REST alone.

`GET /usage/<job>?since=&until=&step=` has the job's pods with what each used in each step;
`GET /usage?since=&until=` what each job used in all. Times are seconds since 1970.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import Any

from muster.token_guard import TokenGuard
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from runtime_agent.domain.usage import SUMS, Stretch
from runtime_agent.usage_store import UsageStore

STEPS = 5000
"""The most steps of an answer, for each pod."""


def usage_routes(store: UsageStore, guard: TokenGuard) -> list[BaseRoute]:
    """The routes to mount beside the health endpoints."""

    async def of_job(request: Request) -> Response:
        since_s, until_s = _times(request)
        step_s = _number(request, "step", until_s - since_s)
        if step_s * STEPS < until_s - since_s:
            raise ValueError(f"step has at least a {STEPS}th of the time")
        job = request.path_params["job"]
        found = await asyncio.to_thread(store.of_job, job, since_s, until_s, step_s)
        pods = groupby(found, key=lambda each: each.pod)
        return JSONResponse({"pods": {pod: _columns(each) for pod, each in pods}})

    async def by_job(request: Request) -> Response:
        found = await asyncio.to_thread(store.by_job, *_times(request))
        jobs = {job: {name: getattr(it, name) for name in SUMS} for job, it in found.items()}
        return JSONResponse({"jobs": jobs})

    return [
        Route("/usage", _guarded(by_job, guard)),
        Route("/usage/{job}", _guarded(of_job, guard)),
    ]


def _columns(stretches: Iterable[Stretch]) -> dict[str, list[Any]]:
    """One list for each figure, in order of time."""
    found = list(stretches)
    return {name: [getattr(each, name) for each in found] for name in ("at_s", *SUMS)}


def _guarded(
    answer: Callable[[Request], Awaitable[Response]], guard: TokenGuard
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if (why := guard.refusal(request)) is not None:
            return _error(401, "UnauthorizedUserError", why)
        try:
            return await answer(request)
        except ValueError as error:
            return _error(400, "InvalidParametersError", f"{error}.")
        except sqlite3.Error as error:
            return _error(503, "NoUsageError", f"The node's figures can't be read: {error}.")

    return handle


def _times(request: Request) -> tuple[float, float]:
    until_s = _number(request, "until", time.time())
    since_s = _number(request, "since", 0.0)
    if since_s >= until_s:
        raise ValueError("since is not before until")
    return since_s, until_s


def _number(request: Request, name: str, default: float) -> float:
    """Raises ValueError."""
    try:
        number = float(request.query_params.get(name, default))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} is no number from 0")
    return number


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, status)
