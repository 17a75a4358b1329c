"""Connections to the database over a network that carries nothing any more, and tells nobody."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from muster import connections
from muster.db import Pool, open_pool, transaction
from muster.settings import DatabaseSettings
from tcp_proxy import Proxy

pytestmark = pytest.mark.postgres

DEADLINE_S = 60.0
LOCKED = "SELECT count(*) FROM pg_locks WHERE relation = 'locked'::regclass AND granted"
FOR_EVER_S = 1000.0
"""What a statement may take here: nothing is found out by it."""


@pytest.fixture
async def proxy(empty_database_url: str) -> AsyncIterator[Proxy]:
    """The network between the pool and its database."""
    async with Proxy(empty_database_url).running() as proxy:
        yield proxy


@pytest.fixture
async def pool(proxy: Proxy) -> AsyncIterator[Pool]:
    """As a service has it, with one connection."""
    settings = DatabaseSettings(
        database_url=proxy.url,
        database_connections=1,
        statement_timeout_s=FOR_EVER_S,
        idle_transaction_s=FOR_EVER_S,
    )
    opened = await open_pool(settings, "rest")
    yield opened
    opened.terminate()


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The database itself."""
    conn = await asyncpg.connect(empty_database_url)
    yield conn
    await conn.close()


async def sleeping(database: asyncpg.Connection) -> None:
    """Until a statement of the pool has reached the database."""
    async with asyncio.timeout(DEADLINE_S):
        while not await database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(1000)'"
        ):
            await asyncio.sleep(0.02)


async def test_a_task_cancelled_in_a_transaction_ends_though_the_network_is_gone(
    proxy: Proxy, pool: Pool, database: asyncpg.Connection
) -> None:
    """By the cancellation, not by what it has done to the connection; which is not used again."""

    async def work() -> None:
        async with transaction(pool) as conn, conn.transaction():
            await conn.execute("SELECT pg_sleep(1000)")

    task = asyncio.create_task(work())
    await sleeping(database)
    proxy.freeze()
    task.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({task})
    assert task.cancelled()
    proxy.thaw()
    async with asyncio.timeout(DEADLINE_S):
        assert await pool.fetchval("SELECT 1") == 1


async def test_what_takes_too_long_ends_though_the_network_is_gone(
    proxy: Proxy, pool: Pool
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with pool.acquire() as conn:
            proxy.freeze_those_open()
            with pytest.raises(TimeoutError):
                await conn.fetchval("SELECT 1", timeout=0.1)
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_task_cancelled_on_a_working_network_keeps_the_connection(
    pool: Pool, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CANCEL_S", DEADLINE_S)
    number = await pool.fetchval("SELECT pg_backend_pid()")
    task = asyncio.create_task(pool.execute("SELECT pg_sleep(1000)"))
    await sleeping(database)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert await pool.fetchval("SELECT pg_backend_pid()") == number


async def test_what_a_process_has_locked_that_takes_no_answers_is_free_again(
    proxy: Proxy, pool: Pool, database: asyncpg.Connection
) -> None:
    """The server waits until its answer is taken: neither does it idle, nor does it work."""
    await database.execute("CREATE TABLE locked (is_taken boolean)")

    async def work() -> None:
        async with transaction(pool) as conn:
            await conn.execute("LOCK TABLE public.locked")
            much = await conn.prepare("SELECT repeat('x', 1000000) FROM generate_series(1, 1000)")
            proxy.keep_answers()
            await much.fetch()

    task = asyncio.create_task(work())
    async with asyncio.timeout(DEADLINE_S):
        while not await database.fetchval(LOCKED):
            await asyncio.sleep(0.02)
        await database.execute("LOCK TABLE locked IN SHARE MODE; INSERT INTO locked VALUES (true)")
    task.cancel()
    await asyncio.wait({task})


async def test_what_a_process_has_locked_that_vanished_in_a_statement_is_free_again(
    proxy: Proxy, database: asyncpg.Connection
) -> None:
    """The server works on it, so that it does not look whether anybody waits for the answer."""
    await database.execute("CREATE TABLE locked (is_taken boolean)")
    settings = DatabaseSettings(
        database_url=proxy.url, statement_timeout_s=5.0, idle_transaction_s=FOR_EVER_S
    )
    pool = await open_pool(settings, "rest")

    async def work() -> None:
        async with transaction(pool) as conn:
            await conn.execute("LOCK TABLE public.locked")
            await conn.execute("SELECT pg_sleep(1000)")

    task = asyncio.create_task(work())
    await sleeping(database)
    proxy.freeze()
    pool.terminate()
    async with asyncio.timeout(DEADLINE_S):
        await database.execute("LOCK TABLE locked IN SHARE MODE; INSERT INTO locked VALUES (true)")
    await asyncio.gather(task, return_exceptions=True)


async def test_the_database_ends_a_statement_later_than_its_process_does(
    empty_database_url: str,
) -> None:
    """So that the process knows of it, and keeps its connection."""
    settings = DatabaseSettings(database_url=empty_database_url, statement_timeout_s=1.5)
    quick = await open_pool(settings, "rest")
    with pytest.raises(TimeoutError):
        await quick.execute("SELECT pg_sleep(1000)")
    assert await quick.fetchval("SHOW statement_timeout") == "2500ms"
    await quick.close()


async def test_a_statement_may_take_longer_than_the_database_can_count(
    empty_database_url: str,
) -> None:
    """Its milliseconds have 31 bits: 24 days."""
    settings = DatabaseSettings(
        database_url=empty_database_url, statement_timeout_s=1e9, idle_transaction_s=1e9
    )
    patient = await open_pool(settings, "rest")
    assert await patient.fetchval("SHOW statement_timeout") == f"{2**31 - 1}ms"
    assert await patient.fetchval("SHOW idle_in_transaction_session_timeout") == f"{2**31 - 1}ms"
    await patient.close()
