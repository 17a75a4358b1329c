"""Settings that every service has: from the environment (``MUSTER_…``) and from secret files."""

import socket
import sys
from pathlib import Path
from typing import Self, TypeVar

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

SECRETS_DIR = Path("/run/secrets")
PREFIX = "MUSTER_"


class ServiceSettings(BaseSettings):
    """What a service needs to reach the bus and to be watched. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        secrets_dir=SECRETS_DIR if SECRETS_DIR.is_dir() else None,
        extra="ignore",
        populate_by_name=True,
        hide_input_in_errors=True,  # a wrong secret is one too
    )

    kafka_bootstrap: str = Field(
        "127.0.0.1:9092",
        description="Kafka brokers to connect to first: host:port, separated by commas.",
    )
    http_host: str = Field(
        "127.0.0.1", description="The address on which the HTTP endpoints listen."
    )
    http_trusted_proxies: str = Field(
        "",
        description="Proxies whose X-Forwarded headers are used: addresses, separated by commas;"
        " empty: none.",
    )
    internal_token: SecretStr = Field(
        SecretStr(""), description="Shared by the services for their reads over HTTP; empty: none."
    )
    instance: str = Field(default_factory=socket.gethostname, description="This replica's name.")

    log_level: str = Field("INFO", description="The least level of logged messages.")
    otlp_endpoint: str | None = Field(
        None, description="The address for traces (OTLP over HTTP); without it there are none."
    )

    batch_records: PositiveInt = Field(300, description="Records handled in one transaction.")
    fetch_wait_busy_ms: PositiveInt = Field(
        500,
        description="How long a fetch waits at the broker while records flow. Kafka answers as soon"
        " as there is a record; the embedded broker only when the wait is over, so there it is 4.",
    )
    fetch_wait_idle_ms: PositiveInt = Field(
        500, description="The same after some seconds without a record."
    )
    group_session_s: PositiveFloat = Field(
        6.0, description="A reader that was killed leaves its group after this; Kafka's least is 6."
    )
    bus_watch_s: PositiveFloat = Field(1.0, description="How often the bus's identity is checked.")
    bus_timeout_s: PositiveFloat = Field(
        15.0, description="How long a record may take to be published."
    )
    topic_partitions: PositiveInt = Field(
        4, description="Partitions of each topic that the service creates."
    )
    topic_replication: PositiveInt = Field(
        1, description="Replicas of each topic that the service creates."
    )
    topic_retention_days: PositiveInt = Field(
        3,
        description="How long Kafka keeps records. Every topic must have exactly this retention.ms."
        " At its start a service corrects another value, or stops if it may not.",
    )
    shutdown_s: PositiveFloat = Field(10.0, description="The longest time that a stop takes.")


Settings = TypeVar("Settings", bound=ServiceSettings)


def read(kind: type[Settings]) -> Settings:
    """Settings from the environment. Ends the process with 2 where they are wrong, and says which;
    never their values, which may be secrets.
    """
    try:
        return kind()
    except ValidationError as error:
        for wrong in error.errors(include_input=False, include_url=False, include_context=False):
            name = "_".join(str(step) for step in wrong["loc"]).upper()
            name = name if name.startswith(PREFIX) else PREFIX + name
            sys.stderr.write(f"{name}: {wrong['msg']}\n")
        sys.exit(2)


class DatabaseSettings(ServiceSettings):
    """Settings of a service that keeps its truth in PostgreSQL."""

    database_url: SecretStr = Field(
        SecretStr("postgresql://127.0.0.1:5432/muster"), description="The PostgreSQL database."
    )
    database_connections: PositiveInt = Field(6, description="Connections of one process.")
    statement_timeout_s: PositiveFloat = Field(
        30.0,
        description="The time limit of a statement. A second later the database ends it by itself,"
        " so that a vanished process releases its rows.",
    )
    idle_transaction_s: PositiveFloat = Field(
        20.0,
        description="The idle time after which the database ends a transaction, so that a hung"
        " process releases its rows. It must exceed bus_timeout_s.",
    )

    relay_batch: PositiveInt = Field(300, description="Records published at once.")
    relay_poll_s: PositiveFloat = Field(
        1.0, description="The longest time between two runs of the relay."
    )
    repeats_per_s: PositiveInt = Field(
        20,
        description="The most messages republished a second. It protects a slow peer from more"
        " work.",
    )
    repeats_per_s_after_loss: PositiveInt = Field(
        300,
        description="The same for a minute after a start, a restore, or an unavailable bus or"
        " partition, while a repeat is overdue.",
    )
    resync_s: PositiveFloat = Field(
        5.0, description="How long timers and scheduling wait for peers' messages after a restore."
    )
    retry_first_s: PositiveFloat = Field(0.1, description="First wait after a transient failure.")
    retry_longest_s: PositiveFloat = Field(
        5.0, description="The longest wait after a transient failure; the waits double."
    )
    closed_subjects_days: PositiveInt = Field(
        8, description="How long closed subjects are kept; longer than topics keep records."
    )

    @model_validator(mode="after")
    def _closed_subjects_outlive_records(self) -> Self:
        """Raises ValueError where a record could outlive what is known of its subject."""
        if self.topic_retention_days >= self.closed_subjects_days:
            raise ValueError(
                f"MUSTER_TOPIC_RETENTION_DAYS ({self.topic_retention_days}) must be below"
                f" MUSTER_CLOSED_SUBJECTS_DAYS ({self.closed_subjects_days})"
            )
        return self
