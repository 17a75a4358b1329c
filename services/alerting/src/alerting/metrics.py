"""Every metric of Alerting."""

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class AlertingMetrics:
    """What was told, to how many, and how it went."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "muster_alerting_events", "Things that were told.", ["event"], registry=registry
        )
        self.firing = Gauge(
            "muster_alerting_alerts_firing", "Alerts that fire now.", ["alert"], registry=registry
        )
        self.attempts = Counter(
            "muster_alerting_attempts",
            "Attempts to deliver, by how they went.",
            ["channel", "result"],
            registry=registry,
        )
        self.given_up = Counter(
            "muster_alerting_deliveries_given_up",
            "Deliveries that are not tried again, by why.",
            ["channel", "why"],
            registry=registry,
        )
        self.attempt_seconds = Histogram(
            "muster_alerting_attempt_seconds",
            "Time of one attempt.",
            ["channel"],
            buckets=SECONDS,
            registry=registry,
        )
        self.owners_at_share = Gauge(
            "muster_alerting_owners_at_share",
            "Owners of subscriptions that get no further slot now, as they have their share.",
            ["channel"],
            registry=registry,
        )
        self.waiting = Gauge(
            "muster_alerting_deliveries_waiting",
            "Deliveries that are not at their end.",
            ["channel"],
            registry=registry,
        )
        self.paused = Gauge(
            "muster_alerting_receivers_paused",
            "Receivers that keep failing and are left in peace for a while.",
            registry=registry,
        )
        self.disabled = Gauge(
            "muster_alerting_receivers_disabled",
            "Receivers that said they are gone.",
            registry=registry,
        )
        self.subscriptions = Gauge(
            "muster_alerting_subscriptions",
            "Subscriptions that are known, by where from.",
            ["source"],
            registry=registry,
        )
        self.file_ok = Gauge(
            "muster_alerting_subscriptions_file_ok",
            "0 while the subscriptions file can't be used; the last good one counts.",
            registry=registry,
        )
