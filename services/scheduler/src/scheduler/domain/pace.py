"""How much a cycle may decide, by how long the ones before have taken.

A cycle that takes too long fails: the database ends its transaction, or another process takes the
lead. Whoever decides then has the same before it, and would fail again unless it took on less.
"""


class Pace:
    """``most``: gangs that the next cycle may decide about; at the most, and to begin with, those
    that are given. ``limit_s``: a cycle that takes longer fails.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self.most = most
        self._highest = most
        self._limit_s = limit_s

    def took(self, seconds: float, *, has_more: bool) -> None:
        """A cycle has taken so long, whatever became of it; ``has_more``: its bound cut it short.

        Aims at a quarter of the limit, and leaves what is within half of it as it is.
        """
        if seconds > self._limit_s / 2:
            self.most = max(1, int(self.most * self._limit_s / 4 / seconds))
        elif has_more and seconds < self._limit_s / 4:
            self.most = min(2 * self.most, self._highest)
