"""The topics: who says what to whom. The one table that services, documents and tests read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from muster.contracts.gangs import GangDecision, GangRequest
from muster.contracts.jobs import JobRequest, JobStatus
from muster.contracts.model import Model, StateMessage
from muster.contracts.nodes import NodeHeartbeat, NodeLost, NodeReport, NodeReturned
from muster.contracts.notices import (
    AlertNotice,
    BooksDrifted,
    DeadLetter,
    RevisionAcknowledged,
    SettingChanged,
)
from muster.contracts.pods import PodRequest, PodStatus


class Service(StrEnum):
    """Who speaks. An agent speaks as ``runtime-agent``; its subjects are on one node each."""

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
    """A topic. ``kind`` is set where its records are words of an exchange; ``state`` topics keep
    the newest per key.
    """

    name: str
    model: type[Model]
    key: str
    sender: Service | None
    says: str
    kind: Kind | None = None
    state: bool = False

    @property
    def event_type(self) -> str:
        """The CloudEvents type of its records."""
        return f"muster.{self.name}.v1"


def _messages(
    kind: Kind, sender: Service, model: type[StateMessage], key: str, **says: str
) -> list[Topic]:
    return [
        Topic(name.replace("_", "-"), model, key, sender, text, kind) for name, text in says.items()
    ]


_ALL = [
    *_messages(
        Kind.JOB,
        Service.REST,
        JobRequest,
        "job",
        job_submitted="A valid job is wanted, whole; or shall stop.",
    ),
    *_messages(
        Kind.JOB,
        Service.LAUNCHER,
        JobStatus,
        "job",
        job_updated="The job's state, its tasks, why it waits, its verdict.",
    ),
    *_messages(
        Kind.GANG,
        Service.LAUNCHER,
        GangRequest,
        "gang",
        gang_requested="Pods are wanted together.",
        gang_released="Some or all pods are no longer held.",
    ),
    *_messages(
        Kind.GANG,
        Service.SCHEDULER,
        GangDecision,
        "gang",
        placement_decided="Pods are placed, or lost with their node, or the gang's end is known.",
        placement_deferred="The gang waits, and why.",
        placement_refused="The gang can never run here, and why.",
        gang_preempted="Give these pods back: for whom, by when.",
    ),
    *_messages(
        Kind.POD,
        Service.LAUNCHER,
        PodRequest,
        "node",
        pod_requested="Run this pod; or stop it; or forget it.",
    ),
    *_messages(
        Kind.POD,
        Service.RUNTIME_AGENT,
        PodStatus,
        "job",
        pod_started="The pod is accepted or runs.",
        pod_succeeded="The pod ended well.",
        pod_failed="The pod failed; the verdict says why.",
    ),
    Topic(
        "revision-acknowledged",
        RevisionAcknowledged,
        "the first subject, or the agent's node",
        None,
        "Your revisions about these subjects are applied.",
    ),
    Topic(
        "node-reported",
        NodeReport,
        "node",
        Service.RUNTIME_AGENT,
        "Capacity, GPUs, health and pods of a node.",
        state=True,
    ),
    Topic("node-heartbeat", NodeHeartbeat, "node", Service.RUNTIME_AGENT, "The agent is alive."),
    Topic("node-lost", NodeLost, "node", Service.SCHEDULER, "The node's lease ran out."),
    Topic("node-returned", NodeReturned, "node", Service.SCHEDULER, "The lost node speaks again."),
    Topic(
        "books-drifted",
        BooksDrifted,
        "gang",
        Service.SCHEDULER,
        "The Scheduler's self-audit finds its books of a gang wrong.",
    ),
    Topic("alert-raised", AlertNotice, "alert", Service.ALERTING, "An alert fires."),
    Topic("alert-resolved", AlertNotice, "alert", Service.ALERTING, "The alert is over."),
    Topic(
        "settings-changed",
        SettingChanged,
        "setting",
        Service.REST,
        "A setting, as it is now.",
        state=True,
    ),
]

TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in _ALL}
"""Every topic but the dead letters."""

DEAD_LETTER = ".dead-letter"


def dead_letter_topic(name: str) -> Topic:
    """The topic that takes the records of ``name`` that can't be read or handled."""
    return Topic(
        name + DEAD_LETTER, DeadLetter, "as was", None, f"A record of {name} could not be handled."
    )


def message_topics(kind: Kind, sender: Service) -> tuple[str, ...]:
    """The topics on which ``sender`` publishes its messages on subjects of ``kind``."""
    return tuple(t.name for t in TOPICS.values() if t.kind is kind and t.sender is sender)


EVERY_TOPIC: tuple[str, ...] = tuple(n for t in TOPICS for n in (t, t + DEAD_LETTER))
"""The names of all topics that a bus must have, the dead letters' too."""
