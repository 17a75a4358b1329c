"""A real Apache Kafka: its records outlive it, and two of them are two clusters."""

from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from bus_logins import kafka_client, running_closed
from cli.embedded.apache import ApacheKafka
from cli.embedded.process import EmbeddedServerError

pytestmark = [pytest.mark.apache, pytest.mark.slow]


async def _read_one(bootstrap: str, topic: str) -> bytes | None:
    consumer = AIOKafkaConsumer(topic, **kafka_client(bootstrap), auto_offset_reset="earliest")
    await consumer.start()
    try:
        record = await consumer.getone()
        return record.value  # type: ignore[no-any-return]
    finally:
        await consumer.stop()


async def _make_topic(bootstrap: str, topic: str) -> str:
    admin = AIOKafkaAdminClient(**kafka_client(bootstrap))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        return str((await admin.describe_cluster())["cluster_id"])
    finally:
        await admin.close()


async def test_records_outlive_a_kill_and_a_stop(apache_kafka: ApacheKafka) -> None:
    await _make_topic(apache_kafka.bootstrap, "kept")
    producer = AIOKafkaProducer(**kafka_client(apache_kafka.bootstrap), enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait("kept", b"value")
    finally:
        await producer.stop()
    apache_kafka.kill()
    apache_kafka.start()
    assert await _read_one(apache_kafka.bootstrap, "kept") == b"value"
    apache_kafka.stop()
    apache_kafka.start()
    assert await _read_one(apache_kafka.bootstrap, "kept") == b"value"


async def test_each_new_folder_is_a_cluster_of_its_own(
    apache_kafka: ApacheKafka, apache_installation: Path, tmp_path: Path
) -> None:
    first = await _make_topic(apache_kafka.bootstrap, "topic-one")
    with running_closed(ApacheKafka(tmp_path / "other", apache_installation)) as other:
        assert await _make_topic(other.bootstrap, "topic-one") != first


def test_missing_jars_are_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="make kafka"):
        ApacheKafka(tmp_path / "home", tmp_path / "nothing").start()
