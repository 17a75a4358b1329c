"""How many requests a caller may send: a token bucket, refilled evenly."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """``burst`` requests at once, and ``per_s`` a second in the long run."""

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests that a caller may still send at the time ``at_s``."""

    left: float
    at_s: float


def take(bucket: Bucket | None, limit: Limit, now_s: float) -> tuple[Bucket, int]:
    """The bucket after one more request, and how many whole seconds that request comes too early;
    0: it may go on. A refused request takes nothing. None is a full bucket.
    """
    left = float(limit.burst)
    if bucket is not None:
        left = min(left, bucket.left + max(0.0, now_s - bucket.at_s) * limit.per_s)
    if left >= 1.0:
        return Bucket(left - 1.0, now_s), 0
    return Bucket(left, now_s), math.ceil((1.0 - left) / limit.per_s)
