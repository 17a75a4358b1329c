"""Which nodes have changed, for those who keep what they have worked out of them."""

from collections.abc import Iterable

from scheduler.domain.core.holdings import Pod

KEPT = 100_000
"""Changes that are kept for readers; who has read less begins anew."""


class ChangedNodes:
    """Numbers of nodes, in the order of their changes. ``is_read``: nothing is noted before."""

    __slots__ = ("_begin", "_numbers", "is_read")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._begin = 0
        self.is_read = False

    def add(self, numbers: Iterable[int]) -> None:
        """Nodes have changed."""
        self._numbers.extend(numbers)
        if len(self._numbers) >= KEPT:
            del self._numbers[: KEPT // 2]
            self._begin += KEPT // 2

    def priced_anew(self, pods: Iterable[Pod]) -> None:
        """What those cost that are on the nodes of these pods may be something else now."""
        for pod in pods:
            states = pod.machine.slots if pod.state is None else (pod.state,)
            self.add([state.slot.number for state in states])

    def since(self, read: int) -> tuple[int, list[int] | None]:
        """Up to where it is read now (the next time's ``read``; -1: never), and what has changed;
        None where that is not kept: all may have.
        """
        self.is_read = True
        now = self._begin + len(self._numbers)
        return now, None if read < self._begin else self._numbers[read - self._begin :]
