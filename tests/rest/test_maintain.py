"""What is old goes; what is needed stays."""

from datetime import UTC, datetime, timedelta
from typing import Any

from muster.contracts.jobs import JobState, JobStatus
from rest.handlers.maintain import clean_up
from rest.settings import RestSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def end(rest: Any, name: str, state: JobState) -> None:
    job = await rest.job_id(name)
    status = JobStatus(
        revision=1,
        seen=1,
        job=job,
        name=name,
        user="admin",
        virtual_cluster="default",
        state=state,
        submitted_at=NOW,
        completed_at=NOW + timedelta(seconds=1) if state is JobState.SUCCEEDED else None,
    )
    await rest.receive("job-updated", job, status)


async def test_old_rows_go_and_finished_jobs_are_closed(start_rest: Any) -> None:
    async with start_rest(maintenance_s=0.05) as rest:
        pool = rest.runtime.pool
        await rest.submit("over", **{"Idempotency-Key": "old"})
        await rest.submit("runs", **{"Idempotency-Key": "new"})
        await end(rest, "over", JobState.SUCCEEDED)
        await end(rest, "runs", JobState.RUNNING)
        await pool.execute(
            "UPDATE idempotency SET made_at = now() - interval '25 hours' WHERE key = 'old'"
        )
        token = await rest.log_in("admin", "correct-horse")
        await pool.execute("UPDATE token SET expires_at = now() WHERE NOT is_application")
        await pool.execute(
            "INSERT INTO audit (at, username, action, object)"
            " VALUES (now() - interval '400 days', 'admin', 'login', 'long-ago')"
        )
        await pool.execute(
            "INSERT INTO subscription (id, owner, content, removed_at)"
            " VALUES ('gone', 'admin', '{}', now() - interval '2 days')"
        )

        async def left() -> dict[str, int]:
            counts = await pool.fetchrow(
                "SELECT (SELECT count(*) FROM idempotency) AS keys,"
                " (SELECT count(*) FROM token) AS tokens,"
                " (SELECT count(*) FROM subscription) AS subscriptions,"
                " (SELECT count(*) FROM subject WHERE is_open) AS open,"
                " (SELECT count(*) FROM audit WHERE object = 'long-ago') AS old"
            )
            return dict(counts)

        wanted = {"keys": 1, "tokens": 0, "subscriptions": 0, "open": 1, "old": 0}
        await rest.eventually(left, wanted)
        async with rest.with_token(token) as client:
            assert (await client.get("/api/v2/jobs")).status_code == 401
        names = await pool.fetch("SELECT name FROM job ORDER BY name")
        assert [row["name"] for row in names] == ["over", "runs"]


async def test_more_old_rows_than_one_statement_removes_go_at_once(start_rest: Any) -> None:
    settings = RestSettings(database_url="postgresql://unused", maintenance_rows=2)
    async with start_rest() as rest:
        pool = rest.runtime.pool
        await pool.execute(
            "INSERT INTO audit (at, username, action, object)"
            " SELECT now() - interval '400 days', 'admin', 'login', 'old'"
            " FROM generate_series(1, 7)"
        )
        await pool.execute(
            "INSERT INTO idempotency (username, key, body_digest, made_at)"
            " SELECT 'admin', n, '', now() - interval '2 days' FROM generate_series(1, 7) AS n"
        )
        await pool.execute(
            "INSERT INTO token (digest, id, username, name, is_application, expires_at)"
            " SELECT n::text::bytea, n, 'admin', '', false, now() FROM generate_series(1, 7) AS n"
        )
        await pool.execute(
            "INSERT INTO password_failure (subject, failures, expires_at)"
            " SELECT n::text::bytea, 1, now() FROM generate_series(1, 7) AS n"
        )
        async with pool.acquire() as conn:
            await clean_up(conn, settings)
        left = await pool.fetchrow(
            "SELECT (SELECT count(*) FROM audit WHERE object = 'old') AS entries,"
            " (SELECT count(*) FROM idempotency) AS keys,"
            " (SELECT count(*) FROM token) AS tokens,"
            " (SELECT count(*) FROM password_failure WHERE expires_at <= now()) AS failures"
        )
        assert dict(left) == {"entries": 0, "keys": 0, "tokens": 1, "failures": 0}
