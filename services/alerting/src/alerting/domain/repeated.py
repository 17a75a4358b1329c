"""What is said again and again while it is so: it is told, and its alert fires, from the first word
until nothing more was said of it for a while.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from alerting.domain.events import Alert, Event
from alerting.domain.policy import Policy

Key = tuple[str, ...]


class Notice(NamedTuple):
    """A word: about what, when it was said, and since when that is so."""

    key: Key
    at: datetime
    since: datetime


@dataclass(frozen=True, slots=True)
class Repeated:
    """``newest_at``: of the newest word. Its alert fires while ``since`` is there."""

    key: Key
    newest_at: datetime
    received_at: datetime
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class RepeatedOutcome:
    """What to keep, what to tell, and the alerts that changed."""

    watch: Repeated
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeats:
    """Words of one kind. ``alert``: about what, and since when; ``quiet_s``: after so long without
    a word it is over.
    """

    alert: Callable[[Key, datetime], Alert]
    over_s: Callable[[Policy], float]

    def received(
        self, known: Repeated | None, notice: Notice, *, now: datetime, policy: Policy
    ) -> tuple[Repeated, Alert | None]:
        """What is known after a word, and the alert that it begins. One that is not newer than the
        last was heard before.
        """
        if known is not None and notice.at <= known.newest_at:
            return known, None
        newest_at = min(notice.at, now)  # a clock that ran ahead must not silence the words to come
        if known is not None and known.since is not None:
            return replace(known, newest_at=newest_at, received_at=now), None
        if not policy.is_news(notice.at, now):
            return Repeated(notice.key, newest_at, now), None
        return Repeated(notice.key, newest_at, now, notice.since), self.alert(
            notice.key, notice.since
        )

    def due_at(self, watch: Repeated, policy: Policy) -> datetime | None:
        """When it is over if no other word comes before."""
        if watch.since is None:
            return None
        return watch.received_at + timedelta(seconds=self.over_s(policy))

    def time_passed(self, watch: Repeated, *, now: datetime, policy: Policy) -> RepeatedOutcome:
        """Resolve the alert of what has been quiet."""
        due = self.due_at(watch, policy)
        if watch.since is None or due is None or due > now:
            return RepeatedOutcome(watch)
        alert = self.alert(watch.key, watch.since).resolved(now)
        return RepeatedOutcome(replace(watch, since=None), (), (alert,))
