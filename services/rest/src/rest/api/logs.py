"""Logs of tasks: where they are, their text, and following them (text or server-sent events)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import structlog
from fastapi import Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from muster.contracts.jobs import JobStatus, TaskStatus
from muster.db import is_transient
from muster.errors import Rejected, Transient
from starlette.types import Receive, Scope, Send

from rest.api.context import Context, Here, User, user_of
from rest.api.jobs import Attempt, JobName, attempt_status, get_whole
from rest.api.models import LogLocations, TaskAttempts
from rest.api.router import new_router
from rest.domain.callers import Caller
from rest.domain.streams import LineEvents, until_limit
from rest.domain.views import (
    WholeJob,
    attempt_state,
    ended,
    find_task,
    is_to_grow,
    task,
    verdict_reason,
)
from rest.peers import LogAsk, LogPiece, OpenLog

Piece = TypeVar("Piece")

_log = structlog.get_logger()

router = new_router("/jobs", tag="logs")

TASK = "/{job}/attempts/{attempt}/taskRoles/{role}/taskIndex/{index}/attempts"
LOGS = TASK + "/{task_attempt}/logs"
STREAMS = ("stdout", "stderr", "all")
ENDED = ("SUCCEEDED", "STOPPED", "FAILED")

StreamName = Annotated[
    Literal["stdout", "stderr", "all"], Path(description="The log; `all`: both, as they came.")
]
Offset = Annotated[int, Query(ge=0, le=2**53, description="A byte of the log.")]
TextAnswer: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}
EventAnswer: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}

NO_PROXY_BUFFER = {"X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class TaskPath:
    """Which task of which job attempt."""

    job: JobName
    attempt: Attempt
    role: Annotated[str, Path(max_length=100, description="The task role.", examples=["worker"])]
    index: Annotated[int, Path(ge=0, le=2**31 - 1, description="The task's index in its role.")]


@dataclass(frozen=True, slots=True)
class AttemptPath(TaskPath):
    """Which attempt of the task."""

    task_attempt: Annotated[
        int, Path(ge=0, le=2**31 - 1, description="The task's attempt, from 0.")
    ]


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a log."""

    tail: Annotated[bool, Query(alias="tail-mode", description="Only the last 16 KiB.")] = False
    offset: Offset = 0
    follow: Annotated[bool, Query(description="Go on until the task has ended.")] = False


@dataclass(frozen=True, slots=True)
class LogReader:
    """Who reads a log. ``check`` raises Rejected once their token is not valid any more."""

    username: str
    check: Callable[[], Awaitable[Caller]]


async def _log_reader(caller: User, request: Request) -> LogReader:
    return LogReader(caller.username, partial(user_of, request))


Where = Annotated[AttemptPath, Depends()]
Reader = Annotated[LogReader, Depends(_log_reader)]


@router.get(TASK, response_model=TaskAttempts)
async def list_task_attempts(
    where: Annotated[TaskPath, Depends()], here: Here, _caller: User
) -> Response:
    """A task's attempts as far as they are known, newest first."""
    _, _, found = await _task(here, where)
    content = {
        "taskIndex": where.index,
        "taskRoleName": where.role,
        "attempts": [task(found)],
    }
    return JSONResponse(content)


@router.get(LOGS, response_model=LogLocations)
async def list_task_logs(
    where: Where,
    here: Here,
    _caller: User,
    tail_mode: Annotated[
        bool, Query(alias="tail-mode", description="The paths show the last 16 KiB only.")
    ] = False,
    tail_in_spec: Annotated[
        bool, Query(alias="tailMode", description="The same as `tail-mode`.")
    ] = False,
) -> Response:
    """Where the logs of a task attempt are read; the paths are on this server."""
    await _pod(here, where)
    query = "?tail-mode=true" if tail_mode or tail_in_spec else ""
    names = {field.name: getattr(where, field.name) for field in fields(where)}
    path = f"/api/v2/jobs{LOGS.format(**names)}"
    locations = [{"name": name, "uri": f"{path}/{name}{query}"} for name in STREAMS]
    return JSONResponse({"locations": locations})


