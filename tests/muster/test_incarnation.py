"""A restored database is noticed by the service itself, and its peers tell it what it lost."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer
from cli.embedded.broker import EmbeddedBroker
from muster.contracts.services import SERVICE_STARTED, ServiceStarted
from muster.incarnation import DatabaseRestored, Incarnation, next_incarnation
from muster.service import Runtime
from toy_services import answers, both, eventually, submit, unsettled

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)
HELD = Incarnation("7/1", 40, BEFORE)
TABLES = ("subject", "toy", "incarnation")


@pytest.mark.parametrize(
    ("before", "database", "published", "wanted_beat", "is_restored"),
    [
        pytest.param(None, "7/1", None, 1, False, id="the first start of all"),
        pytest.param(None, "7/1", 90, 91, False, id="an emptied schema on a known bus"),
        pytest.param(HELD, "7/1", 40, 41, False, id="an ordinary start"),
        pytest.param(HELD, "7/1", 38, 41, False, id="a beat that was not published"),
        pytest.param(HELD, "7/1", 41, 42, True, id="a disk snapshot of a second ago"),
        pytest.param(HELD, "7/1", 90, 91, True, id="a disk snapshot of long ago"),
        pytest.param(HELD, "7/2", 40, 41, True, id="a base backup, or a failover"),
        pytest.param(HELD, "8/1", 40, 41, True, id="a dump put into another server"),
        pytest.param(HELD, "7/1", None, 41, True, id="a new bus"),
    ],
)
def test_a_start_knows_whether_its_database_was_restored(
    before: Incarnation | None,
    database: str,
    published: int | None,
    wanted_beat: int,
    is_restored: bool,
) -> None:
    begun = next_incarnation(before, database, published, NOW)
    assert begun.beat == wanted_beat
    assert (begun.restored_at == NOW) is is_restored
    if is_restored:
        assert begun.restored == begun.beat
        assert begun.as_of == BEFORE
        assert begun.floor == int(NOW.timestamp() * 1000)


def test_a_restore_is_remembered_by_the_starts_after_it() -> None:
    restored = next_incarnation(HELD, "7/1", 90, NOW)
    later = next_incarnation(restored, "7/1", restored.beat, NOW + timedelta(days=1))
    assert (later.restored, later.as_of) == (restored.restored, restored.as_of)
    assert later.restored_at == NOW


async def back_up(service: Runtime) -> None:
    """Keep what the schema holds now, and make sure that the bus has a later beat soon."""
    for table in TABLES:
        await service.pool.execute(f"CREATE TABLE backup_{table} AS SELECT * FROM {table}")


async def put_back(conn: asyncpg.Connection | asyncpg.pool.PoolConnectionProxy) -> None:
    """The schema as it was."""
    async with conn.transaction():
        for table in TABLES:
            await conn.execute(
                f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM backup_{table}"
            )


async def published_beat(bootstrap: str, service: str) -> int:
    """The highest beat of a service on the bus."""
    consumer = AIOKafkaConsumer(SERVICE_STARTED, bootstrap_servers=bootstrap, group_id=None)
    async with consumer:
        places = consumer.assignment()
        ends = await consumer.end_offsets(places)
        starts = await consumer.beginning_offsets(places)
        await consumer.seek_to_beginning(*places)
        left = sum(ends[place] - starts[place] for place in places)
        told = [
            ServiceStarted.model_validate_json((await anext(consumer)).value) for _ in range(left)
        ]
    return max((each.revision for each in told if each.service == service), default=0)


async def beats_on(bootstrap: str, beat: int) -> bool:
    return await published_beat(bootstrap, "launcher") > beat


@pytest.mark.parametrize("is_bus_lost", [False, True])
async def test_a_schema_that_was_put_back_resyncs_by_itself(
    database_url: str, fresh_broker: EmbeddedBroker, is_bus_lost: bool
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(10):
            await submit(rest, f"j{n}", "old")
        await eventually(lambda: answers(rest), {f"j{n}": "OLD" for n in range(10)})
        await eventually(lambda: unsettled(rest, launcher), 0)
        await back_up(launcher)
        beat = await launcher.pool.fetchval("SELECT beat FROM incarnation")
        for n in range(5, 15):
            await submit(rest, f"j{n}", "new")
        wanted = {f"j{n}": "OLD" if n < 5 else "NEW" for n in range(15)}
        await eventually(lambda: answers(rest), wanted)
        await eventually(lambda: unsettled(rest, launcher), 0)
        await eventually(lambda: beats_on(fresh_broker.bootstrap, beat), True)
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
    await put_back(conn)
    await conn.close()
    if is_bus_lost:
        fresh_broker.kill()
        fresh_broker.start()
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):

        async def applied() -> dict[str, str]:
            return await answers(launcher)

        await eventually(applied, {f"j{n}": "old" if n < 5 else "new" for n in range(15)})
        await eventually(lambda: unsettled(rest, launcher), 0)
        assert await answers(rest) == wanted
        async with asyncio.timeout(60):
            await launcher.incarnations.is_settled.wait()


async def test_what_a_restored_database_has_forgotten_gets_numbers_that_were_never_used(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await launcher.incarnations.has_begun.wait()
        await back_up(launcher)
        beat = await launcher.pool.fetchval("SELECT beat FROM incarnation")
        await submit(rest, "j", "old")
        await eventually(lambda: answers(rest), {"j": "OLD"})
        await eventually(lambda: beats_on(fresh_broker.bootstrap, beat), True)
        made_at = await launcher.pool.fetchval("SELECT clock_timestamp()")
        assert launcher.incarnations.unused_number(made_at) == 0
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
    await put_back(conn)
    await conn.close()
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await launcher.incarnations.has_begun.wait()
        current = await launcher.pool.fetchrow("SELECT restored, floor FROM incarnation")
        assert launcher.incarnations.unused_number(made_at) == current["restored"] > beat
        assert launcher.incarnations.unused_number(made_at + timedelta(days=1)) == 0
        await eventually(lambda: answers(launcher), {"j": "old"})
        await eventually(lambda: unsettled(rest, launcher), 0)
        revision = await launcher.pool.fetchval("SELECT revision FROM subject WHERE subject = 'j'")
        assert revision > current["floor"]


async def until_restored(database_url: str, bootstrap: str) -> None:
    """Two services run until the database of one is put back, and then until that ends them.
    Meanwhile none commits.
    """
    async with both(database_url, bootstrap) as (rest, launcher):
        await submit(rest, "j", "old")
        await eventually(lambda: answers(rest), {"j": "OLD"})
        beat = await launcher.pool.fetchval("SELECT beat FROM incarnation")
        await back_up(launcher)
        await submit(rest, "j", "new")
        await eventually(lambda: answers(rest), {"j": "NEW"})
        await eventually(lambda: beats_on(bootstrap, beat), True)
        async with launcher.pool.acquire() as conn:
            await put_back(conn)
        with pytest.raises(DatabaseRestored):
            async with launcher.relay.transaction():
                pass
        await asyncio.Event().wait()


async def test_a_service_whose_database_is_put_back_while_it_runs_ends(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        await until_restored(database_url, fresh_broker.bootstrap)
    assert failed.group_contains(DatabaseRestored)
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
    kept = "SELECT beat, beat_at FROM"
    assert await conn.fetchrow(f"{kept} incarnation") == await conn.fetchrow(
        f"{kept} backup_incarnation"
    )
    await conn.close()


async def test_an_ordinary_start_waits_for_nobody(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    for name in ("one", "two"):
        async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
            await submit(rest, "j", name)
            await eventually(lambda: answers(rest), {"j": name.upper()})
            async with asyncio.timeout(60):
                await launcher.incarnations.is_settled.wait()
            assert await launcher.pool.fetchval("SELECT restored FROM incarnation") == 0
            beat = await launcher.pool.fetchval("SELECT beat FROM incarnation")
            await eventually(partial(beats_on, fresh_broker.bootstrap, beat - 1), True)
