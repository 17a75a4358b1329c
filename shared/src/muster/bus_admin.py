"""The administrator's step on a Kafka with log-ins: ``python -m muster.bus_admin --agent NODE …``.

It makes and corrects all topics, grants each user the rights of the table of topics
(muster.contracts.acls), and removes their other rights on these topics. It logs in as
MUSTER_KAFKA_USER: a super user, or one with the right to alter the cluster and its topics.
``--print`` shows the rights, and connects to nothing. Kafka's own tools make users and their
passwords; docs/kafka.md has all steps.
"""

import argparse
import asyncio
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NoError, for_code
from aiokafka.protocol.admin import (
    CreateAclsRequest,
    CreateAclsRequest_v1,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

from muster.bus import BUS_ERRORS
from muster.contracts.acls import (
    AGENT,
    OPERATOR,
    Acl,
    Operation,
    Resource,
    acls,
    as_commands,
    as_table,
    group_of,
)
from muster.contracts.topics import EVERY_TOPIC, Service
from muster.errors import Broken
from muster.settings import ServiceSettings, read
from muster.topics_admin import set_up_topics

OPERATIONS = {Operation.READ: 3, Operation.WRITE: 4, Operation.DESCRIBE_CONFIGS: 10}
RESOURCES = {Resource.TOPIC: 2, Resource.GROUP: 3}
ANY, LITERAL, ALLOW, ANY_HOST = 1, 3, 3, "*"
"""Kafka's numbers in an ACL, and in a filter."""
USER = "User:"
LOOK_AGAIN_S, HOLDS_S = 0.05, 60.0

KafkaAcl = tuple[int, str, int, str, str, int, int]
"""Kind and name of the resource, pattern, principal, host, operation, permission."""

OF_MUSTER = {(RESOURCES[Resource.TOPIC], topic) for topic in EVERY_TOPIC} | {
    (RESOURCES[Resource.GROUP], group_of(service)) for service in Service
}
USERS_OF_MUSTER = frozenset({USER + OPERATOR, *(USER + service for service in Service)})


class _GrantAll(CreateAclsRequest):  # type: ignore[misc]
    """aiokafka's request takes one right; Kafka's takes many."""

    def __init__(self, granted: Sequence[Acl]) -> None:
        self._granted = granted

    def build(self, _struct: Any) -> CreateAclsRequest_v1:
        return CreateAclsRequest_v1([_as_kafka_has_it(acl) for acl in self._granted])


def _as_kafka_has_it(acl: Acl) -> KafkaAcl:
    on = (RESOURCES[acl.resource], acl.name, LITERAL)
    return *on, USER + acl.user, ANY_HOST, OPERATIONS[acl.operation], ALLOW


def undeclared(held: Collection[KafkaAcl], agents: Iterable[str]) -> set[KafkaAcl]:
    """The rights of Muster's users on Muster's topics and groups that the table lacks. An agent
    that is not named keeps those of an agent. Denials stay, and rights on patterns of names.
    """
    prefix = USER + AGENT
    others = {
        principal.removeprefix(prefix)
        for _, _, _, principal, *_ in held
        if principal.startswith(prefix)
    }
    declared = {_without_host(_as_kafka_has_it(acl)) for acl in acls(sorted({*agents, *others}))}
    return {
        each
        for each in held
        if _is_of_muster(each) and each[2] == LITERAL and each[-1] == ALLOW
        if _without_host(each) not in declared
    }


def _is_of_muster(acl: KafkaAcl) -> bool:
    kind, name, _, principal, *_ = acl
    is_user = principal in USERS_OF_MUSTER or principal.startswith(USER + AGENT)
    return is_user and (kind, name) in OF_MUSTER


def _without_host(acl: KafkaAcl) -> tuple[int | str, ...]:
    return acl[:4] + acl[5:]


async def set_up_bus(settings: ServiceSettings, agents: Sequence[str]) -> tuple[int, int]:
    """Make the topics, grant the rights, also of the agents on these nodes, and remove undeclared
    ones; how many are granted and removed. Returns when this holds.

    Raises Broken where the bus refuses it.
    """
    made = await set_up_topics(settings, EVERY_TOPIC)
    if made.refused is not None:
        raise Broken(f"the bus refuses to make topics: {made.refused}")
    granted = acls(agents)
    client = AIOKafkaClient(**settings.kafka_client())
    try:
        await client.bootstrap()
        answer = await client.send(client.get_random_node(), _GrantAll(granted))
        for acl, (code, reason) in zip(granted, answer.creation_responses, strict=True):
            if for_code(code) is not NoError:
                raise Broken(f"the bus refuses to grant {acl}: {for_code(code).__name__}: {reason}")
        removed = undeclared(await _held(client), agents)
        for each in sorted(removed):
            answer = await client.send(client.get_random_node(), DeleteAclsRequest(*each))
            ((code, reason, _),) = answer.filter_responses
            if for_code(code) is not NoError:
                name = for_code(code).__name__
                raise Broken(f"the bus refuses to remove {each}: {name}: {reason}")
        wanted = {_as_kafka_has_it(acl) for acl in granted}
        async with asyncio.timeout(HOLDS_S):
            while not wanted <= (held := await _held(client)) or held & removed:
                await asyncio.sleep(LOOK_AGAIN_S)
    finally:
        await client.close()
    return len(granted), len(removed)


async def _held(client: AIOKafkaClient) -> set[KafkaAcl]:
    """The rights that a broker knows; it learns of a change a moment later."""
    every = DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY)
    answer = await client.send(client.get_random_node(), every)
    return {
        (kind, name, pattern, *acl)
        for kind, name, pattern, acls_of in answer.resources
        for acl in acls_of
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m muster.bus_admin", description=__doc__)
    parser.add_argument(
        "--agent", action="append", default=[], metavar="NODE", help="a node; may be given again"
    )
    parser.add_argument("--print", choices=("table", "commands"), help="show the rights only")
    arguments = parser.parse_args()
    settings = read(ServiceSettings)
    if arguments.print == "table":
        sys.stdout.write(as_table(arguments.agent))
    elif arguments.print == "commands":
        lines = as_commands(arguments.agent, settings.kafka_bootstrap)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    else:
        try:
            granted, removed = asyncio.run(set_up_bus(settings, arguments.agent))
        except (Broken, *BUS_ERRORS) as error:
            sys.exit(f"Kafka at {settings.kafka_bootstrap} was not set up: {error}")
        sys.stdout.write(
            f"{len(EVERY_TOPIC)} topics are right, {granted} rights are granted,"
            f" {removed} others are removed\n"
        )


if __name__ == "__main__":
    main()
