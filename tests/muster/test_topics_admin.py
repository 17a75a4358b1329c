"""Topics are made, and kept, with the retention and the clean-up that Muster needs."""

import asyncio
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from bare_bus import a_bus
from bus_logins import an_administrator, bus_settings, kafka_client, set_up
from cli.embedded.apache import ADMINISTRATOR, ApacheKafka
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from muster.contracts.acls import topics_of
from muster.contracts.topics import EVERY_TOPIC, TOPICS, Service
from muster.errors import Broken
from muster.settings import DatabaseSettings, ServiceSettings
from muster.topics_admin import TopicConfig, differences, set_up_topics, wanted_config
from pydantic import ValidationError

WAIT_S = 60
THREE_DAYS_MS = "259200000"
SETTINGS = ServiceSettings()
AS_WANTED = {
    "cleanup.policy": "delete",
    "retention.ms": THREE_DAYS_MS,
    "segment.ms": "86400000",
}
ENDLESS = {"retention.ms": "-1"}
OWN_TOPICS = topics_of(Service.SCHEDULER)


def test_broadcasts_are_compacted_and_all_records_are_kept_for_three_days() -> None:
    policies = {topic: wanted_config(topic, SETTINGS) for topic in EVERY_TOPIC}
    assert {config["retention.ms"] for config in policies.values()} == {THREE_DAYS_MS}
    compacted = {t for t, config in policies.items() if config["cleanup.policy"] == "compact"}
    assert compacted == {topic.name for topic in TOPICS.values() if topic.is_compacted}
    assert "node-reported" in compacted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),  # for ever
        ("retention.ms", "604800000"),  # Kafka's own default, 7 days
        ("retention.ms", "259200001"),
        ("retention.ms", "3600000"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", None),
    ],
)
def test_a_value_that_is_not_the_wanted_one_is_a_difference(name: str, value: str | None) -> None:
    config = TopicConfig(effective={**AS_WANTED, name: value}, own={})
    (difference,) = differences({"job-submitted": config}, SETTINGS)
    assert difference.found == {name: value}
    assert difference.wanted == {name: AS_WANTED[name]}
    assert str(difference) == (
        f"topic job-submitted has {name}={value}, wanted is {name}={AS_WANTED[name]}"
    )
    assert difference.command(SETTINGS).endswith(
        f" --entity-name job-submitted --add-config {name}={AS_WANTED[name]}"
    )


def test_a_topic_with_the_wanted_values_is_no_difference_whatever_else_it_has() -> None:
    config = TopicConfig(effective={**AS_WANTED, "segment.bytes": "1048576"}, own={})
    assert differences({"job-submitted": config}, SETTINGS) == []


def test_records_that_outlive_closed_subjects_are_refused_as_a_setting() -> None:
    with pytest.raises(ValidationError, match="MUSTER_TOPIC_RETENTION_DAYS"):
        DatabaseSettings(topic_retention_days=8, closed_subjects_days=8)
    assert DatabaseSettings(topic_retention_days=7, closed_subjects_days=8)


async def configs_of(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, Any]:
    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    (answer,) = await admin.describe_configs(wanted)
    return {
        topic: {name: value for name, value, *_ in entries}
        for _code, _reason, _type, topic, entries in answer.resources
    }


async def until_as_wanted(admin: AIOKafkaAdminClient) -> None:
    """What was set holds on a broker a moment later."""
    wanted = {topic: wanted_config(topic, SETTINGS) for topic in OWN_TOPICS}
    while True:
        found = await configs_of(admin, OWN_TOPICS)
        if all(wanted[topic].items() <= found[topic].items() for topic in OWN_TOPICS):
            return
        await asyncio.sleep(0.02)


