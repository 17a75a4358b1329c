"""Topics are made, and kept, with the retention and the clean-up that Muster needs."""

import asyncio
import shlex
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    BrokerResponseError,
    NoError,
    TopicAuthorizationFailedError,
)
from bare_bus import a_bus
from cli.embedded.apache import ApacheKafka
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from muster.contracts.topics import EVERY_TOPIC, TOPICS
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
WITH_ACLS = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


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
    assert difference.command("kafka:9092").endswith(
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
    wanted = {topic: wanted_config(topic, SETTINGS) for topic in EVERY_TOPIC}
    while True:
        found = await configs_of(admin, EVERY_TOPIC)
        if all(wanted[topic].items() <= found[topic].items() for topic in EVERY_TOPIC):
            return
        await asyncio.sleep(0.02)


async def until_answered(
    error: type[BrokerResponseError],
    ask: Callable[[Sequence[ConfigResource]], Awaitable[Any]],
    config: Mapping[str, str] | None = None,
) -> None:
    """Ask about a topic until the broker, which knows of a change a moment later, answers so."""
    while True:
        (answer,) = await ask([ConfigResource(ConfigResourceType.TOPIC, "node-lost", config)])
        ((code, *_),) = answer.resources
        if code == error.errno:
            return
        await asyncio.sleep(0.05)


def run_as_operator(told: str, installation: Path) -> None:
    """Run the command that an error ends with, by the class that kafka-configs.sh runs."""
    script, *arguments = shlex.split(told.rpartition("run: ")[2])
    assert script == "kafka-configs.sh"
    java = ["java", "-cp", f"{installation}/jars/*", "kafka.admin.ConfigCommand"]
    subprocess.run([*java, *arguments], check=True, timeout=WAIT_S)


@pytest.mark.apache
async def test_a_service_makes_topics_and_corrects_others(apache_kafka: ApacheKafka) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=apache_kafka.bootstrap)
    await admin.start()
    large_too = {**ENDLESS, "max.message.bytes": "2000000"}
    await admin.create_topics(
        [
            NewTopic("job-submitted", 3, 1, topic_configs=large_too),
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
    found = await configs_of(admin, ["job-submitted", "of-somebody-else"])
    assert found["job-submitted"]["max.message.bytes"] == "2000000"
    assert found["of-somebody-else"]["retention.ms"] == "-1"
    await admin.close()
    await bus.close()


@pytest.mark.apache
async def test_a_service_that_may_not_correct_a_topic_ends_with_the_command_that_does(
    apache_installation: Path, tmp_path: Path
) -> None:
    with ApacheKafka(tmp_path / "kafka", apache_installation, properties=WITH_ACLS) as kafka:
        operator = an_operator(kafka)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        bus = a_bus(kafka.bootstrap)
        await set_up_topics(bus.settings)
        await until_answered(NoError, admin.alter_configs, ENDLESS)
        set_acls(operator, ALLOW_ALL, deny(AclOperation.ALTER_CONFIGS))
        await until_answered(TopicAuthorizationFailedError, admin.alter_configs, ENDLESS)
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
        set_acls(operator, ALLOW_ALL)
        await until_answered(NoError, admin.alter_configs, ENDLESS)
        await asyncio.to_thread(run_as_operator, str(error), apache_installation)
        await until_as_wanted(admin)
        await admin.close()


@pytest.mark.apache
async def test_a_service_that_may_not_see_how_topics_are_configured_ends_with_the_right_it_lacks(
    apache_installation: Path, tmp_path: Path
) -> None:
    with ApacheKafka(tmp_path / "kafka", apache_installation, properties=WITH_ACLS) as kafka:
        settings = ServiceSettings(kafka_bootstrap=kafka.bootstrap)
        await set_up_topics(settings)
        set_acls(an_operator(kafka), ALLOW_ALL, deny(AclOperation.DESCRIBE_CONFIGS))
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        await until_answered(TopicAuthorizationFailedError, admin.describe_configs)
        with pytest.raises(Broken, match=r"DescribeConfigs on them: .*'node-lost'.*Authorization"):
            await set_up_topics(settings)
        await admin.close()


def an_operator(kafka: ApacheKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})


def rule(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    """What anybody may do to any topic, or may not."""
    literal = ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, "*", literal, "User:*", "*", operation, permission)


ALLOW_ALL = rule(AclOperation.ALL, AclPermissionType.ALLOW)


def deny(operation: AclOperation) -> AclBinding:
    return rule(operation, AclPermissionType.DENY)


def set_acls(operator: AdminClient, *bindings: AclBinding) -> None:
    """Set the rights on topics, instead of those before."""
    every = (ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, None, None)
    before = AclBindingFilter(*every, AclOperation.ANY, AclPermissionType.ANY)
    for changed in (operator.delete_acls([before]), operator.create_acls(list(bindings))):
        for future in changed.values():
            future.result(WAIT_S)
