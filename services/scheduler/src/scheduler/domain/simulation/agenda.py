"""When gangs end by themselves: at the end of their run, or of their grace."""

import heapq
from collections.abc import Collection, Iterator
from enum import IntEnum

ELASTIC = "\n"
"""Between the names of a gang and its elastic pod."""


class End(IntEnum):
    """Why a gang ends, in the order of ends at one moment."""

    RUN = 0
    GRACE = 1


class Agenda:
    """Future ends. A gang has at most one of each kind; a newer one replaces it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, End, str]] = []
        self._due_at: dict[tuple[str, End], float] = {}
        self._pods: dict[str, set[str]] = {}

    def add(self, at: float, end: End, gang: str) -> None:
        """A gang ends at ``at`` seconds."""
        self._due_at[gang, end] = at
        heapq.heappush(self._heap, (at, end, gang))

    def add_pod(self, at: float, gang: str, pod: str) -> None:
        """A gang's grace for one pod is over at ``at`` seconds; the end carries both names, with
        `ELASTIC` between them.
        """
        name = f"{gang}{ELASTIC}{pod}"
        self._pods.setdefault(gang, set()).add(name)
        self.add(at, End.GRACE, name)

    def forget(self, gang: str, ends: Collection[End] = tuple(End)) -> None:
        """A gang has ended, or will not end by itself in these ways."""
        for end in ends:
            self._due_at.pop((gang, end), None)
        for name in self._pods.pop(gang, ()) if End.GRACE in ends else ():
            self._due_at.pop((name, End.GRACE), None)

    def next_at(self) -> float | None:
        """When the next end is due; None: never."""
        while self._heap:
            at, end, gang = self._heap[0]
            if self._due_at.get((gang, end)) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Iterator[tuple[End, str]]:
        """Take the due ends: of runs, then of grace, each by gang id."""
        while (at := self.next_at()) is not None and at <= now:
            _, end, gang = heapq.heappop(self._heap)
            del self._due_at[gang, end]
            yield end, gang
