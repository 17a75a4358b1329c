"""How a service applies words: load, decide, save, and say, set-based for a whole batch.

The decision is a pure function of one aggregate's state and one input, so a decision that raises
has changed nothing: its record becomes a dead letter and its neighbours in the batch are applied.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar, assert_never

import structlog
from opentelemetry.trace import SpanKind

from muster.acknowledgements import heard_by, is_for_others
from muster.contracts.model import Word
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.topics import TOPICS, Kind, Service
from muster.db import Connection
from muster.decisions import Dead as Dead
from muster.decisions import Decision as Decision
from muster.decisions import Due as Due
from muster.decisions import Input as Input
from muster.decisions import Say
from muster.errors import Broken
from muster.ids import is_name
from muster.records import Received, read_word_id, subject_of
from muster.subjects import Key, Subjects
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
    """What a record says about one subject, or why it can't be read."""

    record: Received
    key: Key | None
    revision: int
    content: Word | AppliedRevision | Broken


async def apply_records(
    conn: Connection,
    me: Service,
    aggregate: Aggregate[State],
    records: Sequence[Received],
    now: datetime,
) -> dict[str, State]:
    """Apply a batch of words and acknowledgements in the caller's transaction.

    Returns the states that changed. A record that can't be read or decided becomes a dead letter.
    """
    incoming = [item for record in records for item in _read(me, record)]
    subjects = Subjects(conn, me, now)
    run = _Run(aggregate, subjects, now)
    keys = {item.key for item in incoming if item.key is not None}
    await run.load(conn, {aggregate.of(*key) for key in keys})
    await subjects.load(keys)
    for item in incoming:
        run.apply(item)
    await run.save(conn)
    return run.changed


async def apply_due(
    conn: Connection,
    me: Service,
    aggregate: Aggregate[State],
    ids: Sequence[str],
    now: datetime,
) -> dict[str, State]:
    """Tell these aggregates that a time has come. Returns the states that changed."""
    run = _Run(aggregate, Subjects(conn, me, now), now)
    await run.load(conn, set(ids))
    for ident in sorted(ids):
        if ident in run.states:
            run.decide(ident, Due())
    await run.save(conn)
    return run.changed


async def bury(conn: Connection, me: Service, record: Received, reason: str, now: datetime) -> None:
    """Make a dead letter of a record whose transaction keeps failing."""
    items = _read(me, record)
    word = next((item for item in items if item.revision), None)
    subjects = Subjects(conn, me, now)
    key = word.key if word is not None else None
    if key is not None:
        await subjects.load([key])
    subjects.bury(key, record, reason, word.revision if word is not None else 0)
    await subjects.save()


class _Run(Generic[State]):
    """One pass over a batch: states and what is to be said, in memory until it is saved."""

    def __init__(self, aggregate: Aggregate[State], subjects: Subjects, now: datetime) -> None:
        self._aggregate = aggregate
        self._subjects = subjects
        self._now = now
        self._says: list[tuple[Say, str | None]] = []
        self.states: dict[str, State] = {}
        self.changed: dict[str, State] = {}

    async def load(self, conn: Connection, ids: set[str]) -> None:
        if ids:
            self.states.update(await self._aggregate.load(conn, sorted(ids)))

    def apply(self, item: _Incoming) -> None:
        match item.content:
            case Broken() as error:
                self._bury(item, error)
            case AppliedRevision() as notice:
                assert item.key is not None
                if self._subjects.hear_acknowledged(item.key, notice):
                    self._decide_on(item, Dead(*item.key))
            case Word() as word:
                assert item.key is not None
                if self._subjects.hear(item.key, word, item.record.traceparent):
                    self._decide_on(item, word)
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
                self._bury(item, error)

    def decide(self, ident: str, given: Input) -> None:
        """Decide, and remember the outcome; nothing has changed where this raises."""
        state = self.states.get(ident)
        decision = self._aggregate.decide(ident, state, given, self._now)
        if decision.state is not None and decision.state is not state:
            self.states[ident] = decision.state
            self.changed[ident] = decision.state
        self._says.extend((say, current_traceparent()) for say in decision.says)

    def _bury(self, item: _Incoming, error: Exception) -> None:
        reason = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
        self._subjects.bury(item.key, item.record, reason, item.revision)

    async def save(self, conn: Connection) -> None:
        await self._subjects.load((say.kind, say.subject) for say, _ in self._says)
        for say, parent in self._says:
            self._subjects.say(say, parent)
        if self.changed:
            await self._aggregate.save(conn, [self.changed[i] for i in sorted(self.changed)])
        await self._subjects.save()


def _read(me: Service, record: Received) -> list[_Incoming]:
    """What a record says to me, of each subject; nothing where it is not for me."""
    if is_for_others(me, record):
        return []
    try:
        model = record.model()
    except Broken as error:
        return [_unreadable(record, error)]
    match model:
        case RevisionAcknowledged():
            return [
                _Incoming(record, (Kind(applied.kind), applied.subject), 0, applied)
                for applied in heard_by(me, model)
                if is_name(applied.subject)
            ]
        case Word():
            kind = TOPICS[record.topic].kind
            assert kind is not None
            subject = subject_of(kind, model)
            if not is_name(subject):
                return [_Incoming(record, None, 0, Broken(f"{kind.value}: this can be no name"))]
            return [_Incoming(record, (kind, subject), model.revision, model)]
        case _:
            return []


def _unreadable(record: Received, error: Broken) -> _Incoming:
    named = read_word_id(record.event_id)
    topic = TOPICS.get(record.topic)
    if named is None or topic is None or topic.kind is None or named[1] != topic.kind.value:
        return _Incoming(record, None, 0, error)
    return _Incoming(record, (topic.kind, named[2]), named[3], error)
