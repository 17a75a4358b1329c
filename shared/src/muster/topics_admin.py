"""How Muster's topics must be configured on a real Kafka. A service makes and corrects the topics
that it uses where it may; on a Kafka with log-ins an administrator does (`muster.bus_admin`).

Retention is exactly the setting, neither endless nor the broker's default: closed subjects must be
kept longer than records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidRequestError,
    NoError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from muster.contracts.topics import TOPICS
from muster.errors import Broken, Transient
from muster.settings import ServiceSettings

_log = structlog.get_logger()

REFUSALS = (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidRequestError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)
"""Errors that only an operator can fix. Any other error may pass."""

DAY_MS = 24 * 3600 * 1000

OWN = 1
"""Kafka's number for a value that is set on the topic itself, and not on the broker."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What holds for a topic, and the part of it that is set on the topic itself."""

    effective: Mapping[str, str | None]
    own: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """The values of a topic that are not the wanted ones."""

    topic: str
    found: Mapping[str, str | None]
    wanted: Mapping[str, str]

    def command(self, settings: ServiceSettings) -> str:
        """The command by which an operator corrects the topic."""
        log_in = " --command-config admin.properties" if settings.kafka_user else ""
        return (
            f"kafka-configs.sh --bootstrap-server {settings.kafka_bootstrap}{log_in} --alter"
            f" --entity-type topics --entity-name {self.topic} --add-config {_text(self.wanted)}"
        )

    def __str__(self) -> str:
        return f"topic {self.topic} has {_text(self.found)}, wanted is {_text(self.wanted)}"


def wanted_config(topic: str, settings: ServiceSettings) -> dict[str, str]:
    """The values that a topic is made with and must have."""
    keeps_newest = topic in TOPICS and TOPICS[topic].is_compacted
    wanted = {
        "cleanup.policy": "compact" if keeps_newest else "delete",
        "retention.ms": str(settings.topic_retention_days * DAY_MS),
    }
    # Kafka keeps a record for as long as its segment is open, which is 7 days by default.
    return wanted if keeps_newest else {**wanted, "segment.ms": str(DAY_MS)}


def differences(configs: Mapping[str, TopicConfig], settings: ServiceSettings) -> list[Difference]:
    """The topics that have other values than the wanted ones."""
    different = []
    for topic, config in configs.items():
        wanted = wanted_config(topic, settings).items()
        wrong = {name: value for name, value in wanted if config.effective.get(name) != value}
        if wrong:
            found = {name: config.effective.get(name) for name in wrong}
            different.append(Difference(topic, found, wrong))
    return different


@dataclass(frozen=True, slots=True)
class Made:
    """The topics that were made, and those that the bus refuses to make, with its reasons."""

    topics: Sequence[str] = ()
    refused: str | None = None


async def set_up_topics(settings: ServiceSettings, topics: Sequence[str]) -> Made:
    """Make the topics that are missing, and correct those that are configured otherwise.

    Raises Broken where the bus refuses to correct them.
    """
    admin = AIOKafkaAdminClient(**settings.kafka_client())
    try:
        await admin.start()
        present = set(await admin.list_topics())
        missing = [topic for topic in topics if topic not in present]
        made, made_by_others = await _make(admin, missing, settings) if missing else (Made(), ())
        present.update(made_by_others)
        await _correct(admin, [topic for topic in topics if topic in present], settings)
    finally:
        await admin.close()
    return made


async def _make(
    admin: AIOKafkaAdminClient, topics: Sequence[str], settings: ServiceSettings
) -> tuple[Made, set[str]]:
    """Make topics; what became of it, and those that another process has made meanwhile."""
    size = settings.topic_partitions, settings.topic_replication
    wanted = [
        NewTopic(topic, *size, topic_configs=wanted_config(topic, settings)) for topic in topics
    ]
    try:
        answer = await admin.create_topics(wanted)
    except AttributeError as error:  # what aiokafka raises where there is no controller
        raise Transient(f"the bus has no controller to make {topics} with") from error
    errors = {topic: for_code(code)(reason) for topic, code, reason in answer.topic_errors}
    made = [topic for topic, error in errors.items() if isinstance(error, NoError)]
    others = {t for t, error in errors.items() if isinstance(error, TopicAlreadyExistsError)}
    refused = {t: str(error) for t, error in errors.items() if t not in {*made, *others}}
    if not refused:
        return Made(made), others
    reasons = "; ".join(sorted(set(refused.values())))
    failure = f"{sorted(refused)} are missing, or this user may not see them: {reasons}"
    return Made(made, failure), others


async def _correct(
    admin: AIOKafkaAdminClient, topics: Sequence[str], settings: ServiceSettings
) -> None:
    configs = await _configs(admin, topics)
    different = differences(configs, settings)
    if not different:
        return
    # The request replaces all that is set on a topic: what others have set on it stays as it is.
    resources = [
        _resource(each.topic, {**configs[each.topic].own, **each.wanted}) for each in different
    ]
    answers = await admin.alter_configs(resources)
    refused = _refused(resource for answer in answers for resource in answer.resources)
    hopeless = [
        f"{each}; the bus refuses the change ({refused[each.topic]}), so run:"
        f" {each.command(settings)}"
        for each in different
        if each.topic in refused
    ]
    if hopeless:
        raise Broken("\n".join(hopeless))
    _log.warning("corrected topics", topics=[str(each) for each in different])


async def _configs(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, TopicConfig]:
    answers = await admin.describe_configs([_resource(topic) for topic in topics])
    resources = [resource for answer in answers for resource in answer.resources]
    if refused := _refused(resources):
        raise Broken(
            f"the bus does not show how topics are configured, so grant this service"
            f" DescribeConfigs on them (python -m muster.bus_admin): {refused}"
        )
    return {
        topic: TopicConfig(
            effective={name: value for name, value, *_ in entries},
            own={name: value for name, value, _read_only, source, *_ in entries if source == OWN},
        )
        for _code, _reason, _type, topic, entries in resources
    }


def _refused(resources: Iterable[Sequence[Any]]) -> dict[str, str]:
    """The topics for which the bus refuses a request, with its reason. Raises what may pass."""
    refused = {}
    for code, reason, _type, topic, *_ in resources:
        error = for_code(code)(f"{topic}: {reason}")
        if isinstance(error, REFUSALS):
            refused[topic] = str(error)
        elif not isinstance(error, NoError):
            raise error
    return refused


def _resource(topic: str, config: Mapping[str, str | None] | None = None) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, topic, config)


def _text(values: Mapping[str, str | None]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
