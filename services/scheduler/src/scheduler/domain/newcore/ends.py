"""When gangs that run will end, as far as anybody knows."""

from math import ceil, floor, log10

from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import Gang

LEAVES_S = 1.0
"""A gang that is told to leave takes at least so long."""

DIGITS = 2
"""Gangs of one class may differ in how long they run beyond so many digits."""


def ends_at(gang: Gang, started_at: float, policy: Policy, now: float) -> float:
    """Seconds of the clock, later than ``now``: what the gang expects, else what is assumed of all,
    doubled for as long as that has passed; not beyond its limit. Past that it is about to leave:
    that takes the grace, doubled likewise.
    """
    limit_s = gang.limit_s
    if limit_s is not None and started_at + limit_s <= now:
        over_s = max(policy.grace_s, LEAVES_S)
        while started_at + limit_s + over_s <= now:
            over_s *= 2
        return started_at + limit_s + over_s
    run_s = gang.expected_s or policy.assumed_s
    while started_at + run_s <= now:
        run_s *= 2
    return started_at + (run_s if limit_s is None else min(run_s, limit_s))


def lasts_s(gang: Gang) -> float | None:
    """How long a waiting gang will run at the most: its limit, else what it expects, rounded up to
    `DIGITS` digits; None: nobody knows.
    """
    seconds = gang.limit_s or gang.expected_s
    if not seconds:
        return None
    unit = 10.0 ** (floor(log10(seconds)) + 1 - DIGITS)
    return ceil(seconds / unit) * unit
