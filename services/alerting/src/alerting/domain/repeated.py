"""Conditions that a service republishes while they hold. Alerting notifies of one, and its alert
fires, from the first message until there was none for a while.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from alerting.domain.events import Alert, Event
from alerting.domain.policy import Policy

Key = tuple[str, ...]


class Notice(NamedTuple):
    """A message: its subject, its time, and since when the condition holds."""

    key: Key
    at: datetime
    since: datetime


@dataclass(frozen=True, slots=True)
class Repeated:
    """``newest_at``: of the newest message. Its alert fires while ``since`` is there."""

    key: Key
    newest_at: datetime
    received_at: datetime
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class RepeatedOutcome:
    """The watch to keep, the events to notify of, and the alerts that changed."""

    watch: Repeated
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeats:
    """Messages of one kind. ``alert``: the alert of a subject since a time; ``over_s``: the
    condition ends after this time without a message.
    """

    alert: Callable[[Key, datetime], Alert]
    over_s: Callable[[Policy], float]

    def received(
        self, known: Repeated | None, notice: Notice, *, now: datetime, policy: Policy
    ) -> tuple[Repeated, Alert | None]:
        """The watch after a message, and the alert that it begins. A message that is not newer than
        the last is a repeat.
        """
        if known is not None and notice.at <= known.newest_at:
            return known, None
        newest_at = min(notice.at, now)  # a clock that ran ahead must not hide later messages
        if known is not None and known.since is not None:
            return replace(known, newest_at=newest_at, received_at=now), None
        if not policy.is_news(notice.at, now):
            return Repeated(notice.key, newest_at, now), None
        return Repeated(notice.key, newest_at, now, notice.since), self.alert(
            notice.key, notice.since
        )

    def due_at(self, watch: Repeated, policy: Policy) -> datetime | None:
        """When the condition ends if no other message comes before."""
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
