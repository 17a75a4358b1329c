"""The rights of each user on a Kafka with log-ins, derived from the table of topics.

Kafka's ACLs distinguish topics, not keys: an agent can publish about another node. Readers check
the journal that a placement names. Each agent has its own user, so that one can be revoked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import attrgetter

from muster.contracts.topics import TOPICS, Service, Topic, dead_letter_topic

OPERATOR = "operator"
"""The user of ``muster events``: it reads every topic, and asks agents by a setting."""

FENCE = "fence"
"""The user of ``muster-fence``, which deletes the pods of lost nodes on Kubernetes."""
FENCES_BY = "node-lost"

AGENT = "agent-"
ASKS_AGENTS = "settings-changed"


class Operation(StrEnum):
    """Kafka's names. Read and Write imply Describe."""

    READ = "Read"
    WRITE = "Write"
    DESCRIBE_CONFIGS = "DescribeConfigs"


class Resource(StrEnum):
    """What a right is on."""

    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Acl:
    """``user`` may do ``operation`` on the topic or the consumer group ``name``."""

    user: str
    resource: Resource
    operation: Operation
    name: str


def every_topic() -> list[Topic]:
    """The table of topics, each followed by its dead letters."""
    return [each for name, topic in TOPICS.items() for each in (topic, dead_letter_topic(name))]


def topics_of(name: str) -> list[str]:
    """The topics that a service writes or reads; none of another process."""
    return [t.name for t in every_topic() if name in t.senders or name in t.readers]


def group_of(service: Service) -> str:
    """The consumer group of a service."""
    return f"muster-{service}"


def agent_user(node: str) -> str:
    """The user of the agent on a node. Each has its own, so that one can be revoked."""
    return AGENT + node


def acls(agents: Sequence[str]) -> list[Acl]:
    """All rights, by user: of the services, of the agents on these nodes, of the operator and
    of the fence. What is not listed is denied. Only an administrator creates or alters topics.
    Nobody has a right on the cluster or on transactional ids, which Muster does not use.
    """
    found: list[Acl] = []
    for service in Service:
        is_agent = service is Service.RUNTIME_AGENT
        for user in map(agent_user, agents) if is_agent else [service.value]:
            found += _of_service(user, service)
            if not is_agent:  # agents read without a group
                found.append(Acl(user, Resource.GROUP, Operation.READ, group_of(service)))
    found += [Acl(OPERATOR, Resource.TOPIC, Operation.READ, t.name) for t in every_topic()]
    found.append(Acl(OPERATOR, Resource.TOPIC, Operation.WRITE, ASKS_AGENTS))
    found.append(Acl(FENCE, Resource.TOPIC, Operation.READ, FENCES_BY))
    return found


def _of_service(user: str, service: Service) -> Iterable[Acl]:
    rights = [
        (Operation.WRITE, [t.name for t in every_topic() if service in t.senders]),
        (Operation.READ, [t.name for t in every_topic() if service in t.readers]),
        (Operation.DESCRIBE_CONFIGS, topics_of(service)),  # it verifies them at its start
    ]
    for operation, names in rights:
        for name in names:
            yield Acl(user, Resource.TOPIC, operation, name)


def as_commands(agents: Sequence[str], bootstrap: str) -> list[str]:
    """The rights as ``kafka-acls.sh`` grants them: one command for a user, operation and kind."""
    lines = []
    for (user, resource, operation), same in groupby(
        acls(agents), attrgetter("user", "resource", "operation")
    ):
        names = " ".join(f"--{resource} {acl.name}" for acl in same)
        lines.append(
            f"kafka-acls.sh --bootstrap-server {bootstrap} --command-config admin.properties --add"
            f" --allow-principal User:{user} --operation {operation} {names}"
        )
    return lines


def as_table(agents: Sequence[str]) -> str:
    """The rights as Markdown: the writers and readers of each topic, the user of each group."""
    granted = acls(agents)

    def users(name: str, operation: Operation) -> str:
        return ", ".join(a.user for a in granted if (a.name, a.operation) == (name, operation))

    lines = ["| topic | may write | may read |", "|---|---|---|"]
    lines += [
        f"| `{t.name}` | {users(t.name, Operation.WRITE)} | {users(t.name, Operation.READ)} |"
        for t in every_topic()
    ]
    lines += ["", "| consumer group | may read |", "|---|---|"]
    lines += [f"| `{a.name}` | {a.user} |" for a in granted if a.resource is Resource.GROUP]
    return "\n".join(lines) + "\n"
