"""Cells of a CSV job list as values: numbers, moments and durations. Exact, without floats."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction

MAX_TIME_S = 10**12
"""The most seconds of a moment or a duration, on either side of 0: the year 33658."""

MAX_FIGURE = 40
"""The most characters of a number."""

MAX_WHOLE = 13
"""Digits of `MAX_TIME_S`."""

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class CellError(Exception):
    """A cell can't be read; the text is its problem."""


def figure(text: str) -> Fraction:
    """A number as written. Raises CellError."""
    if text.isascii() and text.isdigit() and len(text) <= MAX_FIGURE:
        return Fraction(int(text))
    if len(text) > MAX_FIGURE or not _NUMBER.fullmatch(text):
        raise CellError(f"must be a number, not {shown(text)}")
    return Fraction(text)


def duration_ms(text: str, scale: Fraction) -> int:
    """Milliseconds of a number that counts ``scale`` seconds each. Raises CellError."""
    if text.isascii() and text.isdigit() and len(text) < MAX_WHOLE and scale == 1:
        return int(text) * 1000  # the usual form, in a tenth of the time
    seconds = figure(text) * scale
    if abs(seconds) > MAX_TIME_S:
        raise CellError(f"is more than {MAX_TIME_S} seconds, the most: {shown(text)}")
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Clock:
    """The form of a list's moments: dates, or numbers that count ``scale`` seconds each."""

    is_date: bool = False
    scale: Fraction = Fraction(1)

    def ms(self, text: str) -> int:
        """A moment in milliseconds, of dates since 1970; those without a zone are UTC. Raises
        CellError.
        """
        if not self.is_date:
            return duration_ms(text, self.scale)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            form = "a date and time like 2023-03-01 00:18:22 or 2023-03-01T00:18:22+08:00"
            raise CellError(f"must be {form}, not {shown(text)}") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MILLISECOND


def rounded_up(amount: Fraction) -> int:
    """The least whole number that is not below."""
    return -(-amount.numerator // amount.denominator)


def shown(text: str) -> str:
    """A cell in a message, short and printable."""
    return ascii(text if len(text) <= MAX_FIGURE else text[:MAX_FIGURE] + "…")
