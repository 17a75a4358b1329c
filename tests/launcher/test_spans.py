"""How long parts of job attempts lasted: each part is counted once, and series have a bound."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from launcher.domain.model import Job
from launcher.domain.spans import Span, ended_spans
from launcher.metrics import LauncherMetrics
from muster.contracts.gangs import GangClass
from muster.contracts.jobs import JobSpec, TaskRoleSpec
from muster.contracts.model import Reason
from muster.metrics import MOST_VALUES, OTHER
from prometheus_client import CollectorRegistry, generate_latest

START = datetime(2026, 1, 1, tzinfo=UTC)
WAITS = Reason(code="quota", text="no quota")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def a_job(*, gang: bool = True, **fields: Any) -> Job:
    spec = JobSpec(
        virtual_cluster="vision",
        gang=gang,
        task_roles=(
            TaskRoleSpec(name="worker", instances=1, command="true", cpu=1, memory_mb=1, gpus=1),
        ),
    )
    job = Job("job", "name", "ann", START, spec, attempt_created_at=at(0))
    return job.having(**fields)


BEGUN = a_job()
WAITING = a_job(reason=WAITS)
PLACED = a_job(gang_class=GangClass.GUARANTEED)
RUNS = PLACED.having(attempt_launched_at=at(20))
OVER = RUNS.having(attempt_completed_at=at(80))
NEXT = BEGUN.having(attempt=1, attempt_created_at=at(81))


@pytest.mark.parametrize(
    ("before", "after", "spans"),
    [
        (None, BEGUN, {}),
        (BEGUN, WAITING, {Span.ANSWER: 100}),
        (WAITING, PLACED, {Span.QUEUE: 100}),
        (BEGUN, PLACED, {Span.ANSWER: 100, Span.QUEUE: 100}),
        (PLACED, RUNS, {Span.START: 20}),
        (RUNS, RUNS, {}),
        (RUNS, OVER, {Span.RUN: 60}),
        (OVER, OVER, {}),
        (PLACED, OVER, {Span.START: 20, Span.RUN: 60}),
        (OVER, NEXT, {}),
        (RUNS, NEXT, {Span.RUN: 61}),
        (OVER, NEXT.having(reason=WAITS), {Span.ANSWER: 19}),
        (None, a_job(gang=False, reason=WAITS), {}),
        (None, a_job(attempt_created_at=at(120), reason=WAITS), {Span.ANSWER: 0}),
    ],
)
def test_each_part_ends_once(before: Job | None, after: Job, spans: Mapping[Span, float]) -> None:
    assert dict(ended_spans(before, after, at(100))) == spans


def test_ten_thousand_jobs_of_as_many_virtual_clusters_have_bounded_series() -> None:
    registry = CollectorRegistry()
    metrics = LauncherMetrics(registry)
    none = len(generate_latest(registry).splitlines())
    for number in range(10_000):
        metrics.note_spans(f"vc-{number}", ended_spans(None, OVER, at(100)))
    lines = generate_latest(registry).decode().splitlines()
    clusters = {line.split('virtual_cluster="')[1].split('"')[0] for line in lines if "vc-" in line}
    assert len(clusters) == MOST_VALUES
    assert len(lines) - none < 20 * 3 * (MOST_VALUES + 1)
    (others,) = [
        float(line.split()[-1])
        for line in lines
        if line.startswith(f'muster_job_run_seconds_count{{virtual_cluster="{OTHER}"}}')
    ]
    assert others == 10_000 - MOST_VALUES
