"""What the relay promises of the words that it publishes from memory, with the table as safety."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from cli.embedded.broker import EmbeddedBroker
from muster import relay, upkeep
from muster.bus import Bus, Outgoing, partition_of
from muster.contracts.topics import Service
from muster.outbox import OutboxRow, write
from muster.service import Runtime
from muster.settings import DatabaseSettings
from toy_services import answers, both, eventually, rest_decide, submit, toy_service, unsettled

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG = 100_000
SLOW_S = 0.02


def a_row(event_id: str, value: str = "{}", key: str = "k") -> OutboxRow:
    """A record of no subject, so that nobody repeats it."""
    return OutboxRow("alert-raised", key, None, None, event_id, value, None)


class Partition:
    """One of four that each topic has here; it has no leader while it ``is_away``."""

    number = partition_of("k", 4)
    other_key = next(k for k in "abcdefgh" if partition_of(k, 4) != partition_of("k", 4))

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str = "alert-raised") -> None:
        self.is_away = True
        leader = ClusterMetadata.leader_for_partition

        def led(cluster: ClusterMetadata, place: TopicPartition) -> Any:
            gone = self.is_away and (place.topic, place.partition) == (topic, self.number)
            return -1 if gone else leader(cluster, place)

        monkeypatch.setattr(ClusterMetadata, "leader_for_partition", led)


async def write_rows(service: Runtime, *rows: OutboxRow) -> None:
    async with service.relay.transaction() as conn:
        await write(conn, rows, await conn.fetchval("SELECT clock_timestamp()"))


async def rows_left(service: Runtime) -> int:
    count = await service.pool.fetchval("SELECT count(*) FROM outbox")
    assert isinstance(count, int)
    return count


async def are_away(service: Runtime) -> int:
    return len(service.bus.away)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each event was given to the bus, which is a little slow."""
    publish, seen = Bus.publish, Counter[str]()
    monkeypatch.setattr(relay, "LEFT_EVERY_S", 0.2)  # published rows are forgotten sooner, too

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
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        with suppress(ZeroDivisionError):
            async with rest.relay.transaction() as conn:
                await write(conn, [a_row("rolled back")], NOW)
                raise ZeroDivisionError
        await write_rows(rest, a_row("committed"))
        await eventually(lambda: rows_left(rest), 0)
        assert published["committed"] == 1
        assert published["rolled back"] == 0


async def test_a_task_made_in_a_transaction_publishes_nothing_before_its_own_commit(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    written, over = asyncio.Event(), asyncio.Event()
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):

        async def elsewhere() -> None:
            async with rest.pool.acquire() as conn:
                transaction = conn.transaction()
                await transaction.start()
                await write(conn, [a_row("elsewhere")], NOW)
                written.set()
                await over.wait()
                await transaction.rollback()

        async with rest.relay.transaction() as conn:
            task = asyncio.create_task(elsewhere())
            await write(conn, [a_row("here")], await conn.fetchval("SELECT clock_timestamp()"))
            await written.wait()
        await eventually(lambda: rows_left(rest), 0)
        over.set()
        await task
        assert (published["here"], published["elsewhere"]) == (1, 0)


async def test_an_orderly_stop_leaves_nothing_to_be_published_again(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    published: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "END_S", 60.0)
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await eventually(lambda: rows_left(rest), 0)
        await write_rows(rest, a_row("once"))
        while not published["once"]:
            await asyncio.sleep(SLOW_S)
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await write_rows(rest, a_row("next"))
        await eventually(lambda: rows_left(rest), 0)
        assert (published["once"], published["next"]) == (1, 1)


async def test_more_than_memory_takes_is_published_from_the_table_once(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    published: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "FRESH_BYTES", 5 * LONG)
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await eventually(lambda: rows_left(rest), 0)
        names = [f"{batch}-{n}" for batch in range(20) for n in range(2)]
        for one, other in zip(names[::2], names[1::2], strict=True):
            await write_rows(rest, a_row(one, "x" * LONG), a_row(other, "x" * LONG))
        await eventually(lambda: rows_left(rest), 0)
        assert {name: published[name] for name in names} == dict.fromkeys(names, 1)


async def test_words_without_end_delay_no_acknowledgement(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):

        async def talk() -> None:
            n = 0
            while True:
                await write_rows(rest, a_row(f"talk-{(n := n + 1)}"))

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


