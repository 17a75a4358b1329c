"""A restored database is noticed by the service itself, and its peers tell it what it lost."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import pytest
from bare_bus import published_beat
from cli.embedded.broker import EmbeddedBroker
from muster.incarnation import DatabaseRestored, Incarnation, next_incarnation
from muster.service import Runtime
from toy_services import (
    answers,
    both,
    eventually,
    submit,
    toy_launcher,
    toy_rest,
    toy_settings,
    unsettled,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
AT = NOW_MS - 3_600_000
HELD = Incarnation("7/1", AT)
KNOWN = Incarnation("7/1", AT, lost=AT + 1)
TABLES = ("subject", "toy", "incarnation")


@pytest.mark.parametrize(
    ("before", "database", "published", "is_restored", "has_lost"),
    [
        pytest.param(None, "7/1", None, False, False, id="the first start of all"),
        pytest.param(None, "7/1", AT, True, True, id="an emptied schema on a known bus"),
        pytest.param(HELD, "7/1", AT, False, False, id="an ordinary start"),
        pytest.param(HELD, "7/1", AT - 2, False, False, id="a beat that was not published"),
        pytest.param(HELD, "7/1", AT + 1, True, True, id="a disk snapshot of a second ago"),
        pytest.param(HELD, "7/1", AT + 1000, True, True, id="a disk snapshot of long ago"),
        pytest.param(HELD, "7/2", AT, True, False, id="a failover that lost nothing"),
        pytest.param(HELD, "8/1", AT, True, False, id="a dump of now put into another server"),
        pytest.param(HELD, "7/1", None, True, False, id="a new bus"),
        pytest.param(HELD, "7/2", None, True, True, id="a base backup and a new bus"),
        pytest.param(KNOWN, "7/1", AT, True, True, id="put back under a process that ran"),
        pytest.param(KNOWN, "7/1", None, True, True, id="the same, and a new bus"),
    ],
)
def test_a_start_knows_whether_its_database_was_restored(
    before: Incarnation | None,
    database: str,
    published: int | None,
    is_restored: bool,
    has_lost: bool,
) -> None:
    begun = next_incarnation(before, database, published, NOW)
    assert begun.beat == NOW_MS
    assert (begun.restored == begun.beat) is is_restored
    assert (begun.lost == begun.beat) is has_lost
    if is_restored:
        assert begun.as_of == (AT if before else 0)


def test_a_restore_is_remembered_by_the_starts_after_it() -> None:
    restored = next_incarnation(HELD, "7/1", AT + 50, NOW)
    later = next_incarnation(restored, "7/1", restored.beat, NOW + timedelta(days=1))
    assert (later.restored, later.as_of) == (restored.restored, restored.as_of)
    assert later.beat == NOW_MS + 24 * 3_600_000
    on_a_new_bus = next_incarnation(later, "7/1", None, NOW + timedelta(days=2))
    assert on_a_new_bus.lost == restored.restored < on_a_new_bus.restored


@pytest.mark.parametrize("published", [None, NOW_MS + 7])
def test_a_beat_never_falls_where_the_clock_goes_back(published: int | None) -> None:
    ahead = Incarnation("7/1", NOW_MS + 5)
    assert next_incarnation(ahead, "7/1", published, NOW).beat == (published or ahead.beat) + 1


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
        assert launcher.incarnations.unused_number(made_at, is_known=False) == 0
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
    await put_back(conn)
    await conn.close()
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await launcher.incarnations.has_begun.wait()
        restored = await launcher.pool.fetchval("SELECT restored FROM incarnation")
        assert restored > beat
        unused = launcher.incarnations.unused_number
        number = (restored - int(made_at.timestamp() * 1000)) // 100 + 1
        assert [unused(made_at, is_known=known) for known in (True, False)] == [number, number]
        assert unused(made_at + timedelta(days=1), is_known=False) == 0
        await eventually(lambda: answers(launcher), {"j": "old"})
        await eventually(lambda: unsettled(rest, launcher), 0)
        revision = await launcher.pool.fetchval("SELECT revision FROM subject WHERE subject = 'j'")
        assert revision > restored


async def test_a_schema_that_was_emptied_is_filled_by_the_peers(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(10):
            await submit(rest, f"j{n}", "name")
        await eventually(lambda: answers(rest), {f"j{n}": "NAME" for n in range(10)})
        await eventually(lambda: unsettled(rest, launcher), 0)
        await eventually(lambda: beats_on(fresh_broker.bootstrap, 0), True)
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
    await conn.execute(f"TRUNCATE {', '.join(TABLES)}, peer")
    await conn.close()
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await eventually(lambda: answers(launcher), {f"j{n}": "name" for n in range(10)})
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_a_peer_notices_a_restore_together_with_the_loss_of_the_bus(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    """The peer runs on, and has read a later beat on the bus before."""
    settings = toy_settings(database_url, fresh_broker.bootstrap)
    async with toy_rest(settings) as rest:
        async with toy_launcher(settings) as launcher:
            await launcher.incarnations.has_begun.wait()
            await back_up(launcher)
            await submit(rest, "j", "name")
            await eventually(lambda: answers(rest), {"j": "NAME"})
            await eventually(lambda: unsettled(rest, launcher), 0)
            ahead = await launcher.pool.fetchval("SELECT beat FROM incarnation")
            await eventually(lambda: beats_on(fresh_broker.bootstrap, ahead - 1), True)
        conn = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
        await put_back(conn)
        await conn.execute("UPDATE incarnation SET beat = beat - 3600000")
        await conn.close()
        fresh_broker.kill()
        fresh_broker.start()
        async with toy_launcher(settings) as launcher:
            await eventually(lambda: answers(launcher), {"j": "name"})
            await eventually(lambda: unsettled(rest, launcher), 0)


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
    beat, lost = await conn.fetchrow("SELECT beat, lost FROM incarnation")
    kept = await conn.fetchval("SELECT beat FROM backup_incarnation")
    await conn.close()
    assert beat == kept < lost


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
