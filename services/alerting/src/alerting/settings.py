"""Settings of Alerting, all from the environment (``MUSTER_…``) or secret files. Units are in the
names.
"""

from email.errors import MessageError
from email.headerregistry import Address
from pathlib import Path
from typing import Self
from urllib.parse import quote

from muster.addresses import networks_of
from muster.settings import DatabaseSettings, Port, ReadByRestSettings, names_in
from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)
from yarl import URL

from alerting.domain.deliveries import DeliveryPolicy
from alerting.domain.policy import DOCS, Policy
from alerting.receivers.http import HttpLimits, is_web_address
from alerting.receivers.mail import MailServer, MailTls

JOB = "{job}"
"""Stands for a job's name in job_url."""


class AlertingSettings(DatabaseSettings, ReadByRestSettings):
    """Limits of silence, and how receivers are reached and retried."""

    http_port: Port = Field(
        8083, description="The port of answers to REST, health and metrics; 0: any."
    )
    database_connections: PositiveInt = Field(5, description="Connections of one process.")

    stuck_after_s: PositiveFloat = Field(
        900.0, description="The time without a change after which a job counts as stuck."
    )
    late_after_s: PositiveFloat = Field(
        600.0,
        description="How long after its expected start a job waits longer than expected.",
    )
    long_wait_s: PositiveFloat = Field(
        86_400.0, description="After this time a job waits longer than expected in any case."
    )
    stale_after_s: PositiveFloat = Field(
        86_400.0, description="The age above which an event is not notified."
    )
    dead_letters_over_s: PositiveFloat = Field(
        3_600.0, description="The time without a dead letter after which the alert ends."
    )
    drift_over_s: PositiveFloat = Field(
        300.0, description="The time without a drift message after which the alert ends."
    )
    clash_over_s: PositiveFloat = Field(
        300.0,
        description="The time without a node-name-clashed message after which the alert ends.",
    )
    external_over_s: PositiveFloat = Field(
        86_400.0,
        description="The time without a repeat after which an alert of Alertmanager's ends; longer"
        " than its repeat_interval.",
    )
    order_settles_s: PositiveFloat = Field(
        30.0,
        description="How long an order about a node has stood before a node without pods counts as"
        " empty.",
    )
    lost_forget_s: PositiveFloat = Field(86_400.0, description="How long a lost node is kept.")
    alert_timer_poll_s: PositiveFloat = Field(5.0, description="How often due timers are handled.")
    alert_timer_batch: PositiveInt = Field(200, description="The most due rows in one transaction.")
    alert_settle_s: PositiveFloat = Field(
        60.0, description="How long the bus must be reachable before silence counts."
    )

    subscriptions_wait_s: PositiveFloat = Field(
        30.0, description="How long a start waits for subscriptions on the bus."
    )

    webhook_key: SecretStr = Field(
        SecretStr(""),
        description="The key from which webhook secrets and the codes that confirm mail addresses"
        " are made; the same as REST's.",
    )
    webhook_allow_networks: str = Field(
        "", description="Private networks that webhooks may reach, such as 10.0.0.0/8, fd00::/8."
    )
    webhook_ca_file: Path | None = Field(
        None, description="A private certificate authority to trust too."
    )
    webhook_timeout_s: PositiveFloat = Field(
        15.0, description="The time limit of one attempt, including the name look-up."
    )
    webhook_slots: PositiveInt = Field(64, description="The most webhooks at a time.")
    resolver_threads: PositiveInt = Field(
        64,
        description="The most name look-ups at a time. With fewer than webhook_slots, names that"
        " nobody answers for can delay other receivers.",
    )

    alertmanager_urls: SecretStr = Field(
        SecretStr(""),
        description="Alertmanagers that get Muster's alerts, separated by commas, such as"
        " http://alertmanager:9093. An address may have user:password@.",
    )
    alertmanager_wait_s: PositiveFloat = Field(
        60.0, description="How often firing alerts are posted again to Alertmanager."
    )

    job_url: str | None = Field(
        None,
        description="The address of a job's page, for links in messages, such as"
        " https://muster.example.org/jobs/{job}; {job} becomes user~name.",
    )
    docs_url: str = Field(
        DOCS,
        description="Where people read the folder docs of this release, such as"
        " https://git.example.org/muster/docs; links to runbooks begin with it.",
    )

    smtp_host: str | None = Field(None, description="The mail server; without it no mail is sent.")
    smtp_port: PositiveInt = Field(587, le=65535, description="The mail server's port.")
    smtp_tls: MailTls = Field(
        MailTls.STARTTLS, description="Encryption to the mail server: none, starttls or tls."
    )
    smtp_username: str | None = Field(None, description="The user name at the mail server.")
    smtp_password: SecretStr | None = Field(None, description="The password at the mail server.")
    smtp_sender: str = Field("muster@localhost", description="The sender's address of mails.")
    smtp_timeout_s: PositiveFloat = Field(30.0, description="The time limit of one mail.")
    mail_slots: PositiveInt = Field(8, description="The most mails at a time.")

    receiver_slots: PositiveInt = Field(
        2,
        description="The most deliveries to one receiver at a time. One that takes many in time"
        " gets up to a quarter of the lane.",
    )
    delivery_poll_s: PositiveFloat = Field(1.0, description="How often due retries are handled.")
    delivery_lease_s: PositiveFloat = Field(
        120.0, description="How long a replica holds a delivery; then another may take it."
    )
    give_up_after_s: PositiveFloat = Field(
        345_600.0, description="The age at which a failing delivery is given up."
    )
    retry_after_max_s: PositiveFloat = Field(
        36_000.0, description="The longest wait that a receiver's Retry-After sets."
    )
    pause_failures: PositiveInt = Field(
        5, description="Failures in a row after which a receiver is paused."
    )
    pause_s: PositiveFloat = Field(5.0, description="The first pause; each further one doubles.")
    pause_max_s: PositiveFloat = Field(300.0, description="The longest pause.")

    disable_after: PositiveInt = Field(
        20,
        description="Deliveries in a row, given up by its fault, after which a receiver is"
        " disabled. Mail addresses are not.",
    )
    disable_notice: PositiveInt = Field(
        5, description="How many deliveries earlier its owner is notified."
    )
    replay_most: PositiveInt = Field(
        10_000, description="The most deliveries that one replay repeats."
    )

    retention_days: PositiveInt = Field(
        8, description="How long ended rows are kept; longer than topics keep records."
    )
    open_job_days: PositiveInt = Field(
        90, description="How long a job without any message is kept."
    )
    clean_rows_every_s: PositiveFloat = Field(600.0, description="How often old rows are removed.")
    clean_rows: PositiveInt = Field(5_000, description="The most rows removed in one statement.")

    @field_validator("webhook_allow_networks")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks_of(text)
        return text

    @field_validator("alertmanager_urls")
    @classmethod
    def _are_web_addresses(cls, text: SecretStr) -> SecretStr:
        for part in names_in(text.get_secret_value()):
            if not is_web_address(part):
                raise ValueError("write http or https addresses, separated by commas")
        return text

    @field_validator("job_url")
    @classmethod
    def _names_the_job(cls, text: str | None) -> str | None:
        if text is not None and not (JOB in text and text.startswith(("http://", "https://"))):
            raise ValueError("write an http or https address with {job} in it")
        return text

    @field_validator("docs_url")
    @classmethod
    def _can_be_opened(cls, text: str) -> str:
        if text != DOCS and not is_web_address(text):
            raise ValueError("write the http or https address of the folder docs")
        return text.rstrip("/")

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

    @model_validator(mode="after")
    def _owners_are_told_in_time(self) -> Self:
        if self.disable_notice >= self.disable_after:
            raise ValueError("disable_notice must be below disable_after")
        return self

    def alertmanagers(self) -> list[URL]:
        """Their addresses."""
        return [URL(part) for part in names_in(self.alertmanager_urls.get_secret_value())]

    def policy(self) -> Policy:
        """When silence matters."""
        return Policy(
            stuck_after_s=self.stuck_after_s,
            late_after_s=self.late_after_s,
            long_wait_s=self.long_wait_s,
            stale_after_s=self.stale_after_s,
            dead_letters_over_s=self.dead_letters_over_s,
            lost_forget_s=self.lost_forget_s,
            external_over_s=self.external_over_s,
            drift_over_s=self.drift_over_s,
            clash_over_s=self.clash_over_s,
            order_settles_s=self.order_settles_s,
            docs_url=self.docs_url,
        )

    def delivery_policy(self) -> DeliveryPolicy:
        """How long receivers are tried."""
        return DeliveryPolicy(
            give_up_after_s=self.give_up_after_s,
            retry_after_max_s=self.retry_after_max_s,
            pause_failures=self.pause_failures,
            pause_s=self.pause_s,
            pause_max_s=self.pause_max_s,
            disable_after=self.disable_after,
            told_before=self.disable_notice,
        )

    def http_limits(self) -> HttpLimits:
        """How messages are sent over HTTP."""
        return HttpLimits(
            timeout_s=self.webhook_timeout_s,
            resolver_threads=self.resolver_threads,
            allowed=networks_of(self.webhook_allow_networks),
        )

    def link(self, job: str | None) -> str | None:
        """The address of a job's page."""
        if self.job_url is None or job is None:
            return None
        return self.job_url.replace(JOB, quote(job, safe="~"))

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
