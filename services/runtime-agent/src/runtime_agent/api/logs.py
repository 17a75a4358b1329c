"""The logs of this node's pods over HTTP, as plain text.

`GET /logs/<pod>` lists what there is; `GET /logs/<pod>/<stdout|stderr|all>` gives a log: whole, its
`tail` in bytes, a range (`offset`, `limit`), or with `follow=1` all output until the pod has ended.
Offsets count over all that the pod has written; `X-Log-Offset` is where the answer begins and
`X-Log-End` where the log ended. `Authorization: Bearer` carries REST's token for this path of this
node (muster.service_keys).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from muster.token_guard import TokenGuard
from prometheus_client import Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from runtime_agent.logreader import Extent, LogReader, extent
from runtime_agent.pod_files import PodFiles
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor.logs import stream_path

Name = Literal["stdout", "stderr", "all"]
NAMES: tuple[Name, ...] = get_args(Name)


@dataclass
class LogServer:
    """Serves until `stopping` is set, which ends the streams that follow; so does the end of the
    pod, when `is_live` no longer holds.
    """

    files: PodFiles
    is_live: Callable[[str], bool]
    settings: AgentSettings
    gauge: Gauge
    guard: TokenGuard
    stopping: asyncio.Event
    open_streams: int = 0

    def routes(self) -> list[BaseRoute]:
        """The routes to mount beside the health endpoints."""
        return [Route("/logs/{pod}", self.list_logs), Route("/logs/{pod}/{name}", self.read_log)]

    async def list_logs(self, request: Request) -> Response:
        """Names and sizes."""
        folder = self._folder(request)
        if isinstance(folder, Response):
            return folder
        kept = {name: extent(stream_path(folder, name)) for name in NAMES}
        return JSONResponse(
            {
                "logs": [
                    {"name": name, "first": each.first, "end": each.end}
                    for name, each in kept.items()
                ]
            }
        )

    async def read_log(self, request: Request) -> Response:
        """One log, or a part of it."""
        folder = self._folder(request)
        if isinstance(folder, Response):
            return folder
        name = next((each for each in NAMES if each == request.path_params["name"]), None)
        if name is None:
            return _error(404, "NoTaskLogError", f"A pod's logs are {', '.join(NAMES)}.")
        path = stream_path(folder, name)
        kept = extent(path)
        try:
            first, limit = _range(request, kept)
        except ValueError:
            message = "tail, offset and limit are numbers of bytes, from 0."
            return _error(400, "InvalidParametersError", message)
        headers = {
            "x-log-offset": str(first),
            "x-log-end": str(kept.end),
            "cache-control": "no-store",
        }
        media = "text/plain; charset=utf-8"
        if request.query_params.get("follow", "0") not in ("1", "true"):
            content = _read(path, first, limit)
            return StreamingResponse(content, media_type=media, headers=headers)
        if self.open_streams >= self.settings.log_streams:
            return _error(503, "TooManyStreams", "Too many logs are followed on this node.")
        follow = self._follow(request.path_params["pod"], path, first)
        return StreamingResponse(follow, media_type=media, headers=headers)

    def _let_go(self) -> None:
        self.open_streams -= 1
        self.gauge.set(self.open_streams)

    def _folder(self, request: Request) -> Path | Response:
        """The pod's folder of logs, or why it can't be shown."""
        if (why := self.guard.refusal(request)) is not None:
            return _error(401, "UnauthorizedUserError", why)
        pod = request.path_params["pod"]
        try:
            folder = self.files.logs_path(pod)
        except ValueError:
            folder = None
        if folder is None or not folder.is_dir():
            return _error(
                404, "NoTaskLogError", f"This node has no logs of the pod {pod} (any more)."
            )
        return folder

    async def _follow(self, pod: str, path: Path, first: int) -> AsyncIterator[bytes]:
        """Everything from `first` on, until the pod has ended and all of it was sent."""
        # Counted from here on: a client that leaves before the first piece never reaches the end.
        self.open_streams += 1
        self.gauge.set(self.open_streams)
        follower = LogReader(path, first)
        try:
            while True:
                # Looked at before reading, so that what was written before the end is read.
                is_over = self.stopping.is_set() or not self.is_live(pod)
                while chunk := follower.read():
                    yield chunk
                if is_over:
                    return
                await asyncio.sleep(self.settings.follow_look_s)
        finally:
            follower.close()
            self._let_go()


def _range(request: Request, kept: Extent) -> tuple[int, int]:
    """First offset and number of bytes. Raises ValueError where they are no numbers."""
    numbers = {
        name: int(request.query_params[name])
        for name in ("tail", "offset", "limit")
        if name in request.query_params
    }
    if any(number < 0 for number in numbers.values()):
        raise ValueError("negative")
    asked = kept.end - numbers["tail"] if "tail" in numbers else numbers.get("offset", 0)
    first = min(max(asked, kept.first), kept.end)
    return first, min(numbers.get("limit", kept.end), kept.end - first)


async def _read(path: Path, first: int, limit: int) -> AsyncIterator[bytes]:
    reader = LogReader(path, first)
    try:
        while limit > 0 and (chunk := reader.read()):
            yield chunk[:limit]
            limit -= len(chunk)
            await asyncio.sleep(0)
    finally:
        reader.close()


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, status)
