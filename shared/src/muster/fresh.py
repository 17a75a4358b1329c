"""Records that a commit has just made, on their way to the bus."""

from collections import deque
from collections.abc import Sequence

from muster.channels import Outgoing

FRESH_BYTES = 2 * 2**20
"""Messages in memory that wait for the bus. More stay in their rows: a slow bus costs no memory."""


class Fresh:
    """A bounded queue in memory. What it does not take is republished from its row later."""

    def __init__(self, limit_bytes: int = FRESH_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._records: deque[Outgoing] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, records: Sequence[Outgoing]) -> bool:
        """Take those for which there is room; whether that is all."""
        for record in records:
            if self._bytes + _size(record) > self._limit_bytes:
                return False
            self._records.append(record)
            self._bytes += _size(record)
        return True

    def take(self, count: int) -> list[Outgoing]:
        """The oldest ones."""
        taken = [self._records.popleft() for _ in range(min(count, len(self._records)))]
        self._bytes -= sum(map(_size, taken))
        return taken


def _size(record: Outgoing) -> int:
    return len(record.value or b"")
