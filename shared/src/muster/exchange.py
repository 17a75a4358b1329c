"""The exchange: how the two sides of a subject reach the same state over a bus that loses, repeats,
delays and reorders records, and then fall silent.

Example: the Launcher publishes its message on a gang under revision 3. The Scheduler applies it,
stores ``seen = 3`` and answers. The answer names 3, so the Launcher stops republishing.

A state message is its sender's complete state of one subject. A side republishes its latest message
until the other side has named its revision. A side answers every message; nobody answers an
acknowledgement. Everything here is a pure function over one row; time and jitter are arguments.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

ANSWER_AFTER = timedelta(seconds=0.3)
"""A message is answered within 0.5 s; the rest of the half second is for the relay."""

REPEAT_FIRST = timedelta(seconds=1)
REPEAT_LONGEST = timedelta(minutes=5)
REPEAT_SPREAD = 0.2
"""A repeat comes up to this fraction later, so that subjects written together spread out."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The revisions and times that one side keeps of a subject. "Mine" is this side, "theirs" the
    other side.

    ``revision``: of my latest message; 0 before the first. ``seen``: the highest of their revisions
    that I applied or skipped. ``acknowledged``: the revision of mine that they named last.
    ``skipped``: their newest revision, where I could not handle it; else 0. ``rejected``: my
    revision that they, or the bus, could not handle; else 0. ``repeats``: how often my latest
    message was republished. ``repeat_at``: when it is republished next, None at rest.
    ``answer_at``: when I answer theirs, None if nothing is unanswered.
    """

    revision: int = 0
    seen: int = 0
    acknowledged: int = 0
    skipped: int = 0
    rejected: int = 0
    repeats: int = 0
    repeat_at: datetime | None = None
    answer_at: datetime | None = None

    @property
    def named(self) -> int:
        """The ``seen`` in my messages. Only an acknowledgement names a skipped revision: a message
        has no field for a rejection.
        """
        return self.skipped - 1 if self.skipped else self.seen

    @property
    def is_kept_back(self) -> bool:
        """My latest message is stored, and goes out only if they forget the one before."""
        return self.repeat_at is None and self.acknowledged < self.revision and not self.rejected

    @property
    def is_silent(self) -> bool:
        """Nothing is left to republish or to answer."""
        return self.repeat_at is None and self.answer_at is None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The row after a record. ``is_new``: the receiver applies the message. ``must_publish``: the
    other side names a revision that I do not remember, so I publish my latest message above it.
    """

    exchange: Exchange
    is_new: bool
    must_publish: bool


def next_revision(row: Exchange, now: datetime) -> Exchange:
    """My message gets the next revision. It also answers whatever was unanswered."""
    return replace(
        row,
        revision=row.revision + 1,
        rejected=0,
        repeats=0,
        repeat_at=now + REPEAT_FIRST,
        answer_at=row.answer_at if row.skipped else None,
    )


def keep_back(row: Exchange) -> Exchange:
    """My next message is stored only: what they have acknowledged is enough while they remember it.
    The message before is not repeated any more.
    """
    return replace(row, revision=row.revision + 1, rejected=0, repeats=0, repeat_at=None)


def receive(row: Exchange, *, revision: int, seen: int, now: datetime) -> Receipt:
    """Their message arrives. It is applied if its revision is higher than all before.

    Where they have forgotten what they acknowledged, my message is the answer: an acknowledgement
    would end their resync before they have it.
    """
    is_new = revision > row.seen
    after = _named(row, seen, sender_revision=revision, now=now)
    if is_new:
        after = replace(after, seen=revision, skipped=0)
    have_forgotten = seen < row.acknowledged and revision >= row.seen and not _is_rejected(row)
    if not have_forgotten or after.skipped:
        after = replace(after, answer_at=after.answer_at or now + ANSWER_AFTER)
    return Receipt(after, is_new, seen > row.revision)


def receive_acknowledgement(
    row: Exchange, *, revision: int, sender_revision: int, is_rejected: bool, now: datetime
) -> Receipt:
    """They applied my ``revision``, or skipped it where ``is_rejected``. ``sender_revision`` is
    their own revision at that time. An acknowledgement is never answered.
    """
    after = _named(row, revision, sender_revision=sender_revision, now=now)
    if is_rejected and revision == after.acknowledged == row.revision:
        after = replace(after, rejected=revision)
    return Receipt(after, is_new=False, must_publish=revision > row.revision)


def skip(row: Exchange, *, revision: int, now: datetime, seen: int = 0) -> Exchange:
    """I can't handle the message that just arrived: I note its revision and answer at once.
    ``seen``: what that message names of mine, where I have no message to publish above it.
    """
    if seen > row.revision:  # else they would take my answer for one from before
        row = replace(row, revision=seen, acknowledged=seen)
    return replace(row, seen=revision, skipped=revision, answer_at=now)


def reject_by_bus(row: Exchange, revision: int) -> Exchange:
    """The bus rejects my message for good: it waits until a later one replaces it."""
    if revision != row.revision:
        return row
    return replace(row, rejected=revision, repeat_at=None)


def resync(row: Exchange, now: datetime, floor: int = 0) -> Exchange:
    """After a restored backup: my latest message goes out above every revision that I may have
    used since, and above the ``floor``. Nobody publishes a thousand messages a second on one
    subject, so the clock's milliseconds are above them all.
    """
    revision = max(row.revision, int(now.timestamp() * 1000), floor)
    return next_revision(replace(row, revision=revision, acknowledged=0), now)


def republish(row: Exchange, now: datetime, jitter: float) -> Exchange:
    """My latest message goes out again, with my present ``seen``. ``jitter``: 0 to 1."""
    wait = min(REPEAT_FIRST * 2 ** min(row.repeats + 1, 16), REPEAT_LONGEST)
    return replace(
        row,
        repeats=row.repeats + 1,
        repeat_at=now + wait * (1 + REPEAT_SPREAD * jitter),
        answer_at=row.answer_at if row.skipped else None,
    )


def answered(row: Exchange) -> Exchange:
    """The acknowledgement that was due is on its way."""
    return replace(row, answer_at=None)


def _named(row: Exchange, named: int, *, sender_revision: int, now: datetime) -> Exchange:
    """They name ``named`` as the highest of my revisions that they have.

    It counts if the record is not older than what I applied: it is then their present state. Where
    the number falls they have lost memory of my messages. An older record is from before their
    reset and does not count.
    """
    if named > row.revision:  # I have lost memory: the caller publishes above it
        return replace(row, revision=named, acknowledged=named)
    if sender_revision < row.seen:
        return row
    if named == row.revision:
        return replace(row, acknowledged=named, repeats=0, repeat_at=None)
    if _is_rejected(row):  # to repeat it would change nothing
        return row
    if row.is_kept_back and named >= row.acknowledged:  # they have forgotten nothing
        return replace(row, acknowledged=named)
    # They are there, so there is no need to go on doubling; or they have forgotten.
    soon = now if named < row.acknowledged else now + REPEAT_FIRST
    return replace(row, acknowledged=named, repeats=0, repeat_at=min(row.repeat_at or soon, soon))


def _is_rejected(row: Exchange) -> bool:
    """They, or the bus, could not handle my latest message."""
    return 0 < row.rejected == row.revision
