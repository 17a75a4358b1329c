"""The commands' output: JSON for scripts, aligned columns for people, colours on terminals only."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

COLOURS = {
    "RUNNING": "36",
    "SUCCEEDED": "32",
    "ready": "32",
    "FAILED": "31",
    "lost": "31",
    "unhealthy": "31",
    "unusable": "31",
    "absent": "31",
    "cordoned": "33",
    "draining": "33",
    "drained": "33",
    "down": "31",
    "STOPPING": "33",
    "STOPPED": "33",
    "WAITING": "33",
}
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
LEAST_WIDTH, GAP = 12, "  "


class Format(StrEnum):
    """The format of the output."""

    TABLE = "table"
    JSON = "json"


def printable(text: str) -> str:
    """The text with JSON's escapes (`\\u001b`) for line ends, control characters and the like:
    names and reasons are other people's, and could change a terminal or pretend to be other lines.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def print_line(text: str) -> None:
    """One line."""
    sys.stdout.write(printable(text) + "\n")


def print_lines(text: str) -> None:
    """A text with the line ends that it has."""
    for line in text.split("\n"):
        print_line(line)


def print_note(text: str) -> None:
    """One line beside the output, on the standard error."""
    sys.stderr.write(printable(text) + "\n")


def print_json(content: object) -> None:
    """One JSON document."""
    print_lines(json.dumps(content, indent=2, ensure_ascii=False))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, ends_in_text: bool = False
) -> None:
    """Columns as wide as their content. On a terminal the widest are cut until a row fits; a text
    at the end is not.
    """
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[column]) for row in cells), 0)
        for column, heading in enumerate(headings)
    ]
    text = [widths.pop()] if ends_in_text else []
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - len(GAP) * (len(headings) - 1)
        widths = _narrowed(widths, room - (len(headings[-1]) if ends_in_text else 0))
    for row in [list(headings), *cells]:
        padded = [_coloured(cell, width) for cell, width in zip(row, widths + text, strict=True)]
        sys.stdout.write(GAP.join(padded).rstrip() + "\n")


def _narrowed(widths: Sequence[int], room: int) -> list[int]:
    """Widths that fit into the room together, as far as none gets too narrow to be read."""
    narrowed = list(widths)
    while sum(narrowed) > room and max(narrowed) > LEAST_WIDTH:
        narrowed[narrowed.index(max(narrowed))] -= 1
    return narrowed


def cut(text: str, width: int) -> str:
    """Without its middle where it is too long: names of jobs and tasks often differ in their
    ends.
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + "…" + text[len(text) - end :]


def print_left(left: int) -> None:
    """Print how many entries a list does not show, if any."""
    if left > 0:
        are = "is" if left == 1 else "are"
        print_line(f"There {are} {left} more; --limit shows more of them.")


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line; what is empty is left out."""
    known = {name: value for name, value in facts.items() if value not in (None, "", [])}
    width = max((len(name) for name in known), default=0)
    for name, value in known.items():
        sys.stdout.write(f"{name.ljust(width)}  {_coloured(printable(str(value)), 0)}\n")


def print_as_of(answer: Mapping[str, object]) -> None:
    """The Scheduler's cycle of an answer, where it names one."""
    if answer.get("asOf") is not None:
        print_line(f"as of cycle {answer['asOf']}")


def when(milliseconds: int | None) -> str:
    """A point in time, in UTC."""
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def milliseconds(at: str) -> int:
    """A time of an answer in ISO 8601, as milliseconds since 1970."""
    return int(datetime.fromisoformat(at).timestamp() * 1000)


def length(start_ms: int | None, end_ms: int | None) -> str:
    """How long something took, or takes until now."""
    if start_ms is None:
        return ""
    seconds = int((end_ms if end_ms is not None else time.time() * 1000) - start_ms) // 1000
    if seconds < MINUTE_S:
        return f"{seconds}s"
    if seconds < HOUR_S:
        return f"{seconds // MINUTE_S}m{seconds % MINUTE_S:02}s"
    if seconds < DAY_S:
        return f"{seconds // HOUR_S}h{seconds % HOUR_S // MINUTE_S:02}m"
    return f"{seconds // DAY_S}d{seconds % DAY_S // HOUR_S:02}h"


def _coloured(text: str, width: int) -> str:
    text = cut(text, width) if width else text
    padded = text.ljust(width)
    colour = COLOURS.get(text)
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return padded
    return f"\x1b[{colour}m{text}\x1b[0m" + padded[len(text) :]
