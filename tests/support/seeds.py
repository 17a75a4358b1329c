"""How many random histories a test goes through: few in an ordinary run, many in a deep one."""

import os

ASKED = os.environ.get("HISTORIES")
FULL = 10_000
"""A deep run's ``HISTORIES``, where nothing else is asked for (`make test-deep`)."""


def how_many(usual: int, deep: int) -> int:
    """So many in an ordinary run, so many in a full deep one; by `HISTORIES` more or fewer."""
    return usual if ASKED is None else max(1, round(deep * int(ASKED) / FULL))


def blocks(usual: int, deep: int, size: int, first: int = 0) -> list[range]:
    """Seeds of so many histories, ``size`` of them in one test."""
    every = range(first, first + max(size, how_many(usual, deep)))
    return [every[at : at + size] for at in range(0, len(every), size)]
