"""The metrics of the plumbing, the same in every service; one registry per process object."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LAGS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
MOST_VALUES = 200
"""A label of names that people choose has at most this many values; the others are OTHER."""
OTHER = "other"


class BoundedLabel:
    """The values of a label of names that people choose: each of the first ``most`` names has a
    series of its own, all later ones share one. So a metric's size has a bound.
    """

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """The label's value for a name."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class PlumbingMetrics:
    """Counts of what one service reads, publishes and waits for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.received = Counter(
            "muster_records_received",
            "Records read from the bus, by topic.",
            ["topic"],
            registry=registry,
        )
        self.published = Counter(
            "muster_records_published",
            "Records published on the bus, by topic.",
            ["topic"],
            registry=registry,
        )
        self.repeated = Counter(
            "muster_messages_republished",
            "Republished state messages.",
            registry=registry,
        )
        self.acknowledged = Counter(
            "muster_messages_acknowledged",
            "State messages answered by an acknowledgement.",
            registry=registry,
        )
        self.dead = Counter(
            "muster_dead_letters",
            "Dead letters: records that this reader rejected, by topic.",
            ["topic"],
            registry=registry,
        )
        self.rejected = Counter(
            "muster_records_rejected",
            "Records that the bus rejected for good, by topic.",
            ["topic"],
            registry=registry,
        )
        self.tokens_refused = Counter(
            "muster_service_tokens_refused",
            "HTTP requests refused because their service token was missing or not valid.",
            registry=registry,
        )
        self.stray = Counter(
            "muster_stray_messages",
            "Messages on pods from another node or journal than their placement names.",
            registry=registry,
        )
        self.retries = Counter(
            "muster_transient_failures",
            "Transient failures that were retried, by operation.",
            ["what"],
            registry=registry,
        )
        self.rebuilt = Counter(
            "muster_bus_rebuilt", "Readers rebuilt for a new or lost bus.", registry=registry
        )
        self.batch_records = Histogram(
            "muster_batch_records",
            "Records handled in one transaction.",
            buckets=(1, 2, 5, 10, 25, 50, 100, 200, 500),
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "muster_batch_seconds", "Seconds of one batch.", buckets=SECONDS, registry=registry
        )
        self.lag_seconds = Histogram(
            "muster_record_lag_seconds",
            "Seconds from a record's event time until this reader has handled it, by topic.",
            ["topic"],
            buckets=LAGS,
            registry=registry,
        )
        self.bus_up = Gauge("muster_bus_up", "1 while the bus answers.", registry=registry)
        self.refusals = Gauge(
            "muster_bus_refusals",
            "What the bus refuses this service now, for want of a right or a password.",
            registry=registry,
        )
        self.channels_unavailable = Gauge(
            "muster_bus_channels_unavailable",
            "Partitions, or whole topics, that accept no records.",
            registry=registry,
        )
        self.notices = Gauge(
            "muster_unpublished_notices",
            "Dead letters and alerts not yet published.",
            registry=registry,
        )
        self.unacknowledged = Gauge(
            "muster_unacknowledged_messages",
            "State messages that the other side has not acknowledged.",
            registry=registry,
        )

    def expect(self, topics: Iterable[str]) -> None:
        """Export 0 for the topics of a reader: a counter that appears with 1 has not risen."""
        for topic in topics:
            for counter in (self.received, self.dead):
                counter.labels(topic)
            self.lag_seconds.labels(topic)
