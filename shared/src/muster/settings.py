"""Settings that every service has: from the environment (``MUSTER_…``) and from secret files."""

import socket
import ssl
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

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

Port = Annotated[int, Field(ge=0, le=65535)]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class SecurityProtocol(StrEnum):
    """How a client connects to Kafka. SASL logs in, by SCRAM-SHA-512; SSL encrypts, by TLS."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class UnusableFileError(OSError, ValueError):
    """A file of a setting can't be used. At the start that is a wrong setting (ValueError). Later
    it is a bus that can't be reached for now (OSError): certificates are renewed in place.
    """


class KafkaSettings(BaseSettings):
    """Where Kafka is, and how a client logs in."""

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
    kafka_security_protocol: SecurityProtocol = Field(
        SecurityProtocol.PLAINTEXT, description="SASL_SSL logs in and encrypts."
    )
    kafka_user: str = Field("", description="The user that logs in, with SASL.")
    kafka_password: SecretStr = Field(SecretStr(""), description="The user's password.")
    kafka_ca_file: Path | None = Field(
        None, description="PEM of the authority of Kafka's certificate; else the system's."
    )
    kafka_certificate_file: Path | None = Field(
        None, description="PEM of this client's own certificate, where Kafka asks for one."
    )
    kafka_key_file: Path | None = Field(None, description="PEM of its private key.")

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        """Raises ValueError that names the setting and the fix."""
        protocol = self.kafka_security_protocol
        for name, value in (
            ("MUSTER_KAFKA_USER", self.kafka_user),
            ("MUSTER_KAFKA_PASSWORD", self.kafka_password.get_secret_value()),
        ):
            if "SASL" in protocol and not value:
                raise ValueError(f"{name} is missing: {protocol} needs it")
            if "SASL" not in protocol and value:
                raise ValueError(
                    f"{name} has no effect with {protocol}:"
                    " set MUSTER_KAFKA_SECURITY_PROTOCOL=SASL_SSL"
                )
        files = (self.kafka_ca_file, self.kafka_certificate_file, self.kafka_key_file)
        if "SSL" not in protocol and any(files):
            raise ValueError(
                "MUSTER_KAFKA_CA_FILE, MUSTER_KAFKA_CERTIFICATE_FILE and MUSTER_KAFKA_KEY_FILE have"
                f" no effect with {protocol}: set MUSTER_KAFKA_SECURITY_PROTOCOL=SASL_SSL"
            )
        if (self.kafka_certificate_file is None) != (self.kafka_key_file is None):
            raise ValueError(
                "MUSTER_KAFKA_CERTIFICATE_FILE and MUSTER_KAFKA_KEY_FILE need each other: set both"
            )
        self.kafka_client()
        return self

    def kafka_client(self) -> dict[str, Any]:
        """The options of every aiokafka client: where Kafka is, TLS and log-in.

        Raises UnusableFileError that names the setting whose file can't be used.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": self.kafka_bootstrap,
            "security_protocol": self.kafka_security_protocol.value,
        }
        if "SSL" in self.kafka_security_protocol:
            options["ssl_context"] = self._tls()
        if "SASL" in self.kafka_security_protocol:
            options |= {
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": self.kafka_user,
                "sasl_plain_password": self.kafka_password.get_secret_value(),
            }
        return options

    @property
    def kafka_has_login(self) -> bool:
        """Whether clients prove to Kafka who they are."""
        is_certified = self.kafka_certificate_file is not None
        protocol = self.kafka_security_protocol
        return "SASL" in protocol or ("SSL" in protocol and is_certified)

    def _tls(self) -> ssl.SSLContext:
        name, files = "MUSTER_KAFKA_CA_FILE", str(self.kafka_ca_file)
        try:
            context = ssl.create_default_context(cafile=self.kafka_ca_file)
            if self.kafka_certificate_file is not None:
                name = "MUSTER_KAFKA_CERTIFICATE_FILE or MUSTER_KAFKA_KEY_FILE"
                files = f"{self.kafka_certificate_file}, {self.kafka_key_file}"
                context.load_cert_chain(
                    self.kafka_certificate_file, self.kafka_key_file, password=_no_password
                )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            text = f"{name} can't be used: {files}: {reason}; name a PEM file"
            raise UnusableFileError(text) from error
        return context


class ServiceSettings(KafkaSettings):
    """What a service needs to reach the bus and to be watched. Units are in the names."""

    http_host: str = Field(
        "127.0.0.1", description="The address on which the HTTP endpoints listen."
    )
    http_trusted_proxies: str = Field(
        "",
        description="Proxies whose X-Forwarded headers are used: addresses or networks, separated"
        " by commas; empty: none.",
    )
    metrics_token: SecretStr = Field(
        SecretStr(""),
        description="/metrics is for those that send it (Authorization: Bearer); empty: for this"
        " machine's processes only.",
    )
    instance: str = Field(default_factory=socket.gethostname, description="This replica's name.")

    log_level: LogLevel = Field(
        "INFO",
        description="The least level of logged messages: DEBUG, INFO, WARNING, ERROR or CRITICAL.",
    )
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


def _no_password() -> str:
    """OpenSSL would ask a terminal for the password of an encrypted key, and wait."""
    raise ValueError("the key is encrypted: store it without a password, readable by its user only")


Settings = TypeVar("Settings", bound=ServiceSettings)


def read(kind: type[Settings]) -> Settings:
    """Settings from the environment. Where they are wrong, it prints their names and exits with 2;
    never their values, which may be secrets.
    """
    try:
        return kind()
    except ValidationError as error:
        sys.stderr.write("".join(f"{problem}\n" for problem in problems(error)))
        sys.exit(2)


def names_in(text: str) -> list[str]:
    """The parts of a setting that are separated by commas."""
    return [name for each in text.split(",") if (name := each.strip())]


def problems(error: ValidationError) -> list[str]:
    """What is wrong with settings, each with its variable."""
    found = []
    for wrong in error.errors(include_input=False, include_url=False, include_context=False):
        name = "_".join(str(step) for step in wrong["loc"]).upper()
        name = name if name.startswith(PREFIX) else PREFIX + name
        # What is wrong with several settings together names them by itself.
        found.append(f"{name}: {wrong['msg']}" if wrong["loc"] else wrong["msg"].partition(", ")[2])
    return found


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


class JobNamespaceSettings(ServiceSettings):
    """Where on Kubernetes tasks' pods and claims are."""

    kube_namespace: str = Field("muster-jobs", description="Where agents create tasks' pods.")
    kube_host_namespace: str = Field(
        "muster-jobs-host", description="Where agents create pods on the host network."
    )


class ReadByRestSettings(ServiceSettings):
    """Settings of a service that REST reads over HTTP."""

    service_key: SecretStr = Field(
        SecretStr(""),
        description="REST's tokens are checked with it: `python -m muster.derive_key AUDIENCE`"
        " prints it. Empty: no token is needed, and the service listens on loopback only. An agent"
        " that separates users needs it.",
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
    """Settings of a service that keeps its state in PostgreSQL."""

    database_url: SecretStr = Field(
        SecretStr("postgresql://127.0.0.1:5432/muster"), description="The PostgreSQL database."
    )
    database_connections: PositiveInt = Field(6, description="Connections of one process.")
    reserved_connections: PositiveInt = Field(
        2,
        description="More of them, for readiness and authentication: they wait for no slow query.",
    )
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
