"""A service's subjects in PostgreSQL. The row of a subject is also its outbox.

A transaction loads and locks the rows that it needs in one order, receives and publishes in memory,
and saves what changed by one statement. So a state change and its message exist both or not at all.
The relay publishes the messages from memory after the commit. A message that gets lost on that way
is republished from its row, at ``repeat_at``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import asyncpg
from opentelemetry.trace import SpanKind

from muster import exchange
from muster.acknowledgements import Acknowledgement, acknowledgements
from muster.contracts.model import StateMessage
from muster.contracts.notices import AppliedRevision
from muster.contracts.pods import PodStatus
from muster.contracts.topics import Kind, Service
from muster.db import Connection, Transaction
from muster.decisions import Publish
from muster.errors import Transient
from muster.exchange import Exchange
from muster.records import Received
from muster.subject import Key, Subject, dead_letter
from muster.telemetry import current_traceparent, span

DUE_ROWS = 500


class Subjects:
    """The subjects that one transaction touches."""

    def __init__(self, transaction: Transaction, me: Service) -> None:
        self._transaction = transaction
        self._me = me
        self._now = transaction.now
        self._rows: dict[Key, Subject] = {}
        self._new: set[Key] = set()
        self._changed: set[Key] = set()
        self._published: set[Key] = set()
        self._again: set[Key] = set()
        self._unacknowledged: set[Key] = set()

    async def load(self, keys: Iterable[Key], *, are_new: bool = False) -> None:
        """Lock the rows of ``keys``; unknown subjects get a blank row.

        ``are_new``: the caller has just made these names, so that there is nothing to look for.
        """
        wanted = sorted(set(keys) - self._rows.keys())
        if wanted and not are_new:
            for row in await self._transaction.conn.fetch(
                _LOAD, [kind.value for kind, _ in wanted], [subject for _, subject in wanted]
            ):
                key = (Kind(row["kind"]), row["subject"])
                self._rows[key] = _subject(row)
        for key in wanted:
            if key not in self._rows:
                self._rows[key] = Subject(*key, is_open=False)  # until I publish on it
                self._new.add(key)

    def is_known(self, key: Key) -> bool:
        """Whether there was a row of this subject before."""
        return key not in self._new

    def receive(self, key: Key, message: StateMessage, traceparent: str | None) -> bool:
        """The other side's message arrived; whether it is to be applied. A stray one is only
        acknowledged to its sender.
        """
        if self._rows[key].is_stray(message):
            assert isinstance(message, PodStatus)
            self._acknowledge_stray(key, message, message.revision)
            return False
        if self._rows[key].exchange.repeat_at is not None:
            self._unacknowledged.add(key)
        row, receipt = self._rows[key].received(message, traceparent, self._now)
        self._put(row)
        if receipt.must_publish:
            self.publish_again(key)
        return receipt.is_new

    def _acknowledge_stray(self, key: Key, sender: PodStatus | Received, revision: int) -> None:
        """Answer an agent that is not the other side, so that it falls silent."""
        kind, subject = key
        applied = AppliedRevision(
            kind=kind.value,
            subject=subject,
            revision=revision,
            # What it has seen of mine itself, so that it takes this for no older than that.
            sender_revision=sender.seen,
        )
        due = Acknowledgement(sender.node or "", sender.journal, applied)
        at = self._now.timestamp()
        self._transaction.outgoing.extend(acknowledgements(self._me, [due], at))
        self._transaction.strays.append(subject)

    def receive_acknowledgement(
        self, key: Key, applied: AppliedRevision, journal: str | None
    ) -> bool:
        """The other side acknowledged. Returns whether it rejected my message. ``journal``: of the
        agent that acknowledges.
        """
        before = self._rows[key]
        if not self.is_known(key) or before.journal != journal:
            return False
        row, receipt = before.received_acknowledgement(applied, self._now)
        self._put(row)
        if receipt.must_publish:
            self.publish_again(key)
        return row.exchange.rejected > before.exchange.rejected

    def publish(self, publish: Publish, parent: str | None = None) -> None:
        """Publish a message on a loaded subject; ``parent``: the trace in which it was decided."""
        key = (publish.kind, publish.subject)
        before = self._rows[key]
        # A restored side may read my message before anew.
        if publish.only_if_missed and key in self._unacknowledged:
            publish = replace(publish, only_if_missed=False)
        with span(
            f"{publish.topic} publish",
            kind=SpanKind.PRODUCER,
            parent=parent or current_traceparent() or before.traceparent,
            attributes={f"muster.{publish.kind.value}": publish.subject},
        ):
            floor = self._transaction.floor
            row = before.published(publish, current_traceparent(), self._now, floor)
        if row is before:
            return
        self._put(row)
        self._published.add(key)
        self._again.discard(key)
        if not row.exchange.is_kept_back:
            self._transaction.outgoing.append(row.latest(self._me, self._now))

    def publish_again(
        self, key: Key, how: Callable[[Exchange, datetime], Exchange] = exchange.next_revision
    ) -> None:
        """Publish the latest message under a revision that the other side takes for new."""
        row = self._rows[key]
        if row.topic is not None:
            self._put(replace(row, exchange=how(row.exchange, self._now)))
            self._again.add(key)

    def dead_letter(self, key: Key | None, record: Received, reason: str, revision: int) -> None:
        """``record`` can't be handled: it becomes a dead letter. Where it is a message on a
        subject, its revision is skipped from now on.
        """
        letter = dead_letter(self._me, record, reason, self._now)
        if letter is None:
            return
        self._transaction.notices.append(letter)
        if key is None or revision == 0:
            return
        row = self._rows[key]
        if row.is_open and row.topic is not None and record.journal not in (None, row.journal):
            self._acknowledge_stray(key, record, revision)
        else:
            self._put(row.skipped(record, revision, self._now))

    async def save(self) -> None:
        """Write what changed. Raises Transient where another replica made the same subject."""
        conn = self._transaction.conn
        if self._again:
            for key, message in await _messages(conn, sorted(self._again)):
                row = replace(self._rows[key], message=self._rows[key].message or message)
                self._transaction.outgoing.append(row.latest(self._me, self._now))
        if not self._changed:
            return
        new = [self._rows[k] for k in sorted(self._changed & self._new)]
        published = [self._rows[k] for k in sorted(self._published - self._new)]
        received = [self._rows[k] for k in sorted(self._changed - self._published - self._new)]
        made = await conn.fetchval(
            _SAVE,
            *_columns(new, _PUBLISHED),
            *_columns(published, _PUBLISHED),
            *_columns(received, _RECEIVED),
        )
        if made != len(new):
            raise Transient("another replica has just made the same subject")

    def _put(self, row: Subject) -> None:
        self._rows[(row.kind, row.subject)] = row
        self._changed.add((row.kind, row.subject))


async def publish_all(
    transaction: Transaction,
    me: Service,
    messages: Sequence[Publish],
    *,
    are_new: bool = False,
) -> None:
    """Publish something outside of handling a record, in the caller's transaction."""
    subjects = Subjects(transaction, me)
    await subjects.load(((each.kind, each.subject) for each in messages), are_new=are_new)
    for each in messages:
        subjects.publish(each)
    await subjects.save()


