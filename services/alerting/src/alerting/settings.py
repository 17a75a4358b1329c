"""Settings of Alerting, all from the environment (``MUSTER_…``) or secret files. Units are in the
names.
"""

from email.errors import MessageError
from email.headerregistry import Address
from pathlib import Path
from typing import Self

from muster.addresses import networks_of
from muster.settings import DatabaseSettings
from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from alerting.domain.deliveries import DeliveryPolicy
from alerting.domain.policy import Policy
from alerting.receivers.mail import MailServer, MailTls
from alerting.receivers.webhook import WebhookLimits


class AlertingSettings(DatabaseSettings):
    """When silence is told, how receivers are reached, and how long they are tried."""

    http_port: NonNegativeInt = Field(8083, description="Health and metrics; 0: any free.")
    database_connections: PositiveInt = 5

    stuck_after_s: PositiveFloat = Field(900.0, description="No change for so long is stuck.")
    stale_after_s: PositiveFloat = Field(86_400.0, description="What is older is no news.")
    dead_quiet_s: PositiveFloat = Field(3_600.0, description="Then dead letters are over.")
    drift_quiet_s: PositiveFloat = Field(
        300.0, description="The Scheduler's books are right again when it repeats nothing so long."
    )
    clash_over_s: PositiveFloat = Field(
        300.0,
        description="A node name clashes no longer when the Scheduler has not repeated it so long.",
    )
    lost_forget_s: PositiveFloat = Field(86_400.0, description="Then a lost node is forgotten.")
    alert_timer_poll_s: PositiveFloat = Field(5.0, description="How often due times are looked at.")
    alert_timer_batch: PositiveInt = Field(200, description="Due rows handled in one transaction.")
    alert_settle_s: PositiveFloat = Field(
        60.0, description="Silence counts only after the bus has answered for so long."
    )

    subscriptions_file: Path | None = Field(None, description="Subscriptions by file (YAML).")
    subscriptions_poll_s: PositiveFloat = Field(5.0, description="How often the file is looked at.")
    subscriptions_wait_s: PositiveFloat = Field(
        30.0, description="At a start, subscriptions on the bus are waited for at most so long."
    )

    webhook_key: SecretStr = Field(
        SecretStr(""), description="What the signing secrets are made from; REST has the same."
    )
    webhook_allow_networks: str = Field(
        "", description="Private networks that webhooks may go to, as 10.0.0.0/8, fd00::/8."
    )
    webhook_ca_file: Path | None = Field(None, description="A private authority to trust as well.")
    webhook_timeout_s: PositiveFloat = Field(15.0, description="One attempt, from name to answer.")
    webhook_slots: PositiveInt = Field(64, description="Webhooks under way at once.")
    resolver_threads: PositiveInt = Field(16, description="Look-ups of names at once.")

    smtp_host: str | None = Field(None, description="The mail server; none: no mail is sent.")
    smtp_port: PositiveInt = 587
    smtp_tls: MailTls = Field(MailTls.STARTTLS, description="none, starttls or tls.")
    smtp_username: str | None = None
    smtp_password: SecretStr | None = None
    smtp_sender: str = Field("muster@localhost", description="The address that mails come from.")
    smtp_timeout_s: PositiveFloat = Field(30.0, description="One whole mail.")
    mail_slots: PositiveInt = Field(8, description="Mails under way at once.")

    receiver_slots: PositiveInt = Field(2, description="Deliveries to one receiver at once.")
    delivery_poll_s: PositiveFloat = Field(1.0, description="How often retries are looked at.")
    delivery_lease_s: PositiveFloat = Field(
        120.0, description="A worker that is silent for so long has lost its delivery."
    )
    give_up_after_s: PositiveFloat = Field(259_200.0, description="The age of a hopeless delivery.")
    retry_after_max_s: PositiveFloat = 36_000.0
    pause_failures: PositiveInt = Field(5, description="Failures in a row that pause a receiver.")
    pause_s: PositiveFloat = Field(5.0, description="The first pause; the next are doubled.")
    pause_max_s: PositiveFloat = 300.0

    retention_days: PositiveInt = Field(8, description="Longer than topics keep records.")
    open_job_days: PositiveInt = Field(90, description="A job unheard of is forgotten.")
    clean_rows_every_s: PositiveFloat = 600.0
    clean_rows: PositiveInt = Field(5_000, description="Rows removed in one statement.")

    @field_validator("webhook_allow_networks")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks_of(text)
        return text

    @field_validator("smtp_sender")
    @classmethod
    def _is_an_address(cls, text: str) -> str:
        try:
            Address(addr_spec=text)
        except (ValueError, IndexError, MessageError):
            raise ValueError("this is no mail address; write it like muster@example.org") from None
        return text

    @model_validator(mode="after")
    def _lease_outlasts_an_attempt(self) -> Self:
        if self.delivery_lease_s <= max(self.webhook_timeout_s, self.smtp_timeout_s):
            raise ValueError(
                "delivery_lease_s must be above webhook_timeout_s and smtp_timeout_s: else another"
                " worker would send what is still being sent"
            )
        return self

    def policy(self) -> Policy:
        """When silence matters."""
        return Policy(
            stuck_after_s=self.stuck_after_s,
            stale_after_s=self.stale_after_s,
            dead_quiet_s=self.dead_quiet_s,
            lost_forget_s=self.lost_forget_s,
            drift_quiet_s=self.drift_quiet_s,
            clash_over_s=self.clash_over_s,
        )

    def delivery_policy(self) -> DeliveryPolicy:
        """How long receivers are tried."""
        return DeliveryPolicy(
            give_up_after_s=self.give_up_after_s,
            retry_after_max_s=self.retry_after_max_s,
            pause_failures=self.pause_failures,
            pause_s=self.pause_s,
            pause_max_s=self.pause_max_s,
        )

    def webhook_limits(self) -> WebhookLimits:
        """How webhooks are sent."""
        return WebhookLimits(
            timeout_s=self.webhook_timeout_s,
            resolver_threads=self.resolver_threads,
            allowed=networks_of(self.webhook_allow_networks),
        )

    def mail_server(self) -> MailServer:
        """How mail is sent."""
        return MailServer(
            host=self.smtp_host,
            port=self.smtp_port,
            sender=self.smtp_sender,
            tls=self.smtp_tls,
            username=self.smtp_username,
            password=self.smtp_password.get_secret_value() if self.smtp_password else None,
            timeout_s=self.smtp_timeout_s,
        )