@router.get(LOGS + "/{stream}", response_class=StreamingResponse, responses=TextAnswer)
async def read_task_log(
    where: Where,
    stream: StreamName,
    part: Annotated[Part, Depends()],
    here: Here,
    reader: Reader,
) -> Response:
    """A log as text, from a byte on; with ``follow`` it goes on until the task has ended, else an
    answer has 16 MiB at the most. ``X-Log-Offset`` says at which byte it begins, and ``X-Log-End``
    where the log ended.
    """
    node, log_url, pod = await _place(here, where)
    tail = here.settings.log_tail_bytes if part.tail else None
    ask = LogAsk(node, log_url, pod, stream, part.offset, tail, part.follow)
    held, log = await _open(here, reader.username, ask)
    if part.follow:
        content = _text(here, reader, log.pieces)
    else:
        all_of_it = (piece.content async for piece in log.pieces)
        content = until_limit(all_of_it, here.settings.log_bytes)
    return Held(held, content, "text/plain; charset=utf-8", _extent(log))


async def followed_from(
    last_event_id: Annotated[
        str | None,
        Header(max_length=32, description="The id of the last event that was received."),
    ] = None,
    offset: Offset = 0,
) -> int:
    """The byte where a broken connection left off, else the one that was asked for."""
    if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
        return min(int(last_event_id), 2**53)
    return offset


@router.get(LOGS + "/{stream}/events", response_class=StreamingResponse, responses=EventAnswer)
async def follow_task_log(
    where: Where,
    stream: StreamName,
    start: Annotated[int, Depends(followed_from)],
    here: Here,
    reader: Reader,
) -> Response:
    """Follow a log by server-sent events: lines, each with the offset after it as its id, so that
    ``Last-Event-ID`` goes on where a connection broke. The event ``end`` is the last one.
    """
    node, log_url, pod = await _place(here, where)
    ask = LogAsk(node, log_url, pod, stream, start, None, follow=True)
    held, log = await _open(here, reader.username, ask)
    events = _events(here, reader, log.pieces, start)
    return Held(held, events, "text/event-stream", {})


def _extent(log: OpenLog) -> dict[str, str]:
    extent = {"X-Log-Offset": str(log.start)}
    return extent if log.end is None else extent | {"X-Log-End": str(log.end)}


async def _open(here: Context, username: str, ask: LogAsk) -> tuple[AsyncExitStack, OpenLog]:
    """The log as it comes, and the resources to release afterwards."""
    async with AsyncExitStack() as stack:
        stack.enter_context(_place_among_readers(here, username))
        try:
            log = await stack.enter_async_context(here.peers.open_log(ask))
        except Transient as error:
            if here.cluster.node(ask.node) is not None:
                raise
            message = (
                f"Node {ask.node} does not answer, and is in the cluster no more."
                " If it returns with its disk, its logs can be read again."
            )
            raise Transient(message) from error
        return stack.pop_all(), log


async def _task(here: Context, where: TaskPath) -> tuple[WholeJob, JobStatus, TaskStatus]:
    """The job, its attempt and that one's task. Raises Rejected."""
    job = await get_whole(here, where.job)
    status = await attempt_status(here, job, where.attempt)
    if status is None:
        raise _not_begun(job, status, where)
    found = find_task(status, where.role, where.index)
    if found is None:
        message = f"{where.job} has no task {where.role} {where.index} in attempt {where.attempt}."
        raise Rejected("NoTaskLogError", message)
    return job, status, found


def _not_begun(
    job: WholeJob, status: JobStatus | None, where: TaskPath, found: TaskStatus | None = None
) -> Rejected:
    """What the job waits for, or why it ended; and how the task did, before it began."""
    is_last = where.attempt == job.listed.attempt
    state = job.listed.state if is_last or status is None else attempt_state(status)
    waits_for = None if not is_last or _has_placed(status) else job.reason
    reason = waits_for or verdict_reason(status)
    explanation = "" if reason is None else str(reason["text"])
    own = "" if found is None else _reason_of(found)
    is_over = state in ENDED or (found is not None and ended(found))
    if found is not None and found.node is not None:
        placed = "never began" if is_over else "has not begun yet"
    else:
        placed = "was never placed on a node" if is_over else "is not placed on a node yet"
    message = (
        f"{where.job} is {state}{_after_colon(explanation)}. Its task {where.role} {where.index}"
        f" {placed}, so it has no log{_after_colon('' if own == explanation else own)}."
    )
    if found is not None and state == "RUNNING" and is_to_grow(status, where.role, found):
        message += " The job runs without it until there is room to grow into."
    return Rejected("NoTaskLogError", message)


def _reason_of(task: TaskStatus) -> str:
    """How it ended, or what it waits for."""
    if task.verdict is not None:
        return task.verdict.cause
    return "" if task.reason is None else task.reason.text


def _has_begun(task: TaskStatus) -> bool:
    """A task that is on its way may have begun, where its agent's message has not come yet."""
    return task.launched_at is not None or not (ended(task) or task.reason)


