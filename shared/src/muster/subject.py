"""A subject as one of its sides keeps it: the exchange, and the latest message with its topic.

Services keep such rows in PostgreSQL (``muster.subjects``), an agent keeps them in its journal.
What both do with a row is here: receive, publish, republish, acknowledge, skip. Every method
returns the row as it becomes; nothing is published before that row is stored.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from muster import exchange
from muster.acknowledgements import Acknowledgement
from muster.channels import Outgoing
from muster.contracts.model import StateMessage
from muster.contracts.notices import AppliedRevision, DeadLetter
from muster.contracts.pods import PodRequest, PodStatus
from muster.contracts.topics import DEAD_LETTER, Kind, Service
from muster.decisions import Publish
from muster.exchange import Exchange, Receipt
from muster.records import Received, message_body, message_id, message_value

DELAYED_REPEATS = (
    timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=1),
    timedelta(hours=12),
)
"""When a final message is published again for listeners, each counted from the one before."""

LATEST_DUE = 1.5 * exchange.REPEAT_LONGEST
"""No repeat or answer is ever set to be due later than this from now."""

DEAD_LETTER_VALUE_CHARACTERS = 16_384
DEAD_LETTER_HEADERS, DEAD_LETTER_TEXT_CHARACTERS = 32, 1024
"""Of a dead letter, which must fit a record also where the rejected record is foreign."""

Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Subject:
    """One side's row of a subject.

    ``message``: the latest message as JSON without revision and seen; None also where it was not
    loaded. ``digest`` is its hash. ``topic`` None: nothing was published yet. ``key``: the record
    key under which the other side reads, also if only acknowledgements go out; at the Launcher, of
    a pod its node. ``is_open`` False: I have published my last message on it, or none yet.
    ``journal``: of a pod, the journal of the agent that is the other side; else None.
    """

    kind: Kind
    subject: str
    exchange: Exchange = Exchange()  # noqa: RUF009 - frozen
    is_open: bool = True
    topic: str | None = None
    key: str | None = None
    journal: str | None = None
    digest: int = 0
    traceparent: str | None = None
    delayed_repeat_at: datetime | None = None
    delayed_repeats: int = 0
    message: str | None = None

    def is_stray(self, message: StateMessage) -> bool:
        """Whether the message comes from an agent that is not the other side: another node or
        journal than the one that my open message names.
        """
        is_theirs = not isinstance(message, PodStatus) or self._is_other_side(message)
        return self.is_open and self.topic is not None and not is_theirs

    def _is_other_side(self, pod: PodStatus | PodRequest) -> bool:
        return (self.key, self.journal) == (pod.node, pod.journal)

    def _facing(self, pod: PodStatus | PodRequest) -> "Subject":
        """The row with this agent as the other side. What another one named does not count."""
        if self._is_other_side(pod):
            return self
        mine = Exchange(revision=self.exchange.revision)
        return replace(self, exchange=mine, key=pod.node, journal=pod.journal)

    def received(
        self, message: StateMessage, traceparent: str | None, now: datetime
    ) -> tuple["Subject", Receipt]:
        """The other side's message arrived. It is not stray."""
        row = self._facing(message) if isinstance(message, PodStatus) else self
        receipt = exchange.receive(
            row.exchange, revision=message.revision, seen=message.seen, now=now
        )
        after = receipt.exchange
        if self.topic is None:  # no message of mine will answer
            after = replace(after, answer_at=after.answer_at or now + exchange.ANSWER_AFTER)
        return replace(row, exchange=after, traceparent=traceparent), receipt

    def received_acknowledgement(
        self, applied: AppliedRevision, now: datetime
    ) -> tuple["Subject", Receipt]:
        """The other side acknowledged one of my revisions."""
        receipt = exchange.receive_acknowledgement(
            self.exchange,
            revision=applied.revision,
            sender_revision=applied.sender_revision,
            is_rejected=applied.is_rejected,
            now=now,
        )
        return replace(self, exchange=receipt.exchange), receipt

    def skipped(self, record: Received, revision: int, now: datetime) -> "Subject":
        """The record's message can't be handled."""
        if revision < self.exchange.seen:  # an old one: the answer names a later revision
            return replace(self, exchange=replace(self.exchange, answer_at=now))
        # Where I know nothing of the subject, my own messages on it are lost.
        seen = record.seen if self.topic is None else 0
        after = exchange.skip(self.exchange, revision=revision, seen=seen, now=now)
        return replace(
            self,
            exchange=after,
            key=self.key or record.node,
            journal=self.journal or record.journal,
        )

    def published(
        self, publish: Publish, traceparent: str | None, now: datetime, floor: int = 0
    ) -> "Subject":
        """This is the latest message from now on. One that equals the message before changes
        nothing: the other side has it, or it is being republished. After a restore, where my
        revision is not above the ``floor``, the other side may have another message under it.
        An equal one that was kept back goes out where this one must.
        """
        body = message_body(publish.message)
        digest = digest_of(body)
        is_sure = self.topic is not None and self.exchange.revision >= floor
        is_out = publish.only_if_missed or not self.exchange.is_kept_back
        if is_sure and is_out and (digest, publish.is_open) == (self.digest, self.is_open):
            return self
        pod = publish.message if isinstance(publish.message, PodRequest) else None
        row = self if pod is None else self._facing(pod)
        above = replace(row.exchange, revision=max(row.exchange.revision, floor))
        is_quiet = publish.only_if_missed
        return Subject(
            publish.kind,
            publish.subject,
            exchange.keep_back(above) if is_quiet else exchange.next_revision(above, now),
            publish.is_open,
            publish.topic,
            publish.key,
            row.journal,
            digest,
            traceparent,
            now + DELAYED_REPEATS[0] if publish.delayed_repeats else None,
            0,
            body,
        )

    def latest(self, me: Service, now: datetime) -> Outgoing:
        """The latest message as a record of ``me``. It must be there, and loaded."""
        if self.topic is None or self.key is None or self.message is None:
            raise AssertionError("a subject without a message has nothing to publish")
        revision = self.exchange.revision
        return Outgoing(
            self.topic,
            self.key,
            message_value(self.message, revision, self.exchange.named).encode(),
            message_id(me.value, self.kind.value, self.subject, revision),
            now.timestamp(),
            self.traceparent,
        )

    def acknowledgement(self) -> Acknowledgement:
        """My acknowledgement of the other side's messages."""
        applied = AppliedRevision(
            kind=self.kind.value,
            subject=self.subject,
            revision=self.exchange.seen,
            sender_revision=self.exchange.revision,
            is_rejected=self.exchange.skipped > 0,
        )
        return Acknowledgement(self.key or self.subject, self.journal, applied)

    def due(self, now: datetime, jitter: float, *, may_repeat: bool) -> "WhatIsDue":
        """What is due on the subject. ``may_repeat``: the message may go out again now."""
        row, acknowledgement = self, None
        if self.topic is None:  # there is nothing to repeat
            row = replace(row, exchange=replace(row.exchange, repeat_at=None))
        is_repeat = (
            may_repeat and self.message is not None and _is_due(self.exchange.repeat_at, now)
        )
        if is_repeat:
            row = replace(row, exchange=exchange.republish(row.exchange, now, jitter))
        if _is_due(row.exchange.answer_at, now):
            acknowledgement = row.acknowledgement()
            row = replace(row, exchange=exchange.answered(row.exchange))
        return WhatIsDue(row, is_repeat, acknowledgement)

    def repeated_for_listeners(self, now: datetime) -> "Subject":
        """A final message that listeners are due to get again goes out. The next time is later,
        until there is none.
        """
        at = self.delayed_repeat_at
        if at is None or at > now or self.message is None:
            return self
        done = self.delayed_repeats + 1
        next_at = now + DELAYED_REPEATS[done] if done < len(DELAYED_REPEATS) else None
        return replace(self, delayed_repeat_at=next_at, delayed_repeats=done)


