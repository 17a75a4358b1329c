"""The metrics of REST, beside those of the plumbing."""

from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class RestMetrics:
    """What is asked of REST, and how it went."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            "muster_rest_request_seconds",
            "Time of requests, by route, method and status.",
            ["route", "method", "status"],
            buckets=SECONDS,
            registry=registry,
        )
        self.submissions = Counter(
            "muster_rest_submissions",
            "Submitted jobs, by what became of them.",
            ["outcome"],
            registry=registry,
        )
        self.submit_batch = Histogram(
            "muster_rest_submit_batch_jobs",
            "Submissions written in one transaction.",
            buckets=(1, 2, 5, 10, 25, 50, 100, 200),
            registry=registry,
        )
        self.logins = Counter(
            "muster_rest_logins", "Logins, by outcome.", ["outcome"], registry=registry
        )
        self.streams = Gauge("muster_rest_log_streams", "Logs being followed.", registry=registry)
        self.peer_failures = Counter(
            "muster_rest_peer_failures",
            "Agents and Schedulers that could not be read.",
            ["peer"],
            registry=registry,
        )
        self.limited = Counter(
            "muster_rest_requests_limited",
            "Requests answered 429, by the kind of caller that sent too many: user or address.",
            ["caller"],
            registry=registry,
        )
        self.peer_refused = Counter(
            "muster_rest_agent_addresses_refused",
            "Log requests refused because the agent's address is outside the allowed networks.",
            registry=registry,
        )
        self.config_changes = Counter(
            "muster_rest_config_changes",
            "Changes of virtual clusters and policy, by what became of them.",
            ["outcome"],
            registry=registry,
        )
        self.settings_said = Counter(
            "muster_rest_settings_said", "Settings published, repeats included.", registry=registry
        )
