"""The row that says who decides, whichever way the database's clock jumps."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from scheduler import store
from scheduler.settings import SchedulerSettings

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
DEADLINE_S = 60.0


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose clock goes ahead of the real one by what `clock` says."""
    paths = {"search_path": "scheduler, pg_catalog"}
    conn = await asyncpg.connect(database_url, server_settings=paths)
    await conn.execute(
        """CREATE TABLE clock AS SELECT interval '0' AS ahead;
        CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql
        AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM clock'"""
    )
    yield conn
    await conn.close()


async def test_who_decides_and_is_cut_off_in_the_middle_of_a_statement_is_followed(
    database_url: str, database: asyncpg.Connection, settings: SchedulerSettings
) -> None:
    """The database knows the statement, and is never told to run it."""
    short = settings.model_copy(update={"statement_timeout_s": 3.0, "deciding_timeout_s": 3.0})
    assert await store.leadership.take(database, "one", short) == 1
    paths = {"search_path": "scheduler, pg_catalog"}
    holder = await asyncpg.connect(database_url, server_settings=paths)
    await holder.execute("BEGIN")
    await store.leadership.check(holder, 1, "one", short)
    await holder.prepare("SELECT $1::int")
    await database.execute("UPDATE clock SET ahead = '1 hour'")
    async with asyncio.timeout(DEADLINE_S):
        assert await store.leadership.take(database, "other", short) == 2
    holder.terminate()


async def test_when_the_databases_clock_goes_ahead_one_at_the_most_decides(
    database: asyncpg.Connection, settings: SchedulerSettings
) -> None:
    assert await store.leadership.take(database, "one", settings) == 1
    await database.execute("UPDATE clock SET ahead = '1 hour'")
    assert not await store.leadership.renew(database, 1, "one", settings)
    assert await store.leadership.take(database, "other", settings) is None
    await database.execute("UPDATE clock SET ahead = '2 hours'")
    assert await store.leadership.take(database, "other", settings) == 2
    with pytest.raises(store.leadership.Deposed):
        await store.leadership.check(database, 1, "one", settings)
    with pytest.raises(store.leadership.Deposed):
        await store.leadership.renew(database, 1, "one", settings)


async def test_when_the_databases_clock_goes_back_the_leader_stays_and_a_dead_one_is_followed(
    database: asyncpg.Connection, settings: SchedulerSettings
) -> None:
    assert await store.leadership.take(database, "one", settings) == 1
    await database.execute("UPDATE clock SET ahead = '-1 hour'")
    for _ in range(5):
        assert await store.leadership.take(database, "other", settings) is None
        assert not await store.leadership.renew(database, 1, "one", settings)
    await store.leadership.check(database, 1, "one", settings)
    await database.execute("UPDATE clock SET ahead = '-2 hours'")
    async with asyncio.timeout(DEADLINE_S):
        while await store.leadership.take(database, "other", settings) is None:
            await asyncio.sleep(0.05)


async def test_when_the_databases_clock_goes_back_a_deaf_leader_is_replaced_no_later(
    database: asyncpg.Connection, settings: SchedulerSettings
) -> None:
    assert await store.leadership.take(database, "one", settings) == 1
    assert not await store.leadership.renew(database, 1, "one", settings, receives_from_bus=False)
    await database.execute("UPDATE clock SET ahead = '-1 hour'")
    assert not await store.leadership.renew(database, 1, "one", settings, receives_from_bus=False)
    assert await store.leadership.take(database, "other", settings, receives_from_bus=True) is None
    await database.execute(
        "UPDATE clock SET ahead = ahead + $1 * interval '1 s'", settings.leader_cut_off_s + 1
    )
    assert not await store.leadership.renew(database, 1, "one", settings, receives_from_bus=False)
    assert await store.leadership.take(database, "other", settings, receives_from_bus=True) == 2