async def test_rows_from_before_the_clock_went_back_are_published(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await eventually(lambda: rows_left(rest), 0)
        async with rest.pool.acquire() as conn, conn.transaction():
            hour_ahead = await conn.fetchval("SELECT clock_timestamp() + interval '1 hour'")
            await write(conn, [a_row("ahead")], hour_ahead)
        await eventually(lambda: rows_left(rest), 0)
        assert published["ahead"] == 1


async def test_the_words_that_wait_are_counted_while_the_bus_is_away(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "COUNT_EVERY_S", 0.1)
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        fresh_broker.kill()
        await write_rows(rest, a_row("a"), a_row("b"))

        async def counted() -> float | None:
            return rest.registry.get_sample_value("muster_outbox_rows")

        await eventually(counted, 2.0)
        fresh_broker.start()
        await eventually(counted, 0.0)


async def test_large_words_are_repeated_a_few_at_a_time(
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
            " word = replace(word, '\"n\"', '\"' || repeat('n', $1) || '\"')",
            LONG,
        )
        await eventually(lambda: unsettled(rest, launcher), 0)
    # A late acknowledgement of what was said before may settle some of them.
    assert sum(sizes) > 10 * LONG, "they were not repeated"
    assert max(sizes) < 7 * LONG


async def test_a_partition_that_is_away_holds_up_no_words_of_others(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    published: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = Partition(monkeypatch)
    stuck = [f"stuck {n}" for n in range(700)]
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await write_rows(rest, *(a_row(name) for name in stuck))
        await write_rows(rest, a_row("free", key=partition.other_key))
        await eventually(lambda: rows_left(rest), 700)
        assert published == Counter(["free"])
        assert await are_away(rest) == 1
    # A process that ended has left them all, and one more for the other partition behind them.
    conn = await asyncpg.connect(database_url, server_settings={"search_path": "rest"})
    await write(conn, [a_row("free, left", key=partition.other_key)], NOW)
    await conn.close()
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await eventually(lambda: rows_left(rest), 700)
        assert published == Counter(["free", "free, left"])
        await submit(rest, "j", "name")
        await eventually(lambda: answers(rest), {"j": "NAME"})
        partition.is_away = False
        await eventually(lambda: rows_left(rest), 0)
        assert {name: published[name] for name in stuck} == dict.fromkeys(stuck, 1)


async def test_words_of_a_partition_that_was_away_keep_their_order(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    published: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = Partition(monkeypatch)
    names = [f"{n:03}" for n in range(360)]
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await write_rows(rest, *(a_row(name) for name in names[:320]))
        await eventually(lambda: are_away(rest), 1)
        monkeypatch.setattr(rest.settings, "relay_batch", 20)  # so that it takes a while
        opened = asyncio.Event()
        rest.bus.on_open.append(opened.set)
        partition.is_away = False
        await opened.wait()
        for name in names[320:]:
            await write_rows(rest, a_row(name))
        await eventually(lambda: rows_left(rest), 0)
    in_order = [name for name in published if name in names] == names
    assert in_order  # a difference of long lists is long to tell


async def test_what_was_said_again_to_a_partition_that_was_away_is_soon_said_again(
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


async def test_what_was_parked_is_forgotten_with_what_is_over(
    database_url: str,
    fresh_broker: EmbeddedBroker,
    published: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "CLEAN_EVERY_S", 0.1)
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await write_rows(rest, a_row("too large", "x" * 2_000_000), a_row("good"))

        async def parked() -> object:
            return await rest.pool.fetch("SELECT event_id FROM outbox WHERE parked_for > ''")

        await eventually(parked, [("too large",)])
        await rest.pool.execute("UPDATE outbox SET written_at = now() - interval '9 days'")
        await eventually(parked, [])


async def test_a_bus_that_is_away_is_not_tried_for_each_word(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        await eventually(lambda: rows_left(rest), 0)
        monkeypatch.setattr(rest.settings, "bus_watch_s", 5.0)  # a slow machine writes for seconds
        fresh_broker.kill()
        for n in range(100):
            await write_rows(rest, a_row(f"{n}"))
        failures = {"what": "publish"}
        tries = rest.registry.get_sample_value("muster_transient_failures_total", failures)
        assert (tries or 0) < 20
        fresh_broker.start()
        await eventually(lambda: rows_left(rest), 0)


async def test_two_replicas_publish_each_word_once(
    database_url: str, fresh_broker: EmbeddedBroker, published: Counter[str]
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        assert isinstance(rest.settings, DatabaseSettings)
        async with toy_service(Service.REST, rest_decide, ["job-updated"], rest.settings) as second:
            await write_rows(second, a_row("second's start is over"))
            await eventually(lambda: rows_left(second), 0)
            names = [f"word-{n}" for n in range(200)]
            for n, name in enumerate(names):
                await write_rows((rest, second)[n % 2], a_row(name))
            await eventually(lambda: rows_left(rest), 0)
        assert {name: published[name] for name in names} == dict.fromkeys(names, 1)
