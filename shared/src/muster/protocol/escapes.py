r"""JSON's escapes of characters beyond the basic plane: two of four digits, ``\ud83d\ude00``, where
YAML has one of eight. JSON is YAML but for these: where a file is JSON, they are made one.
"""

import json
import re
from bisect import bisect_left
from collections import defaultdict

_ESCAPE = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|.)"
)
"""In JSON a backslash stands in a text only, and takes the next character with it."""

HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_MAPPING = re.compile(r"\s*\{")


class JoinedPairs:
    """A JSON text whose pairs are made one, and where its characters stood before."""

    def __init__(self, text: str) -> None:
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._shorter = 0
        self._line, self._line_start, self._read_to = 1, 0, 0
        self.text = _ESCAPE.sub(self._join, text)

    def _join(self, escape: re.Match[str]) -> str:
        if escape["high"] is None:
            return escape[0]
        newlines = escape.string.count("\n", self._read_to, escape.start())
        if newlines:
            self._line += newlines
            self._line_start = escape.string.rfind("\n", 0, escape.start()) + 1
        self._read_to = escape.start()
        whole = f"\\U{_code(escape['high'], escape['low']):08x}"
        self._shorter = len(escape[0]) - len(whole)
        before = len(self._ends[self._line]) * self._shorter
        self._ends[self._line].append(escape.end() - self._line_start - self._shorter - before)
        return whole

    def column_before(self, line: int, column: int) -> int:
        """The column in the text as it was, both from 1."""
        return column + self._shorter * bisect_left(self._ends.get(line, ()), column)


def _code(high: str, low: str) -> int:
    return 0x10000 + (int(high, 16) - 0xD800 << 10) + (int(low, 16) - 0xDC00)


def has_pairs(text: str) -> bool:
    """Whether a text is JSON with such escapes; a command in YAML may well have them to itself."""
    if HALF.search(text) is None or _MAPPING.match(text) is None:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
