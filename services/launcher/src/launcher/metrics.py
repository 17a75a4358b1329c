"""Every metric of the Launcher."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class LauncherMetrics:
    """What became of jobs, and how many are open."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs_ended = Counter(
            "muster_jobs_ended", "Jobs that came to their end.", ["state"], registry=registry
        )
        self.retried = Counter(
            "muster_job_attempts_retried",
            "Attempts of jobs that were followed by another.",
            registry=registry,
        )
        self.jobs_open = Gauge(
            "muster_jobs_open", "Jobs that have not ended.", ["phase"], registry=registry
        )
        self.timers = Counter(
            "muster_launcher_timers", "Jobs whose timer was due.", registry=registry
        )
        self.timers_failed = Counter(
            "muster_launcher_timers_failed",
            "Due jobs that could not be decided and were put off.",
            registry=registry,
        )
        self.timer_lag = Gauge(
            "muster_launcher_timer_lag_seconds",
            "How late the last due timer was looked at.",
            registry=registry,
        )
