"""How tests connect to the bus, whichever broker it is: the address alone, or with a log-in."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from cli.embedded.apache import ADMINISTRATOR, AGENT, NODE, ApacheKafka
from confluent_kafka.admin import AdminClient
from muster.bus_admin import set_up_bus
from muster.contracts.topics import Service
from muster.settings import ServiceSettings

_closed: dict[str, ApacheKafka] = {}


@contextmanager
def running_closed(kafka: ApacheKafka) -> Iterator[ApacheKafka]:
    """A Kafka with log-ins that the functions below know."""
    with kafka:
        _closed[kafka.bootstrap] = kafka
        try:
            yield kafka
        finally:
            del _closed[kafka.bootstrap]


def set_up(kafka: ApacheKafka, partitions: int) -> None:
    """The administrator's step: topics and rights."""
    settings = ServiceSettings(
        **bus_settings(kafka.bootstrap, ADMINISTRATOR), topic_partitions=partitions
    )
    with ThreadPoolExecutor(1) as pool:  # whether or not a loop runs here
        pool.submit(asyncio.run, set_up_bus(settings, [NODE])).result()


def bus_settings(bootstrap: str, user: str = ADMINISTRATOR) -> dict[str, Any]:
    """The settings of a user of the bus at an address.

    A service that is started again waits for the session of its old member in the group. A real
    Apache Kafka takes none as short.
    """
    kafka = _closed.get(bootstrap)
    if kafka is None:
        return {"kafka_bootstrap": bootstrap, "group_session_s": 2.0}
    return kafka.login(user)


def user_of(service: Service) -> str:
    """The user of a service."""
    return AGENT if service is Service.RUNTIME_AGENT else service.value


def kafka_client(bootstrap: str, user: str = ADMINISTRATOR) -> dict[str, Any]:
    """The options of an aiokafka client."""
    return ServiceSettings(**bus_settings(bootstrap, user)).kafka_client()


def an_administrator(kafka: ApacheKafka) -> AdminClient:
    """confluent's client, for what aiokafka's can't."""
    login = kafka.login(ADMINISTRATOR)
    return AdminClient(
        {
            "bootstrap.servers": kafka.bootstrap,
            "security.protocol": login["kafka_security_protocol"],
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": login["kafka_user"],
            "sasl.password": login["kafka_password"],
            "ssl.ca.location": login["kafka_ca_file"],
            "log_level": 0,
        }
    )
