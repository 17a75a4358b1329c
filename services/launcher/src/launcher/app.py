"""The wiring of the Launcher: settings, decisions, consumer, timers; nothing is decided here."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from muster.contracts.topics import Service
from muster.inbox import messages_of
from muster.service import Runtime, run_service
from muster.settings import read

from launcher.domain.messages import final_verdict
from launcher.domain.model import JobWithTasks
from launcher.domain.spans import ended_spans
from launcher.domain.states import JOB_SHOWN
from launcher.handlers import RECEIVED_TOPICS, Counting, Housekeeping, Timers, jobs
from launcher.metrics import LauncherMetrics
from launcher.secrets import resealing
from launcher.settings import LauncherSettings, keys_in

_log = structlog.get_logger()


@asynccontextmanager
async def build(runtime: Runtime) -> AsyncIterator[None]:
    """Set the Launcher up; its tasks run until the stop."""
    settings = runtime.settings
    assert isinstance(settings, LauncherSettings)
    metrics = LauncherMetrics(runtime.registry)
    policy = replace(settings.policy(), reseal=resealing(keys_in(settings.secrets_keys)))
    aggregate = jobs(policy, runtime.incarnations)

    timers = Timers(runtime.relay, aggregate, settings, metrics, lambda it: _tell(metrics, it))

    async def ring() -> None:
        await runtime.incarnations.is_settled.wait()
        await timers.run()

    def received(changed: Mapping[str, JobWithTasks]) -> None:
        _tell(metrics, changed)
        timers.note(changed)

    consumer = runtime.consumer(RECEIVED_TOPICS, messages_of(aggregate, runtime.bus), received)
    runtime.spawn("consumer", consumer.run)
    runtime.spawn("timers", ring)
    runtime.spawn("counting", Counting(runtime.pool, settings, metrics).run)
    runtime.spawn("housekeeping", Housekeeping(runtime.pool, settings).run)
    yield


def _tell(metrics: LauncherMetrics, changed: Mapping[str, JobWithTasks]) -> None:
    """Log and count retries and ends of jobs, and how long their parts lasted."""
    now = datetime.fromtimestamp(time.time(), UTC)
    for job_with_tasks in changed.values():
        job, before = job_with_tasks.job, job_with_tasks.stored
        metrics.note_spans(job.spec.virtual_cluster, ended_spans(before, job, now))
        if before and job.attempt > before.attempt:
            metrics.retried.inc()
            _log.info("a job is tried again", job=job.id, attempt=job.attempt)
        if job.is_final and not (before and before.is_final):
            verdict = final_verdict(job)
            metrics.jobs_ended.labels(JOB_SHOWN[job.phase].value).inc()
            _log.info(
                "a job ended",
                job=job.id,
                state=JOB_SHOWN[job.phase].value,
                rule=verdict.rule if verdict else None,
            )


def main() -> None:
    """Run the service until SIGTERM or SIGINT."""
    settings = read(LauncherSettings)
    run_service(Service.LAUNCHER, settings, settings.http_port, build)
