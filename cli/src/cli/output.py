"""How commands speak: JSON for scripts, aligned columns for people, colours on a terminal only."""

import json
import os
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
    "down": "31",
    "STOPPING": "33",
    "STOPPED": "33",
    "WAITING": "33",
}
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


class Format(StrEnum):
    """For whom the output is."""

    TABLE = "table"
    JSON = "json"


def print_json(content: object) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their content; the last one may be as long as it likes."""
    cells = [[("" if cell is None else str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[column]) for row in cells), 0)
        for column, heading in enumerate(headings)
    ]
    for row in [list(headings), *cells]:
        padded = [_coloured(cell, width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line; what is empty is left out."""
    known = {name: value for name, value in facts.items() if value not in (None, "", [])}
    width = max((len(name) for name in known), default=0)
    for name, value in known.items():
        sys.stdout.write(f"{name.ljust(width)}  {_coloured(str(value), 0)}\n")


def when(milliseconds: int | None) -> str:
    """A point in time, in UTC."""
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


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
    padded = text.ljust(width)
    colour = COLOURS.get(text)
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return padded
    return f"\x1b[{colour}m{text}\x1b[0m" + padded[len(text) :]
