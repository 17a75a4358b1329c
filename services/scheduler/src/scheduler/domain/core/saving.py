"""How far the work of gangs that run is saved: what a preemption costs is counted from there.

In whole milliseconds, so that sums of it don't depend on their order.
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf, nextafter

from scheduler.domain.core.holdings import Live


def saved_s(ran_s: float, every_s: float | None) -> float:
    """Seconds of a run that are saved by what is saved whenever it has run for so long again."""
    return 0.0 if every_s is None else min(ran_s, ran_s // every_s * every_s)


class Saving:
    """``next``: when gangs that save their work from time to time do so next, as a heap."""

    def __init__(self) -> None:
        self.next: list[tuple[float, str, float]] = []

    def began(self, live: Live, checkpointed_at: float | None = None) -> None:
        """The gang runs, since it says when, and has saved its work then, or nothing yet."""
        if (began := live.started_at) is not None:
            live.saved_at, live.checkpointed_at = began, None
            if live.gang.checkpoint_s is not None:
                heappush(self.next, (began + live.gang.checkpoint_s, live.id, began))
            if checkpointed_at is not None:
                self.checkpointed(live, checkpointed_at)

    def checkpointed(self, live: Live | None, at: float) -> bool:
        """The gang's work up to then is saved; whether that is more than there was."""
        if (
            live is None
            or live.started_at is None
            or at <= (live.checkpointed_at or live.started_at)
        ):
            return False
        live.checkpointed_at = at
        return self._is_saved(live, at)

    def due(self, now: float, gangs: Mapping[str, Live]) -> Iterator[Live]:
        """Those of the gangs that have saved more since this was asked last."""
        while self.next and self.next[0][0] <= now:
            _, gang, began = heappop(self.next)
            live = gangs.get(gang)
            if live is None or live.started_at != began or live.gang.checkpoint_s is None:
                continue  # it is over, or has begun anew
            saved = began + saved_s(now - began, live.gang.checkpoint_s)
            after = max(saved + live.gang.checkpoint_s, nextafter(now, inf))
            heappush(self.next, (after, gang, began))
            if self._is_saved(live, saved):
                yield live

    def _is_saved(self, live: Live, at: float) -> bool:
        before, live.saved_at = live.saved_ms, max(live.saved_at, at)
        return live.saved_ms > before
