"""The topics with senders and readers: the one table that services, documents and tests read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from muster.contracts.alerts import ActionAnswered, ActionRequested, AlertsReceived
from muster.contracts.gangs import GangDecision, GangRequest
from muster.contracts.jobs import JobRequest, JobStatus
from muster.contracts.model import Model, StateMessage
from muster.contracts.nodes import (
    NodeHeartbeat,
    NodeLost,
    NodeNameClashed,
    NodeReport,
    NodeReturned,
)
from muster.contracts.notices import (
    AccountingDrifted,
    AlertNotice,
    DeadLetter,
    RevisionAcknowledged,
    SettingChanged,
)
from muster.contracts.pods import PodRequest, PodStatus
from muster.contracts.reports import UsageReported
from muster.contracts.services import SERVICE_STARTED, ServiceStarted


class Service(StrEnum):
    """The senders. An agent sends as ``runtime-agent``; its subjects are on one node each."""

    REST = "rest"
    LAUNCHER = "launcher"
    SCHEDULER = "scheduler"
    RUNTIME_AGENT = "runtime-agent"
    ALERTING = "alerting"


class Kind(StrEnum):
    """Kinds of subjects."""

    JOB = "job"
    GANG = "gang"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a kind of subject; ``opener`` makes new ones."""

    opener: Service
    other: Service

    def across(self, me: Service) -> Service:
        """The side that is not mine."""
        return self.other if me is self.opener else self.opener