@dataclass(frozen=True, slots=True)
class WhatIsDue:
    """The row once what is due has gone out: the latest message where ``is_repeat``, and an
    acknowledgement.
    """

    row: Subject
    is_repeat: bool
    acknowledgement: Acknowledgement | None


def dead_letter(me: Service, record: Received, reason: str, now: datetime) -> Outgoing | None:
    """The dead letter of ``record``, with the reason why ``me`` rejects it. None for a record that
    is a dead letter itself.
    """
    if record.topic.endswith(DEAD_LETTER):
        return None
    most = DEAD_LETTER_TEXT_CHARACTERS
    letter = DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else record.key[:most],
        headers={
            k[:most]: v[:most] for k, v in islice(record.headers.items(), DEAD_LETTER_HEADERS)
        },
        value=(record.value or b"").decode(errors="replace")[:DEAD_LETTER_VALUE_CHARACTERS],
        reader=me.value,
        reason=reason[:most],
        at=now,
    )
    return Outgoing(
        record.topic + DEAD_LETTER,
        letter.key or "",
        letter.model_dump_json(exclude_none=True).encode(),
        f"{me.value}/dead/{record.event_id}",
        now.timestamp(),
        record.traceparent,
    )


def _is_due(at: datetime | None, now: datetime) -> bool:
    """Also where the time lies further ahead than any is ever set: the clock was set back."""
    return at is not None and not now < at <= now + LATEST_DUE


def digest_of(body: str) -> int:
    """A hash that fits PostgreSQL's bigint."""
    raw = hashlib.blake2b(body.encode(), digest_size=8).digest()
    return int.from_bytes(raw, signed=True)
