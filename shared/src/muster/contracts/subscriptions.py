"""A subscription to alerts as REST publishes it (in a setting ``subscription/<id>``)
and as Alerting reads it. It never holds a secret: see muster.webhook_secrets.
"""

from typing import Self

from pydantic import Field, model_validator

from muster.contracts.model import Model, OpenEnum

SUBSCRIPTION_SETTING = "subscription/"
"""The prefix of settings whose values are subscriptions; the subscription's id follows."""


class AlertEvent(OpenEnum):
    """Events that a subscription can name."""

    JOB_FINISHED = "job-finished"
    JOB_FAILED = "job-failed"
    JOB_RETRIED = "job-retried"
    JOB_STUCK = "job-stuck"
    JOB_UNSTUCK = "job-unstuck"
    NODE_LOST = "node-lost"
    NODE_RETURNED = "node-returned"
    NODE_REMOVED = "node-removed"
    NODE_NAME_CLASH = "node-name-clash"
    RECORD_REJECTED = "record-rejected"
    ACCOUNTING_DRIFTED = "accounting-drifted"
    UNKNOWN = "unknown"


class SubscriptionFilter(Model):
    """Which jobs: an empty list takes all. ``job_names`` are shell patterns (``train-*``)."""

    users: tuple[str, ...] = ()
    virtual_clusters: tuple[str, ...] = ()
    job_names: tuple[str, ...] = ()


class Subscription(Model):
    """One receiver, the events that it wants and the jobs that they are about.

    Exactly one of ``webhook_url`` and ``email`` is set. ``filter`` counts for events of jobs only.
    ``secret_versions``, newest first: each signs, so that no delivery fails while a receiver
    changes its secret.
    """

    id: str = Field(min_length=1, max_length=128)
    owner: str
    enabled: bool = True
    events: tuple[AlertEvent, ...]
    filter: SubscriptionFilter = SubscriptionFilter()
    webhook_url: str | None = Field(default=None, max_length=2048)
    email: str | None = Field(default=None, max_length=320)
    secret_versions: tuple[int, ...] = Field(default=(1,), min_length=1, max_length=4)

    @model_validator(mode="after")
    def _has_one_receiver(self) -> Self:
        if (self.webhook_url is None) == (self.email is None):
            raise ValueError("give one receiver: either webhookUrl or email")
        return self