async def load_due(
    conn: Connection, now: datetime, repeats: int, limit_bytes: int
) -> list[Subject]:
    """Lock the subjects on which something is due: acknowledgements, delayed repeats, and at most
    ``repeats`` repeats. Those whose message is due have it loaded: as many as come to
    ``limit_bytes``, or one. It skips rows that another replica has locked.
    """
    return [_subject(row) for row in await conn.fetch(_DUE, now, repeats, DUE_ROWS, limit_bytes)]


async def update_exchanges(conn: Connection, rows: Sequence[Subject]) -> None:
    """Write rows that exist and whose message has not changed."""
    if rows:
        await conn.execute(_UPDATE_RECEIVED, *_columns(rows, _RECEIVED))


async def reject_by_bus(conn: Connection, key: Key, revision: int) -> None:
    """The bus rejects this revision for good: it is not republished."""
    row = await conn.fetchrow(_LOAD, [key[0].value], [key[1]])
    if row is not None:
        subject = _subject(row)
        after = exchange.reject_by_bus(subject.exchange, revision)
        await update_exchanges(conn, [replace(subject, exchange=after)])


def repeat_soon(which: str) -> str:
    """The statement that makes the messages of the subjects in ``which`` due within 2 s."""
    return f"""
        UPDATE subject SET repeats = 0, repeat_at = now() + random() * interval '2 s'
        WHERE (kind, subject) IN (
            SELECT kind, subject FROM subject WHERE {which} ORDER BY kind, subject FOR UPDATE
        )
    """  # noqa: S608 - a condition of ours


