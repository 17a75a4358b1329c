"""The administrator's step on a Kafka with log-ins: ``python -m muster.bus_admin --agent NODE …``.

It makes and corrects all topics, grants each user the rights of the table of topics
(muster.contracts.acls), and removes their other rights on these topics. It logs in as
MUSTER_KAFKA_USER: a super user, or one with the right to alter the cluster and its topics.
``--users FOLDER`` sets passwords too: the folder has a file for each user, with its password.
``--remove NODE`` revokes a node's agent, and publishes that the node was removed.
``--print`` shows the rights, and connects to nothing. docs/kafka.md has all steps.
"""

import argparse
import asyncio
import hashlib
import secrets
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NoError, for_code
from aiokafka.protocol.admin import (
    CreateAclsRequest,
    CreateAclsRequest_v1,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from muster.bus import BUS_ERRORS
from muster.contracts.acls import (
    AGENT,
    FENCE,
    OPERATOR,
    Acl,
    Operation,
    Resource,
    acls,
    agent_user,
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
SCRAM_SHA_512 = 2
NO_SUCH_USER = 91
REPORTED = "node-reported"
ITERATIONS = 4096  # Kafka's least: passwords have 256 random bits
SALT_BYTES = 32

KafkaAcl = tuple[int, str, int, str, str, int, int]
"""Kind and name of the resource, pattern, principal, host, operation, permission."""

OF_MUSTER = {(RESOURCES[Resource.TOPIC], topic) for topic in EVERY_TOPIC} | {
    (RESOURCES[Resource.GROUP], group_of(service)) for service in Service
}
USERS_OF_MUSTER = frozenset(USER + name for name in (OPERATOR, FENCE, *Service))


class _GrantAll(CreateAclsRequest):  # type: ignore[misc]
    """aiokafka's request takes one right; Kafka's takes many."""

    def __init__(self, granted: Sequence[Acl]) -> None:
        self._granted = granted

    def build(self, _struct: Any) -> CreateAclsRequest_v1:
        return CreateAclsRequest_v1([_as_kafka_has_it(acl) for acl in self._granted])


class _SetScramResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 51, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _SetScramStruct(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, FLEXIBLE_VERSION = 51, 0, True
    RESPONSE_TYPE = _SetScramResponse
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(
                ("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)
            ),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _SetPasswords(Request[_SetScramStruct]):  # type: ignore[misc]
    """AlterUserScramCredentials, which aiokafka lacks."""

    API_KEY = 51

    def __init__(self, passwords: Mapping[str, str], without: Iterable[str]) -> None:
        self._passwords = passwords
        self._without = without

    def build(self, _struct: Any) -> _SetScramStruct:
        deleted: list[tuple[str, int, dict[int, bytes]]]
        deleted = [(user, SCRAM_SHA_512, {}) for user in self._without]
        return _SetScramStruct(deleted, [_salted(*each) for each in self._passwords.items()], {})


def _salted(user: str, password: str) -> tuple[str, int, int, bytes, bytes, dict[int, bytes]]:
    salt = secrets.token_bytes(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return user, SCRAM_SHA_512, ITERATIONS, salt, salted, {}


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


def read_passwords(folder: Path) -> dict[str, str]:
    """The password of each user, from the folder's files. Raises Broken where one is empty."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    passwords = {path.name: path.read_text().strip() for path in files}
    if empty := [user for user, password in passwords.items() if not password]:
        raise Broken(f"{folder} has no password of {', '.join(empty)}")
    return passwords


async def set_up_bus(
    settings: ServiceSettings,
    agents: Sequence[str],
    passwords: Mapping[str, str] | None = None,
    removed_nodes: Sequence[str] = (),
) -> tuple[int, int]:
    """Make the topics, set passwords, grant the rights, also of the agents on these nodes, and
    remove undeclared ones; how many are granted and removed. An agent of a removed node loses its
    password and all rights, which holds at once, also on open connections. Returns when this holds.

    Raises Broken where the bus refuses it.
    """
    revoked = {agent_user(node) for node in removed_nodes}
    passwords = {user: each for user, each in (passwords or {}).items() if user not in revoked}
    agents = [each for each in agents if each not in removed_nodes]
    made = await set_up_topics(settings, EVERY_TOPIC)
    if made.refused is not None:
        raise Broken(f"the bus refuses to make topics: {made.refused}")
    granted = acls(agents)
    client = AIOKafkaClient(**settings.kafka_client())
    try:
        await client.bootstrap()
        if passwords or revoked:
            request = _SetPasswords(passwords, sorted(revoked))
            answer = await client.send(client.get_random_node(), request)
            for user, code, reason, _ in answer.results:
                is_gone = user in revoked and code == NO_SUCH_USER
                if for_code(code) is not NoError and not is_gone:
                    name = for_code(code).__name__
                    raise Broken(f"the bus refuses the password of {user}: {name}: {reason}")
        answer = await client.send(client.get_random_node(), _GrantAll(granted))
        for acl, (code, reason) in zip(granted, answer.creation_responses, strict=True):
            if for_code(code) is not NoError:
                raise Broken(f"the bus refuses to grant {acl}: {for_code(code).__name__}: {reason}")
        held = await _held(client)
        principals = {USER + user for user in revoked}
        of_revoked = {each for each in held if each[3] in principals and each[-1] == ALLOW}
        removed = undeclared(held, agents) | of_revoked
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
    await _forget(settings, removed_nodes)
    return len(granted), len(removed)


async def _forget(settings: ServiceSettings, nodes: Sequence[str]) -> None:
    """A tombstone in place of each node's report: services forget the node once it is lost."""
    if not nodes:
        return
    async with AIOKafkaProducer(**settings.kafka_client(), acks="all") as producer:
        for node in nodes:
            await producer.send_and_wait(REPORTED, key=node.encode())


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
    parser.add_argument(
        "--users",
        type=Path,
        metavar="FOLDER",
        help="set the passwords in its files, each named after its user; each user agent-NODE"
        " counts as --agent NODE",
    )
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="NODE",
        help="a node that is removed for good; may be given again",
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
            passwords = read_passwords(arguments.users) if arguments.users else {}
            nodes = [user.removeprefix(AGENT) for user in passwords if user.startswith(AGENT)]
            agents = sorted({*arguments.agent, *nodes})
            done = set_up_bus(settings, agents, passwords, arguments.remove)
            granted, removed = asyncio.run(done)
        except (Broken, OSError, *BUS_ERRORS) as error:
            sys.exit(f"Kafka at {settings.kafka_bootstrap} was not set up: {error}")
        sys.stdout.write(
            f"{len(EVERY_TOPIC)} topics are right, {granted} rights are granted,"
            f" {removed} others are removed\n"
        )


if __name__ == "__main__":
    main()
