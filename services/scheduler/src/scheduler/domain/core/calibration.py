"""How far off expectations were: what was expected of waits is compared with what happened, and
later ones are scaled by that.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

NEWEST = 200
"""Waits of one kind that are remembered."""

LEAST = 5
"""From so many on expectations are scaled, and their error is told."""

SHORTEST_S = 1.0
"""Waits count as so long at the least."""

SCALED_AT_MOST = 100.0
"""Expectations are made so many times longer, or shorter, at the most."""

PRIOR = 10
"""That nothing is to be scaled counts as much as so many waits: of n known ones the scale is drawn
towards 1 by n / (n + PRIOR), as a power (credibility, after H. Bühlmann, "Experience rating and
credibility", 1967).
"""


class Calibration:
    """Of each kind of expectation, how many times as long as expected gangs have waited.
    ``changed``: kinds of which more is known than before, until the caller clears it.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._ratios: dict[str, deque[float]] = {}

    def note(self, kind: str, expected_s: float, waited_s: float) -> None:
        """What was expected, as it was before any scaling, and what happened."""
        ratio = max(waited_s, SHORTEST_S) / max(expected_s, SHORTEST_S)
        self._ratios.setdefault(kind, deque(maxlen=NEWEST)).append(ratio)
        self.changed.add(kind)

    def exported(self, kind: str) -> tuple[float, ...]:
        """All that is remembered of a kind, the oldest first."""
        return tuple(self._ratios.get(kind, ()))

    def restore(self, kind: str, ratios: Sequence[float]) -> None:
        """What was remembered of a kind before."""
        self._ratios[kind] = deque(ratios, maxlen=NEWEST)

    def known(self, kind: str) -> int:
        """Waits that are remembered."""
        return len(self._ratios.get(kind, ()))

    def factor(self, kind: str) -> float:
        """What expectations are multiplied by: the median of what they should have been, the nearer
        to it the more are known.
        """
        known = self.known(kind)
        if known < LEAST:
            return 1.0
        middle = min(max(median(self._ratios[kind]), 1 / SCALED_AT_MOST), SCALED_AT_MOST)
        return float(middle ** (known / (known + PRIOR)))

    def error(self, kind: str) -> float | None:
        """By which part of it the middle one of the remembered waits missed what is expected now;
        None: too few are known.
        """
        if self.known(kind) < LEAST:
            return None
        factor = self.factor(kind)
        return median(abs(ratio / factor - 1) for ratio in self._ratios[kind])
