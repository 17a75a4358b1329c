"""The limits and the address that decisions take as arguments; settings fill them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

DOCS = "docs"
"""Runbooks of Muster's own alerts and rules are in this folder of its repository."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of silence, all in seconds, and where people read the folder `docs`.

    ``stuck_after_s``: an open job that should move and has not changed for this time is stuck.
    ``late_after_s``: a job that still waits so long after its expected start waits longer than
    expected; so does one that waits for ``long_wait_s``.
    ``stale_after_s``: an older event is not notified (a bus that is read again from its start).
    ``dead_letters_over_s``: the alert ends after this time without a dead letter.
    ``drift_over_s``: the accounting is right again after this time without a message.
    ``clash_over_s``: a clash of node names ends after this time without a message.
    ``external_over_s``: an alert of Alertmanager's ends after this time without a repeat.
    ``order_settles_s``: an order about a node has stood for so long before the node counts as empty
    because it has no pods.
    ``lost_forget_s``: a lost node that the Scheduler has not named for this time is forgotten.
    """

    stuck_after_s: float = 900.0
    late_after_s: float = 600.0
    long_wait_s: float = 86_400.0
    stale_after_s: float = 86_400.0
    dead_letters_over_s: float = 3_600.0
    drift_over_s: float = 300.0
    clash_over_s: float = 300.0
    lost_forget_s: float = 86_400.0
    external_over_s: float = 86_400.0
    order_settles_s: float = 30.0
    docs_url: str = DOCS

    def runbook(self, place: str | None) -> str | None:
        """A place in the folder `docs` as people can open it; any other as it is."""
        if place is None or not place.startswith(f"{DOCS}/"):
            return place
        return self.docs_url + place.removeprefix(DOCS)

    def is_news(self, at: datetime, now: datetime) -> bool:
        """Whether an event at ``at`` is recent enough for a notification."""
        return at >= now - timedelta(seconds=self.stale_after_s)
