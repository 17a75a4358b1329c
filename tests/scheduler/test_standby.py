"""Standing by: what the leader commits is followed, and decided from when it dies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from muster.db import Connection
from muster.service import Runtime
from pydantic import SecretStr
from scheduler import configuring, store
from scheduler.domain.core.forest import ConfigError, Finding
from scheduler.settings import SchedulerSettings
from scheduler.store.nodes import KnownNode
from scheduler_watched import measured, until
from tcp_proxy import Proxy

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]
RunAnother = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
DEADLINE_S = 60.0


async def held(runtime: Runtime) -> dict[str, set[tuple[str, int]]]:
    """The GPUs of each pod, as the database has it."""
    found: dict[str, set[tuple[str, int]]] = {}
    for row in await runtime.pool.fetch("SELECT node, gpu, pod FROM held_gpu"):
        found.setdefault(row["pod"], set()).add((row["node"], row["gpu"]))
    return found


async def test_a_killed_leader_is_followed_from_memory(
    kit: Kit, another_scheduler: RunAnother, scheduler: RunScheduler, others: Others
) -> None:
    """What was placed, ended, lost and recorded while it stood by; and it reads nothing whole."""
    async with another_scheduler() as leader:
        await others.report(kit.report("n0", gpus=4))
        await others.report(kit.report("n1", gpus=4))
        for name in "ab":
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=2)))
            await others.until(lambda name=name: others.states(name) == ["placed"])
        async with scheduler() as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            for name in "cd":
                await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=2)))
                await others.until(lambda name=name: others.states(name) == ["placed"])
            await others.ask(kit.gang("w", *kit.pods("w", 2, gpus=4)))
            await others.until(lambda: others.states("w") == ["waiting"] * 2)
            await others.ask(kit.gang("b"))
            await others.until(lambda: others.is_over("b"))
            before = await held(standby)
            leader.kill()
            await leader.wait()
            brief = kit.gang("e", *kit.pods("e", 1, gpus=2)).model_copy(update={"limit_s": 600})
            await others.ask(brief)  # which may pass `w`
            await others.until(lambda: others.states("e") == ["placed"])
            assert others.decisions["e"].epoch == 2
            assert {others.decisions[name].epoch for name in "acd"} == {1}
            after = await held(standby)
            assert {pod: gpus for pod, gpus in after.items() if pod != "e-w-0"} == before
            for name in "acd":
                await others.ask(kit.gang(name))
                await others.until(lambda name=name: others.is_over(name))
            await others.ask(kit.gang("e"))
            await others.until(lambda: others.states("w") == ["placed"] * 2)
            assert measured(standby, "takeover_seconds_count") == 1
            assert measured(standby, "rebuilds_total") == 0
            assert measured(standby, "is_warm") == 0


async def test_nodes_that_come_while_one_stands_by_are_its_own_too(
    kit: Kit, another_scheduler: RunAnother, scheduler: RunScheduler, others: Others
) -> None:
    """The nodes make the cluster: it is made anew, and memory with it. A gang that is heard before
    its node is not refused.
    """
    async with another_scheduler(settle_s=DEADLINE_S) as leader:
        await others.report(kit.report("n0", gpus=2))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=2)))
        await others.until(lambda: others.states("a") == ["placed"])
        async with scheduler() as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            await others.report(kit.report("n1", gpus=4))
            await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=3)))
            await others.until(lambda: others.states("b") == ["placed"])
            leader.kill()
            await others.ask(kit.gang("c", *kit.pods("c", 1, gpus=1)))
            await others.until(lambda: others.states("c") == ["placed"])
            assert len(set.union(*(await held(standby)).values())) == 6
            assert [message.gang_class.value for message in others.decisions.values()] == [
                "guaranteed"
            ] * 3


async def test_a_standby_takes_the_lead_amid_its_load_and_goes_on_with_it(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_nodes, is_loading, may_load = store.nodes.load_nodes, asyncio.Event(), asyncio.Event()

    async def slow(conn: Connection) -> list[KnownNode]:
        is_loading.set()
        await may_load.wait()
        return await load_nodes(conn)

    monkeypatch.setattr(store.nodes, "load_nodes", slow)
    async with another_scheduler() as leader:
        await others.report(kit.report("n0", gpus=4))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=2)))
        await others.until(lambda: others.states("a") == ["placed"])
        async with scheduler() as standby:
            async with asyncio.timeout(DEADLINE_S):
                await is_loading.wait()
                leader.kill()
                while await standby.pool.fetchval("SELECT epoch FROM leader") < 2:
                    await asyncio.sleep(0.02)
            may_load.set()
            await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=2)))
            await others.until(lambda: others.states("b") == ["placed"])
            assert measured(standby, "takeover_seconds_count") == 1
            assert measured(standby, "rebuilds_total") == 0
            assert sum(map(len, (await held(standby)).values())) == 4


async def test_a_standby_whose_database_hung_for_long_follows_on(
    scheduler: RunScheduler, settings: SchedulerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a lead lasts, also in a transaction; over the same connection nothing can
    have been lost.
    """
    load_nodes, loads = store.nodes.load_nodes, 0

    async def counted(conn: Connection) -> list[KnownNode]:
        nonlocal loads
        loads += 1
        return await load_nodes(conn)

    async with (
        Proxy(settings.database_url.get_secret_value()).running() as proxy,
        scheduler() as leader,
    ):
        await until(lambda: measured(leader, "is_leader") == 1)
        patient = {"database_url": SecretStr(proxy.url), "idle_transaction_s": DEADLINE_S}
        async with scheduler(**patient) as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            monkeypatch.setattr(store.nodes, "load_nodes", counted)
            proxy.freeze()
            await until(lambda: measured(standby, "follow_lag_seconds") > 2 * settings.lead_s)
            proxy.thaw()
            await until(lambda: measured(standby, "follow_lag_seconds") < settings.lead_s)
            assert (measured(standby, "is_warm"), loads) == (1, 0)


