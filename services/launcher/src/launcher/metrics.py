"""Every metric of the Launcher."""

from collections.abc import Iterable

from muster.bounded import ByUser
from muster.metrics import SECONDS, BoundedLabel
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from launcher.domain.spans import Span

ENDS = ("SUCCEEDED", "FAILED", "STOPPED")
LONG = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0, 7 * 86400.0)


class LauncherMetrics:
    """Open and ended jobs, retries and timers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs_ended = Counter(
            "muster_jobs_ended", "Ended jobs, by final state.", ["state"], registry=registry
        )
        for state in ENDS:
            self.jobs_ended.labels(state)
        self.retried = Counter(
            "muster_job_attempts_retried",
            "Job attempts that were followed by another attempt.",
            registry=registry,
        )
        self.jobs_open = Gauge(
            "muster_jobs_open", "Open jobs, by phase.", ["phase"], registry=registry
        )
        self.answer_seconds = Histogram(
            "muster_job_answer_seconds",
            "Seconds from the begin of a job attempt to the Scheduler's first answer: a placement,"
            " or why it waits.",
            buckets=(*SECONDS, 60, 300),
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "muster_job_queue_seconds",
            "Seconds from the begin of a job attempt to its placement.",
            ["virtual_cluster"],
            buckets=LONG,
            registry=registry,
        )
        self.start_seconds = Histogram(
            "muster_job_start_seconds",
            "Seconds from the begin of a job attempt until its first task runs.",
            ["virtual_cluster"],
            buckets=LONG,
            registry=registry,
        )
        self.run_seconds = Histogram(
            "muster_job_run_seconds",
            "Seconds from the first task's start to the end of a job attempt.",
            ["virtual_cluster"],
            buckets=LONG,
            registry=registry,
        )
        self._by_span = {
            Span.QUEUE: self.queue_seconds,
            Span.START: self.start_seconds,
            Span.RUN: self.run_seconds,
        }
        self._virtual_clusters = BoundedLabel()
        self.user_gpus = Gauge(
            "muster_user_gpus",
            "GPUs that the open jobs of a user ask for, by the phase of the job.",
            ["virtual_cluster", "user", "phase"],
            registry=registry,
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

    def note_users(self, gpus: ByUser) -> None:
        """Replace the GPUs of all users, by virtual cluster, user and phase."""
        self.user_gpus.clear()
        for labels, count in gpus.items():
            self.user_gpus.labels(*labels).set(count)

    def note_spans(self, virtual_cluster: str, ended: Iterable[tuple[Span, float]]) -> None:
        """Parts of a job attempt have ended."""
        for span, seconds in ended:
            if span is Span.ANSWER:
                self.answer_seconds.observe(seconds)
            else:
                label = self._virtual_clusters.of(virtual_cluster)
                self._by_span[span].labels(label).observe(seconds)
