"""The one error of this package, and paths as people write them."""

import re
from collections.abc import Sequence

from muster.errors import Problem, Rejected

MAX_PROBLEMS = 100
"""Problems listed of one file; the rest is only counted."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART = re.compile(rf'\["(?P<name>.*?)"\]|\[(?P<number>\d+)\]|(?P<word>{_WORD.pattern})')


class ProtocolError(Rejected):
    """The job file can't be accepted; ``problems`` has everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        kept = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        count = len(kept)
        shown = tuple(kept[:MAX_PROBLEMS])
        what = "one problem" if count == 1 else f"{count} problems"
        first = describe(shown[0])
        super().__init__("InvalidProtocolError", f"The job file has {what}. {first}", shown)


def describe(problem: Problem) -> str:
    """A problem as one sentence."""
    where = f"Line {problem.line}: " if problem.line else ""
    subject = f"`{problem.path}` " if problem.path else ""
    return f"{where}{subject}{problem.message}."


def join_path(parts: Sequence[str | int]) -> str:
    """``("prerequisites", 0, "uri")`` as ``prerequisites[0].uri``."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _WORD.fullmatch(part):
            path += f".{part}" if path else part
        else:
            path += f'["{part[:80]}"]'
    return path


def split_path(path: str) -> tuple[str | int, ...]:
    """The parts that ``join_path`` has joined; of a name no more than it has kept."""
    return tuple(
        int(part["number"]) if part["number"] else part["name"] or part["word"] or ""
        for part in _PART.finditer(path)
    )
