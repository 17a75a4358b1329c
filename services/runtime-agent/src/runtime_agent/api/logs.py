"""The logs of this node's pods over HTTP, as plain text.

`GET /logs/<pod>` lists what there is; `GET /logs/<pod>/<stdout|stderr|all>` gives a log: whole, its
`tail` in bytes, a range (`offset`, `limit`), or with `follow=1` on and on until the pod has ended.
Where the services share a token, `Authorization: Bearer <token>` must carry it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from prometheus_client import Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from runtime_agent.pods import PodDirectories
from runtime_agent.settings import AgentSettings
from runtime_agent.supervisor.logs import rotated, stream_path
from runtime_agent.supervisor.records import EXIT_FILE

Name = Literal["stdout", "stderr", "all"]
NAMES: tuple[Name, ...] = get_args(Name)
CHUNK_BYTES = 64 * 1024


@dataclass
class LogServer:
    """Serves until `stopping` is set, which ends the streams that follow."""

    directories: PodDirectories
    settings: AgentSettings
    gauge: Gauge
    stopping: asyncio.Event
    open_streams: int = 0

    def routes(self) -> list[BaseRoute]:
        """To be mounted beside the health endpoints."""
        return [Route("/logs/{pod}", self.list_logs), Route("/logs/{pod}/{name}", self.read_log)]

    async def list_logs(self, request: Request) -> Response:
        """Names and sizes."""
        folder = self._folder(request)
        if isinstance(folder, Response):
            return folder
        sizes = {name: _size(stream_path(folder, name)) for name in NAMES}
        return JSONResponse(
            {"logs": [{"name": name, "bytes": size} for name, size in sizes.items()]}
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
        size = _size(path)
        try:
            first, limit = _range(request, size)
        except ValueError:
            message = "tail, offset and limit are numbers of bytes, from 0."
            return _error(400, "InvalidParametersError", message)
        headers = {"x-log-bytes": str(size), "cache-control": "no-store"}
        media = "text/plain; charset=utf-8"
        if request.query_params.get("follow", "0") not in ("1", "true"):
            content = _read(path, first, limit)
            return StreamingResponse(content, media_type=media, headers=headers)
        if self.open_streams >= self.settings.log_streams:
            return _error(503, "TooManyStreams", "Too many logs are followed on this node.")
        self.open_streams += 1
        self.gauge.set(self.open_streams)
        follow = self._follow(path, first, folder.parent / EXIT_FILE)
        return StreamingResponse(follow, media_type=media, headers=headers)

    def _let_go(self) -> None:
        self.open_streams -= 1
        self.gauge.set(self.open_streams)

    def _folder(self, request: Request) -> Path | Response:
        """The pod's folder of logs, or why it can't be shown."""
        token = self.settings.internal_token.get_secret_value()
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            return _error(401, "UnauthorizedUserError", "The services' token is missing or wrong.")
        pod = request.path_params["pod"]
        try:
            folder = self.directories.logs_path(pod)
        except ValueError:
            folder = None
        if folder is None or not folder.is_dir():
            return _error(404, "NoTaskLogError", f"This node has no logs of the pod {pod}.")
        return folder

    async def _follow(self, path: Path, first: int, end: Path) -> AsyncIterator[bytes]:
        """Everything from `first` on, until the pod has ended and all of it was sent."""
        follower = _Follower(path, first)
        try:
            while True:
                # Looked at before reading, so that what was written before the end is read.
                is_over = _is_there(end) or self.stopping.is_set()
                while chunk := follower.read():
                    yield chunk
                if is_over or not _is_there(path.parent):
                    return
                await asyncio.sleep(self.settings.follow_look_s)
        finally:
            follower.close()
            self._let_go()


class _Follower:
    """Reads a log that grows and is rotated, each byte once."""

    def __init__(self, path: Path, first: int) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        older = _file_size(rotated(path))
        self._open(rotated(path) if first < older else path)
        if self._file is not None:
            self._file.seek(first if first < older else first - older)

    def _open(self, path: Path) -> None:
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            self._file = None

    def read(self) -> bytes:
        """The next piece; empty where there is none yet."""
        if self._file is None:
            self._open(self._path)
        if self._file is None:
            return b""
        if chunk := self._file.read(CHUNK_BYTES):
            return chunk
        if self._is_current():
            return b""
        if chunk := self._file.read(CHUNK_BYTES):  # written between the look and the rotation
            return chunk
        self.close()
        self._open(self._path)
        return b"" if self._file is None else self._file.read(CHUNK_BYTES)

    def _is_current(self) -> bool:
        assert self._file is not None
        try:
            return self._path.stat().st_ino == os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _range(request: Request, size: int) -> tuple[int, int]:
    """First byte and number of bytes. Raises ValueError where they are no numbers."""
    numbers = {
        name: int(request.query_params[name])
        for name in ("tail", "offset", "limit")
        if name in request.query_params
    }
    if any(number < 0 for number in numbers.values()):
        raise ValueError("negative")
    first = max(0, size - numbers["tail"]) if "tail" in numbers else numbers.get("offset", 0)
    return first, min(numbers.get("limit", size), max(0, size - first))


def _is_there(path: Path) -> bool:
    return path.exists()


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _size(path: Path) -> int:
    return _file_size(rotated(path)) + _file_size(path)


async def _read(path: Path, first: int, limit: int) -> AsyncIterator[bytes]:
    """`limit` bytes, the older half of the log first."""
    follower = _Follower(path, first)
    try:
        while limit > 0 and (chunk := follower.read()):
            yield chunk[:limit]
            limit -= len(chunk)
            await asyncio.sleep(0)
    finally:
        follower.close()


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, status)
