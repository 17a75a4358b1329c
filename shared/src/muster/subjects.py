"""The exchange in PostgreSQL: a service's rows of its subjects, and the outbox of its words.

A transaction loads the rows that it needs (locked, in one order), hears and speaks in memory, and
saves them together with the outbox rows: a state change and its word exist both or not at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

import asyncpg
from opentelemetry.trace import SpanKind

from muster import outbox
from muster.contracts.model import Word
from muster.contracts.notices import AppliedRevision, DeadLetter
from muster.contracts.pods import PodStatus
from muster.contracts.topics import DEAD_LETTER, Kind, Service
from muster.db import Connection
from muster.decisions import Say as Say
from muster.errors import Transient
from muster.exchange import Exchange, Hearing, hear, hear_acknowledged, skip_dead, speak
from muster.outbox import OutboxRow
from muster.records import Received, body, said, word_id
from muster.telemetry import current_traceparent, span

ENCORES = (
    timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=1),
    timedelta(hours=12),
)
"""When a final word is said again for those who only listen, after it was said."""

DEAD_VALUE_CHARACTERS = 16_384
DEAD_HEADERS, DEAD_TEXT_CHARACTERS = 32, 1024
"""Of a dead letter, which must fit a record whatever a stranger wrote."""

DUE_ROWS = 500

Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Subject:
    """A service's row of a subject: the exchange and its own last word.

    ``word`` is read only where it is to be said again; ``topic`` None: nothing was said yet.
    ``key`` is where the other side reads what I say, also if that is an acknowledgement only.
    """

    kind: Kind
    subject: str
    exchange: Exchange = Exchange()  # noqa: RUF009 - frozen
    is_open: bool = True
    topic: str | None = None
    key: str | None = None
    word: str | None = None
    traceparent: str | None = None
    encore_at: datetime | None = None
    encores: int = 0

    def with_exchange(self, exchange: Exchange) -> "Subject":
        return replace(self, exchange=exchange)

    def last_word(self, me: Service) -> OutboxRow:
        """The word as ``me`` says it under its revision. It must be there, and loaded."""
        if self.topic is None or self.key is None or self.word is None:
            raise AssertionError("a subject without a word has nothing to publish")
        revision = self.exchange.revision
        return OutboxRow(
            self.topic,
            self.key,
            self.kind.value,
            self.subject,
            word_id(me.value, self.kind.value, self.subject, revision),
            said(self.word, revision, self.exchange.named),
            self.traceparent,
        )

    def with_encore(self, now: datetime) -> "Subject":
        """The final word is said again; the next time is later, until there is none."""
        done = self.encores + 1
        next_at = now + ENCORES[done] if done < len(ENCORES) else None
        return replace(self, encore_at=next_at, encores=done)


class Subjects:
    """The subjects that one transaction touches."""

    def __init__(self, conn: Connection, me: Service, now: datetime) -> None:
        self._conn = conn
        self._me = me
        self._now = now
        self._rows: dict[Key, Subject] = {}
        self._new: set[Key] = set()
        self._heard: set[Key] = set()
        self._spoken: set[Key] = set()
        self._again: set[Key] = set()
        self._outbox: list[OutboxRow] = []

    async def load(self, keys: Iterable[Key], *, are_new: bool = False) -> None:
        """Lock the rows of ``keys``; unknown subjects get a blank row.

        ``are_new``: the caller has just made these names, so that there is nothing to look for.
        """
        wanted = sorted(set(keys) - self._rows.keys())
        if wanted and not are_new:
            for row in await self._conn.fetch(
                _LOAD, [kind.value for kind, _ in wanted], [subject for _, subject in wanted]
            ):
                key = (Kind(row["kind"]), row["subject"])
                self._rows[key] = _subject(row)
        for key in wanted:
            if key not in self._rows:
                self._rows[key] = Subject(*key)
                self._new.add(key)

    def is_known(self, key: Key) -> bool:
        """Whether there was a row of this subject before."""
        return key not in self._new

    def hear(self, key: Key, word: Word, traceparent: str | None) -> bool:
        """The other side's word came in; whether it is to be applied."""
        row = self._rows[key]
        heard = hear(row.exchange, revision=word.revision, seen=word.seen, now=self._now)
        node = word.node if isinstance(word, PodStatus) else None
        answer_to = row.key or node
        self._note(replace(row, exchange=heard.exchange, key=answer_to, traceparent=traceparent))
        if heard.speak_again:
            self.say_again(key)
        return heard.hearing is Hearing.APPLY

    def hear_acknowledged(self, key: Key, notice: AppliedRevision) -> bool:
        """The other side acknowledged; whether it says that it could not handle my last word."""
        if not self.is_known(key):
            return False
        row = self._rows[key]
        heard = hear_acknowledged(
            row.exchange,
            revision=notice.revision,
            spoken=notice.spoken,
            dead=notice.dead,
            now=self._now,
        )
        self._note(replace(row, exchange=heard.exchange))
        if heard.speak_again:
            self.say_again(key)
        return heard.exchange.refused > row.exchange.refused

    def say(self, say: Say, parent: str | None = None) -> None:
        """Speak about a loaded subject; ``parent`` is the trace in which it was decided."""
        key = (say.kind, say.subject)
        row = self._rows[key]
        exchange = speak(row.exchange, self._now)
        encore_at = self._now + ENCORES[0] if say.encore else None
        text = body(say.word)
        with span(
            f"{say.topic} publish",
            kind=SpanKind.PRODUCER,
            parent=parent or current_traceparent() or row.traceparent,
            attributes={f"muster.{say.kind.value}": say.subject},
        ):
            traceparent = current_traceparent()
        self._rows[key] = spoken = Subject(
            say.kind,
            say.subject,
            exchange,
            say.is_open,
            say.topic,
            say.key,
            text,
            traceparent,
            encore_at,
        )
        self._spoken.add(key)
        self._again.discard(key)
        self._outbox.append(spoken.last_word(self._me))

    def bury(self, key: Key | None, record: Received, reason: str, revision: int) -> None:
        """``record`` can't be handled: a dead letter, and where it is a word of a subject, its
        revision is skipped from now on. Nobody reads the dead letters of dead letters.
        """
        if record.topic.endswith(DEAD_LETTER):
            return
        most = DEAD_TEXT_CHARACTERS
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=None if record.key is None else record.key[:most],
            headers={k[:most]: v[:most] for k, v in islice(record.headers.items(), DEAD_HEADERS)},
            value=(record.value or b"").decode(errors="replace")[:DEAD_VALUE_CHARACTERS],
            reader=self._me.value,
            reason=reason[:most],
            at=self._now,
        )
        self._outbox.append(
            OutboxRow(
                record.topic + DEAD_LETTER,
                letter.key or "",
                None,
                None,
                f"{self._me.value}/dead/{record.event_id}",
                letter.model_dump_json(exclude_none=True),
                record.traceparent,
            )
        )
        if key is not None and revision >= self._rows[key].exchange.seen:
            row = self._rows[key]
            # Where I know nothing of the subject, my own words about it are lost.
            seen = record.seen if row.topic is None else 0
            dead = skip_dead(row.exchange, revision=revision, seen=seen, now=self._now)
            self._note(replace(row, exchange=dead, key=row.key or record.node))

    async def save(self) -> None:
        """Write what changed. Raises Transient where somebody else made the same subject."""
        changed = self._heard | self._spoken
        if self._again:
            words = await _words(self._conn, sorted(self._again))
            again = [(self._rows[key], word) for key, word in words]
            self._outbox += [replace(r, word=r.word or w).last_word(self._me) for r, w in again]
        if not (changed or self._outbox):
            return
        new = [self._rows[k] for k in sorted(changed & self._new)]
        spoken = [self._rows[k] for k in sorted(self._spoken - self._new)]
        heard = [self._rows[k] for k in sorted(self._heard - self._spoken - self._new)]
        done = await self._conn.fetchrow(
            _SAVE,
            *_columns(new, _SPOKEN),
            *_columns(spoken, _SPOKEN),
            *_columns(heard, _HEARD),
            *outbox.columns(self._outbox, self._now),
        )
        assert done is not None
        if done["made"] != len(new):
            raise Transient("somebody else has just made the same subject")
        outbox.note_written(self._conn, self._outbox, done["outbox"], self._now)

    def _note(self, row: Subject) -> None:
        self._rows[(row.kind, row.subject)] = row
        self._heard.add((row.kind, row.subject))

    def say_again(self, key: Key, how: Callable[[Exchange, datetime], Exchange] = speak) -> None:
        """My last word, under a revision that the other side takes for new."""
        row = self._rows[key]
        if row.topic is not None:
            self._note(replace(row, exchange=how(row.exchange, self._now)))
            self._again.add(key)


