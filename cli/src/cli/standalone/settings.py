"""Settings of `muster up`, from the environment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from muster.passwords import AdminPassword
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from cli.home import checkout_root

Port = Annotated[int, Field(ge=1, le=65535)]
MOST_FAKE_GPUS = 1024
MOST_PARTITIONS = 64
"""The embedded broker takes some 5 MiB for each partition of each topic."""


class UpSettings(BaseSettings):
    """What a person may choose about standalone mode. Options of the command override these."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_", extra="ignore")

    port: Port | None = Field(
        None, description="Where REST listens, on 127.0.0.1; else as at the last start, else 8080."
    )
    kafka: Literal["embedded", "apache"] | None = Field(
        None, description="Which broker to bring; else as at the last start, else embedded."
    )
    kafka_home: Path | None = Field(
        None, description="Apache Kafka as `make kafka` prepared it; else .kafka in the checkout."
    )
    kafka_port: Port | None = Field(None, description="The embedded broker's port; else 9092.")
    database_port: Port | None = Field(None, description="The embedded database's port.")
    kafka_bootstrap: str | None = Field(None, description="A Kafka elsewhere: none is started.")
    database_url: SecretStr | None = Field(
        None, description="A PostgreSQL elsewhere: none is started."
    )
    prometheus: Path | None = Field(
        None,
        description="The program of --monitoring; else as `make prometheus` fetched it, or on the"
        " PATH.",
    )
    admin_password: AdminPassword | None = Field(None, description="For the first start.")
    fake_gpus: NonNegativeInt | None = Field(
        None,
        le=MOST_FAKE_GPUS,
        description="Simulated GPUs; by default 8 where no GPU driver is found, else none.",
    )
    topic_partitions: PositiveInt = Field(
        1, le=MOST_PARTITIONS, description="Partitions of each topic of the embedded broker."
    )
    ready_timeout_s: PositiveFloat = Field(120.0, description="All services are ready by then.")
    pods_grace_s: PositiveFloat = Field(
        60.0, description="The agent gets this long to stop its pods at Ctrl-C."
    )
    log_max_mb: PositiveInt = Field(
        16, description="A log file is cut at this size; one old part is kept."
    )

    def kafka_installation(self) -> Path:
        """Where Apache Kafka's jars are."""
        root = checkout_root()
        return self.kafka_home or (root or Path.cwd()) / ".kafka"


@dataclass(frozen=True)
class Options:
    """What the command line asked for. `ends_with_demo`: stop then, with the job's status."""

    keep_jobs: bool = False
    demo: bool = False
    ends_with_demo: bool = False
    monitoring: bool = False
