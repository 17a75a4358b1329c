"""On a real Kafka with log-ins each user may do what the table of topics has, and nothing else."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    NoError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from bare_bus import a_bus
from bus_logins import an_administrator, bus_settings, kafka_client, running_closed, set_up
from cli.embedded.apache import AGENT, NODE, ApacheKafka
from cli.embedded.process import free_port
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from consumer_example import first_event
from listening import listens_on
from muster.bus import Outgoing
from muster.contracts.acls import (
    FENCE,
    OPERATOR,
    Acl,
    Operation,
    Resource,
    acls,
    as_commands,
    as_table,
)
from muster.contracts.topics import EVERY_TOPIC, TOPICS, Service, dead_letter_topic
from muster.refusals import RefusedError
from muster.service import Runtime, running
from muster.settings import ServiceSettings
from toy_services import eventually

WAIT_S = 60
USERS = {service.value: service for service in Service if service is not Service.RUNTIME_AGENT} | {
    AGENT: Service.RUNTIME_AGENT
}
RIGHT = Outgoing("job-updated", "j", b"{}", "launcher/job/j/1", 0.0)
WRONG = Outgoing("job-submitted", "j", b"{}", "launcher/job/j/1", 0.0)


def test_agents_have_rights_of_their_own_and_no_group() -> None:
    users = {acl.user for acl in acls(["a", "b"])}
    assert users == {*USERS, OPERATOR, FENCE, "agent-a", "agent-b"} - {AGENT}
    one, other = ({acl for acl in acls(["a", "b"]) if acl.user == f"agent-{n}"} for n in "ab")
    assert {(a.operation, a.name) for a in one} == {(a.operation, a.name) for a in other}
    assert all(acl.resource is Resource.TOPIC for acl in one)


def test_the_rights_that_matter_most_are_as_people_expect() -> None:
    granted = set(acls([NODE]))
    writers = {
        acl.user for acl in granted if (acl.name, acl.operation) == ("pod-requested", "Write")
    }
    assert writers == {"launcher"}
    assert Acl(AGENT, Resource.TOPIC, Operation.WRITE, "job-submitted") not in granted
    assert Acl(AGENT, Resource.TOPIC, Operation.READ, "pod-requested") in granted
    fence = Acl("fence", Resource.TOPIC, Operation.READ, "node-lost")
    assert [acl for acl in granted if acl.user == "fence"] == [fence]


def test_commands_and_table_have_every_right() -> None:
    commands = as_commands([NODE], "kafka:9092")
    granted = {
        (words[words.index("--allow-principal") + 1], words[words.index("--operation") + 1], name)
        for words in (line.split() for line in commands)
        for name in words[words.index("--operation") + 3 :: 2]
    }
    assert granted == {(f"User:{a.user}", a.operation.value, a.name) for a in acls([NODE])}
    row = "| `job-updated` | launcher | rest, alerting, operator |"
    assert row in as_table([NODE]).splitlines()


@pytest.fixture(scope="module")
def kafka(
    apache_installation: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheKafka]:
    """A Kafka with the administrator's step done, for the tests that change no right."""
    home = tmp_path_factory.mktemp("closed") / "kafka"
    with running_closed(ApacheKafka(home, apache_installation)) as running_kafka:
        set_up(running_kafka, 1)
        yield running_kafka


def should_write(user: str, topic: str) -> bool:
    """The table's rights, read by itself: the test must not believe the code it judges."""
    of = TOPICS.get(topic) or dead_letter_topic(topic.removesuffix(".dead-letter"))
    return topic == "settings-changed" if user == OPERATOR else USERS[user] in of.senders


