"""The exchange: how two sides of a subject end up silent and equal over a bus that loses, doubles,
delays and reorders records.

A record is its sender's whole word about the subject. Each side keeps its own revision, the highest
revision that it has applied from the other side, and the highest of its own that the other side has
named. Whoever is not yet acknowledged says it again; every word is answered, an acknowledgement
never is. Everything here is a pure function over one row; time and jitter come in as values.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

ANSWER_AFTER = timedelta(seconds=0.3)
"""A word is answered within 0.5 s; the rest of the half second is for the relay."""

REPEAT_FIRST = timedelta(seconds=1)
REPEAT_LONGEST = timedelta(minutes=5)
REPEAT_SPREAD = 0.2
"""A repeat comes up to this fraction later, so that subjects written together spread out."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One side's row of a subject.

    ``revision``: of my last word; 0 before the first. ``seen``: the highest revision applied, or
    skipped as dead, from the other side. ``acknowledged``: the highest of mine that the other side
    has named. ``dead``: the revision from the other side that I could not handle, while it is its
    newest; 0 for none. ``refused``: my revision that the other side could not handle. ``repeats``:
    how often my last word was said again. ``repeat_at``: when to say it again, None at rest.
    ``answer_at``: when the other side's word must have been answered, None if nothing is due.
    """

    revision: int = 0
    seen: int = 0
    acknowledged: int = 0
    dead: int = 0
    refused: int = 0
    repeats: int = 0
    repeat_at: datetime | None = None
    answer_at: datetime | None = None

    @property
    def named(self) -> int:
        """The ``seen`` that my words carry: a dead word is named by an acknowledgement only."""
        return self.dead - 1 if self.dead else self.seen

    @property
    def is_silent(self) -> bool:
        """Nothing is left to say, to repeat or to answer."""
        return self.repeat_at is None and self.answer_at is None


class Hearing(Enum):
    """What a reader does with a word."""

    APPLY = "apply"
    OLD = "old"


@dataclass(frozen=True, slots=True)
class Heard:
    """The row after a word, and what to do. ``speak_again``: I have lost memory of my own words
    and must say my last word anew, under a higher revision.
    """

    exchange: Exchange
    hearing: Hearing
    speak_again: bool = False


def speak(row: Exchange, now: datetime) -> Exchange:
    """I say something new about the subject: it answers whatever was unanswered."""
    return replace(
        row,
        revision=row.revision + 1,
        refused=0,
        repeats=0,
        repeat_at=now + REPEAT_FIRST,
        answer_at=row.answer_at if row.dead else None,
    )


def hear(row: Exchange, *, revision: int, seen: int, now: datetime) -> Heard:
    """The other side's word came in. It is applied if it is newer than all before."""
    is_new = revision > row.seen
    next_row = _named(row, seen, speaker_revision=revision, now=now)
    if is_new:
        next_row = replace(next_row, seen=revision, dead=0)
    next_row = replace(next_row, answer_at=next_row.answer_at or now + ANSWER_AFTER)
    return Heard(next_row, Hearing.APPLY if is_new else Hearing.OLD, seen > row.revision)


def hear_acknowledged(
    row: Exchange, *, revision: int, spoken: int, dead: bool, now: datetime
) -> Heard:
    """The other side, whose own revision is ``spoken``, has applied, or with ``dead`` skipped, my
    ``revision``. Never answered.
    """
    next_row = _named(row, revision, speaker_revision=spoken, now=now)
    if dead and revision == next_row.acknowledged == row.revision:
        next_row = replace(next_row, refused=revision)
    return Heard(next_row, Hearing.OLD, revision > row.revision)


def skip_dead(row: Exchange, *, revision: int, now: datetime, seen: int = 0) -> Exchange:
    """I can't handle the word that I just heard: note its revision, and tell the other side at
    once. ``seen``: what the word says of mine, where I have no word that could be said anew.
    """
    if seen > row.revision:  # else my answer would be from before what the other side has heard
        row = replace(row, revision=seen, acknowledged=seen)
    return replace(row, seen=revision, dead=revision, answer_at=now)


def resync(row: Exchange, now: datetime) -> Exchange:
    """After a restored backup: my last word is said anew, above whatever I may have said since.

    Nobody says a thousand words a second about one subject, so the milliseconds of the clock are
    above every revision that was used before, also where one backup is restored twice.
    """
    floor = max(row.revision, int(now.timestamp() * 1000))
    return speak(replace(row, revision=floor, acknowledged=0), now)


def repeated(row: Exchange, now: datetime, jitter: float) -> Exchange:
    """I said my last word again, which carries my present ``seen``. ``jitter``: 0 to 1."""
    wait = min(REPEAT_FIRST * 2 ** min(row.repeats + 1, 16), REPEAT_LONGEST)
    return replace(
        row,
        repeats=row.repeats + 1,
        repeat_at=now + wait * (1 + REPEAT_SPREAD * jitter),
        answer_at=row.answer_at if row.dead else None,
    )


def answered(row: Exchange) -> Exchange:
    """I sent the acknowledgement that was due."""
    return replace(row, answer_at=None)


def _named(row: Exchange, named: int, *, speaker_revision: int, now: datetime) -> Exchange:
    """The other side names ``named`` as the highest of my revisions that it has.

    It counts from a record that is not older than what I have applied: that is the other side's
    present state, even where the number falls, for then it has forgotten words of mine. A record
    from before the other side was reset is older, and says nothing.
    """
    if named > row.revision:  # I have lost memory: the caller speaks again above it
        return replace(row, revision=named, acknowledged=named)
    if speaker_revision < row.seen:
        return row
    if named == row.revision:
        return replace(row, acknowledged=named, repeats=0, repeat_at=None)
    soon = now + REPEAT_FIRST  # the other side is there: no need to go on doubling
    return replace(row, acknowledged=named, repeat_at=min(row.repeat_at or soon, soon))