FILE = """
cellTypes: {{node: {{child: t, count: {gpus}, node: true}}}}
physicalCells: [{{type: node, name: n0}}]
virtualClusters: {{default: {{cells: [{{type: node, count: 1}}]}}}}
"""


async def test_a_standby_that_does_not_follow_does_not_say_so(
    scheduler: RunScheduler, tmp_path: Path
) -> None:
    """Its file is another, and to read everything anew it has no time yet."""
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.format(gpus=2))
    async with scheduler(cluster_file=file) as leader:
        await until(lambda: measured(leader, "is_leader") == 1)
        quick = {"cluster_file": file, "cluster_file_poll_s": 0.05, "remake_share": 1e-6}
        async with scheduler(**quick) as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
            file.write_text(FILE.format(gpus=4))
            await until(lambda: measured(standby, "is_warm") == 0)


async def test_a_standby_whose_file_cannot_be_honoured_is_there_when_it_can(
    scheduler: RunScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    def refuses(*_: object) -> None:
        nonlocal refused
        refused += 1
        raise ConfigError([Finding(("nodes",), "n0 has not so many GPUs")])

    async with scheduler() as leader:
        await until(lambda: measured(leader, "is_leader") == 1)
        with monkeypatch.context() as patched:
            patched.setattr(configuring, "made", refuses)
            async with scheduler(remake_share=1.0) as standby:
                await until(lambda: refused >= 3)
                assert measured(standby, "is_warm") == 0
                patched.undo()
                await until(lambda: measured(standby, "is_warm") == 1)


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Callable[[], Any]]:
    """Connections to the service's tables."""
    opened: list[asyncpg.Connection] = []

    async def one() -> asyncpg.Connection:
        opened.append(
            await asyncpg.connect(database_url, server_settings={"search_path": "scheduler"})
        )
        return opened[-1]

    yield one
    for conn in opened:
        await conn.close()


PLACE = (
    "INSERT INTO placement (pod, gang, node, journal, address, gpus, ports, cpu, memory_mb, epoch)"
    " VALUES ($1 || '-0', $1, 'n', 'j', 'a', '{}', '{}', 1, 1, 1)"
)


