"""Every metric of the Launcher."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class LauncherMetrics:
    """Open and ended jobs, retries and timers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs_ended = Counter(
            "muster_jobs_ended", "Ended jobs, by final state.", ["state"], registry=registry
        )
        self.retried = Counter(
            "muster_job_attempts_retried",
            "Job attempts that were followed by another attempt.",
            registry=registry,
        )
        self.jobs_open = Gauge(
            "muster_jobs_open", "Open jobs, by phase.", ["phase"], registry=registry
        )
        self.timers = Counter(
            "muster_launcher_timers", "Due timers of jobs that were handled.", registry=registry
        )
        self.timers_failed = Counter(
            "muster_launcher_timers_failed",
            "Due timers of jobs that failed and were postponed.",
            registry=registry,
        )
        self.timer_lag = Gauge(
            "muster_launcher_timer_lag_seconds",
            "Seconds between the due time and the handling of the last timer.",
            registry=registry,
        )
