"""librdkafka's in-memory Kafka cluster on a port of our choice, by ctypes.

The library serves on a random port and offers no way to choose. So a socket of our own, bound to
the wanted port, takes the place of the library's listening socket (dup2 on its descriptor), and the
cluster is set to advertise our port. The library's file has a private name inside
confluent-kafka's wheel, hence the pinned version; `check` asks the running cluster over TCP whether
all of this held.
"""

import contextlib
import ctypes
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from muster.contracts.bus_identity import IDENTITY_TOPIC

from cli.embedded.process import EmbeddedServerError

BACKLOG = 128
BROKER_ID = 1
RD_KAFKA_PRODUCER = 0  # rdkafka.h: rd_kafka_type_t
ERROR_TEXT_BYTES = 512
IDENTITY_BYTES = 16
METADATA_API, METADATA_VERSION = 3, 2
CHECK_TIMEOUT_S = 5.0
KNOCK_S = 0.003


class MockCluster:
    """A running one-broker cluster at 127.0.0.1:port; it lives as long as this process."""

    def __init__(self, port: int, topics: Mapping[str, int]) -> None:
        self.port = port
        self._library = _load()
        listening = _listen(port)
        error = ctypes.create_string_buffer(ERROR_TEXT_BYTES)
        configuration = self._library.rd_kafka_conf_new()
        handle = self._library.rd_kafka_new(
            RD_KAFKA_PRODUCER, ctypes.c_void_p(configuration), error, ctypes.c_size_t(len(error))
        )
        if not handle:
            raise EmbeddedServerError(f"librdkafka: {error.value.decode(errors='replace')}")
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(ctypes.c_void_p(handle), 1)
        )
        bootstrap = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        random_port = int(bootstrap.rpartition(":")[2])
        # A first join need not wait for other members: each group has one.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        # All is made before clients that wait at our port come in: they would make topics, too,
        # with partitions of the library's choice, and would get another port.
        with _kept_awake(random_port):
            for topic, partitions in topics.items():
                self._create(topic, partitions)
            self._create(IDENTITY_TOPIC, 1)
            _write_identity(random_port)
        self._library.rd_kafka_mock_broker_set_host_port(
            self._cluster, BROKER_ID, b"127.0.0.1", port
        )
        with socket.create_connection(("127.0.0.1", random_port), CHECK_TIMEOUT_S) as connection:
            _metadata(connection, None)
            _take_over(random_port, listening)
        # The end of the connection wakes the library's thread, which waited at its old socket.

    def _create(self, topic: str, partitions: int) -> None:
        failed = self._library.rd_kafka_mock_topic_create(
            self._cluster, topic.encode(), partitions, 1
        )
        if failed:
            raise EmbeddedServerError(f"The broker can't make topic {topic} (error {failed}).")


@contextlib.contextmanager
def _kept_awake(port: int) -> Iterator[None]:
    """Connect to the broker again and again. Its thread sometimes misses the signal to make a
    topic, and would sleep a second before it looks again.
    """
    done = threading.Event()

    def knock() -> None:
        while not done.wait(KNOCK_S):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), CHECK_TIMEOUT_S).close()

    knocking = threading.Thread(target=knock, daemon=True)
    knocking.start()
    try:
        yield
    finally:
        done.set()
        knocking.join()


def check(port: int, topic: str | None) -> None:
    """Ask the broker for its metadata: it must answer, and name 127.0.0.1:port as its address."""
    try:
        with socket.create_connection(("127.0.0.1", port), CHECK_TIMEOUT_S) as connection:
            answer = _metadata(connection, topic)
    except (OSError, struct.error) as error:
        raise EmbeddedServerError(
            f"The embedded broker does not answer on 127.0.0.1:{port}: {error}."
        ) from error
    address = _text("127.0.0.1") + struct.pack(">i", port)
    if address not in answer:
        raise EmbeddedServerError(
            f"The embedded broker does not advertise 127.0.0.1:{port}: another version of "
            "confluent-kafka than the pinned one is installed, or another server answers there."
        )


def _metadata(connection: socket.socket, topic: str | None) -> bytes:
    asked = b"" if topic is None else _text(topic)
    count = -1 if topic is None else 1  # no list means all topics, which makes none
    body = struct.pack(">hhi", METADATA_API, METADATA_VERSION, 1) + _text("muster-check")
    body += struct.pack(">i", count) + asked
    connection.sendall(struct.pack(">i", len(body)) + body)
    with connection.makefile("rb") as stream:
        size = struct.unpack(">i", stream.read(4))[0]
        return stream.read(size)


def _text(value: str) -> bytes:
    """A string as the Kafka protocol writes it: its length in two bytes, then its bytes."""
    return struct.pack(">h", len(value)) + value.encode()


def _load() -> ctypes.CDLL:
    spec = find_spec("confluent_kafka")
    origin = spec.origin if spec is not None else None
    found = (
        sorted(Path(origin).parent.parent.glob("confluent_kafka.libs/librdkafka-*.so*"))
        if origin
        else []
    )
    if not found:
        raise EmbeddedServerError(
            "librdkafka was not found in the package confluent-kafka: run `make install`, "
            "or set MUSTER_KAFKA_BOOTSTRAP."
        )
    library = ctypes.CDLL(str(found[0]))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise EmbeddedServerError(
            f"Port {port} for the embedded broker is taken ({error.strerror}): "
            "end what listens there or choose another port by MUSTER_KAFKA_PORT."
        ) from error
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


def _write_identity(port: int) -> None:
    """Write which bus this is: the cluster's own id is an address, which repeats."""
    # Imported here: `check` is also used by programs that load no library of the broker's.
    from confluent_kafka import Producer

    failures: list[object] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
    producer.produce(
        IDENTITY_TOPIC,
        secrets.token_urlsafe(IDENTITY_BYTES),
        partition=0,
        on_delivery=lambda failure, _record: failures.append(failure),
    )
    producer.flush(CHECK_TIMEOUT_S)
    if failures != [None]:
        raise EmbeddedServerError(
            f"The embedded broker does not take its identity: {failures or 'no answer in time'}."
        )


def _take_over(random_port: int, listening: socket.socket) -> None:
    """Put our listening socket in the place of the library's."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as candidate:
            if candidate.getsockname() == ("127.0.0.1", random_port) and candidate.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                os.dup2(listening.fileno(), descriptor)
                return
    raise EmbeddedServerError("librdkafka's listening socket was not found among the descriptors.")
