"""Numbers of a simulation, for people and programs."""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from scheduler.domain.formats.writing import whole

DIGITS = 6
"""Decimals of a quotient."""

WIDTH, LEAST_NAME, GAP = 80, 15, "  "
MINUTE_S, MANY_DAYS = 60.0, 100
MANY = 1e9
"""From here on numbers are rounded to fit their column."""

Data = dict[str, object]


def rounded(value: float) -> float | int:
    """As in data."""
    return whole(round(value, DIGITS))


def quantile(ordered: Sequence[float], share: float) -> float | int | None:
    """The least value that at least this share of all does not exceed."""
    return rounded(ordered[ceil(share * len(ordered)) - 1]) if ordered else None


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 2
) -> Iterator[str]:
    """Aligned columns: the first ``texts`` of text, then numbers. The first is cut if a line gets
    too wide.
    """
    cells = [[str(cell) for cell in row] for row in [headings, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = WIDTH - sum(widths[1:]) - len(GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], max(room, LEAST_NAME))
    for first, *rest in cells:
        aligned = [
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(rest, widths[1:], strict=True), 1)
        ]
        yield GAP.join([cut(first, widths[0]).ljust(widths[0]), *aligned]).rstrip()


def cut(text: str, width: int) -> str:
    """At most so many characters of a text."""
    return text if len(text) <= width else text[: width - 1] + "…"


def number(value: float) -> str:
    """With one decimal at most, in ten characters at most."""
    return f"{round(value, 1):.9g}" if value < MANY else f"{value:.4g}"


def percent(share: float | None) -> str:
    """A share of all."""
    return "-" if share is None else f"{100 * share:.1f} %"


def length(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return "-"
    if seconds < MINUTE_S:
        return f"{round(seconds, 1):g}s"
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h" if days < MANY_DAYS else f"{days}d"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{s:02}s"
