"""What goes into a service's decision about one of its aggregates, and what comes out: values only,
so that decision cores can use them.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from muster.contracts.model import Word
from muster.contracts.topics import Kind

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Due:
    """A time that the aggregate asked for has come."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The other side could not handle my newest word about a subject."""

    kind: Kind
    subject: str


Input = Word | Due | Dead


@dataclass(frozen=True, slots=True)
class Say:
    """Something to say about a subject.

    ``is_open`` False: for the sender the subject is over (its word is repeated until it is
    acknowledged, all the same). ``encore``: said again later for those who only listen.
    """

    kind: Kind
    subject: str
    topic: str
    key: str
    word: Word
    is_open: bool = True
    encore: bool = False


@dataclass(frozen=True, slots=True)
class Decision(Generic[State]):
    """What a decision changes and says. ``state`` None: there is (still) no such aggregate."""

    state: State | None
    says: tuple[Say, ...] = ()
