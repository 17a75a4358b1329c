"""What goes into a decision and what comes out of it."""

from dataclasses import dataclass

from muster.contracts.model import Word
from muster.contracts.topics import Kind

from launcher.domain.model import Life


@dataclass(frozen=True, slots=True)
class Due:
    """A time that the job asked for has come."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The other side could not handle the newest word about a subject."""

    kind: Kind
    subject: str


Input = Word | Due | Dead


@dataclass(frozen=True, slots=True)
class Say:
    """Something to say about a subject; see muster.subjects.Say."""

    kind: Kind
    subject: str
    topic: str
    key: str
    word: Word
    is_open: bool = True
    encore: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The new state, and what is said."""

    state: Life | None
    says: tuple[Say, ...] = ()