def _has_placed(status: JobStatus | None) -> bool:
    """Whether a task has a node: what the job waits for may be that task's, and no other's."""
    roles = status.task_roles if status else ()
    return any(task.node and not ended(task) for role in roles for task in role.tasks)


def _after_colon(text: str) -> str:
    return f": {text.rstrip('.')}" if text else ""


async def _pod(here: Context, where: AttemptPath) -> tuple[str, TaskStatus, str]:
    """The node, the task, and the pod of the attempt that is asked for. Raises Rejected."""
    job, status, found = await _task(here, where)
    if found.attempt != where.task_attempt:
        message = (
            f"The task's attempt {where.task_attempt} has no log here; its last is {found.attempt}."
        )
        raise Rejected("NoTaskLogError", message)
    if found.pod is None or found.node is None or not _has_begun(found):
        raise _not_begun(job, status, where, found)
    return found.node, found, found.pod


async def _place(here: Context, where: AttemptPath) -> tuple[str, str, str]:
    """The node that has the log, the address of its agent, and the pod. Raises Rejected."""
    node, found, pod = await _pod(here, where)
    log_url = here.cluster.log_url(node) or found.log_url
    if log_url is None:
        message = f"Where the logs of node {node} are read is not known (yet)."
        raise Rejected("NoTaskLogError", message)
    return node, log_url, pod


@contextmanager
def _place_among_readers(here: Context, username: str) -> Iterator[None]:
    """Raises TooManyRequests where the user's places, or those of all, are taken."""
    settings = here.settings
    with (
        here.limits.place("logs of this user", username, settings.log_streams_per_user),
        here.limits.place("logs of all users", "", settings.log_streams_of_all),
        here.metrics.streams.track_inprogress(),
    ):
        yield


class Held(StreamingResponse):
    """A streamed answer that gives its resources back however it ends."""

    def __init__(
        self,
        stack: AsyncExitStack,
        content: AsyncIterator[bytes],
        kind: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(content, 200, {**NO_PROXY_BUFFER, **headers}, kind)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            try:
                await super().__call__(scope, receive, send)
            except Transient as error:  # cut off without an end, so that it does not look whole
                _log.warning("an answer could not be sent to its end", error=str(error))


async def _text(
    here: Context, reader: LogReader, pieces: AsyncIterator[LogPiece]
) -> AsyncIterator[bytes]:
    async for piece in until_stop(here, pieces, reader):
        if piece is not None:
            yield piece.content


async def _events(
    here: Context, reader: LogReader, pieces: AsyncIterator[LogPiece], start: int
) -> AsyncIterator[bytes]:
    lines = LineEvents(start)
    yield b": following\n\n"
    try:
        async for piece in until_stop(here, pieces, reader):
            if piece is None:
                yield b": still here\n\n"
                continue
            for event in lines.take(piece.content, piece.end):
                yield event
    except Transient as error:  # no event `end`: the client comes again, with Last-Event-ID
        yield f": {error}\n\n".encode()
        return
    if not here.stopping.is_set():
        for event in lines.finish():
            yield event


async def until_stop(
    here: Context, pieces: AsyncIterator[Piece], reader: LogReader | None = None
) -> AsyncIterator[Piece | None]:
    """The pieces, and None at each heartbeat without one; ends when the server stops.

    Raises Transient once the token of ``reader`` is not valid any more.
    """
    stop: asyncio.Task[Any] = asyncio.create_task(here.stopping.wait())
    refused = None if reader is None else asyncio.create_task(_refused(here, reader))
    ends = {stop} if refused is None else {stop, refused}
    coming: asyncio.Task[Piece | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next(pieces))
            done, _ = await asyncio.wait(
                {coming, *ends},
                timeout=here.settings.stream_heartbeat_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if stop in done:
                return
            if refused is not None and refused in done:
                refused.result()
                raise Transient("The token is not valid any more, or its rights have changed.")
            if not done:
                yield None
                continue
            piece, coming = coming.result(), None
            if piece is None:
                return
            yield piece
    finally:
        unfinished = [task for task in (*ends, coming) if task is not None]
        for each in unfinished:
            each.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


async def _refused(here: Context, reader: LogReader) -> None:
    """Returns once the token is not valid any more, however long that takes."""
    while True:
        await asyncio.sleep(here.settings.stream_heartbeat_s)
        try:
            await reader.check()
        except Rejected:
            return
        except Exception as error:  # a database that is away refuses nobody
            if not is_transient(error):
                raise


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    return await anext(pieces, None)
