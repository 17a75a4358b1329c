"""The plumbing end to end: two toy services that exchange messages about jobs, over a real
PostgreSQL and a Kafka-protocol broker that dies, doubles and loses.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from bus_logins import kafka_client
from cli.embedded.broker import EmbeddedBroker
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from muster.bus import Bus
from muster.contracts.topics import Kind, Service
from muster.decisions import Publish
from muster.inbox import ATTEMPTS_ALONE
from muster.recovery import redrive, resync_all
from muster.service import Runtime
from muster.subjects import publish_all
from toy_services import (
    POISON,
    answers,
    both,
    dead_letters,
    eventually,
    request,
    submit,
    unsettled,
)

SUBMITTED = "job-submitted"


async def test_a_message_is_applied_answered_and_then_nothing_flows(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(50):
            await submit(rest, f"j{n}", f"n{n}")
        await eventually(lambda: answers(rest), {f"j{n}": f"N{n}" for n in range(50)})
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_a_poisoned_record_is_a_dead_letter_and_its_neighbours_are_applied(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(20):
            await submit(rest, f"j{n}", {7: "poison", 11: "nul"}.get(n, f"n{n}"))
        wanted = {f"j{n}": f"N{n}" for n in range(20) if n not in (7, 11)}

        async def good() -> dict[str, str]:
            return {job: text for job, text in (await answers(rest)).items() if text}

        await eventually(good, wanted)
        await eventually(lambda: dead_letters(launcher), 2)

        async def rejected() -> list[str]:
            rows = await rest.pool.fetch("SELECT job FROM toy WHERE is_rejected ORDER BY job")
            return [r["job"] for r in rows]

        await eventually(rejected, ["j11", "j7"])
        await eventually(lambda: unsettled(rest, launcher), 0)
        await submit(rest, "j7", "cured")

        async def cured() -> str | None:
            return (await answers(rest)).get("j7")

        await eventually(cured, "CURED")


async def test_records_that_cannot_be_read_are_dead_letters(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        producer = AIOKafkaProducer(**kafka_client(fresh_broker.bootstrap))
        await producer.start()
        await producer.send_and_wait("job-submitted", b"\xff{", key=b"x")
        await producer.send_and_wait("job-submitted", b'{"job": 7}', key=b"x")
        await producer.stop()
        await submit(rest, "j", "after")
        await eventually(lambda: answers(rest), {"j": "AFTER"})

        async def published() -> float | None:
            return launcher.registry.get_sample_value(
                "muster_records_published_total", {"topic": "job-submitted.dead-letter"}
            )

        await eventually(published, 2.0)


async def test_a_broker_that_is_thrown_away_costs_delay_only(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await submit(rest, "before", "before")
        await eventually(lambda: answers(rest), {"before": "BEFORE"})
        fresh_broker.kill()
        for n in range(20):
            await submit(rest, f"j{n}", f"n{n}")
        fresh_broker.start()
        wanted = {f"j{n}": f"N{n}" for n in range(20)} | {"before": "BEFORE"}
        await eventually(lambda: answers(rest), wanted)
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_an_empty_bus_under_the_same_id_costs_delay_only(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for service in (rest, launcher):
            service.bus.on_new_bus.clear()  # nobody can tell the new bus from the old one
        for n in range(20):
            await submit(rest, f"old{n}", "old")
        await eventually(lambda: unsettled(rest, launcher), 0)
        fresh_broker.kill()
        for n in range(5):
            await submit(rest, f"new{n}", "new")
        fresh_broker.start()
        wanted = {f"old{n}": "OLD" for n in range(20)} | {f"new{n}": "NEW" for n in range(5)}
        await eventually(lambda: answers(rest), wanted)
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_every_fifth_record_lost_for_ever_costs_delay_only(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, count = Bus.publish, 0

    async def lossy(self: Bus, records: Sequence[Any]) -> list[BaseException | None]:
        nonlocal count
        kept: list[int] = []
        for place in range(len(records)):
            count += 1
            kept += [place] * (0 if count % 5 == 0 else 1 + (count % 7 == 0))
        outcomes: list[BaseException | None] = [None] * len(records)
        for place, outcome in zip(
            kept, await publish(self, [records[n] for n in kept]), strict=True
        ):
            outcomes[place] = outcome
        return outcomes

    monkeypatch.setattr(Bus, "publish", lossy)
    monkeypatch.setattr("muster.exchange.REPEAT_LONGEST", timedelta(seconds=4))
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(30):
            await submit(rest, f"j{n}", f"n{n}")
        await eventually(lambda: answers(rest), {f"j{n}": f"N{n}" for n in range(30)})
        await eventually(lambda: unsettled(rest, launcher), 0)


CUT_OFF = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def publish_as_rest(bootstrap: str, job: str, name: str) -> None:
    """REST's first message on a job, without REST and its database."""
    message = request(job, name).model_copy(update={"revision": 1})
    async with AIOKafkaProducer(**kafka_client(bootstrap)) as producer:
        await producer.send_and_wait(
            "job-submitted", message.model_dump_json().encode(), key=job.encode()
        )