def should_read(user: str, topic: str) -> bool:
    of = TOPICS.get(topic) or dead_letter_topic(topic.removesuffix(".dead-letter"))
    return user == OPERATOR or USERS[user] in of.readers


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
@pytest.mark.parametrize("user", [*USERS, OPERATOR])
async def test_every_topic_takes_the_records_of_its_senders_alone(
    kafka: ApacheKafka, user: str
) -> None:
    producer = AIOKafkaProducer(**kafka_client(kafka.bootstrap, user))
    await producer.start()
    taken = {}
    try:
        for topic in EVERY_TOPIC:
            try:
                await producer.send_and_wait(topic, b"{}", b"k")
                taken[topic] = True
            except TopicAuthorizationFailedError:
                taken[topic] = False
    finally:
        await producer.stop()
    assert taken == {topic: should_write(user, topic) for topic in EVERY_TOPIC}
    assert not taken["job-submitted"] or user == "rest"
    assert not taken["pod-requested"] or user == "launcher"


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
@pytest.mark.parametrize("user", [*USERS, OPERATOR])
async def test_every_topic_shows_its_records_to_its_readers_alone(
    kafka: ApacheKafka, user: str
) -> None:
    client = AIOKafkaClient(**kafka_client(kafka.bootstrap, user))
    await client.bootstrap()
    try:
        wanted = [(topic, [(0, 0, 1024)]) for topic in EVERY_TOPIC]
        answer = await client.send(client.get_random_node(), FetchRequest(0, 0, 1 << 20, 0, wanted))
    finally:
        await client.close()
    errors = {topic: for_code(partition[1]) for topic, (partition,) in answer.topics}
    assert set(errors.values()) == {NoError, TopicAuthorizationFailedError} or user == OPERATOR
    shown = {topic: error is NoError for topic, error in errors.items()}
    assert shown == {topic: should_read(user, topic) for topic in EVERY_TOPIC}


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
@pytest.mark.parametrize("user", [*USERS, OPERATOR])
async def test_a_group_is_read_by_its_service_alone(kafka: ApacheKafka, user: str) -> None:
    admin = AIOKafkaAdminClient(**kafka_client(kafka.bootstrap, user))
    await admin.start()
    own = set()
    try:
        for group in ("muster-rest", "muster-launcher", "muster-scheduler", "muster-alerting", "x"):
            if await shows_offsets(admin, group):
                own.add(group)
    finally:
        await admin.close()
    assert own == (set() if user in (AGENT, OPERATOR) else {f"muster-{user}"})


