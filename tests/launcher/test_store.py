"""The Launcher's hot queries use their indexes, however many jobs there are."""

import pytest
from launcher import store
from muster.db import Pool

pytestmark = pytest.mark.postgres

FILL = """
    INSERT INTO job (id, spec, state, phase, wake_at)
    SELECT 'j' || n, '{}', '{}', CASE WHEN n % 100 = 0 THEN 'waiting' ELSE 'succeeded' END,
           CASE WHEN n % 100 = 0 THEN now() + n * interval '1 s' END
    FROM generate_series(1, 20000) AS n;
    INSERT INTO task (job, role, index, phase, state)
    SELECT 'j' || n, 'worker', 0, 'waiting', '{}' FROM generate_series(1, 20000) AS n;
    ANALYZE;
"""


TAKE_DUE = store._TAKE_DUE.replace("$1", "now()").replace("$2", "100").replace("$3", "'{}'")


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (store._LOAD_JOBS.replace("$1", "ARRAY['j7', 'j8']"), "job_pkey"),
        (store._LOAD_TASKS.replace("$1", "ARRAY['j7', 'j8']"), "task_pkey"),
        (TAKE_DUE, "job_wake"),
        (store._NEXT_DUE.replace("$1", "'{}'"), "job_wake"),
        (store._COUNT_OPEN, "job_open"),
    ],
    ids=["jobs", "tasks", "due", "next", "open"],
)
async def test_a_hot_query_uses_its_index(pool: Pool, sql: str, index: str) -> None:
    async with pool.acquire() as conn:
        await conn.execute(FILL)
        plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN {sql}"))
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan
