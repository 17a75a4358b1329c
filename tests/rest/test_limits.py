"""A client that asks too often waits; a login and a readiness check wait for no slow query."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx2
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
        other = await rest.make_user("eve")  # her log-in has the admin's token, too
        async with other:
            codes = [(await rest.client.get(CHECK)).status_code for _ in range(4)]
            assert codes == [200, 200, 429, 429]
            answer = await rest.client.get(CHECK)
            assert answer.json()["code"] == "TooManyRequestsError"
            assert int(answer.headers["retry-after"]) > 0
            assert (await other.get(CHECK)).status_code == 200
        metrics = (await rest.client.get("/metrics")).text
        assert 'muster_rest_requests_limited_total{caller="user"} 3.0' in metrics
        assert '"eve"' not in metrics


async def test_a_submission_is_one_request(start_rest: Any) -> None:
    async with start_rest(user_requests_per_s=0.01, user_requests_burst=2) as rest:
        assert (await rest.client.get(CHECK)).status_code == 200
        codes = [(await rest.submit(f"job-{n}")).status_code for n in range(3)]
        assert codes == [202, 202, 429]


MADE_UP = {"Authorization": "Bearer made-up"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", INFO, {}),
        ("GET", INFO, MADE_UP),
        ("GET", CHECK, {}),
        ("GET", CHECK, MADE_UP),
        ("GET", CHECK, {"Authorization": "Basic made-up"}),
        ("GET", "/api/v2/nothing", {}),
        ("GET", "/api/v2/nothing", MADE_UP),
        ("PATCH", "/api/v2/jobs", MADE_UP),
        ("GET", "/openapi.json", MADE_UP),
        ("PUT", "/api/v2/users/me", MADE_UP | JSON),
    ],
)
async def test_an_address_without_a_valid_token_is_limited_but_not_users_there(
    start_rest: Any, method: str, path: str, headers: dict[str, str]
) -> None:
    # The log-in of the fixture and the first use of its token are the first requests.
    async with start_rest(address_requests_per_s=0.001, address_requests_burst=4) as rest:
        assert (await rest.client.get(CHECK)).status_code == 200
        async with rest.with_token("") as client:
            codes = [
                (await client.request(method, path, headers=headers, content="{")).status_code
                for _ in range(4)
            ]
            assert [code == 429 for code in codes] == [False, False, True, True]
            assert (await client.get("/healthz")).status_code == 200
        assert (await rest.client.get(CHECK)).status_code == 200
        await rest.make_user("ann")  # a change of rights makes no user unknown
        assert (await rest.client.get(CHECK)).status_code == 200


async def test_the_database_is_not_asked_for_tokens_above_the_limit(
    start_rest: Any, database_url: str
) -> None:
    async with start_rest(address_requests_per_s=0.001, address_requests_burst=1) as rest:
        conn = await asyncpg.connect(database_url)
        try:
            async with conn.transaction():
                await conn.execute("LOCK TABLE rest.token IN ACCESS EXCLUSIVE MODE")
                async with rest.with_token("made-up") as client:
                    assert (await client.get(CHECK)).status_code == 429
        finally:
            await conn.close()


async def test_a_token_that_was_revoked_counts_for_the_address(start_rest: Any) -> None:
    async with start_rest(address_requests_per_s=0.001, address_requests_burst=2) as rest:
        assert (await rest.client.get(CHECK)).status_code == 200
        assert (await rest.client.delete("/api/v2/authn/basic/logout")).status_code == 200
        codes = [(await rest.client.get(CHECK)).status_code for _ in range(2)]
        assert codes == [401, 429]


async def test_counts_are_bounded(start_rest: Any) -> None:
    async with start_rest(limited_callers=2, user_requests_burst=1) as rest:
        limits = rest.runtime.asgi._limits
        for n in range(100):
            with limits.request(f"user-{n}", ""):
                pass
        assert len(limits._buckets) == 2
        assert not limits._places


@asynccontextmanager
async def slow_requests(
    rest: Any, database_url: str, client: httpx2.AsyncClient, path: str, count: int
) -> AsyncIterator[list[asyncio.Task[httpx2.Response]]]:
    """Requests that are in progress: two wait for a table until the end of the block."""
    conn = await asyncpg.connect(database_url)
    tasks = []
    try:
        async with conn.transaction():
            await conn.execute("LOCK TABLE rest.job IN ACCESS EXCLUSIVE MODE")
            tasks = [asyncio.create_task(client.get(path)) for _ in range(count)]

            async def waiting() -> int:
                sql = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                found: int = await conn.fetchval(sql)
                return found

            await rest.eventually(waiting, 2)
            yield tasks
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
    finally:
        for task in tasks:
            task.cancel()
        await conn.close()


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("/api/v2/jobs", {"requests_in_progress": 2}),
        ("/api/v2/jobs?limit=11", {"page_default": 10}),
    ],
)
async def test_requests_in_progress_of_a_user_are_bounded_and_no_others(
    start_rest: Any, database_url: str, path: str, settings: dict[str, int]
) -> None:
    async with start_rest(**settings) as rest, await rest.make_user("eve") as eve:
        assert (await eve.get(CHECK)).status_code == 200
        async with slow_requests(rest, database_url, eve, path, 2):
            answer = await eve.get(path)
            assert (answer.status_code, answer.json()["code"]) == (429, "TooManyRequestsError")
            assert answer.headers["retry-after"] == "1"
            assert (await rest.client.get(CHECK)).status_code == 200
        assert (await eve.get(path)).status_code == 200


async def test_log_in_requests_and_readiness_wait_for_no_slow_query(
    start_rest: Any, database_url: str
) -> None:
    async with (
        start_rest(database_connections=2) as rest,
        slow_requests(rest, database_url, rest.client, "/api/v2/jobs", 6) as tasks,
    ):
        token = await rest.log_in("admin", "correct-horse")
        async with rest.with_token(token) as client:
            assert (await client.get(CHECK)).status_code == 200
        ready = (await rest.client.get("/readyz")).json()
        assert ready["database"] is True
        assert not any(task.done() for task in tasks)