WAITS_FOR_A_LOCK = """
    SELECT EXISTS (
        SELECT 1 FROM pg_locks JOIN pg_class ON pg_class.oid = relation
        WHERE NOT granted AND relname IN ('toy', 'gone')
    )
"""


async def test_database_downtime_makes_no_dead_letter(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await submit(rest, "j", "first")
        await eventually(lambda: answers(rest), {"j": "FIRST"})
        await launcher.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'muster-launcher' AND pid <> pg_backend_pid()"
        )
        async with rest.pool.acquire() as operator, operator.transaction():
            await operator.execute("ALTER TABLE launcher.toy RENAME TO gone")
            await submit(rest, "j", "second")
            await eventually(lambda: operator.fetchval(WAITS_FOR_A_LOCK), True)
            await operator.execute("ALTER TABLE launcher.gone RENAME TO toy")
        await eventually(lambda: answers(rest), {"j": "SECOND"})
        assert await dead_letters(launcher) == 0


async def test_a_failover_of_the_database_is_waited_for(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    """A standby is read-only for a while, and the connections to the server before it end."""
    name = database_url.rpartition("/")[2]
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await submit(rest, "j", "first")
        await eventually(lambda: answers(rest), {"j": "FIRST"})
        operator = await asyncpg.connect(database_url)
        await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await operator.execute(CUT_OFF)
        await publish_as_rest(fresh_broker.bootstrap, "j2", "second")

        async def is_retried() -> bool:
            what = {"what": "batch"}
            found = launcher.registry.get_sample_value("muster_transient_failures_total", what)
            return bool(found)

        await eventually(is_retried, True)
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await operator.execute(CUT_OFF)
        await operator.close()
        await publish_as_rest(fresh_broker.bootstrap, "j3", "third")
        wanted = {"j": "first", "j2": "second", "j3": "third"}
        await eventually(lambda: answers(launcher), wanted)
        assert await dead_letters(launcher) == 0


async def test_a_batch_that_takes_too_long_is_halved_until_the_culprit_is_found(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap, statement_timeout_s=1.0) as two:
        rest, launcher = two
        async with rest.relay.transaction() as opened:
            names = ["slow" if n == 7 else f"n{n}" for n in range(20)]
            jobs = [
                Publish(Kind.JOB, f"j{n}", "job-submitted", f"j{n}", request(f"j{n}", name))
                for n, name in enumerate(names)
            ]
            await publish_all(opened, Service.REST, jobs)
        wanted = {f"j{n}": f"N{n}" for n in range(20) if n != 7}

        async def applied() -> dict[str, str]:
            return {job: text for job, text in (await answers(rest)).items() if text}

        await eventually(applied, wanted)
        await eventually(lambda: dead_letters(launcher), 1)


async def test_a_commit_that_hangs_makes_no_dead_letter(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    """As where a synchronous standby is away: the database answers, but no commit."""
    async with both(database_url, fresh_broker.bootstrap, statement_timeout_s=0.5) as two:
        rest, launcher = two
        operator = await asyncpg.connect(database_url, server_settings={"search_path": "launcher"})
        await operator.execute(
            "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN PERFORM pg_sleep(3600); RETURN NULL; END';"
            " CREATE CONSTRAINT TRIGGER hangs AFTER INSERT ON toy DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION hang()"
        )
        await submit(rest, "j", "name")
        what = {"what": "batch"}

        async def is_retried_often() -> bool:
            name = "muster_transient_failures_total"
            return (launcher.registry.get_sample_value(name, what) or 0) > ATTEMPTS_ALONE

        await eventually(is_retried_often, True)
        await operator.execute("DROP FUNCTION hang CASCADE")
        await operator.close()
        await eventually(lambda: answers(rest), {"j": "NAME"})
        assert await dead_letters(launcher) == 0


async def test_lost_offsets_of_a_group_change_nothing(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    jobs = {f"j{n}": "NAME" for n in range(10)}
    rows = "SELECT subject, revision, seen FROM subject WHERE subject <> 'last' ORDER BY subject"
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for job in jobs:
            await submit(rest, job, "name")
        await eventually(lambda: answers(rest), jobs)
        await eventually(lambda: unsettled(rest, launcher), 0)
        before = await launcher.pool.fetch(rows)

        async def has_committed_all() -> bool:
            return await committed(fresh_broker.bootstrap) == received(launcher)

        await eventually(has_committed_all, True)
        records = received(launcher)  # more than the jobs where one was published again
    session_s = launcher.settings.group_session_s
    group = AIOKafkaConsumer(
        SUBMITTED,
        **kafka_client(fresh_broker.bootstrap),
        group_id="muster-launcher",
        enable_auto_commit=False,
        session_timeout_ms=int(1000 * session_s),
        heartbeat_interval_ms=int(300 * session_s),
    )
    async with group:
        await eventually(lambda: has_partitions(group), True)
        await group.commit(dict.fromkeys(group.assignment(), 0))
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):

        async def has_read_all_again() -> bool:
            return received(launcher) >= records

        await eventually(has_read_all_again, True)
        await submit(rest, "last", "name")
        await eventually(lambda: answers(rest), jobs | {"last": "NAME"})
        await eventually(lambda: unsettled(rest, launcher), 0)
        assert await dead_letters(launcher) == 0
        assert await launcher.pool.fetch(rows) == before


def received(launcher: Runtime) -> float:
    """How many records of job-submitted the Launcher has read."""
    name, labels = "muster_records_received_total", {"topic": SUBMITTED}
    value = launcher.registry.get_sample_value(name, labels)
    return float(value or 0.0)


async def committed(bootstrap: str) -> int:
    """How many records of job-submitted the Launcher's group has read, as the bus knows."""
    admin = AIOKafkaAdminClient(**kafka_client(bootstrap))
    await admin.start()
    try:
        metadata = await admin.describe_topics([SUBMITTED])
        places = [
            TopicPartition(SUBMITTED, each["partition"]) for each in metadata[0]["partitions"]
        ]
        found = await admin.list_consumer_group_offsets("muster-launcher", partitions=places)
    finally:
        await admin.close()
    return sum(max(0, each.offset) for each in found.values())


async def has_partitions(consumer: AIOKafkaConsumer) -> bool:
    return bool(consumer.assignment())


async def test_records_are_cloudevents_that_the_sdk_reads(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, _launcher):
        consumer = AIOKafkaConsumer(
            "job-submitted",
            **kafka_client(fresh_broker.bootstrap),
            auto_offset_reset="earliest",
        )
        await consumer.start()
        await submit(rest, "j", "name")
        record = await consumer.getone()
        await consumer.stop()
        event = from_kafka_event(KafkaMessage(dict(record.headers), record.key, record.value))
        data = event.get_data()
        assert event.get_type() == "muster.job-submitted.v1"
        assert event.get_id() == "rest/job/j/1"
        assert event.get_subject() == "j"
        assert (data["name"], data["revision"]) == ("name", 1)


async def test_redriving_brings_a_dead_letter_back(
    database_url: str, fresh_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POISON, "is", True)
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        await submit(rest, "j", "poison")
        await eventually(lambda: dead_letters(launcher), 1)
        await eventually(lambda: unsettled(rest, launcher), 0)
        POISON["is"] = False
        async with rest.pool.acquire() as conn:
            assert await redrive(conn, Service.REST) == 1

        async def cured() -> str | None:
            return (await answers(rest)).get("j")

        await eventually(cured, "POISON")
        assert await dead_letters(launcher) == 0


async def test_a_restored_backup_becomes_equal_again(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for n in range(10):
            await submit(rest, f"j{n}", "old")
        await eventually(lambda: answers(rest), {f"j{n}": "OLD" for n in range(10)})
        await eventually(lambda: unsettled(rest, launcher), 0)
        await launcher.pool.execute("CREATE TABLE backup AS SELECT * FROM subject")
        for n in range(10):
            await submit(rest, f"j{n}", "new")
        await eventually(lambda: answers(rest), {f"j{n}": "NEW" for n in range(10)})
        await eventually(lambda: unsettled(rest, launcher), 0)
        async with launcher.pool.acquire() as conn, conn.transaction():
            await conn.execute("DELETE FROM subject; INSERT INTO subject SELECT * FROM backup")
            await conn.execute("UPDATE toy SET text = 'restored'")
        for service in (rest, launcher):
            async with service.pool.acquire() as conn:
                assert await resync_all(conn, service.bus.me) == 10

        async def applied() -> set[str]:
            return {r["text"] for r in await launcher.pool.fetch("SELECT text FROM toy")}

        await eventually(applied, {"new"})
        await eventually(lambda: answers(rest), {f"j{n}": "NEW" for n in range(10)})
        await eventually(lambda: unsettled(rest, launcher), 0)


async def test_at_rest_nothing_flows_with_100_000_open_subjects(
    database_url: str, fresh_broker: EmbeddedBroker
) -> None:
    async with both(database_url, fresh_broker.bootstrap) as (rest, launcher):
        for service in (rest, launcher):
            await service.pool.execute(
                "INSERT INTO subject (kind, subject, revision, seen, acknowledged, topic, key,"
                " message) SELECT 'job', 'rest-' || n, 1, 1, 1, 'job-submitted', 'k', '{}'"
                " FROM generate_series(1, 100000) n"
            )
        await submit(rest, "j", "one")
        await eventually(lambda: answers(rest), {"j": "ONE"})
        await eventually(lambda: unsettled(rest, launcher), 0)

        def published() -> float:
            return sum(
                sample.value
                for service in (rest, launcher)
                for metric in service.registry.collect()
                for sample in metric.samples
                if sample.name == "muster_records_published_total"
            )

        # On a slow machine a few messages are repeated before they are answered.
        assert 3 <= published() <= 50, "more than this one exchange flowed"
