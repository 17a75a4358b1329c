"""The Launcher's messages about gangs: recorded here, decided by the next cycle."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from muster.aggregates import Aggregate, apply_records
from muster.contracts.gangs import GangRequest
from muster.contracts.topics import Kind, Service, message_topics
from muster.db import Connection, Transaction
from muster.decisions import Decision, Input, Publish
from muster.errors import Broken
from muster.inbox import Handler
from muster.records import Received

from scheduler import store
from scheduler.domain.messages import DECIDED, ended

RECEIVED_TOPICS = (*message_topics(Kind.GANG, Service.LAUNCHER), "revision-acknowledged")


@dataclass(frozen=True, slots=True)
class Ended:
    """The gang has ended; its pods' names are not used again. ``epoch``: of the present leader."""

    epoch: int


State = GangRequest | Ended
"""A message is complete: an earlier one matters only if it ended the gang."""


async def _load(conn: Connection, gangs: Sequence[str]) -> Mapping[str, State]:
    return {gang: Ended(epoch) for gang, epoch in await store.gangs.ended(conn, gangs)}


async def _save(conn: Connection, states: Sequence[State]) -> None:
    requests = [state for state in states if isinstance(state, GangRequest)]
    await store.gangs.save_requests(conn, requests)


def record(gang: str, state: State | None, given: Input, _now: datetime) -> Decision[State]:
    """The newest message is the state; an ended gang stays ended. Other messages change nothing.

    Raises Broken for a contradictory message.
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
            raise Broken(f"the pod {ask.pod} requests a negative amount")
    if isinstance(state, Ended):
        answer = ended(given, state.epoch)
        return Decision(None, (Publish(Kind.GANG, gang, DECIDED, gang, answer, is_open=False),))
    return Decision(given)


GANGS: Aggregate[State] = Aggregate(
    of=lambda _kind, gang: gang, load=_load, decide=record, save=_save
)


def messages_beside(deciding: asyncio.Lock) -> Handler:
    """The handler of batches. It takes turns with the deciding transactions, which lock the same
    rows in another order.
    """

    async def handle(opened: Transaction, records: Sequence[Received]) -> int:
        async with deciding:
            return len(await apply_records(opened, Service.SCHEDULER, GANGS, records))

    return handle
