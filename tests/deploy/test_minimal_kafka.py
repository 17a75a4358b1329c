"""The broker of the overlay `minimal`: a real Apache Kafka with its server.properties."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from cli.deploy.credentials import ADMINISTRATOR, kafka_password, secret_of_users
from cli.embedded.apache import HEAP
from cli.embedded.process import dying_with_me, free_port
from muster.contracts.acls import agent_user
from muster.settings import ServiceSettings

pytestmark = pytest.mark.apache

OVERLAY = Path(__file__).parents[2] / "deploy/k8s/overlays/minimal"
KEY = "k" * 64
START_S = 120
LOGGING = f"-Dlog4j2.configurationFile={OVERLAY / 'log4j2.properties'}"


class Broker:
    """The broker, with the overlay's files at other places and its ports free ones."""

    def __init__(self, home: Path, jars: Path) -> None:
        self.home = home
        self.port = free_port()
        secrets = home / "secrets"
        secrets.mkdir()
        (secrets / "password").write_text(kafka_password(KEY, ADMINISTRATOR))
        text = (OVERLAY / "server.properties").read_text()
        for old, new in (
            ("0.0.0.0:9092", f"127.0.0.1:{self.port}"),
            ("kafka.muster-system.svc:9092", f"127.0.0.1:{self.port}"),
            ("127.0.0.1:9093", f"127.0.0.1:{free_port()}"),
            ("127.0.0.1:9094", f"127.0.0.1:{free_port()}"),
            ("/run/secrets", str(secrets)),
            ("/data/kafka", str(home / "data")),
        ):
            assert old in text
            text = text.replace(old, new)
        self.properties = home / "server.properties"
        self.properties.write_text(text)
        classes = ":".join(sorted(str(jar) for jar in jars.glob("*.jar")))
        self._java = ["java", *HEAP, "-cp", classes]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        administrator = f"name={ADMINISTRATOR},password={kafka_password(KEY, ADMINISTRATOR)}"
        options = ["--config", str(self.properties), "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk"]
        options += ["--add-scram", f"SCRAM-SHA-512=[{administrator}]"]
        subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", *options],
            check=True,
            capture_output=True,
        )
        with (self.home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self._java, LOGGING, "kafka.Kafka", self.properties],
                stdout=log,
                stderr=log,
                cwd=self.home,
                preexec_fn=dying_with_me(signal.SIGKILL),
            )
        deadline = time.monotonic() + START_S
        while not self._accepts():
            assert self._process.poll() is None, (self.home / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the broker does not accept connections"
            time.sleep(0.1)

    def _accepts(self) -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def login(self, user: str, password: str) -> dict[str, str]:
        """The settings of a user, as a pod has them."""
        return {
            "MUSTER_KAFKA_BOOTSTRAP": f"127.0.0.1:{self.port}",
            "MUSTER_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "MUSTER_KAFKA_USER": user,
            "MUSTER_KAFKA_PASSWORD": password,
        }

    def client_of(self, user: str, password: str) -> dict[str, Any]:
        """The options of a client."""
        found = self.login(user, password)
        settings = ServiceSettings(
            **{name.removeprefix("MUSTER_").lower(): each for name, each in found.items()}
        )
        return settings.kafka_client()

    def logs_in(self, user: str, password: str) -> bool:
        """Whether the broker takes this password."""

        async def connect() -> bool:
            client = AIOKafkaClient(**self.client_of(user, password))
            try:
                await client.bootstrap()
            except KafkaError:
                return False
            finally:
                await client.close()
            return True

        return asyncio.run(connect())

    def is_refused_after(self, node: str, act: Callable[[], object]) -> bool:
        """Whether the agent of a node can publish, but no longer on the same connection."""

        async def publish() -> bool:
            user = agent_user(node)
            async with AIOKafkaProducer(
                **self.client_of(user, kafka_password(KEY, user))
            ) as producer:
                await producer.send_and_wait("node-reported", b"{}", key=node.encode())
                await asyncio.to_thread(act)
                try:
                    await producer.send_and_wait("node-reported", b"{}", key=node.encode())
                except TopicAuthorizationFailedError:
                    return True
                return False

        return asyncio.run(publish())

    def reports(self, node: str) -> list[bytes | None]:
        """The values of all records about a node's state."""

        async def read() -> list[bytes | None]:
            place = TopicPartition("node-reported", 0)
            administrator = self.client_of(ADMINISTRATOR, kafka_password(KEY, ADMINISTRATOR))
            async with AIOKafkaConsumer(**administrator) as consumer:
                consumer.assign([place])
                await consumer.seek_to_beginning()
                ends = await consumer.end_offsets([place])
                values = []
                while await consumer.position(place) < ends[place]:
                    record = await consumer.getone()
                    if record.key == node.encode():
                        values.append(record.value)
                return values

        return asyncio.run(read())


@pytest.fixture
def broker(tmp_path: Path, apache_installation: Path) -> Iterator[Broker]:
    made = Broker(tmp_path, apache_installation / "jars")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def run_the_job(broker: Broker, users: Path, *words: str) -> str:
    """What the Job `bus` runs."""
    done = subprocess.run(
        [sys.executable, "-m", "muster.bus_admin", "--users", users, *words],
        env=os.environ
        | broker.login(ADMINISTRATOR, kafka_password(KEY, ADMINISTRATOR))
        | {"MUSTER_TOPIC_PARTITIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def a_folder_of_users(folder: Path, nodes: list[str]) -> Path:
    folder.mkdir()
    for user, password in secret_of_users(KEY, nodes)["stringData"].items():
        (folder / user).write_text(password)
    return folder


def test_the_job_makes_topics_users_and_rights(broker: Broker, tmp_path: Path) -> None:
    users = a_folder_of_users(tmp_path / "users", ["gpu-1"])
    assert "topics are right" in run_the_job(broker, users)
    for user in ("rest", "launcher", "scheduler", "alerting", "operator", "agent-gpu-1"):
        assert broker.logs_in(user, kafka_password(KEY, user)), user
        assert not broker.logs_in(user, "another"), user
    assert not broker.logs_in("agent-gpu-2", kafka_password(KEY, "agent-gpu-2"))
    again = a_folder_of_users(tmp_path / "more-users", ["gpu-2"])
    assert " 0 others are removed" in run_the_job(broker, again)
    for node in ("agent-gpu-1", "agent-gpu-2"):
        assert broker.logs_in(node, kafka_password(KEY, node)), node


def test_the_job_revokes_the_agent_of_a_removed_node(broker: Broker, tmp_path: Path) -> None:
    users = a_folder_of_users(tmp_path / "users", ["gpu-1", "gpu-2"])
    assert " 0 others are removed" in run_the_job(broker, users)
    assert broker.is_refused_after("gpu-1", lambda: run_the_job(broker, users, "--remove", "gpu-1"))
    assert not broker.logs_in("agent-gpu-1", kafka_password(KEY, "agent-gpu-1"))
    again = run_the_job(broker, users, "--remove", "gpu-1")  # as a Job that is restarted
    assert " 0 others are removed" in again
    assert broker.logs_in("agent-gpu-2", kafka_password(KEY, "agent-gpu-2"))
    assert broker.reports("gpu-1") == [b"{}", None, None]
    assert " 0 others are removed" in run_the_job(broker, users)
    assert broker.logs_in("agent-gpu-1", kafka_password(KEY, "agent-gpu-1"))


def test_the_broker_logs_to_its_output_alone(broker: Broker) -> None:
    assert "] INFO " in (broker.home / "log").read_text()
    made = {each.name for each in broker.home.iterdir()}
    assert made == {"data", "log", "secrets", "server.properties"}


def test_a_user_without_a_password_is_named(broker: Broker, tmp_path: Path) -> None:
    users = a_folder_of_users(tmp_path / "users", [])
    (users / "rest").write_text("\n")
    with pytest.raises(AssertionError, match="no password of rest"):
        run_the_job(broker, users)
