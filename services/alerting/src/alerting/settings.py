"""Settings of Alerting, all from the environment (``MUSTER_…``) or secret files. Units are in the
names.
"""

from email.errors import MessageError
from email.headerregistry import Address
from pathlib import Path
from typing import Self

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

from alerting.domain.addresses import networks_of
from alerting.domain.deliveries import DeliveryPolicy
from alerting.domain.policy import Policy
from alerting.receivers.mail import MailServer, MailTls
from alerting.receivers.webhook import WebhookLimits


class AlertingSettings(DatabaseSettings):
    """When alerts fire, how receivers are reached, and how long deliveries are retried."""

    http_port: NonNegativeInt = Field(8083, description="Health and metrics; 0: any free.")
    database_connections: PositiveInt = 5

    stuck_after_s: PositiveFloat = Field(
        900.0, description="Time without a change after which a job is stuck."
    )
    stale_after_s: PositiveFloat = Field(
        86_400.0, description="Age beyond which nobody is notified of an event."
    )
    dead_letters_over_s: PositiveFloat = Field(
        3_600.0, description="Time without a dead letter after which its alert is resolved."
    )
    drift_over_s: PositiveFloat = Field(
        300.0, description="Time without accounting-drifted after which its alert is resolved."
    )
    clash_over_s: PositiveFloat = Field(
        300.0,
        description="Time without node-name-clashed after which its alert is resolved.",
    )
    lost_forget_s: PositiveFloat = Field(
        86_400.0, description="Time without node-lost after which a lost node is forgotten."
    )
    alert_timer_poll_s: PositiveFloat = Field(5.0, description="Interval of checking due timers.")
    alert_timer_batch: PositiveInt = Field(200, description="Due rows handled in one transaction.")
    alert_settle_s: PositiveFloat = Field(
        60.0, description="Time that the bus must be reachable before silence is measured."
    )

    subscriptions_file: Path | None = Field(None, description="YAML file with subscriptions.")
    subscriptions_poll_s: PositiveFloat = Field(
        5.0, description="Interval of checking the subscriptions file."
    )
    subscriptions_wait_s: PositiveFloat = Field(
        30.0, description="Longest wait at a start for the subscriptions on the bus."
    )

    webhook_key: SecretStr = Field(
        SecretStr(""), description="Key that signing secrets are derived from; the same as in REST."
    )
    webhook_allow_networks: str = Field(
        "", description="Private networks that webhooks may reach, such as 10.0.0.0/8, fd00::/8."
    )
    webhook_ca_file: Path | None = Field(None, description="Additional CA certificates to trust.")
    webhook_timeout_s: PositiveFloat = Field(
        15.0, description="Timeout of one attempt, from name resolution to answer."
    )
    webhook_slots: PositiveInt = Field(64, description="Concurrent webhooks, at most.")
    resolver_threads: PositiveInt = Field(16, description="Concurrent name resolutions, at most.")

    smtp_host: str | None = Field(None, description="Mail server; none: no mail is sent.")
    smtp_port: PositiveInt = 587
    smtp_tls: MailTls = Field(MailTls.STARTTLS, description="none, starttls or tls.")
    smtp_username: str | None = None
    smtp_password: SecretStr | None = None
    smtp_sender: str = Field("muster@localhost", description="Sender address of mails.")
    smtp_timeout_s: PositiveFloat = Field(30.0, description="Timeout of one mail.")
    mail_slots: PositiveInt = Field(8, description="Concurrent mails, at most.")

    receiver_slots: PositiveInt = Field(
        2, description="Concurrent deliveries to one receiver, at most."
    )
    delivery_poll_s: PositiveFloat = Field(1.0, description="Interval of checking for due retries.")
    delivery_lease_s: PositiveFloat = Field(
        120.0, description="Lease of a delivery; another worker takes it after expiry."
    )
    give_up_after_s: PositiveFloat = Field(
        259_200.0, description="Age at which a delivery is abandoned."
    )
    retry_after_max_s: PositiveFloat = 36_000.0
    pause_failures: PositiveInt = Field(5, description="Failures in a row that pause a receiver.")
    pause_s: PositiveFloat = Field(
        5.0, description="First pause of a receiver; it doubles each time."
    )
    pause_max_s: PositiveFloat = 300.0

    retention_days: PositiveInt = Field(
        8, description="Retention of events and alerts, in days; longer than that of topics."
    )
    open_job_days: PositiveInt = Field(
        90, description="Days without a record after which an open job is forgotten."
    )
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
            raise ValueError("not a mail address; write it like muster@example.org") from None
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
            dead_letters_over_s=self.dead_letters_over_s,
            lost_forget_s=self.lost_forget_s,
            drift_over_s=self.drift_over_s,
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
