"""Which reasons to wait are looked at again in a cycle, though nothing helped those who wait.

Others that are placed can make one reason of another. Where few lines may be so, all are looked at;
of more, one: chosen by what the lines want and by the cycle's time alone, so that after a restart
the same gangs are told the same codes in the same cycles.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.domain.core.queue import Key, Line

BYTES = 16
"""Of a digest: no two of any number of lines that can be have the same."""


class Rechecks:
    """Lines whose reason may have become another one, in an order that lasts."""

    def __init__(self) -> None:
        self._marks: list[bytes] = []
        self._lines: dict[bytes, Line] = {}

    def add(self, line: "Line") -> None:
        """The line's reason may become another one without its help."""
        if line.mark not in self._lines:
            if not line.mark:
                line.mark = mark_of(line.key)
            insort(self._marks, line.mark)
            self._lines[line.mark] = line

    def discard(self, line: "Line") -> None:
        """It can't, or nobody is in the line any more."""
        if self._lines.pop(line.mark, None) is not None:
            del self._marks[bisect_left(self._marks, line.mark)]

    def due(self, now: float, few: int) -> Sequence["Line"]:
        """All, where there are ``few`` at the most, else one by the time of the cycle."""
        if len(self._marks) <= few:
            return list(self._lines.values())
        number = int.from_bytes(_digest(pack("<d", now)), "big") % len(self._marks)
        return [self._lines[self._marks[number]]]


def mark_of(key: "Key") -> bytes:
    """The same for the same wish in every process."""
    *others, allowed, growing = key
    nodes = None if allowed is None else sorted(allowed)
    return _digest(repr((others, nodes, growing)).encode())


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=BYTES).digest()
