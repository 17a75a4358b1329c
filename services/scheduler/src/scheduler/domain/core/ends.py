"""When gangs that run will end, as far as anybody knows, and how far their work is saved."""

from math import ceil, floor, log10

from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import Gang

LEAVES_S = 1.0
"""So long at the least it takes until somebody has left who is told to."""

DIGITS = 2
"""Waiting gangs that run at most as long, to so many digits, may be in one line."""


def end_of(gang: Gang, started_at: float | None, policy: Policy, now: float) -> float:
    """Seconds of the clock, later than ``now``: what it expects of itself, else what is assumed of
    all, doubled for as long as that has passed; not beyond its limit. Past that it is about to
    leave: that takes the grace, doubled likewise. ``started_at`` None: it would start now.
    """
    began = now if started_at is None else started_at
    limit_s = gang.limit_s
    if limit_s is not None and began + limit_s <= now:
        over_s = leaving_s(policy)
        while began + limit_s + over_s <= now:
            over_s *= 2
        return began + limit_s + over_s
    run_s = gang.expected_s or policy.assumed_s
    while began + run_s <= now:
        run_s *= 2
    return began + (run_s if limit_s is None else min(run_s, limit_s))


def leaving_s(policy: Policy) -> float:
    """How long it takes until somebody has left who is told to, as far as others reckon."""
    return max(policy.grace_s, LEAVES_S)


def bounds_of(gang: Gang) -> tuple[float | None, float | None]:
    """How long it runs by its limit, and by what it expects, at the most: rounded up to `DIGITS`
    digits.
    """
    limit_s, run_s = gang.limit_s, gang.expected_s
    return limit_s and _rounded_up(limit_s), run_s and _rounded_up(run_s)


def saved_s(ran_s: float, every_s: float | None) -> float:
    """Seconds of a run that are saved by what is saved whenever it has run for so long again."""
    return 0.0 if every_s is None else min(ran_s, ran_s // every_s * every_s)


def _rounded_up(seconds: float) -> float:
    unit = 10.0 ** (floor(log10(seconds)) + 1 - DIGITS)
    return ceil(seconds / unit) * unit
