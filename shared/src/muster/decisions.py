"""What goes into a service's decision about one of its aggregates, and what comes out: values only,
so that decision cores can use them.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from muster.contracts.model import StateMessage
from muster.contracts.topics import Kind

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Due:
    """A time that the aggregate asked for has come."""


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """The other side could not handle my latest message on a subject."""

    kind: Kind
    subject: str


Input = StateMessage | Due | MessageRejected


@dataclass(frozen=True, slots=True)
class Publish:
    """A state message to publish on ``topic``.

    ``is_open`` False: for the sender the subject has ended. Its message is still republished until
    it is acknowledged. ``delayed_repeats``: listeners get it some more times, up to half a day
    later. ``only_if_missed``: it is stored, and goes out where the other side turns out to have
    forgotten what it had acknowledged.
    """

    kind: Kind
    subject: str
    topic: str
    key: str
    message: StateMessage
    is_open: bool = True
    delayed_repeats: bool = False
    only_if_missed: bool = False


@dataclass(frozen=True, slots=True)
class Decision(Generic[State]):
    """What a decision changes and publishes. ``state`` None: there is (still) no such aggregate."""

    state: State | None
    messages: tuple[Publish, ...] = ()
