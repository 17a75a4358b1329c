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
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from muster.addresses import is_loopback
from muster.service_keys import KEY_BYTES

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

    kafka_bootstrap: str = "127.0.0.1:9092"
    http_host: str = Field("127.0.0.1", description="Where the HTTP endpoints listen.")
    http_trusted_proxies: str = Field(
        "", description="Addresses, by commas, that are believed whom they forward; none: nobody."
    )
    metrics_token: SecretStr = Field(
        SecretStr(""),
        description="/metrics is for those that send it (Authorization: Bearer); empty: for this"
        " machine's processes only.",
    )
    instance: str = Field(default_factory=socket.gethostname, description="This replica's name.")

    log_level: str = "INFO"
    otlp_endpoint: str | None = Field(None, description="Where traces go (OTLP over HTTP).")

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
        15.0, description="A record that the bus has not taken by then counts as not taken."
    )
    topic_partitions: PositiveInt = Field(4, description="Of topics that the service must make.")
    topic_replication: PositiveInt = 1
    topic_retention_days: PositiveInt = Field(
        3,
        description="Kafka keeps records for so long. Every topic must have exactly this"
        " retention.ms: a service corrects another one at its start, or stops where it may not.",
    )
    shutdown_s: PositiveFloat = Field(10.0, description="A stop takes no longer than this.")


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
            name = name if name.startswith(PREFIX) or not name else PREFIX + name
            words = wrong["msg"].removeprefix("Value error, ")
            sys.stderr.write(f"{name}: {words}\n" if name else f"{words}\n")
        sys.exit(2)


class ClusterKeySettings(ServiceSettings):
    """Settings of REST, and of the command that derives service keys."""

    cluster_key: SecretStr = Field(
        SecretStr(""),
        description="The services that REST reads over HTTP have keys derived from it"
        " (muster.derive_key); empty: REST reads only services without a key.",
    )

    @field_validator("cluster_key")
    @classmethod
    def _is_long(cls, key: SecretStr) -> SecretStr:
        if 0 < len(key.get_secret_value()) < KEY_BYTES:
            raise ValueError(
                f"has less than {KEY_BYTES} characters; make one: openssl rand -hex 32"
            )
        return key


class ReadByRestSettings(ServiceSettings):
    """Settings of a service that REST reads over HTTP."""

    service_key: SecretStr = Field(
        SecretStr(""),
        description="REST's tokens are checked with it: `python -m muster.derive_key AUDIENCE`"
        " prints it. Empty: whoever reaches the port may read, so only this machine may.",
    )

    @model_validator(mode="after")
    def _others_need_a_key(self) -> Self:
        """Raises ValueError where other machines could read without a token."""
        if not self.service_key.get_secret_value() and not is_loopback(self.http_host):
            raise ValueError(
                f"MUSTER_SERVICE_KEY is not set, and MUSTER_HTTP_HOST ({self.http_host}) lets other"
                " machines connect: set it to what `python -m muster.derive_key AUDIENCE` prints"
                " beside REST's MUSTER_CLUSTER_KEY"
            )
        return self


class DatabaseSettings(ServiceSettings):
    """Settings of a service that keeps its truth in PostgreSQL."""

    database_url: SecretStr = SecretStr("postgresql://127.0.0.1:5432/muster")
    database_connections: PositiveInt = Field(6, description="Connections of one process.")
    reserved_connections: PositiveInt = Field(
        2,
        description="More of them, for readiness and authentication: they wait for no slow query.",
    )
    statement_timeout_s: PositiveFloat = Field(
        30.0,
        description="A statement takes no longer; a second later the database ends it by itself, or"
        " one of a process that vanished would keep others from its rows.",
    )
    idle_transaction_s: PositiveFloat = Field(
        20.0,
        description="The database ends a transaction that idles for so long, or a process that"
        " sleeps would keep others from its rows; longer than bus_timeout_s, which is waited in"
        " transactions.",
    )

    relay_batch: PositiveInt = Field(300, description="Records published at once.")
    relay_poll_s: PositiveFloat = Field(1.0, description="The relay looks this often, unasked.")
    repeats_per_s: PositiveInt = Field(
        20, description="Messages republished, at the most: a slow peer must not get more to do."
    )
    repeats_per_s_after_loss: PositiveInt = Field(
        300,
        description="The same for a minute after a start, a restore, or a bus or partition that was"
        " away, while something is overdue.",
    )
    resync_s: PositiveFloat = Field(
        5.0, description="After a restore, timers and scheduling wait so long for what peers tell."
    )
    retry_first_s: PositiveFloat = Field(0.1, description="First wait after a transient failure.")
    retry_longest_s: PositiveFloat = 5.0
    closed_subjects_days: PositiveInt = Field(8, description="Longer than topics keep records.")

    @model_validator(mode="after")
    def _closed_subjects_outlive_records(self) -> Self:
        """Raises ValueError where a record could outlive what is known of its subject."""
        if self.topic_retention_days >= self.closed_subjects_days:
            raise ValueError(
                f"MUSTER_TOPIC_RETENTION_DAYS ({self.topic_retention_days}) must be below"
                f" MUSTER_CLOSED_SUBJECTS_DAYS ({self.closed_subjects_days})"
            )
        return self
