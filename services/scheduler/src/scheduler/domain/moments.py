"""Moments for people and programs, from a clock that counts seconds since 1970.

Total: a moment beyond the calendar, whatever its source, is the calendar's last second.
"""

from datetime import UTC, datetime

DAY_S = 86_400.0

LAST_AT = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
FIRST_AT = datetime.min.replace(tzinfo=UTC).timestamp()


def moment(at: float) -> datetime:
    """The moment of any number of seconds; NaN is never."""
    return datetime.fromtimestamp(max(FIRST_AT, min(LAST_AT, at)), UTC)


def time_of(at: float) -> str:
    """A moment as text."""
    return moment(at).isoformat(timespec="seconds")
