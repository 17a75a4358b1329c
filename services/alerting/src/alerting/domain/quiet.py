"""Quiet hours: when a message may be sent."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from muster.contracts.subscriptions import QuietHours


def quiet_until(hours: QuietHours, now: datetime) -> datetime | None:
    """The end of the quiet hours in which ``now`` lies; None where it lies in none, or where their
    time zone is unknown here.
    """
    try:
        zone = ZoneInfo(hours.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
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
