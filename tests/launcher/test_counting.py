"""Open jobs by phase, and their GPUs by user, in a bounded number of series."""

import pytest
from launcher.handlers import Counting
from launcher.metrics import LauncherMetrics
from launcher.settings import LauncherSettings
from muster.db import Pool
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

TEN_THOUSAND_JOBS = """
    INSERT INTO job (id, spec, state, phase)
    SELECT 'j' || n,
           '{"virtualCluster": "default", "taskRoles": [{"instances": 2, "gpus": 4}, {"instances": 1, "gpus": 0}]}',
           jsonb_build_object('user', 'user-' || n % 3000),
           CASE n % 4 WHEN 0 THEN 'running' WHEN 1 THEN 'waiting' WHEN 2 THEN 'backoff' ELSE 'failed' END
    FROM generate_series(1, 10000) AS n
"""  # noqa: E501


def exported(metrics: LauncherMetrics) -> dict[tuple[str, str], float]:
    """GPUs by user and phase."""
    (family,) = metrics.user_gpus.collect()
    assert {each.labels["virtual_cluster"] for each in family.samples} <= {"default"}
    return {(each.labels["user"], each.labels["phase"]): each.value for each in family.samples}


@pytest.mark.postgres
async def test_ten_thousand_jobs_of_3000_users_have_bounded_series_and_all_gpus(
    pool: Pool, settings: LauncherSettings
) -> None:
    await pool.execute(TEN_THOUSAND_JOBS)
    metrics = LauncherMetrics(CollectorRegistry())
    private = settings.model_copy(update={"metrics_token": SecretStr("token"), "metrics_users": 50})
    await Counting(pool, private, metrics).count()
    found = exported(metrics)
    assert len({user for user, _ in found}) == 51
    for phase in ("running", "waiting", "backoff"):
        assert sum(gpus for (_, each), gpus in found.items() if each == phase) == 2500 * 8
        assert metrics.jobs_open.labels(phase)._value.get() == 2500
    await pool.execute("UPDATE job SET phase = 'succeeded' WHERE phase <> 'waiting'")
    await Counting(pool, private, metrics).count()
    assert {phase for _, phase in exported(metrics)} == {"waiting"}


@pytest.mark.postgres
async def test_without_a_token_no_user_is_named(pool: Pool, settings: LauncherSettings) -> None:
    await pool.execute(TEN_THOUSAND_JOBS)
    metrics = LauncherMetrics(CollectorRegistry())
    await Counting(pool, settings, metrics).count()
    assert exported(metrics) == {}
    assert metrics.jobs_open.labels("running")._value.get() == 2500
