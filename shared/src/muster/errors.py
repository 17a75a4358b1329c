"""The errors of Muster, in three families.

MusterError
├── Rejected     the caller's fault: has a code and problems with their places (→ 4xx)
├── Transient    try again later: something is away or busy
└── Broken       a bug or corrupt data (→ dead letter)
"""

from dataclasses import dataclass


class MusterError(Exception):
    """Something went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in what the caller sent: its place and its fix."""

    path: str
    message: str
    line: int | None = None
    column: int | None = None


class Rejected(MusterError):
    """The request can't be accepted as it is."""

    def __init__(self, code: str, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.problems = problems


class Transient(MusterError):
    """Something that is needed is away; trying again later can help."""


class Broken(MusterError):
    """This can't be handled, now or later."""
