"""Limits of requests: for each user, and for each address from which unknown callers come."""

import time
from collections import OrderedDict

from rest.domain.limits import Bucket, Limit, take
from rest.domain.throttle import TooManyRequests, network_of
from rest.metrics import RestMetrics
from rest.settings import RestSettings


class RequestLimits:
    """Counts in this process's memory. The callers that were seen longest ago are forgotten first:
    a forgotten one begins with a full bucket.
    """

    def __init__(self, settings: RestSettings, metrics: RestMetrics) -> None:
        self._of_user = Limit(settings.user_requests_per_s, settings.user_requests_burst)
        self._of_address = Limit(settings.address_requests_per_s, settings.address_requests_burst)
        self._most = settings.limited_callers
        self._metrics = metrics
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()

    def take_user(self, username: str) -> None:
        """Count a request of a user. Raises TooManyRequests."""
        self._take("user", username, self._of_user)

    def take_address(self, address: str) -> None:
        """Count a request of an unknown caller. Raises TooManyRequests."""
        self._take("address", network_of(address), self._of_address)

    def _take(self, kind: str, name: str, limit: Limit) -> None:
        key = (kind, name)
        self._buckets[key], wait_s = take(self._buckets.get(key), limit, time.monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if wait_s:
            self._metrics.limited.labels(kind).inc()
            raise TooManyRequests(
                f"This {kind} sends more than {limit.per_s:g} requests a second; wait {wait_s} s.",
                wait_s,
            )