SIDES: Mapping[Kind, Sides] = {
    Kind.JOB: Sides(Service.REST, Service.LAUNCHER),
    Kind.GANG: Sides(Service.LAUNCHER, Service.SCHEDULER),
    Kind.POD: Sides(Service.LAUNCHER, Service.RUNTIME_AGENT),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with all services that send to it and all that read it. ``kind`` is set where its
    records belong to an exchange; Kafka keeps only the newest record of each
    key where ``is_compacted``.
    """

    name: str
    model: type[Model]
    key: str
    meaning: str
    senders: tuple[Service, ...]
    readers: tuple[Service, ...] = ()
    kind: Kind | None = None
    is_compacted: bool = False

    @property
    def event_type(self) -> str:
        """The CloudEvents type of its records."""
        return f"muster.{self.name}.v1"


def _exchange(
    kind: Kind,
    sender: Service,
    model: type[StateMessage],
    key: str,
    listeners: tuple[Service, ...] = (),
    **meanings: str,
) -> list[Topic]:
    """One side's topics. The other side reads them, and so do listeners."""
    readers = (SIDES[kind].across(sender), *listeners)
    return [
        Topic(name.replace("_", "-"), model, key, meaning, (sender,), readers, kind)
        for name, meaning in meanings.items()
    ]


_SIDES = tuple(dict.fromkeys(side for it in SIDES.values() for side in (it.opener, it.other)))

_ALL = [
    *_exchange(
        Kind.JOB,
        Service.REST,
        JobRequest,
        "job",
        job_submitted="A complete, valid job is wanted, or it must stop.",
    ),
    *_exchange(
        Kind.JOB,
        Service.LAUNCHER,
        JobStatus,
        "job",
        listeners=(Service.ALERTING,),
        job_updated="The job's state, its tasks, its wait reason and its verdict.",
    ),
    *_exchange(
        Kind.GANG,
        Service.LAUNCHER,
        GangRequest,
        "gang",
        gang_requested="The pods that the job wants together.",
        gang_released="The job no longer holds some or all of the gang's pods.",
    ),
    *_exchange(
        Kind.GANG,
        Service.SCHEDULER,
        GangDecision,
        "gang",
        placement_decided="Pods are placed, or are lost with their node, or the gang has ended.",
        placement_deferred="The gang waits, with the reason.",
        placement_refused="The gang can never run in this cluster, with the reason.",
        gang_preempted="The pods that the gang must release, for which gang, and by when.",
    ),
    *_exchange(
        Kind.POD,
        Service.LAUNCHER,
        PodRequest,
        "node",
        pod_requested="The agent must run this pod, stop it, or forget it.",
    ),
    *_exchange(
        Kind.POD,
        Service.RUNTIME_AGENT,
        PodStatus,
        "job",
        pod_started="The agent has accepted the pod, or the pod runs.",
        pod_succeeded="The pod has succeeded.",
        pod_failed="The pod has failed, with the verdict.",
    ),
    Topic(
        "revision-acknowledged",
        RevisionAcknowledged,
        "the first subject, or the agent's node",
        "The sender has applied these revisions.",
        senders=(Service.REST, Service.LAUNCHER, Service.SCHEDULER),
        readers=_SIDES,
    ),
    Topic(  # of its own: an agent must not be able to acknowledge for another service
        "pod-acknowledged",
        RevisionAcknowledged,
        "the first pod",
        "The agent has applied these revisions.",
        senders=(Service.RUNTIME_AGENT,),
        readers=(Service.LAUNCHER,),
    ),
    Topic(
        "node-reported",
        NodeReport,
        "node",
        "Capacity, GPUs, health and pods of a node.",
        senders=(Service.RUNTIME_AGENT,),
        readers=(Service.SCHEDULER, Service.REST, Service.ALERTING),
        is_compacted=True,
    ),
    Topic(
        "node-heartbeat",
        NodeHeartbeat,
        "node",
        "The node's agent is alive, or the Scheduler's probe returns.",
        senders=(Service.RUNTIME_AGENT, Service.SCHEDULER),
        readers=(Service.SCHEDULER,),
    ),
    Topic(
        "node-lost",
        NodeLost,
        "node",
        "The node's lease has expired.",
        senders=(Service.SCHEDULER,),
        readers=(Service.ALERTING, Service.REST),
    ),
    Topic(
        "node-returned",
        NodeReturned,
        "node",
        "The lost node reports again.",
        senders=(Service.SCHEDULER,),
        readers=(Service.ALERTING, Service.REST, Service.RUNTIME_AGENT),
    ),
    Topic(
        "node-name-clashed",
        NodeNameClashed,
        "node",
        "Two machines report under one node name.",
        senders=(Service.SCHEDULER,),
        readers=(Service.ALERTING,),
    ),
    Topic(
        "accounting-drifted",
        AccountingDrifted,
        "gang",
        "The audit found accounting that differs from placements.",
        senders=(Service.SCHEDULER,),
        readers=(Service.ALERTING,),
    ),
    Topic(
        SERVICE_STARTED,
        ServiceStarted,
        "service",
        "The state of a service's database, and whether it was restored.",
        senders=(Service.REST, Service.LAUNCHER, Service.SCHEDULER, Service.ALERTING),
        readers=tuple(Service),
        is_compacted=True,
    ),
    Topic(
        "alerts-received",
        AlertsReceived,
        "group",
        "Alertmanager has sent these alerts.",
        senders=(Service.REST,),
        readers=(Service.ALERTING,),
    ),
    Topic(
        "usage-reported",
        UsageReported,
        "week",
        "What jobs held and used of the GPUs in a week that is over.",
        senders=(Service.REST,),
        readers=(Service.ALERTING,),
    ),
    Topic(
        "action-requested",
        ActionRequested,
        "action",
        "An alert wants a node or job to be acted on.",
        senders=(Service.ALERTING,),
        readers=(Service.REST,),
    ),
    Topic(
        "action-answered",
        ActionAnswered,
        "action",
        "What became of an action.",
        senders=(Service.REST,),
        readers=(Service.ALERTING,),
    ),
    *(
        Topic(name, AlertNotice, "alert", meaning, (Service.ALERTING,), (Service.REST,))
        for name, meaning in (
            ("alert-raised", "An alert fires."),
            ("alert-resolved", "The alert is resolved."),
        )
    ),
    Topic(
        "settings-changed",
        SettingChanged,
        "setting",
        "The present value of a setting.",
        senders=(Service.REST,),
        readers=(Service.RUNTIME_AGENT, Service.SCHEDULER, Service.ALERTING, Service.REST),
        is_compacted=True,
    ),
    Topic(  # of its own: a webhook's address is a secret that agents have no use for
        "receivers-changed",
        SettingChanged,
        "setting",
        "A subscription to alerts, or a mail address to confirm, as it is now.",
        senders=(Service.REST,),
        readers=(Service.ALERTING, Service.REST),
        is_compacted=True,
    ),
]


TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in _ALL}
"""Every topic but the dead letters."""

DEAD_LETTER = ".dead-letter"


def dead_letter_topic(name: str) -> Topic:
    """The topic of the records of ``name`` that a reader rejects. Any service may be the reader
    of a name that is not in the table.
    """
    return Topic(
        name + DEAD_LETTER,
        DeadLetter,
        "as received",
        f"A record of {name} that a reader rejected, with the reason.",
        senders=TOPICS[name].readers if name in TOPICS else tuple(Service),
        readers=(Service.ALERTING,),
    )


def message_topics(kind: Kind, sender: Service) -> tuple[str, ...]:
    """The topics on which ``sender`` publishes its messages on subjects of ``kind``."""
    return tuple(t.name for t in TOPICS.values() if t.kind is kind and sender in t.senders)


EVERY_TOPIC: tuple[str, ...] = tuple(n for t in TOPICS for n in (t, t + DEAD_LETTER))
"""The names of all topics that a bus must have, the dead letters' too."""
