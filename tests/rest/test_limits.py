"""A client that asks too often waits; a login and a readiness check wait for no slow query."""

import asyncio
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest.domain.limits import Bucket, Limit, take

LIMITS = st.builds(Limit, st.floats(0.1, 1000), st.integers(1, 1000))
CHECK, INFO = "/api/v2/tokens/check", "/api/v2/info"


@given(LIMITS, st.lists(st.floats(0, 100), max_size=200))
def test_never_more_than_the_burst_and_what_has_come_since(
    limit: Limit, waits_s: list[float]
) -> None:
    bucket: Bucket | None = None
    now_s, passed = 0.0, 0
    for wait_s in waits_s:
        now_s += wait_s
        bucket, early_s = take(bucket, limit, now_s)
        passed += early_s == 0
    assert passed <= limit.burst + now_s * limit.per_s + 1e-6


@given(LIMITS, st.integers(0, 2000))
def test_a_client_that_waits_as_asked_may_go_on(limit: Limit, before: int) -> None:
    bucket: Bucket | None = None
    early_s = 0
    for _ in range(before):
        bucket, early_s = take(bucket, limit, 0.0)
    _, again_s = take(bucket, limit, float(early_s))
    assert again_s == 0 or early_s == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limit = Limit(1.0, 1)
    bucket, _ = take(None, limit, 10.0)
    assert take(bucket, limit, 5.0)[1] == 1


async def test_one_user_is_limited_and_no_other(start_rest: Any) -> None:
    async with start_rest(user_requests_per_s=0.01, user_requests_burst=3) as rest:
        other = await rest.make_user("eve")
        async with other:
            codes = [(await rest.client.get(CHECK)).status_code for _ in range(4)]
            assert codes == [200, 200, 429, 429]
            answer = await rest.client.get(CHECK)
            assert answer.json()["code"] == "TooManyRequestsError"
            assert int(answer.headers["retry-after"]) > 0
            assert (await other.get(CHECK)).status_code == 200
        metrics = (await rest.client.get("/metrics")).text
        assert 'muster_rest_requests_limited_total{caller="user"} 3.0' in metrics
        assert "eve" not in metrics


async def test_a_submission_is_one_request(start_rest: Any) -> None:
    async with start_rest(user_requests_per_s=0.01, user_requests_burst=2) as rest:
        codes = [(await rest.submit(f"job-{n}")).status_code for n in range(3)]
        assert codes == [202, 202, 429]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (INFO, {}),
        (INFO, {"Authorization": "Bearer made-up"}),
        (CHECK, {}),
        (CHECK, {"Authorization": "Bearer made-up"}),
        (CHECK, {"Authorization": "Basic made-up"}),
        ("/api/v2/nothing", {}),
    ],
)
async def test_an_address_without_a_valid_token_is_limited_but_not_users_there(
    start_rest: Any, path: str, headers: dict[str, str]
) -> None:
    # The log-in of the fixture is the first request.
    async with start_rest(address_requests_per_s=0.001, address_requests_burst=3) as rest:
        async with rest.with_token("") as client:
            codes = [(await client.get(path, headers=headers)).status_code for _ in range(4)]
            assert [code == 429 for code in codes] == [False, False, True, True]
            assert (await client.get("/healthz")).status_code == 200
        assert (await rest.client.get(CHECK)).status_code == 200


async def test_counts_are_bounded(start_rest: Any) -> None:
    async with start_rest(limited_callers=2, user_requests_burst=1) as rest:
        limits = rest.runtime.asgi._limits
        for n in range(100):
            limits.take_user(f"user-{n}")
        assert len(limits._buckets) == 2


async def test_log_in_requests_and_readiness_wait_for_no_slow_query(
    start_rest: Any, database_url: str
) -> None:
    async with start_rest(database_connections=2) as rest:
        conn = await asyncpg.connect(database_url)
        tasks: list[asyncio.Task[Any]] = []
        try:
            async with conn.transaction():
                await conn.execute("LOCK TABLE rest.job IN ACCESS EXCLUSIVE MODE")
                tasks = [asyncio.create_task(rest.client.get("/api/v2/jobs")) for _ in range(6)]

                async def held() -> int:
                    sql = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                    count: int = await conn.fetchval(sql)
                    return count

                await rest.eventually(held, 2)
                token = await rest.log_in("admin", "correct-horse")
                async with rest.with_token(token) as client:
                    assert (await client.get(CHECK)).status_code == 200
                ready = (await rest.client.get("/readyz")).json()
                assert ready["database"] is True
                assert not any(task.done() for task in tasks)
            answers = await asyncio.gather(*tasks)
            assert {answer.status_code for answer in answers} == {200}
        finally:
            for task in tasks:
                task.cancel()
            await conn.close()