def run_as_operator(error: str, kafka: ApacheKafka, installation: Path) -> None:
    """Run the command that an error ends with, by the class that kafka-configs.sh runs, with the
    administrator's log-in.
    """
    script, *arguments = shlex.split(error.rpartition("run: ")[2])
    assert script == "kafka-configs.sh"
    login = kafka.login(ADMINISTRATOR)
    (kafka.home / "admin.properties").write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={login['kafka_ca_file']}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{ADMINISTRATOR}" password="{login["kafka_password"]}";\n'
    )
    java = ["java", "-cp", f"{installation}/jars/*", "kafka.admin.ConfigCommand"]
    subprocess.run([*java, *arguments], check=True, timeout=WAIT_S, cwd=kafka.home)


@pytest.mark.apache
async def test_a_service_makes_topics_and_corrects_others(apache_kafka: ApacheKafka) -> None:
    admin = AIOKafkaAdminClient(**kafka_client(apache_kafka.bootstrap))
    await admin.start()
    large_too = {**ENDLESS, "max.message.bytes": "2000000"}
    await admin.create_topics(
        [
            NewTopic("gang-requested", 3, 1, topic_configs=large_too),
            NewTopic("node-reported", 1, 1, topic_configs={"cleanup.policy": "delete"}),
            NewTopic("node-lost", 1, 1, topic_configs={"cleanup.policy": "compact"}),
            NewTopic("of-somebody-else", 1, 1, topic_configs=ENDLESS),
        ]
    )
    bus = a_bus(apache_kafka.bootstrap)
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as group:
        watching = group.create_task(bus.run())
        while bus.identity is None:
            await asyncio.sleep(0.02)
        await until_as_wanted(admin)
        watching.cancel()
    found = await configs_of(admin, ["gang-requested", "of-somebody-else"])
    assert found["gang-requested"]["max.message.bytes"] == "2000000"
    assert found["of-somebody-else"]["retention.ms"] == "-1"
    await admin.close()
    await bus.close()


@pytest.mark.apache
async def test_a_service_that_may_not_correct_a_topic_ends_with_the_command_that_does(
    apache_kafka: ApacheKafka, apache_installation: Path
) -> None:
    set_up(apache_kafka, 1)
    admin = AIOKafkaAdminClient(**kafka_client(apache_kafka.bootstrap))
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "node-lost", ENDLESS)])
    while (await configs_of(admin, ["node-lost"]))["node-lost"]["retention.ms"] != "-1":
        await asyncio.sleep(0.02)
    bus = a_bus(apache_kafka.bootstrap, "scheduler")
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(WAIT_S):
            await bus.run()
    (error,) = caught.value.exceptions
    assert isinstance(error, Broken)
    assert str(error).startswith(
        "topic node-lost has retention.ms=-1,segment.ms=604800000,"
        f" wanted is retention.ms={THREE_DAYS_MS},segment.ms=86400000;"
        " the bus refuses the change ([Error 29] TopicAuthorizationFailedError"
    )
    assert not bus.is_up
    await asyncio.to_thread(run_as_operator, str(error), apache_kafka, apache_installation)
    await until_as_wanted(admin)
    await admin.close()


@pytest.mark.apache
async def test_a_service_that_may_not_see_how_topics_are_configured_ends_with_the_right_it_lacks(
    apache_kafka: ApacheKafka,
) -> None:
    set_up(apache_kafka, 1)
    administrator = an_administrator(apache_kafka)
    of = (ResourceType.TOPIC, "node-lost", ResourcePatternType.LITERAL, "User:scheduler", None)
    right = AclBindingFilter(*of, AclOperation.DESCRIBE_CONFIGS, AclPermissionType.ANY)
    for future in administrator.delete_acls([right]).values():
        assert len(future.result(WAIT_S)) == 1
    settings = ServiceSettings(**bus_settings(apache_kafka.bootstrap, "scheduler"))
    with pytest.raises(Broken, match=r"DescribeConfigs on them .*'node-lost'.*Authorization"):
        await until_refused(settings)


async def until_refused(settings: ServiceSettings) -> None:
    """The broker knows of a change a moment later."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await set_up_topics(settings, OWN_TOPICS)
