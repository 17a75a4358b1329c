"""Limits of requests: how many a user sends, or an address from which unknown callers come, and how
many of them are in progress.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rest.domain.limits import Bucket, Limit, take
from rest.domain.throttle import TooManyRequests, network_of
from rest.metrics import RestMetrics
from rest.settings import RestSettings

AGAIN_S = 1
"""When a caller with too many requests in progress may try again."""


class RequestLimits:
    """Counts in this process's memory. The callers that were seen longest ago are forgotten first:
    a forgotten one begins with a full bucket.
    """

    def __init__(self, settings: RestSettings, metrics: RestMetrics) -> None:
        self._of_user = Limit(settings.user_requests_per_s, settings.user_requests_burst)
        self._of_address = Limit(settings.address_requests_per_s, settings.address_requests_burst)
        self._most = settings.limited_callers
        self._in_progress = settings.requests_in_progress
        self._metrics = metrics
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._places: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def request(self, username: str | None, address: str) -> Iterator[None]:
        """A request of a user, or of an unknown caller (None) at an address, until it has ended.
        Raises TooManyRequests.
        """
        kind, name = ("address", network_of(address)) if username is None else ("user", username)
        limit = self._of_address if username is None else self._of_user
        with ExitStack() as held:
            try:
                self._take(kind, name, limit)
                place = self.place(f"requests of this {kind}", name, self._in_progress)
                held.enter_context(place)
            except TooManyRequests:
                self._metrics.limited.labels(kind).inc()
                raise
            yield

    @contextmanager
    def place(self, what: str, name: str, most: int) -> Iterator[None]:
        """One of the ``most`` requests of one kind that a caller has in progress at this replica.
        Raises TooManyRequests.
        """
        key = (what, name)
        if self._places[key] >= most:
            message = f"Too many {what} are in progress: at most {most}. Wait until one has ended."
            raise TooManyRequests(message, AGAIN_S)
        self._places[key] += 1
        try:
            yield
        finally:
            self._places[key] -= 1
            if not self._places[key]:
                del self._places[key]

    def _take(self, kind: str, name: str, limit: Limit) -> None:
        key = (kind, name)
        self._buckets[key], wait_s = take(self._buckets.get(key), limit, time.monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if wait_s:
            raise TooManyRequests(
                f"This {kind} sends more than {limit.per_s:g} requests a second; wait {wait_s} s.",
                wait_s,
            )