async def say_all(
    conn: Connection, me: Service, says: Sequence[Say], now: datetime, *, are_new: bool = False
) -> None:
    """Say something outside of handling a record, in the caller's transaction."""
    subjects = Subjects(conn, me, now)
    await subjects.load(((say.kind, say.subject) for say in says), are_new=are_new)
    for say in says:
        subjects.say(say)
    await subjects.save()


def _subject(row: asyncpg.Record) -> Subject:
    values = dict(row)
    exchange = Exchange(**{name: values.pop(name) for name in _EXCHANGE})
    kind = Kind(str(values.pop("kind")))
    return Subject(kind=kind, exchange=exchange, **values)


_EXCHANGE = (
    "revision",
    "seen",
    "acknowledged",
    "dead",
    "refused",
    "repeats",
    "repeat_at",
    "answer_at",
)
_OWN = ("is_open", "topic", "key", "traceparent", "encore_at", "encores", "word")
_TYPES = {
    "kind": "text",
    "subject": "text",
    **dict.fromkeys(_EXCHANGE[:5], "bigint"),
    "repeats": "integer",
    "repeat_at": "timestamptz",
    "answer_at": "timestamptz",
    "is_open": "boolean",
    "topic": "text",
    "key": "text",
    "traceparent": "text",
    "encore_at": "timestamptz",
    "encores": "integer",
    "word": "text",
}
_KEY = ("kind", "subject")
_SPOKEN = (*_EXCHANGE, *_OWN)
_HEARD = (*_EXCHANGE, "key", "traceparent", "encore_at", "encores")
"""What changes while nothing new is said: without the word, which can be large."""
_LIST = ", ".join((*_KEY, *_SPOKEN))
_LIST_BUT_WORD = ", ".join((*_KEY, *_SPOKEN[:-1]))