async def _messages(conn: Connection, keys: Sequence[Key]) -> list[tuple[Key, str]]:
    rows = await conn.fetch(_MESSAGES, [kind.value for kind, _ in keys], [name for _, name in keys])
    return [((Kind(row["kind"]), row["subject"]), row["message"]) for row in rows]


def _subject(row: asyncpg.Record) -> Subject:
    values = dict(row)
    of_exchange = Exchange(**{name: values.pop(name) for name in _EXCHANGE})
    kind = Kind(str(values.pop("kind")))
    return Subject(kind=kind, exchange=of_exchange, **values)


def _columns(rows: Sequence[Subject], names: Sequence[str]) -> list[list[object]]:
    """The rows' values as arrays, one for each column after kind and subject."""
    return [
        [row.kind.value for row in rows],
        [row.subject for row in rows],
        *(
            [getattr(row.exchange if name in _EXCHANGE else row, name) for row in rows]
            for name in names
        ),
    ]


_TYPES = {
    "kind": "text",
    "subject": "text",
    "revision": "bigint",
    "seen": "bigint",
    "acknowledged": "bigint",
    "skipped": "bigint",
    "rejected": "bigint",
    "repeats": "integer",
    "repeat_at": "timestamptz",
    "answer_at": "timestamptz",
    "is_open": "boolean",
    "topic": "text",
    "key": "text",
    "journal": "text",
    "digest": "bigint",
    "traceparent": "text",
    "delayed_repeat_at": "timestamptz",
    "delayed_repeats": "integer",
    "message": "text",
}
_KEY = tuple(_TYPES)[:2]
_EXCHANGE = tuple(_TYPES)[2:10]
_PUBLISHED = tuple(_TYPES)[2:]
_RECEIVED = (*_EXCHANGE, "key", "journal", "traceparent", "delayed_repeat_at", "delayed_repeats")
"""What changes while nothing new is published: without the message, which can be large."""
_LIST = ", ".join(_TYPES)
_LIST_BUT_MESSAGE = ", ".join(tuple(_TYPES)[:-1])


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


_WHOLE = len(_TYPES)
_SAVE = f"""
    WITH made AS (
        INSERT INTO subject ({_LIST}) SELECT * FROM unnest({_unnest(tuple(_TYPES))})
        ON CONFLICT DO NOTHING RETURNING 1
    ), published AS ({_update(_PUBLISHED, 1 + _WHOLE)}
    ), received AS ({_update(_RECEIVED, 1 + 2 * _WHOLE)}
    )
    SELECT count(*) FROM made
"""  # noqa: S608 - columns
"""One statement, for each round trip costs more than what it does."""

_LOAD = f"""
    SELECT {_LIST_BUT_MESSAGE} FROM subject
    WHERE (kind, subject) IN (SELECT * FROM unnest($1::text[], $2::text[]))
    ORDER BY kind, subject FOR UPDATE
"""  # noqa: S608 - columns
_DUE = f"""
    WITH due AS (
        (SELECT kind, subject, coalesce(octet_length(message), 0) AS size FROM subject
         WHERE repeat_at <= $1 ORDER BY repeat_at LIMIT $2)
        UNION
        (SELECT kind, subject, coalesce(octet_length(message), 0) AS size FROM subject
         WHERE delayed_repeat_at <= $1 ORDER BY delayed_repeat_at LIMIT $3)
    ), few AS (
        SELECT kind, subject, size, sum(size) OVER (ORDER BY kind, subject) AS sum FROM due
    ), sent AS (SELECT kind, subject FROM few WHERE sum <= $4 OR sum = size)
    SELECT {_LIST_BUT_MESSAGE},
        CASE WHEN (kind, subject) IN (SELECT * FROM sent) THEN message END AS message
    FROM subject
    WHERE (kind, subject) IN (
        SELECT * FROM sent
        UNION
        (SELECT kind, subject FROM subject WHERE answer_at <= $1 ORDER BY answer_at LIMIT $3)
    )
    ORDER BY kind, subject FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - columns
_MESSAGES = """
    SELECT kind, subject, message FROM subject
    WHERE (kind, subject) IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""
_UPDATE_RECEIVED = _update(_RECEIVED)
