"""Every metric of Alerting."""

from muster.metrics import LAGS, SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class AlertingMetrics:
    """Events, alerts, deliveries and subscriptions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "muster_alerting_events",
            "Events that Alerting notified of, by event.",
            ["event"],
            registry=registry,
        )
        self.firing = Gauge(
            "muster_alerting_alerts_firing",
            "Firing alerts, by name; those from Alertmanager are `alertmanager`.",
            ["alert"],
            registry=registry,
        )
        self.attempts = Counter(
            "muster_alerting_attempts",
            "Delivery attempts, by channel and result.",
            ["channel", "result"],
            registry=registry,
        )
        self.given_up = Counter(
            "muster_alerting_deliveries_given_up",
            "Abandoned deliveries, by channel and reason.",
            ["channel", "why"],
            registry=registry,
        )
        self.attempt_seconds = Histogram(
            "muster_alerting_attempt_seconds",
            "Seconds of one delivery attempt.",
            ["channel"],
            buckets=SECONDS,
            registry=registry,
        )
        self.first_attempt_seconds = Histogram(
            "muster_alerting_first_attempt_seconds",
            "Seconds to a delivery's first attempt from its event, the end of quiet hours, or the"
            " last failure or pause of its receiver.",
            ["channel"],
            buckets=LAGS,
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
            "Waiting deliveries, by channel.",
            ["channel"],
            registry=registry,
        )
        self.paused = Gauge(
            "muster_alerting_receivers_paused",
            "Paused receivers: they have failed repeatedly.",
            registry=registry,
        )
        self.disabled = Gauge(
            "muster_alerting_receivers_disabled",
            "Disabled receivers: they are gone, or many deliveries in a row were given up.",
            registry=registry,
        )
        self.subscriptions = Gauge(
            "muster_alerting_subscriptions",
            "Known subscriptions.",
            registry=registry,
        )
        self.alertmanager_up = Gauge(
            "muster_alerting_alertmanager_up",
            "1 while an Alertmanager of MUSTER_ALERTMANAGER_URLS takes Muster's alerts, else 0.",
            ["alertmanager"],
            registry=registry,
        )
