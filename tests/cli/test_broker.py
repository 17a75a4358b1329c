"""The embedded broker: on the port it was given, gone with its parent."""

import socket
import struct
import subprocess
import sys
import threading
import time

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from cli.embedded.broker import EmbeddedBroker
from cli.embedded.mock_cluster import check
from cli.embedded.process import EmbeddedServerError, free_port, is_port_free
from listening import listens_on

pytestmark = pytest.mark.kafka
DEADLINE_S = 60.0


async def test_records_pass_in_a_group(fresh_broker: EmbeddedBroker) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=fresh_broker.bootstrap, enable_idempotence=True)
    consumer = AIOKafkaConsumer(
        "job-submitted",
        bootstrap_servers=fresh_broker.bootstrap,
        group_id="readers",
        auto_offset_reset="earliest",
    )
    await producer.start()
    await consumer.start()
    try:
        await producer.send_and_wait("job-submitted", b"value", key=b"key")
        record = await consumer.getone()
        assert (record.key, record.value) == (b"key", b"value")
    finally:
        await consumer.stop()
        await producer.stop()


async def test_topics_have_the_partitions_asked_for() -> None:
    with EmbeddedBroker(["plain", "wide=11"], partitions=3) as broker:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        try:
            assert len(await producer.partitions_for("plain")) == 3
            assert len(await producer.partitions_for("wide")) == 11
        finally:
            await producer.stop()


def test_a_client_that_waits_for_the_broker_does_not_make_its_topics() -> None:
    port, topics = free_port(), [f"topic-{number}" for number in range(20)]
    asked = struct.pack(">h", 6) + b"waiter" + struct.pack(">i", len(topics))
    for topic in topics:
        asked += struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhi", 3, 2, 1) + asked  # metadata, which makes topics
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
                    connection.sendall(struct.pack(">i", len(body)) + body)
                    connection.recv(1 << 16)
            except OSError:
                continue  # the broker is not there yet, or was killed

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with EmbeddedBroker(topics, port=port, partitions=3) as broker:
            broker.kill()
            broker.start()
    finally:
        is_over.set()
        asking.join()


async def test_a_producer_goes_on_after_a_kill_and_return(fresh_broker: EmbeddedBroker) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=fresh_broker.bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait("job-submitted", b"before")
        fresh_broker.kill()
        fresh_broker.start()
        await producer.send_and_wait("job-submitted", b"after")
    finally:
        await producer.stop()


def test_the_broker_ends_with_its_parent() -> None:
    program = (
        "import time\n"
        "from cli.embedded.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker(); broker.start()\n"
        "print(broker.port, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + DEADLINE_S
    while not is_port_free(port):
        assert time.monotonic() < deadline, "the broker outlived its parent"
        time.sleep(0.02)


def test_the_broker_listens_on_loopback_alone_for_it_knows_no_log_in() -> None:
    with EmbeddedBroker(["plain"]) as broker:
        assert broker.pid is not None
        assert listens_on(broker.pid) == {"127.0.0.1"}


def test_a_taken_port_is_named_with_the_fix(broker: EmbeddedBroker) -> None:
    with pytest.raises(EmbeddedServerError, match=f"Port {broker.port}.*taken.*MUSTER_KAFKA_PORT"):
        EmbeddedBroker(port=broker.port).start()


def test_the_self_test_passes_a_broker_and_refuses_other_servers(
    fresh_broker: EmbeddedBroker,
) -> None:
    check(fresh_broker.port, "job-submitted")

    def answer_with_another_address(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            body = b"\0" * 8 + b"\0\x09127.0.0.1" + struct.pack(">i", 1)
            connection.sendall(struct.pack(">i", len(body)) + body)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_with_another_address, args=(listening,))
        thread.start()
        with pytest.raises(EmbeddedServerError, match="does not advertise"):
            check(listening.getsockname()[1], "job-submitted")
        thread.join()


async def test_a_test_has_a_database_of_its_own(empty_database_url: str, bootstrap: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    try:
        await connection.execute("CREATE TABLE mine (n int)")
    finally:
        await connection.close()
    assert bootstrap.startswith("127.0.0.1:")
