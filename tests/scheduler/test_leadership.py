"""Who decides: one process at a time, whatever sleeps and whichever clock jumps."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from cli.embedded.broker import EmbeddedBroker
from muster.consumer import Consumer
from muster.db import Connection
from muster.service import Runtime
from pydantic import SecretStr
from scheduler import store
from scheduler.settings import SchedulerSettings
from scheduler.watch import Watch
from scheduler_watched import measured, until
from tcp_proxy import Proxy

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]
RunAnother = Callable[..., AbstractAsyncContextManager[asyncio.subprocess.Process]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
HOUR_S = 3600.0
LEASE_S = 2.0
PATIENT_LEASE_S = 10.0
"""Longer than a take-over takes."""

DEADLINE_S = 60.0


async def test_only_the_highest_epochs_decisions_exist(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    tmp_path: Path,
) -> None:
    """Stop the leader, let the standby decide, wake the leader."""
    log = tmp_path / "leader.log"
    async with another_scheduler(log) as leader:
        await _runs(kit, others)
        assert others.decisions["a"].epoch == 1
        async with scheduler() as standby:
            leader.send_signal(signal.SIGSTOP)
            for name in ("b", "c"):
                await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
            await others.until(lambda: others.states("b") == others.states("c") == ["placed"])
            leader.send_signal(signal.SIGCONT)
            for number in range(8):
                name = f"d{number}"
                await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
                await others.ask(kit.gang(name))
                await others.until(partial(others.is_over, name))
            later = {
                gang: message.epoch for gang, message in others.decisions.items() if gang != "a"
            }
            # On a slow machine the lease goes to and fro; the first epoch never comes back.
            assert min(later.values()) >= 2
            rows = await standby.pool.fetch("SELECT pod FROM placement WHERE epoch = 1")
            assert [row["pod"] for row in rows] == ["a-w-0"]
            held = await standby.pool.fetch("SELECT pod FROM placement")
            assert {row["pod"] for row in held} == {"a-w-0", "b-w-0", "c-w-0"}
            assert leader.returncode is None, await asyncio.to_thread(log.read_text)


async def test_what_a_leader_before_has_lost_is_no_silence_of_now(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The standby has heard those nodes as well, while they lived; and reads some of that only when
    they are lost already.
    """
    nodes = ["n0", "n1", "n2", "n3", "n4"]
    rules = {"many_silent": 0.4, "lease_timeout_s": PATIENT_LEASE_S}
    late = Late(monkeypatch)
    async with another_scheduler(tmp_path / "leader.log", **rules) as leader:
        for node in nodes:
            await others.report(kit.report(node, gpus=1))
        await others.ask(kit.gang("a", *kit.pods("a", 5, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"] * 5)
        async with scheduler(**rules) as standby:
            async with asyncio.timeout(DEADLINE_S):
                while standby.metrics.received.labels("node-heartbeat")._value.get() < 20:
                    await asyncio.sleep(0.05)
                late.begin()
                while not late.received >= set(nodes):
                    await asyncio.sleep(0.05)
            others.alive = {node: others.alive[node] for node in nodes[2:]}
            await others.until(lambda: {message.node for message in others.lost} == set(nodes[:2]))
            late.end()
            leader.kill()
            async with asyncio.timeout(DEADLINE_S):
                while await standby.pool.fetchval("SELECT epoch FROM leader") < 2:
                    await asyncio.sleep(0.02)
            del others.alive["n2"]
            await others.until(lambda: {message.node for message in others.lost} == set(nodes[:3]))
            assert len({(message.node, message.lease) for message in others.lost}) == 3
            assert others.returned == []
            others.alive["n0"] = "journal-of-n0"
            await others.until(lambda: {message.node for message in others.returned} == {"n0"})


class Late:
    """What this process reads of heartbeats between `begin` and `end` it hears at the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: set[str] = set()
        self._hear = Watch.on_heartbeat
        self._kept: list[tuple[Any, ...]] = []
        self._is_late = False
        late = self

        def receive(*given: Any) -> None:
            late._take(given)

        monkeypatch.setattr(Watch, "on_heartbeat", receive)

    def begin(self) -> None:
        self._is_late = True

    def end(self) -> None:
        self._is_late = False
        for given in self._kept:
            self._hear(*given)

    def _take(self, given: tuple[Any, ...]) -> None:
        if self._is_late:
            self._kept.append(given)
            self.received.add(given[2].node)
        else:
            self._hear(*given)


async def test_a_jump_of_the_hosts_clock_ends_no_lease_and_doubles_no_decision(
    kit: Kit, scheduler: RunScheduler, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    async with scheduler(lease_timeout_s=LEASE_S) as runtime:
        await others.report(kit.report("n0", gpus=4))
        await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
        await others.until(lambda: others.states("a") == ["placed"])
        first = others.decisions["a"].revision
        for number, jump_s in enumerate((HOUR_S, -HOUR_S, 0)):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
            await asyncio.sleep(1.5 * LEASE_S)  # the time is the test
            name = f"b{number}"
            await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
            await others.until(partial(_is_placed, others, name))
        assert others.lost == []
        assert {message.epoch for message in others.decisions.values()} == {1}
        assert await runtime.pool.fetchval("SELECT count(*) FROM held_gpu") == 4
        assert others.decisions["a"].revision == first


async def test_a_leader_without_its_database_stands_by_and_is_followed(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    settings: SchedulerSettings,
) -> None:
    """It is cut off from the database, without a word, and not from the bus: it leaves the reader's
    seat to the next one, answers no more, and follows when it is back.
    """
    async with (
        Proxy(settings.database_url.get_secret_value()).running() as proxy,
        scheduler(database_url=SecretStr(proxy.url)) as runtime,
    ):
        await _runs(kit, others)
        proxy.freeze()
        await until(lambda: not measured(runtime, "is_leader"))
        async with another_scheduler():
            for number in range(5):
                name = f"b{number}"
                await others.ask(kit.gang(name, *kit.pods(name, 1, gpus=1)))
                await others.until(partial(_is_placed, others, name))
                assert others.decisions[name].epoch >= 2
            proxy.thaw()
            await until(lambda: measured(runtime, "is_warm"))
            assert not measured(runtime, "is_leader")


async def test_a_renewal_that_hangs_does_not_cost_the_lead(
    kit: Kit,
    scheduler: RunScheduler,
    others: Others,
    settings: SchedulerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection carries nothing any more; the others do. It is given up in the end."""
    renew, given_up = store.leadership.renew, asyncio.Event()

    async def hangs(conn: Connection, *_: Any, **__: Any) -> bool:
        monkeypatch.setattr(store.leadership, "renew", renew)
        try:
            await conn.execute("SELECT pg_sleep(1000)")
        finally:
            given_up.set()
        return False

    async with scheduler(statement_timeout_s=HOUR_S) as runtime:
        await until(lambda: measured(runtime, "is_leader"))
        monkeypatch.setattr(store.leadership, "renew", hangs)
        await until(given_up.is_set)
        await asyncio.sleep(settings.lead_s)  # the time is the test
        assert (measured(runtime, "is_leader"), measured(runtime, "epoch")) == (1, 1)
        await _runs(kit, others)


CUT_OFF_S = 3.0
CUT_OFF = {"leader_cut_off_s": CUT_OFF_S, "probe_window_s": 1.0, "leader_take_s": DEADLINE_S}
"""Nobody takes the lead for another reason."""


async def _lost(_: Watch) -> None:
    """What is said does not reach the bus."""


async def test_a_leader_that_is_cut_off_from_the_bus_is_followed_by_one_who_hears_it(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database it reaches; and once it hears the bus again, it follows."""
    async with scheduler(**CUT_OFF) as runtime:
        await _runs(kit, others)
        async with another_scheduler(**CUT_OFF):
            with monkeypatch.context() as cut_off:
                cut_off.setattr(Watch, "probe", _lost)
                await until(lambda: not measured(runtime, "is_leader"))
                await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
                await others.until(partial(_is_placed, others, "b"))
                assert others.decisions["b"].epoch == 2
            await until(lambda: measured(runtime, "probe_round"))
            await until(lambda: measured(runtime, "is_warm"))
            await asyncio.sleep(2 * CUT_OFF_S)  # the time is the test
            assert await runtime.pool.fetchval("SELECT epoch FROM leader") == 2


async def test_a_bus_that_is_away_for_everybody_costs_nobody_the_lead(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    fresh_broker: EmbeddedBroker,
) -> None:
    """Whoever hears it first when it is back, unless others count as deaf by then."""
    cut_off_s = 2 * CUT_OFF_S
    rules = CUT_OFF | {"leader_cut_off_s": cut_off_s}
    async with scheduler(**rules) as runtime:
        await _runs(kit, others)
        async with another_scheduler(**rules):
            await asyncio.sleep(1.2 * cut_off_s)  # so long it must have heard the bus
            fresh_broker.kill()
            await until(lambda: not measured(runtime, "probe_round"))
            await asyncio.sleep(1.2 * cut_off_s)  # the time is the test
            fresh_broker.start()
            await until(lambda: measured(runtime, "probe_round"))
            await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
            await others.until(partial(_is_placed, others, "b"))
            assert others.decisions["b"].epoch == 1


async def test_who_is_deposed_answers_no_more_while_its_reader_still_ends(
    scheduler: RunScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a bus that does not answer that takes as long as a stop may."""
    ends, has_ended, read = asyncio.Event(), asyncio.Event(), Consumer.run

    async def ends_late(consumer: Consumer) -> None:
        try:
            await read(consumer)
        finally:
            has_ended.set()
            await ends.wait()

    async def deposed(*_: Any, **__: Any) -> bool:
        raise store.leadership.Deposed

    monkeypatch.setattr(Consumer, "run", ends_late)
    async with scheduler() as runtime:
        await until(lambda: measured(runtime, "is_leader"))
        with monkeypatch.context() as by_another:
            by_another.setattr(store.leadership, "renew", deposed)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await has_ended.wait()
                assert not measured(runtime, "is_leader")
            finally:
                ends.set()


PLACED = "SELECT count(*) FROM scheduler.placement WHERE gang = $1 AND epoch > 1"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that nobody cuts off."""
    conn = await asyncpg.connect(database_url)
    yield conn
    await conn.close()


async def test_who_stands_by_with_dead_connections_takes_the_lead_over_others(
    kit: Kit,
    another_scheduler: RunAnother,
    scheduler: RunScheduler,
    others: Others,
    settings: SchedulerSettings,
    database: asyncpg.Connection,
) -> None:
    """Nobody has told it that they carry nothing any more, and a statement may take for ever."""
    async with another_scheduler() as leader:
        await _runs(kit, others)
        async with Proxy(settings.database_url.get_secret_value()).running() as proxy:
            dead = {"database_url": SecretStr(proxy.url), "statement_timeout_s": HOUR_S}
            async with scheduler(**dead) as runtime:
                await until(lambda: measured(runtime, "is_warm"))
                leader.kill()
                proxy.freeze_those_open()
                await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=1)))
                async with asyncio.timeout(DEADLINE_S):
                    while not await database.fetchval(PLACED, "b"):
                        await asyncio.sleep(0.05)


async def _runs(kit: Kit, others: Others) -> None:
    """A gang of the first leader's, on the only node."""
    await others.report(kit.report("n0", gpus=8))
    await others.ask(kit.gang("a", *kit.pods("a", 1, gpus=1)))
    await others.until(partial(_is_placed, others, "a"))


def _is_placed(others: Others, gang: str) -> bool:
    return bool(others.states(gang) == ["placed"])
