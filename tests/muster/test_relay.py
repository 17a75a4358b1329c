"""What the relay promises: a message goes out after its commit, else later from its row."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from cli.embedded.broker import EmbeddedBroker
from muster import relay, upkeep
from muster.bus import Bus
from muster.channels import Outgoing, partition_of
from muster.contracts.topics import Kind, Service
from muster.db import Transaction
from muster.decisions import Publish
from muster.recovery import redrive
from muster.service import Runtime, running
from muster.subjects import publish_all
from toy_services import answers, both, eventually, request, submit, unsettled

LONG = 100_000
SLOW_S = 0.02
DEADLINE_S = 60.0


def a_job(job: str, name: str = "name") -> Publish:
    return Publish(Kind.JOB, job, "job-submitted", job, request(job, name))


def a_notice(event_id: str, key: str = "k") -> Outgoing:
    """A record on no subject, so that nobody republishes it."""
    return Outgoing("alert-raised", key, b"{}", event_id, 0.0)


class Partition:
    """One of four that each topic has here; it has no leader while it ``is_away``."""

    number = partition_of("k", 4)
    other_key = next(k for k in "abcdefgh" if partition_of(k, 4) != partition_of("k", 4))

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.is_away = True
        leader = ClusterMetadata.leader_for_partition

        def led(cluster: ClusterMetadata, place: TopicPartition) -> Any:
            gone = self.is_away and (place.topic, place.partition) == (topic, self.number)
            return -1 if gone else leader(cluster, place)

        monkeypatch.setattr(ClusterMetadata, "leader_for_partition", led)


async def notify(service: Runtime, *notices: Outgoing) -> None:
    async with service.relay.transaction() as opened:
        opened.notices.extend(notices)


async def notices_left(service: Runtime) -> int:
    count = await service.pool.fetchval("SELECT count(*) FROM notice")
    assert isinstance(count, int)
    return count


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each event was given to the bus, which is a little slow."""
    publish, seen = Bus.publish, Counter[str]()

    async def counting(self: Bus, records: Sequence[Outgoing]) -> list[BaseException | None]:
        await asyncio.sleep(SLOW_S)
        outcomes = await publish(self, records)
        pairs = zip(records, outcomes, strict=True)
        seen.update(record.event_id for record, outcome in pairs if outcome is None)
        return outcomes

    monkeypatch.setattr(Bus, "publish", counting)
    return seen


async def test_what_was_not_committed_is_not_published(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        with suppress(ZeroDivisionError):
            async with rest.relay.transaction() as opened:
                await publish_all(opened, Service.REST, [a_job("rolled")])
                opened.notices.append(a_notice("rolled back"))
                raise ZeroDivisionError
        await submit(rest, "committed", "name")
        await notify(rest, a_notice("committed"))
        await eventually(lambda: unsettled(rest, launcher), 0)
        assert published["committed"] == 1
        assert published["rest/job/committed/1"] >= 1
        assert not [event for event in published if "rolled" in event]


async def test_a_message_of_a_process_that_was_killed_after_its_commit_is_republished(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap):
        pass  # makes the tables
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "rest"})
    async with conn.transaction():
        now = await conn.fetchval("SELECT now()")
        await publish_all(Transaction(conn, now), Service.REST, [a_job("j")])
    await conn.close()
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await eventually(lambda: answers(rest), {"j": "NAME"})
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_what_memory_does_not_take_is_republished_from_its_row(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "FRESH_BYTES", 3 * LONG)
    names = [f"j{n}" for n in range(40)]
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        async with rest.relay.transaction() as opened:
            jobs = [a_job(name, "n" * LONG) for name in names]
            await publish_all(opened, Service.REST, jobs)
        await eventually(lambda: unsettled(rest, launcher), 0)
        assert (await answers(rest)).keys() == set(names)


async def test_a_message_that_equals_the_one_before_is_not_published_again(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):

        async def revision() -> object:
            return await rest.pool.fetchval("SELECT revision FROM subject WHERE subject = 'j'")

        await submit(rest, "j", "one")
        await submit(rest, "j", "one")
        assert await revision() == 1
        await eventually(lambda: unsettled(rest, launcher), 0)
        await submit(rest, "j", "one")
        assert await revision() == 1
        await submit(rest, "j", "two")
        assert await revision() == 2
        await eventually(lambda: answers(rest), {"j": "TWO"})


async def test_messages_without_end_delay_no_acknowledgement(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):

        async def talk() -> None:
            n = 0
            while True:
                await notify(rest, a_notice(f"talk-{(n := n + 1)}"))

        talkers = [asyncio.create_task(talk()) for _ in range(2)]
        try:
            await submit(rest, "j", "name")
            await eventually(lambda: answers(rest), {"j": "NAME"})

            async def unacknowledged() -> object:
                return await launcher.pool.fetchval(
                    "SELECT count(*) FROM subject WHERE acknowledged < revision"
                )

            await eventually(unacknowledged, 0)
        finally:
            for task in talkers:
                task.cancel()
            await asyncio.wait(talkers)
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_notices_wait_in_their_table_and_are_counted_while_the_bus_is_away(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    published: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "COUNT_EVERY_S", 0.1)
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        fresh_broker.kill()
        await notify(rest, a_notice("a"), a_notice("b", Partition.other_key))

        async def counted() -> float | None:
            return rest.registry.get_sample_value("muster_unpublished_notices")

        await eventually(counted, 2.0)
        fresh_broker.start()
        await eventually(counted, 0.0)
        assert published.keys() >= {"a", "b"}