def _unnest(columns: Sequence[str], first: int = 1) -> str:
    return ", ".join(f"${n}::{_TYPES[name]}[]" for n, name in enumerate(columns, first))


def _update(columns: Sequence[str], first: int = 1) -> str:
    named = (*_KEY, *columns)
    return f"""
        UPDATE subject AS s
        SET {", ".join(f"{c} = n.{c}" for c in columns)}, changed_at = now()
        FROM unnest({_unnest(named, first)}) AS n ({", ".join(named)})
        WHERE s.kind = n.kind AND s.subject = n.subject
    """  # noqa: S608 - the names of columns, not values


_WHOLE, _PART = len(_KEY + _SPOKEN), len(_KEY + _HEARD)
_SAVE = f"""
    WITH made AS (
        INSERT INTO subject ({_LIST}) SELECT * FROM unnest({_unnest((*_KEY, *_SPOKEN))})
        ON CONFLICT DO NOTHING RETURNING 1
    ), spoken AS ({_update(_SPOKEN, 1 + _WHOLE)}
    ), heard AS ({_update(_HEARD, 1 + 2 * _WHOLE)}
    ), {outbox.write_sql(1 + 2 * _WHOLE + _PART)}
    SELECT (SELECT count(*) FROM made) AS made,
           {outbox.WRITTEN_IDS} AS outbox
"""  # noqa: S608 - columns
"""One statement, for each round trip costs more than what it does."""

_LOAD = f"""
    SELECT {_LIST_BUT_WORD} FROM subject
    WHERE (kind, subject) IN (SELECT * FROM unnest($1::text[], $2::text[]))
    ORDER BY kind, subject FOR UPDATE
"""  # noqa: S608 - columns
_DUE = f"""
    WITH due AS (
        (SELECT kind, subject, octet_length(word) AS size FROM subject
         WHERE repeat_at <= $1 ORDER BY repeat_at LIMIT $2)
        UNION
        (SELECT kind, subject, octet_length(word) AS size FROM subject
         WHERE encore_at <= $1 ORDER BY encore_at LIMIT $3)
    ), few AS (
        SELECT kind, subject, size, sum(size) OVER (ORDER BY kind, subject) AS sum FROM due
    ), said AS (SELECT kind, subject FROM few WHERE sum <= $4 OR sum = size)
    SELECT {_LIST_BUT_WORD},
        CASE WHEN (kind, subject) IN (SELECT * FROM said) THEN word END AS word
    FROM subject
    WHERE (kind, subject) IN (
        SELECT * FROM said
        UNION
        (SELECT kind, subject FROM subject WHERE answer_at <= $1 ORDER BY answer_at LIMIT $3)
    )
    ORDER BY kind, subject FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - columns
_WORDS = """
    SELECT kind, subject, word FROM subject
    WHERE (kind, subject) IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""
_UPDATE_HEARD = _update(_HEARD)


def _columns(rows: Sequence[Subject], names: Sequence[str]) -> list[list[object]]:
    """The rows' values as arrays, one for each column after kind and subject."""
    return [
        [row.kind.value for row in rows],
        [row.subject for row in rows],
        *(
            [getattr(row.exchange, name) for row in rows]
            if name in _EXCHANGE
            else [getattr(row, name) for row in rows]
            for name in names
        ),
    ]


async def load_due(
    conn: Connection, now: datetime, repeats: int, limit_bytes: int
) -> list[Subject]:
    """Lock the subjects about which something is to be said: acknowledgements, encores, and at
    most ``repeats`` repeats. Those whose word is to be said again have it: as many as come to the
    bytes, or one.
    """
    return [_subject(row) for row in await conn.fetch(_DUE, now, repeats, DUE_ROWS, limit_bytes)]


async def update_exchanges(conn: Connection, rows: Sequence[Subject]) -> None:
    """Write what has changed of rows that exist, where nothing new was said."""
    if rows:
        await conn.execute(_UPDATE_HEARD, *_columns(rows, _HEARD))


async def _words(conn: Connection, keys: Sequence[Key]) -> list[tuple[Key, str]]:
    rows = await conn.fetch(_WORDS, [kind.value for kind, _ in keys], [name for _, name in keys])
    return [((Kind(row["kind"]), row["subject"]), row["word"]) for row in rows]
