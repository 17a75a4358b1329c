"""Alerts of other programs, which REST receives and Alerting takes; and actions on alerts, which
Alerting wants and REST carries out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from muster.contracts.model import Model, OpenEnum


@dataclass(frozen=True, slots=True)
class AlertSubject:
    """Whose an alert is, and what it is about; empty where its labels do not say."""

    user: str
    virtual_cluster: str
    job_name: str
    node: str

    @property
    def job(self) -> str | None:
        """The job as ``user~name``."""
        return f"{self.user}~{self.job_name}" if self.user and self.job_name else None


def subject_of(labels: Mapping[str, str]) -> AlertSubject:
    """What an alert's labels say. Alerts of metrics have OpenPAI's names of labels; some name a job
    ``user~name``.
    """

    def first(*names: str) -> str:
        return next((value for name in names if (value := labels.get(name))), "")

    user, name = first("user", "username"), first("jobName", "job_name")
    if not user and "~" in name:
        user = name.partition("~")[0]
    return AlertSubject(
        user=user,
        virtual_cluster=first("virtualCluster", "virtual_cluster"),
        job_name=name.removeprefix(f"{user}~"),
        node=first("node", "node_name"),
    )


class ReceivedAlert(Model):
    """An alert of Alertmanager's; ``fingerprint`` and ``starts_at`` identify it. It fires while
    ``ends_at`` is None.
    """

    fingerprint: str
    name: str
    severity: str
    summary: str
    description: str = ""
    runbook: str | None = None
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime | None = None


class AlertsReceived(Model):
    """One request of Alertmanager's, or a part of it: the alerts of one of its groups.
    ``truncated``: how many alerts Alertmanager left out.
    """

    group: str
    alerts: tuple[ReceivedAlert, ...]
    truncated: int = 0
    at: datetime


ALERT_RULES_SETTING = "alert-rules"
"""The setting with operators' rules and actions; null: none are set."""


class AlertRulesConfig(Model):
    """What operators set of actions on alerts. ``content`` is what Alerting has checked.
    ``version``: its number. ``by``: its author.
    """

    version: int = Field(ge=1, le=2**62)
    content: dict[str, Any]
    by: str
    at: datetime


class Do(OpenEnum):
    """What an action does. TAG_JOB: the job gets the rule's name as a tag. REMEDIATE: an operator's
    script repairs the node. RELEASE: the node's orders end once a preflight job has succeeded
    there. UNDO: it takes back what an earlier action has done.
    """

    CORDON = "cordon"
    DRAIN = "drain"
    REMEDIATE = "remediate"
    RELEASE = "release"
    STOP_JOB = "stop-job"
    TAG_JOB = "tag-job"
    UNDO = "undo"
    UNKNOWN = "unknown"


REPAIRS = frozenset({Do.REMEDIATE, Do.RELEASE})
"""They are for a node that is away, and can fail."""
REPAIR_TIMEOUT_S = 3600.0
"""How long a script or a preflight job may take, where the rule does not say."""


ActionName = Literal["cordon", "drain", "remediate", "release", "stop-job", "tag-job"]
"""What an operator's rule may ask for."""


class ActionRequested(Model):
    """Alerting wants this done because an alert fires, or, with ``do`` UNDO, is over. ``target``:
    a node, or a job as ``user~name``. ``rule``: the operator's, which wants it. In a dry run REST
    only writes the audit log. Repeated until it is answered for good. ``timeout_s``: how long a
    script or a preflight job may take. ``takes_back``: the actions whose orders a release ends.
    """

    action: str
    do: Do
    target: str
    rule: str
    alert: str
    summary: str
    is_dry_run: bool = False
    timeout_s: float = 0.0
    takes_back: tuple[str, ...] = ()
    at: datetime


class Outcome(OpenEnum):
    """What became of an action. RUNNING: its script or preflight job goes on."""

    RUNNING = "running"
    FAILED = "failed"
    DONE = "done"
    DRY_RUN = "dry-run"
    REFUSED = "refused"
    UNDONE = "undone"
    UNKNOWN = "unknown"


class ActionAnswered(Model):
    """What became of an action, and why. ``by``: who took it back, where it is undone. ``until``:
    when it fails if nothing comes. ``do``, ``target``, ``rule``: of a release that ``by`` asked
    for, which no alert has caused.
    """

    action: str
    outcome: Outcome
    reason: str
    by: str | None = None
    until: datetime | None = None
    do: Do | None = None
    target: str | None = None
    rule: str | None = None
    at: datetime


MUTE_SETTING = "mute/"
"""The prefix of settings whose values are mutes; the mute's id follows."""


class Mute(Model):
    """No messages about an alert (its name or identity, or an event's name), or about a job
    (``user~name``), until a time. ``owner``: whose subscriptions are silent; None: everybody's.
    """

    id: str = Field(min_length=1, max_length=64)
    owner: str | None = None
    alert: str | None = None
    job: str | None = None
    until: datetime
    by: str
    comment: str = ""
