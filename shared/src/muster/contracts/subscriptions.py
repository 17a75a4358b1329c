"""A subscription to alerts as REST publishes it (in a setting ``subscription/<id>``)
and as Alerting reads it. It never holds a secret in clear: see muster.webhook_secrets and
muster.receiver_secrets.
"""

from datetime import datetime, time
from typing import Self

from pydantic import Field, model_validator

from muster.contracts.model import Model, OpenEnum

SUBSCRIPTION_SETTING = "subscription/"
"""The prefix of settings whose values are subscriptions; the subscription's id follows."""


ACCOUNT = "account/"
"""The ids of the subscriptions that stand for the confirmed mail addresses of accounts begin so;
the user follows. They name no events: they get what users are to know without a subscription."""


class AlertEvent(OpenEnum):
    """Events that a subscription can name."""

    JOB_STARTED = "job-started"
    JOB_FINISHED = "job-finished"
    JOB_FAILED = "job-failed"
    JOB_RETRIED = "job-retried"
    JOB_STUCK = "job-stuck"
    JOB_UNSTUCK = "job-unstuck"
    NODE_LOST = "node-lost"
    NODE_RETURNED = "node-returned"
    NODE_REMOVED = "node-removed"
    NODE_NAME_CLASH = "node-name-clash"
    REMEDIATION_REQUESTED = "remediation-requested"
    RECORD_REJECTED = "record-rejected"
    ACCOUNTING_DRIFTED = "accounting-drifted"
    USAGE_REPORTED = "usage-reported"
    ALERT_RAISED = "alert-raised"
    ALERT_RESOLVED = "alert-resolved"
    UNKNOWN = "unknown"


class ReceiverKind(OpenEnum):
    """The kinds of receivers; each has its own format of messages."""

    WEBHOOK = "webhook"
    MAIL = "mail"
    SLACK = "slack"
    TEAMS = "teams"
    PAGERDUTY = "pagerduty"
    NTFY = "ntfy"
    UNKNOWN = "unknown"


class SubscriptionFilter(Model):
    """Which jobs: an empty list takes all. ``job_names`` are shell patterns (``train-*``)."""

    users: tuple[str, ...] = ()
    virtual_clusters: tuple[str, ...] = ()
    job_names: tuple[str, ...] = ()


class SealedReceiver(Model):
    """A receiver whose address is a secret. ``host`` is what of it may be shown; ``sealed``: see
    muster.receiver_secrets.
    """

    kind: ReceiverKind
    host: str
    sealed: str


class LeastSeverity(OpenEnum):
    """The severity from which events are sent. A reader takes an unknown one as INFO."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


EVENT_SEVERITIES = {
    AlertEvent.JOB_STARTED: LeastSeverity.INFO,
    AlertEvent.JOB_FINISHED: LeastSeverity.INFO,
    AlertEvent.JOB_FAILED: LeastSeverity.WARNING,
    AlertEvent.JOB_RETRIED: LeastSeverity.INFO,
    AlertEvent.JOB_STUCK: LeastSeverity.WARNING,
    AlertEvent.JOB_UNSTUCK: LeastSeverity.WARNING,
    AlertEvent.NODE_LOST: LeastSeverity.CRITICAL,
    AlertEvent.NODE_RETURNED: LeastSeverity.CRITICAL,
    AlertEvent.NODE_REMOVED: LeastSeverity.CRITICAL,
    AlertEvent.NODE_NAME_CLASH: LeastSeverity.CRITICAL,
    AlertEvent.REMEDIATION_REQUESTED: LeastSeverity.WARNING,
    AlertEvent.RECORD_REJECTED: LeastSeverity.CRITICAL,
    AlertEvent.ACCOUNTING_DRIFTED: LeastSeverity.CRITICAL,
    AlertEvent.USAGE_REPORTED: LeastSeverity.INFO,
}
"""What ``least_severity`` compares: an end counts as much as the alert that it ends. ALERT_RAISED
and ALERT_RESOLVED are not here: they have the severities of their alerts."""


class QuietHours(Model):
    """The time of each day in which nothing but critical events is sent: from ``start`` to ``end``,
    by the clock of ``time_zone``. What comes meanwhile is sent at the end.
    """

    start: time
    end: time
    time_zone: str


class DigestEvery(OpenEnum):
    """How often a digest is sent. A reader sends at once where it knows none of a name."""

    HOUR = "hour"
    DAY = "day"
    UNKNOWN = "unknown"


NO_DIGEST = "a digest is no incident of PagerDuty's; leave `digest` out, or choose another receiver"


class Digest(Model):
    """Events are not sent at once, but together as one message: each full hour, or each day at a
    time, by the clock of ``time_zone``. Critical ones are sent at once all the same.
    """

    every: DigestEvery
    at: time | None = None
    time_zone: str = "UTC"

    @model_validator(mode="after")
    def _has_a_time(self) -> Self:
        if self.every is DigestEvery.DAY and self.at is None:
            raise ValueError('a digest of each day needs a time: `at: "08:00"`')
        if self.every is DigestEvery.HOUR and self.at is not None:
            raise ValueError("a digest of each hour is sent at the full hour; leave `at` out")
        return self


class OrderKind(OpenEnum):
    """What an owner orders of a subscription: a test message, or deliveries once more."""

    TEST = "test"
    REPLAY = "replay"
    UNKNOWN = "unknown"


class DeliveryOrder(Model):
    """An order of a subscription's owner. A replay names ``deliveries``, or those of the events
    from ``since`` to ``until``. Ids rise.
    """

    id: str
    at: datetime
    kind: OrderKind
    deliveries: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None


class Subscription(Model):
    """One receiver, the events that it wants and the jobs that they are about.

    Exactly one of ``webhook_url``, ``email`` and ``receiver`` is set. ``filter`` counts for events
    of jobs only. ``secret_versions``, newest first: each signs a webhook, so that no delivery fails
    while a receiver changes its secret. ``orders``: the newest ones, each of which counts once.
    """

    id: str = Field(min_length=1, max_length=128)
    owner: str
    enabled: bool = True
    events: tuple[AlertEvent, ...]
    filter: SubscriptionFilter = SubscriptionFilter()
    least_severity: LeastSeverity = LeastSeverity.INFO
    quiet_hours: QuietHours | None = None
    digest: Digest | None = None
    webhook_url: str | None = Field(default=None, max_length=2048)
    email: str | None = Field(default=None, max_length=320)
    receiver: SealedReceiver | None = None
    orders: tuple[DeliveryOrder, ...] = ()
    secret_versions: tuple[int, ...] = Field(default=(1,), min_length=1, max_length=4)

    @model_validator(mode="after")
    def _has_one_receiver(self) -> Self:
        if sum(it is not None for it in (self.webhook_url, self.email, self.receiver)) != 1:
            raise ValueError("give one receiver: webhookUrl, email or receiver")
        return self

    @property
    def kind(self) -> ReceiverKind:
        """The kind of its receiver."""
        if self.receiver is not None:
            return self.receiver.kind
        return ReceiverKind.MAIL if self.webhook_url is None else ReceiverKind.WEBHOOK
