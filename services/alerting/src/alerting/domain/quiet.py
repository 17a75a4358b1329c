"""Quiet hours and digests: when a message may be sent."""

from datetime import UTC, datetime, timedelta
from typing import assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from muster.contracts.subscriptions import Digest, DigestEvery, QuietHours

HOURLY = Digest(every=DigestEvery.HOUR)
"""What nobody asked for comes once an hour at most."""


def quiet_until(hours: QuietHours, now: datetime) -> datetime | None:
    """The end of the quiet hours in which ``now`` lies; None where it lies in none, or where their
    time zone is unknown here.
    """
    zone = _zone(hours.time_zone)
    if zone is None:
        return None
    here = now.astimezone(zone)
    at, date = here.time(), here.date()
    if hours.start <= hours.end:
        if not hours.start <= at < hours.end:
            return None
    elif at >= hours.start:
        date += timedelta(days=1)
    elif at >= hours.end:
        return None
    return datetime.combine(date, hours.end, zone).astimezone(UTC)


def digest_at(digest: Digest, now: datetime) -> datetime | None:
    """When the next digest is sent; None: nothing waits for one, as this version knows none such or
    not its time zone.
    """
    zone = _zone(digest.time_zone)
    if zone is None:
        return None
    here = now.astimezone(zone)
    match digest.every:
        case DigestEvery.HOUR:
            past = timedelta(minutes=here.minute, seconds=here.second)
            return now - past + timedelta(hours=1, microseconds=-here.microsecond)
        case DigestEvery.DAY:
            if digest.at is None:
                return None
            days = (here.date(), here.date() + timedelta(days=1))
            times = (datetime.combine(day, digest.at, zone).astimezone(UTC) for day in days)
            return next(it for it in times if it > now)
        case DigestEvery.UNKNOWN:
            return None
        case _:
            assert_never(digest.every)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
