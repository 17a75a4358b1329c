"""How a service applies records: load, decide, save and publish, set-based for a whole batch.

The decision is a pure function of one aggregate's state and one input, so a decision that raises
has changed nothing: its record becomes a dead letter and the rest of the batch is applied.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar, assert_never

import structlog
from opentelemetry.trace import SpanKind

from muster.acknowledgements import addressed_to, is_for_others
from muster.contracts.model import StateMessage
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.topics import TOPICS, Kind, Service
from muster.db import Connection, Transaction
from muster.decisions import Decision, Due, Input, MessageRejected, Publish
from muster.errors import Broken
from muster.ids import is_name
from muster.records import Received, read_message_id, subject_of
from muster.subject import Key
from muster.subjects import Subjects
from muster.telemetry import current_traceparent, span

State = TypeVar("State")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Aggregate(Generic[State]):
    """How a service keeps and decides one kind of thing.

    ``of``: which aggregate a subject belongs to. ``load``: the states of these ids, locked in the
    order of their ids. ``decide``: pure; the id, the state (None: unknown), the input, the
    database's time. ``save``: writes states that changed.
    """

    of: Callable[[Kind, str], str]
    load: Callable[[Connection, Sequence[str]], Awaitable[Mapping[str, State]]]
    decide: Callable[[str, State | None, Input, datetime], Decision[State]]
    save: Callable[[Connection, Sequence[State]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A record's input on one subject, or why it can't be read. ``journal``: of the agent that
    acknowledges.
    """

    record: Received
    key: Key | None
    revision: int
    content: StateMessage | AppliedRevision | Broken
    journal: str | None = None


async def apply_records(
    transaction: Transaction,
    me: Service,
    aggregate: Aggregate[State],
    records: Sequence[Received],
) -> dict[str, State]:
    """Apply a batch of messages and acknowledgements in the caller's transaction.

    Returns the states that changed. A record that can't be read or decided becomes a dead letter.
    """
    incoming = [item for record in records for item in _read(me, record)]
    subjects = Subjects(transaction, me)
    run = _Run(aggregate, subjects, transaction.now)
    keys = {item.key for item in incoming if item.key is not None}
    await run.load(transaction.conn, {aggregate.of(*key) for key in keys})
    await subjects.load(keys)
    for item in incoming:
        run.apply(item)
    await run.save(transaction.conn)
    return run.changed


async def apply_due(
    transaction: Transaction,
    me: Service,
    aggregate: Aggregate[State],
    ids: Sequence[str],
) -> dict[str, State]:
    """Apply a timer's event to these aggregates. Returns the states that changed."""
    run = _Run(aggregate, Subjects(transaction, me), transaction.now)
    await run.load(transaction.conn, set(ids))
    for ident in sorted(ids):
        if ident in run.states:
            run.decide(ident, Due())
    await run.save(transaction.conn)
    return run.changed


async def dead_letter(transaction: Transaction, me: Service, record: Received, reason: str) -> None:
    """Make a dead letter of a record whose transaction keeps failing."""
    items = _read(me, record)
    message = next((item for item in items if item.revision), None)
    subjects = Subjects(transaction, me)
    key = message.key if message is not None else None
    if key is not None:
        await subjects.load([key])
    subjects.dead_letter(key, record, reason, message.revision if message is not None else 0)
    await subjects.save()


class _Run(Generic[State]):
    """One pass over a batch: states and messages, in memory until they are saved."""

    def __init__(self, aggregate: Aggregate[State], subjects: Subjects, now: datetime) -> None:
        self._aggregate = aggregate
        self._subjects = subjects
        self._now = now
        self._messages: list[tuple[Publish, str | None]] = []
        self.states: dict[str, State] = {}
        self.changed: dict[str, State] = {}

    async def load(self, conn: Connection, ids: set[str]) -> None:
        if ids:
            self.states.update(await self._aggregate.load(conn, sorted(ids)))

    def apply(self, item: _Incoming) -> None:
        match item.content:
            case Broken() as error:
                self._dead_letter(item, error)
            case AppliedRevision() as applied:
                assert item.key is not None
                if self._subjects.receive_acknowledgement(item.key, applied, item.journal):
                    self._decide_on(item, MessageRejected(*item.key))
            case StateMessage() as message:
                assert item.key is not None
                if self._subjects.receive(item.key, message, item.record.traceparent):
                    self._decide_on(item, message)
            case never:
                assert_never(never)

    def _decide_on(self, item: _Incoming, given: Input) -> None:
        assert item.key is not None
        kind, subject = item.key
        with span(
            f"{item.record.topic} process",
            kind=SpanKind.CONSUMER,
            parent=item.record.traceparent,
            attributes={f"muster.{kind.value}": subject},
        ) as opened:
            try:
                self.decide(self._aggregate.of(kind, subject), given)
            except Exception as error:
                opened.record_exception(error)
                _log.exception("a decision failed", topic=item.record.topic, subject=subject)
                self._dead_letter(item, error)

    def decide(self, ident: str, given: Input) -> None:
        """Decide, and remember the outcome; nothing has changed where this raises."""
        state = self.states.get(ident)
        decision = self._aggregate.decide(ident, state, given, self._now)
        if decision.state is not None and decision.state is not state:
            self.states[ident] = decision.state
            self.changed[ident] = decision.state
        self._messages.extend((each, current_traceparent()) for each in decision.messages)

    def _dead_letter(self, item: _Incoming, error: Exception) -> None:
        reason = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
        self._subjects.dead_letter(item.key, item.record, reason, item.revision)

    async def save(self, conn: Connection) -> None:
        await self._subjects.load((each.kind, each.subject) for each, _ in self._messages)
        for each, parent in self._messages:
            self._subjects.publish(each, parent)
        if self.changed:
            await self._aggregate.save(conn, [self.changed[i] for i in sorted(self.changed)])
        await self._subjects.save()


def _read(me: Service, record: Received) -> list[_Incoming]:
    """The inputs in a record, one for each subject; none where it is for another service."""
    if is_for_others(me, record):
        return []
    try:
        model = record.model()
    except Broken as error:
        return [_unreadable(record, error)]
    match model:
        case RevisionAcknowledged():
            return [
                _Incoming(record, (Kind(applied.kind), applied.subject), 0, applied, model.journal)
                for applied in addressed_to(me, model, record.topic)
                if is_name(applied.subject)
            ]
        case StateMessage():
            kind = TOPICS[record.topic].kind
            assert kind is not None
            subject = subject_of(kind, model)
            if not is_name(subject):
                return [_Incoming(record, None, 0, Broken(f"{kind.value}: this can be no name"))]
            return [_Incoming(record, (kind, subject), model.revision, model)]
        case _:
            return []


def _unreadable(record: Received, error: Broken) -> _Incoming:
    named = read_message_id(record.event_id)
    topic = TOPICS.get(record.topic)
    if named is None or topic is None or topic.kind is None or named[1] != topic.kind.value:
        return _Incoming(record, None, 0, error)
    return _Incoming(record, (topic.kind, named[2]), named[3], error)
