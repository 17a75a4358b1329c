"""The metrics of REST, beside those of the plumbing."""

from typing import get_args

from muster.contracts.alerts import ActionName
from muster.metrics import SECONDS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class RestMetrics:
    """Requests, submissions, logins and peers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            "muster_rest_request_seconds",
            "Seconds of one request, by route, method and status.",
            ["route", "method", "status"],
            buckets=SECONDS,
            registry=registry,
        )
        self.submissions = Counter(
            "muster_rest_submissions",
            "Submissions of jobs, by outcome.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("accepted", "refused", "invalid", "busy"):
            self.submissions.labels(outcome)
        self.submit_batch = Histogram(
            "muster_rest_submit_batch_jobs",
            "Jobs submitted in one transaction.",
            buckets=(1, 2, 5, 10, 25, 50, 100, 200),
            registry=registry,
        )
        self.password_checks = Counter(
            "muster_rest_password_checks",
            "Checks of a password (logins, changes), by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.email_confirmations = Counter(
            "muster_rest_email_confirmations",
            "Confirmations of mail addresses, by outcome: started, throttled, confirmed, refused.",
            ["outcome"],
            registry=registry,
        )
        self.tokens = Counter(
            "muster_rest_tokens_presented",
            "Requests with a token, by its kind: login, application, refused.",
            ["kind"],
            registry=registry,
        )
        self.streams = Gauge("muster_rest_log_streams", "Logs read or followed.", registry=registry)
        self.event_streams = Gauge(
            "muster_rest_event_streams", "Followed streams of events.", registry=registry
        )
        self.peer_failures = Counter(
            "muster_rest_peer_failures",
            "Failed reads of agents, the Scheduler, Alerting and Kubernetes, by peer.",
            ["peer"],
            registry=registry,
        )
        for peer in ("agent", "scheduler", "alerting", "kubernetes"):
            self.peer_failures.labels(peer)
        self.actions = Counter(
            "muster_rest_actions",
            "Actions on alerts, by what they do and what became of them.",
            ["do", "outcome"],
            registry=registry,
        )
        for do in get_args(ActionName):
            for outcome in ("running", "failed", "done", "dry-run", "refused", "undone"):
                self.actions.labels(do, outcome)
        self.limited = Counter(
            "muster_rest_requests_limited",
            "Requests over the limits of requests a second or in progress, by the kind of caller:"
            " user or address.",
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
            "Changes of virtual clusters and policy, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.settings_published = Counter(
            "muster_rest_settings_published",
            "Published settings, repeats included.",
            registry=registry,
        )