async def test_changes_are_found_once_in_whatever_order_they_are_committed(
    connect: Callable[[], Any],
) -> None:
    reader, slow, quick = await connect(), await connect(), await connect()
    seen = await store.changes.snapshot(reader)
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("INSERT INTO gang (gang, request) VALUES ('slow', '{}')")
    await quick.execute("INSERT INTO gang (gang, request) VALUES ('quick', '{}')")
    await quick.execute("INSERT INTO node (node) VALUES ('n')")
    first = await store.changes.since(reader, seen)
    assert first is not None
    assert (first.gangs, first.nodes) == ({"quick"}, {"n"})
    await transaction.commit()
    await quick.execute(PLACE, "other")
    second = await store.changes.since(reader, first.seen)
    assert second is not None
    assert (second.gangs, second.nodes) == ({"slow", "other"}, set())
    await quick.execute("DELETE FROM placement")
    await quick.execute("UPDATE gang SET is_dirty = false WHERE gang = 'slow'")
    await quick.execute("DELETE FROM gang WHERE gang = 'quick'")
    third = await store.changes.since(reader, second.seen)
    assert third is not None
    assert third.gangs == {"slow", "other", "quick"}
    fourth = await store.changes.since(reader, third.seen)
    assert fourth is not None
    assert (fourth.gangs, fourth.nodes) == (set(), set())


async def test_changes_that_were_dropped_are_missed_by_nobody(connect: Callable[[], Any]) -> None:
    """Who has not seen them hears that it cannot know."""
    reader, writer = await connect(), await connect()
    seen = await store.changes.snapshot(reader)
    await writer.execute("INSERT INTO gang (gang, request) VALUES ('g', '{}')")
    later = await store.changes.snapshot(reader)
    await store.changes.forget(writer, seen)
    found = await store.changes.since(reader, seen)
    assert found is not None
    assert found.gangs == {"g"}
    await store.changes.forget(writer, later)
    assert await store.changes.since(reader, seen) is None
    assert await store.changes.since(reader, later) is not None
    assert await writer.fetchval("SELECT count(*) FROM change") == 0


class _Slow:
    """A connection whose process may freeze after any statement: then others look for the row."""

    def __init__(self, conn: Connection, other: Connection) -> None:
        self.conn = conn
        self.other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.conn, name)

    async def execute(self, *args: Any) -> None:
        await self.conn.execute(*args)
        await self.other.execute("SELECT FROM leader FOR UPDATE NOWAIT")


async def test_who_freezes_while_changes_are_dropped_keeps_nobody_from_the_lead(
    connect: Callable[[], Any],
) -> None:
    conn: Any = _Slow(await connect(), await connect())
    await conn.execute("INSERT INTO gang (gang, request) VALUES ('g', '{}')")
    await store.changes.forget(conn, await store.changes.snapshot(conn))
    assert await conn.fetchval("SELECT count(*) FROM change") == 0


LATER = "1000000000000000"
"""A transaction's id as of a server that has run for years."""


async def _restore_backup(conn: asyncpg.Connection) -> None:
    """As if these tables came from that server."""
    await conn.execute("UPDATE leader SET changes_from = $1::text::xid8", LATER)
    await conn.execute("INSERT INTO change VALUES ($1::text::xid8, 'gang', 'g')", LATER)


async def test_what_another_server_has_left_hides_no_changes(connect: Callable[[], Any]) -> None:
    """Neither in the tables, nor in the memory of a process that has outlived it."""
    reader, writer = await connect(), await connect()
    await _restore_backup(writer)
    assert await store.changes.since(reader, await store.changes.snapshot(reader)) is None
    await store.changes.forget(writer, store.changes.NOTHING)
    assert await writer.fetchval("SELECT count(*) FROM change") == 0
    seen = await store.changes.snapshot(reader)
    await writer.execute("INSERT INTO gang (gang, request) VALUES ('g', '{}')")
    found = await store.changes.since(reader, seen)
    assert found is not None
    assert found.gangs == {"g"}
    await store.changes.forget(writer, f"{LATER}:{LATER}:")
    assert await store.changes.since(reader, await store.changes.snapshot(reader)) is not None


async def test_after_a_restored_backup_one_stands_by(
    scheduler: RunScheduler, connect: Callable[[], Any]
) -> None:
    await _restore_backup(await connect())
    async with scheduler() as leader:
        await until(lambda: measured(leader, "is_leader") == 1)
        async with scheduler() as standby:
            await until(lambda: measured(standby, "is_warm") == 1)