async def shows_offsets(admin: AIOKafkaAdminClient, group: str) -> bool:
    """Kafka first makes the topic of the offsets."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await admin.list_consumer_group_offsets(group)
            except GroupCoordinatorNotAvailableError:
                await asyncio.sleep(0.05)
            except GroupAuthorizationFailedError:
                return False
            else:
                return True


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_nobody_joins_the_group_of_another_service(kafka: ApacheKafka) -> None:
    consumer = AIOKafkaConsumer(
        "settings-changed", group_id="muster-alerting", **kafka_client(kafka.bootstrap, "rest")
    )
    with pytest.raises(GroupAuthorizationFailedError):
        await first_of(consumer)
    await consumer.stop()


async def first_of(consumer: AIOKafkaConsumer) -> None:
    async with asyncio.timeout(WAIT_S):
        await consumer.start()
        await consumer.getone()


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_a_watch_over_the_bus_asks_for_nothing_that_kafka_denies(kafka: ApacheKafka) -> None:
    before = kafka.log_path.stat().st_size

    def denied() -> list[str]:
        lines = kafka.log_path.read_bytes()[before:].decode().splitlines()
        return [line for line in lines if " is Denied " in line]

    for user, service in USERS.items():
        bus = a_bus(kafka.bootstrap, user, service)
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            watching = group.create_task(bus.run())
            for _ in range(2):
                bus.is_up = False
                while not bus.is_up:
                    await asyncio.sleep(0.02)
            watching.cancel()
        await bus.close()
    client = AIOKafkaClient(**kafka_client(kafka.bootstrap, AGENT))
    await client.bootstrap()
    asked = MetadataRequest(["nobodys"], allow_auto_topic_creation=False)
    await client.send(client.get_random_node(), asked)
    await client.close()
    async with asyncio.timeout(WAIT_S):
        while not denied():  # Kafka logs in order, so earlier ones are there too
            await asyncio.sleep(0.02)
    assert [line for line in denied() if "LITERAL:nobodys" not in line] == []


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_plaintext_and_a_foreign_certificate_are_refused(kafka: ApacheKafka) -> None:
    options = kafka_client(kafka.bootstrap, "rest")
    for wrong in (
        {"bootstrap_servers": kafka.bootstrap},
        options | {"security_protocol": "SASL_PLAINTEXT"},
        options | {"ssl_context": ssl.create_default_context()},
    ):
        client = AIOKafkaClient(**wrong, request_timeout_ms=10_000)
        with pytest.raises(KafkaConnectionError):
            await client.bootstrap()
        await client.close()


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
def test_kafka_and_its_controller_listen_on_loopback_alone(kafka: ApacheKafka) -> None:
    assert kafka.pid is not None
    assert listens_on(kafka.pid) == {"127.0.0.1"}


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
def test_passwords_are_for_their_owner_alone(kafka: ApacheKafka) -> None:
    for name in ("passwords.json", "server.properties", "tls.p12"):
        assert (kafka.home / name).stat().st_mode & 0o077 == 0, name
    command = Path(f"/proc/{kafka.pid}/cmdline").read_text()
    assert kafka.login("administrator")["kafka_password"] not in command


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_with_a_wrong_password_the_service_is_not_up(kafka: ApacheKafka) -> None:
    bus = a_bus(kafka.bootstrap, "scheduler", kafka_password="wrong")
    running_bus = asyncio.create_task(bus.run())
    async with asyncio.timeout(WAIT_S):
        while not bus.refusals.reasons:
            await asyncio.sleep(0.02)
    running_bus.cancel()
    await asyncio.wait([running_bus])
    assert "SaslAuthenticationFailed" in bus.refusals.reasons["log in"]
    assert not bus.is_up
    await bus.close()


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_the_example_logs_in_with_the_settings_of_services(apache_kafka: ApacheKafka) -> None:
    set_up(apache_kafka, 1)
    async with AIOKafkaProducer(**kafka_client(apache_kafka.bootstrap, "launcher")) as producer:
        attributes = [("ce_type", b"muster.job-updated.v1"), ("ce_id", b"launcher/job/j/1")]
        await producer.send_and_wait("job-updated", b'{"job": "j"}', b"j", headers=attributes)
    settings = bus_settings(apache_kafka.bootstrap, OPERATOR)
    env = {f"MUSTER_{name.upper()}": str(value) for name, value in settings.items()}
    line = await first_event(apache_kafka.bootstrap, "job-updated", env)
    assert line == "muster.job-updated.v1 launcher/job/j/1 {'job': 'j'}\n"


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_a_refused_record_waits_and_is_shown_until_the_right_is_granted(
    apache_kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(apache_kafka, 1)
    administrator = an_administrator(apache_kafka)
    of = (ResourceType.TOPIC, "job-updated", ResourcePatternType.LITERAL, "User:launcher", None)
    rights = AclBindingFilter(*of, AclOperation.WRITE, AclPermissionType.ANY)
    ((deleted,),) = [f.result(WAIT_S) for f in administrator.delete_acls([rights]).values()]
    bus = a_bus(apache_kafka.bootstrap, "launcher", Service.LAUNCHER)
    running_bus = asyncio.create_task(bus.run())
    async with asyncio.timeout(WAIT_S):
        outcomes = await bus.publish([RIGHT, WRONG])
        assert [type(each) for each in outcomes] == [RefusedError, RefusedError]
        assert set(bus.refusals.reasons) >= {"publish job-updated", "publish job-submitted"}
        for future in administrator.create_acls([deleted]).values():
            future.result(WAIT_S)
        while "publish job-updated" in bus.refusals.reasons:
            await asyncio.sleep(0.02)
        assert await bus.publish([RIGHT]) == [None]
        # The bus also asks for its topics, and is refused these, too, if it asks before the grant.
        while set(bus.refusals.reasons) != {"publish job-submitted"}:
            await asyncio.sleep(0.02)
    running_bus.cancel()
    await asyncio.wait([running_bus])
    log = capsys.readouterr().out
    assert log.count("what='publish job-submitted'") == 1
    assert "grant User:launcher its rights" in log
    await bus.close()


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
def test_rights_that_are_not_declared_are_removed(apache_kafka: ApacheKafka) -> None:
    set_up(apache_kafka, 1)
    administrator = an_administrator(apache_kafka)
    topic, group, literal = ResourceType.TOPIC, ResourceType.GROUP, ResourcePatternType.LITERAL
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    narrowed = {
        AclBinding(
            topic, "job-submitted", literal, f"User:{AGENT}", "*", AclOperation.WRITE, allow
        ),
        AclBinding(topic, "job-submitted", literal, "User:agent-x", "*", AclOperation.READ, allow),
        AclBinding(group, "muster-rest", literal, "User:launcher", "*", AclOperation.READ, allow),
        AclBinding(topic, "job-updated", literal, "User:operator", "*", AclOperation.ALL, allow),
    }
    kept = {
        AclBinding(topic, "pod-requested", literal, "User:agent-x", "*", AclOperation.READ, allow),
        AclBinding(topic, "job-updated", literal, "User:listener", "*", AclOperation.READ, allow),
        AclBinding(topic, "elsewhere", literal, "User:rest", "*", AclOperation.READ, allow),
        AclBinding(
            topic, "job-updated", literal, "User:rest", "10.0.0.1", AclOperation.READ, allow
        ),
        AclBinding(topic, "*", literal, f"User:{AGENT}", "*", AclOperation.ALL, deny),
    }
    before = held(administrator)
    for future in administrator.create_acls([*narrowed, *kept]).values():
        future.result(WAIT_S)
    set_up(apache_kafka, 1)
    assert held(administrator) == before | kept


def held(administrator: AdminClient) -> set[AclBinding]:
    every = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return set(administrator.describe_acls(every).result(WAIT_S))


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_a_denial_revokes_one_agent_at_once(apache_kafka: ApacheKafka) -> None:
    set_up(apache_kafka, 1)
    producer = AIOKafkaProducer(**kafka_client(apache_kafka.bootstrap, AGENT))
    await producer.start()
    await producer.send_and_wait("node-heartbeat", b"{}", b"k")
    every = (ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, f"User:{AGENT}", "*")
    denial = AclBinding(*every, AclOperation.ALL, AclPermissionType.DENY)
    administrator = an_administrator(apache_kafka)
    for future in administrator.create_acls([denial]).values():
        future.result(WAIT_S)
    with pytest.raises(TopicAuthorizationFailedError):
        await until_refused(producer)
    await producer.stop()


async def until_refused(producer: AIOKafkaProducer) -> None:
    """The broker knows of a change a moment later."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await producer.send_and_wait("node-heartbeat", b"{}", b"k")


@pytest.mark.apache
@pytest.mark.xdist_group("acls")
async def test_a_service_that_the_bus_refuses_is_not_ready(kafka: ApacheKafka) -> None:
    """An agent with the rights of another user."""
    settings = ServiceSettings(**bus_settings(kafka.bootstrap, "rest"), bus_watch_s=0.1)
    port = free_port()

    async def ready() -> tuple[int, dict[str, bool]]:
        try:
            async with httpx2.AsyncClient(trust_env=False) as client:
                answer = await client.get(f"http://127.0.0.1:{port}/readyz")
        except httpx2.ConnectError:
            return 0, {}
        return answer.status_code, answer.json()

    @contextlib.asynccontextmanager
    async def build(runtime: Runtime) -> AsyncIterator[None]:
        runtime.follow(["settings-changed"], lambda *_: None)
        yield

    async with running(Service.RUNTIME_AGENT, settings, port, build) as runtime:
        await eventually(ready, (503, {"bus": True, "bus_rights": False}))
        assert "make topics" in runtime.bus.refusals.reasons
        async with httpx2.AsyncClient(trust_env=False) as client:
            metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert "muster_bus_refusals 1.0" in metrics
