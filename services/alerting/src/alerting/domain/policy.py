"""The numbers that decisions take as arguments; settings fill them."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Policy:
    """When silence matters, all in seconds.

    ``stuck_after_s``: an open job that should move and has not changed for so long is stuck.
    ``stale_after_s``: what ended longer ago is no news (a bus read anew from its start).
    ``dead_letters_over_s``: dead letters are over after so long without one.
    ``drift_over_s``: the accounting is right again after so long without a notice.
    ``clash_over_s``: a node name clashes no longer when the Scheduler has not repeated it so long.
    ``lost_forget_s``: a lost node that the Scheduler has not named for so long is not waited for.
    """

    stuck_after_s: float = 900.0
    stale_after_s: float = 86_400.0
    dead_letters_over_s: float = 3_600.0
    drift_over_s: float = 300.0
    clash_over_s: float = 300.0
    lost_forget_s: float = 86_400.0

    def is_news(self, at: datetime, now: datetime) -> bool:
        """Whether something that happened at ``at`` is young enough to be told."""
        return at >= now - timedelta(seconds=self.stale_after_s)
