"""Records to be published, and their channels. A channel can be away by itself; the records within
it keep their order.
"""

from dataclasses import dataclass
from functools import lru_cache

from aiokafka.partitioner import murmur2

HASHES_KEPT = 10_000
"""A hash takes 20 us; a key comes many times in a row."""


@lru_cache(HASHES_KEPT)
def hash_of(key: str) -> int:
    """Kafka's own hash of a key, without its sign: below 2**31."""
    return int(murmur2(key.encode()) & 0x7FFFFFFF)


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key, so that plain producers agree."""
    return hash_of(key) % partitions


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to publish; ``value`` None removes a key of a broadcast topic."""

    topic: str
    key: str
    value: bytes | None
    event_id: str
    at: float
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A partition of a topic that has ``count``; the whole topic where they are not known."""

    topic: str
    count: int = 1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.topic}, {self.number} of {self.count}"
