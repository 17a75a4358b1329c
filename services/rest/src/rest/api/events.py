"""Events for outsiders: server-sent CloudEvents, which a client goes on with where it left off."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Annotated

from fastapi import Header, Query
from fastapi.responses import Response, StreamingResponse
from muster.errors import Rejected, Transient
from muster.record_stream import Batch, RecordStream, record_stream

from rest.api.context import Context, Here, User
from rest.api.logs import EventAnswer, Held, LogReader, Reader, until_stop
from rest.api.router import new_router
from rest.domain.callers import Caller
from rest.domain.event_stream import (
    TOPICS,
    EventType,
    cloud_event,
    format_positions,
    may_see,
    parse_positions,
)

router = new_router("/events", tag="events")


@router.get("", response_class=StreamingResponse, responses=EventAnswer)
async def follow_events(
    here: Here,
    caller: User,
    reader: Reader,
    type_: Annotated[
        list[EventType] | None,
        Query(alias="type", description="Only this type; may be given again."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(max_length=8192, description="The id of the last event that was received."),
    ] = None,
) -> Response:
    """Follow events of jobs, nodes and alerts from now on by server-sent events, each a CloudEvent
    in JSON. With ``Last-Event-ID`` the stream goes on after that event; an event `gap` comes first
    where some since then are gone, as when the bus is another one. Users see the alerts about
    their own jobs and the virtual clusters that they own, admins all.
    """
    topics = tuple(dict.fromkeys(type_ or TOPICS))
    bus, positions = parse_positions(last_event_id or "")
    async with AsyncExitStack() as stack:
        stack.enter_context(_place(here, caller.username))
        opened = await stack.enter_async_context(
            record_stream(here.settings, topics, bus, positions, here.settings.bus_timeout_s)
        )
        events = _events(here, caller, _while_same(caller, reader), opened)
        return Held(stack.pop_all(), events, "text/event-stream", {})


def _while_same(caller: Caller, reader: LogReader) -> LogReader:
    """A reader who is refused once the caller may see more or less: what comes is chosen by the
    rights at the start.
    """

    async def check() -> Caller:
        now = await reader.check()
        if (now.is_admin, now.owned_virtual_clusters) != (
            caller.is_admin,
            caller.owned_virtual_clusters,
        ):
            raise Rejected("ForbiddenUserError", "The rights of this stream's user have changed.")
        return now

    return replace(reader, check=check)


@contextmanager
def _place(here: Context, username: str) -> Iterator[None]:
    """Raises TooManyRequests where the user's streams, or those of all, are taken."""
    settings = here.settings
    with (
        here.limits.place("event streams of this user", username, settings.event_streams_per_user),
        here.limits.place("event streams of all users", "", settings.event_streams_of_all),
        here.metrics.event_streams.track_inprogress(),
    ):
        yield


async def _events(
    here: Context, caller: Caller, reader: LogReader, opened: RecordStream
) -> AsyncIterator[bytes]:
    if opened.has_gap:
        yield _event(format_positions(opened.bus, opened.start), "gap", {})
    else:
        yield f"id: {format_positions(opened.bus, opened.start)}\n: following\n\n".encode()
    try:
        async for batch in until_stop(here, opened.batches, reader):
            yield (
                b": still here\n\n"
                if batch is None
                else b"".join(_shown(caller, opened.bus, batch))
            )
    except Transient as error:  # the client comes again, with Last-Event-ID
        yield f": {error}\n\n".encode()


def _shown(caller: Caller, bus: str, batch: Batch) -> Sequence[bytes]:
    found = []
    for record, positions in batch:
        event = cloud_event(record.topic, record.headers, record.value, record.event_id)
        if event is not None and may_see(caller, record.topic, event["data"]):
            found.append(_event(format_positions(bus, positions), record.topic, event))
    return found


def _event(ident: str, name: str, data: object) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"id: {ident}\nevent: {name}\ndata: {text}\n\n".encode()
