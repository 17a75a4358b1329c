"""The administrator's step on a Kafka with log-ins: ``python -m muster.bus_admin --agent NODE …``.

It makes and corrects all topics, and grants each user the rights of the table of topics
(muster.contracts.acls). It logs in as MUSTER_KAFKA_USER: a super user, or one with the right to
alter the cluster and its topics. ``--print`` shows the rights, and connects to nothing. Kafka's own
tools make users and their passwords; docs/kafka.md has all steps.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NoError, for_code
from aiokafka.protocol.admin import CreateAclsRequest, CreateAclsRequest_v1, DescribeAclsRequest

from muster.bus import BUS_ERRORS
from muster.contracts.acls import Acl, Operation, Resource, acls, as_commands, as_table
from muster.contracts.topics import EVERY_TOPIC
from muster.errors import Broken
from muster.settings import ServiceSettings, read
from muster.topics_admin import set_up_topics

OPERATIONS = {Operation.READ: 3, Operation.WRITE: 4, Operation.DESCRIBE_CONFIGS: 10}
RESOURCES = {Resource.TOPIC: 2, Resource.GROUP: 3}
ANY, LITERAL, ALLOW, ANY_HOST = 1, 3, 3, "*"
"""Kafka's numbers in an ACL, and in a filter."""
LOOK_AGAIN_S, HOLDS_S = 0.05, 60.0


class _GrantAll(CreateAclsRequest):  # type: ignore[misc]
    """aiokafka's request takes one right; Kafka's takes many."""

    def __init__(self, granted: Sequence[Acl]) -> None:
        self._granted = granted

    def build(self, _struct: Any) -> CreateAclsRequest_v1:
        return CreateAclsRequest_v1([_as_kafka_has_it(acl) for acl in self._granted])


def _as_kafka_has_it(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    on = (RESOURCES[acl.resource], acl.name, LITERAL)
    return *on, f"User:{acl.user}", ANY_HOST, OPERATIONS[acl.operation], ALLOW


async def set_up_bus(settings: ServiceSettings, agents: Sequence[str]) -> int:
    """Make the topics and grant the rights, also of the agents on these nodes; how many rights.
    What is there already stays. Returns when the rights hold.

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
        async with asyncio.timeout(HOLDS_S):
            while not {_as_kafka_has_it(acl) for acl in granted} <= await _held(client):
                await asyncio.sleep(LOOK_AGAIN_S)
    finally:
        await client.close()
    return len(granted)


async def _held(client: AIOKafkaClient) -> set[tuple[int, str, int, str, str, int, int]]:
    """The rights that a broker knows; it learns of new ones a moment after they are granted."""
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
            count = asyncio.run(set_up_bus(settings, arguments.agent))
        except (Broken, *BUS_ERRORS) as error:
            sys.exit(f"Kafka at {settings.kafka_bootstrap} was not set up: {error}")
        sys.stdout.write(f"{len(EVERY_TOPIC)} topics are right, {count} rights are granted\n")


if __name__ == "__main__":
    main()
