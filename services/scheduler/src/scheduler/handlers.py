"""The Launcher's words about gangs: recorded here, decided by the next cycle."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

from muster.aggregates import Aggregate, apply_records
from muster.contracts.gangs import GangRequest
from muster.contracts.topics import Kind, Service, message_topics
from muster.db import Connection, Transaction
from muster.decisions import Decision, Input
from muster.errors import Broken
from muster.inbox import Handler
from muster.records import Received

from scheduler import store

TOPICS_HEARD = (*message_topics(Kind.GANG, Service.LAUNCHER), "revision-acknowledged")


async def _load(_conn: Connection, _gangs: Sequence[str]) -> Mapping[str, GangRequest]:
    return {}  # a word is whole: nothing of the one before it counts


def record(
    gang: str, _state: GangRequest | None, given: Input, _now: datetime
) -> Decision[GangRequest]:
    """The newest word is the state; whatever else there is to hear changes nothing.

    Raises Broken where the word makes no sense.
    """
    if not isinstance(given, GangRequest):
        return Decision(None)
    if given.submitted_at.tzinfo is None:
        raise Broken(f"the gang {gang} was submitted at {given.submitted_at}, without a time zone")
    if len({ask.pod for ask in given.pods}) < len(given.pods):
        raise Broken(f"the gang {gang} lists a pod twice")
    for ask in given.pods:
        if ask.pod != gang and not ask.pod.startswith(f"{gang}-"):
            raise Broken(f"the pod {ask.pod} is not named after its gang {gang}")
        if (
            min(ask.gpus, ask.cpu, ask.memory_mb, *ask.ports.values(), *ask.resources.values(), 0)
            < 0
        ):
            raise Broken(f"the pod {ask.pod} asks for less than nothing")
    return Decision(given)


GANGS: Aggregate[GangRequest] = Aggregate(
    of=lambda _kind, gang: gang,
    load=_load,
    decide=record,
    save=store.gangs.save_requests,
)


def words_beside(deciding: asyncio.Lock) -> Handler:
    """The handler of batches. It and the deciding transactions lock the same rows in other orders,
    so they take turns.
    """

    async def handle(opened: Transaction, records: Sequence[Received], now: datetime) -> int:
        async with deciding:
            return len(await apply_records(opened, Service.SCHEDULER, GANGS, records, now))

    return handle