async def test_large_messages_are_republished_a_few_at_a_time(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "FRESH_BYTES", 5 * LONG)
    publish, sizes = Bus.publish, list[int]()

    async def measuring(self: Bus, records: Sequence[Outgoing]) -> list[BaseException | None]:
        sizes.append(sum(len(record.value or b"") for record in records))
        return await publish(self, records)

    monkeypatch.setattr(Bus, "publish", measuring)
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(20):
            await submit(rest, f"j{n}", "n")
        await eventually(lambda: unsettled(rest, launcher), 0)
        sizes.clear()
        await rest.pool.execute(
            "UPDATE subject SET acknowledged = 0, repeat_at = now(),"
            " message = replace(message, '\"n\"', '\"' || repeat('n', $1) || '\"')",
            LONG,
        )
        await eventually(lambda: unsettled(rest, launcher), 0)
    # A late acknowledgement of what was published before may settle some of them.
    assert sum(sizes) > 10 * LONG, "they were not republished"
    assert max(sizes) < 7 * LONG


async def test_a_partition_that_is_away_delays_only_its_own_messages(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition(monkeypatch, "job-submitted")
    names = [f"j{n}" for n in range(400)]
    stuck = {name for name in names if partition_of(name, 4) == partition.number}
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        async with rest.relay.transaction() as opened:
            await publish_all(opened, Service.REST, [a_job(name) for name in names])

        async def answered() -> set[str]:
            return set(await answers(rest))

        await eventually(answered, set(names) - stuck)
        assert len(rest.bus.away) == 1
        partition.is_away = False
        await eventually(answered, set(names))
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_what_was_often_republished_goes_out_soon_once_its_partition_is_back(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        jobs = [f"j{n}" for n in range(40) if partition_of(f"j{n}", 4) == Partition.number]
        for job in jobs:
            await submit(rest, job, "name")
        await eventually(lambda: unsettled(rest, launcher), 0)
        partition = Partition(monkeypatch, "job-submitted")
        await rest.pool.execute(
            "UPDATE subject SET acknowledged = 0, repeats = 12, repeat_at = now()"
        )
        await eventually(lambda: rest.pool.fetchval("SELECT min(repeats) FROM subject"), 13)
        partition.is_away = False
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_a_message_that_the_bus_refuses_waits_for_a_later_one_or_for_redriving(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):

        async def rejected() -> list[tuple[str, bool]]:
            rows = await rest.pool.fetch(
                "SELECT subject, repeat_at IS NULL FROM subject WHERE rejected > 0 ORDER BY subject"
            )
            return [(row[0], row[1]) for row in rows]

        await submit(rest, "large", "x" * 2_000_000)
        await submit(rest, "too", "x" * 2_000_000)
        await submit(rest, "good", "name")
        await eventually(rejected, [("large", True), ("too", True)])
        await eventually(lambda: answers(rest), {"good": "NAME"})
        await submit(rest, "large", "small")
        await eventually(lambda: answers(rest), {"good": "NAME", "large": "SMALL"})
        assert await rejected() == [("too", True)]
        counted = rest.registry.get_sample_value
        labels = {"topic": "job-submitted"}
        count = counted("muster_records_rejected_total", labels)
        async with rest.pool.acquire() as conn:
            assert await redrive(conn, Service.REST) == 1

        async def tried_again() -> bool:
            return (counted("muster_records_rejected_total", labels) or 0) > (count or 0)

        await eventually(tried_again, True)
        await eventually(rejected, [("too", True)])
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_a_bus_that_is_away_is_not_tried_for_each_message(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        monkeypatch.setattr(rest.settings, "bus_watch_s", 5.0)  # a slow machine writes for seconds
        fresh_broker.kill()
        for n in range(100):
            await submit(rest, f"j{n}", "name")
        failures = {"what": "publish"}
        tries = rest.registry.get_sample_value("muster_transient_failures_total", failures)
        assert (tries or 0) < 20
        fresh_broker.start()
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_two_replicas_share_what_is_due(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    names = [f"j{n}" for n in range(200)]

    @asynccontextmanager
    async def reads_nothing(_runtime: Runtime) -> AsyncIterator[None]:
        yield  # the embedded broker has one member in a group

    async with (
        both(database_url, fresh_broker.bootstrap) as (rest, launcher),
        running(Service.REST, rest.settings, 0, reads_nothing) as second,
    ):
        for n, name in enumerate(names):
            await submit((rest, second)[n % 2], name, "name")
        await notify(second, *(a_notice(name) for name in names))
        await eventually(lambda: unsettled(rest, launcher), 0)
        assert {name: published[name] for name in names} == dict.fromkeys(names, 1)
        await rest.pool.execute("UPDATE subject SET acknowledged = 0, repeat_at = now()")
        await eventually(lambda: unsettled(rest, launcher), 0)
        repeats = {name: published[f"rest/job/{name}/1"] for name in names}
        assert set(repeats.values()) >= {2}, repeats


async def test_a_process_that_hangs_before_a_prepared_statement_loses_its_locks(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    """PostgreSQL counts that time neither as idle nor as a statement's."""
    short = {"idle_transaction_s": 3.0, "bus_timeout_s": 2.0}
    async with both(database_url, fresh_broker.bootstrap, **short) as (rest, _launcher):
        await submit(rest, "j", "n")
        lock = "SELECT FROM rest.subject WHERE subject = 'j' FOR UPDATE"
        hung = await asyncpg.connect(
            database_url, server_settings={"application_name": "muster-rest"}
        )
        try:
            await hung.execute("BEGIN")
            await hung.execute(lock)
            await hung.prepare("SELECT 1")
            async with asyncio.timeout(DEADLINE_S):
                await rest.pool.execute(lock)
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"
            pid = hung.get_server_pid()
            await eventually(lambda: rest.pool.fetchval(sessions, pid), 0)
        finally:
            hung.terminate()
