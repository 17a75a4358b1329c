"""Times in answers: ISO 8601 in UTC with Z, and beside some of them OpenPAI's milliseconds."""

from datetime import UTC, datetime


def milliseconds(at: datetime | None) -> int | None:
    """A time as OpenPAI writes it: milliseconds since 1970."""
    return None if at is None else int(at.timestamp() * 1000)


def iso(at: datetime | None) -> str | None:
    """A time as Muster writes it: 2026-01-31T13:00:00.000Z."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
