"""Which bus answers. Records and offsets of one bus mean nothing on another.

A real Kafka has a cluster id. The embedded broker's cluster id is an address in its memory, which
repeats, so its identity is a record (contracts/bus_identity.py). Nobody has a right to that topic
on a real Kafka, which would log each question for it.
"""

from dataclasses import dataclass

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.memory_records import MemoryRecords

from muster.contracts.bus_identity import IDENTITY_TOPIC
from muster.errors import Transient

RECORD_BYTES = 1024
NO_ERROR = 0
EMBEDDED = "mockCluster"
"""So begins the cluster id of the embedded broker, which is librdkafka's mock cluster."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of a bus. The embedded broker makes its topics itself and takes no admin requests."""

    id: str
    is_embedded: bool


async def read_identity(client: AIOKafkaClient) -> Identity:
    """Ask the bus. Each call asks anew: a client silently reconnects to another broker on the same
    port. Raises Transient where the embedded broker has no identity yet.
    """
    node = client.get_random_node()
    metadata = await client.send(node, MetadataRequest([], allow_auto_topic_creation=False))
    cluster = str(metadata.cluster_id)
    if not cluster.startswith(EMBEDDED):
        return Identity(cluster, is_embedded=False)
    partition = (0, 0, RECORD_BYTES)  # number, offset, bytes
    answer = await client.send(
        node, FetchRequest(0, 0, RECORD_BYTES, 0, [(IDENTITY_TOPIC, [partition])])
    )
    ((_, ((_, error, *_, found),)),) = answer.topics
    records = MemoryRecords(found or b"")
    if error != NO_ERROR or not records.has_next():
        reason = for_code(error).__name__ if error != NO_ERROR else "no record"
        raise Transient(f"the bus has no identity in {IDENTITY_TOPIC} yet: {reason}")
    first = next(iter(records.next_batch()))
    return Identity(first.value.decode(), is_embedded=True)
