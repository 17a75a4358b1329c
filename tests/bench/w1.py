"""The stream W1: gangs that arrive and depart, the same for every scheduler that is measured with
it.

A given number of nodes, arrivals and seed is one stream to the byte (`tests/bench/test_w1.py`
holds the checksums), so that figures of different programs are about the same work. Four virtual
clusters with a quarter of the racks each are filled to 90 % and then kept there: before an arrival
without room in its virtual cluster, gangs of it that are drawn by lot depart. A longer stream
begins with the shorter one. The random numbers are those of `random.Random` (Mersenne Twister):
for each arrival `random()` gives its size, `randrange(4)` its virtual cluster, and `randrange` of
the gangs there each that departs.
"""

import json
import random
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

SEED = 20201104
NODES_PER_RACK = 8
GPUS_PER_NODE = 8
RACK_GPUS = NODES_PER_RACK * GPUS_PER_NODE
VIRTUAL_CLUSTERS = ("vc0", "vc1", "vc2", "vc3")
SIZES = ((1, 0.6), (2, 0.12), (4, 0.12), (8, 0.1), (16, 0.03), (32, 0.02), (64, 0.01))
"""GPUs of a gang and how often; above 8 they are pods of 8."""
TARGET = 0.9
FILLED_AFTER_SKIPS = 200

_BOUNDS = tuple(accumulate(weight for _, weight in SIZES))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang of ``pods`` pods of ``gpus`` GPUs each comes."""

    id: int
    virtual_cluster: str
    pods: int
    gpus: int
    is_steady: bool


@dataclass(frozen=True, slots=True)
class Departure:
    """The gang with this id goes; a scheduler that could not place it has nothing to do."""

    id: int
    virtual_cluster: str
    pods: int
    gpus: int


Event: TypeAlias = Arrival | Departure


def drawn_size(rng: random.Random) -> int:
    """GPUs of the next gang."""
    place = bisect_right(_BOUNDS, rng.random())
    return SIZES[place][0] if place < len(SIZES) else SIZES[0][0]


def shape(size: int) -> tuple[int, int]:
    """Pods, and GPUs of each."""
    if size <= GPUS_PER_NODE:
        return 1, size
    return size // GPUS_PER_NODE, GPUS_PER_NODE


@dataclass(slots=True)
class _Book:
    """What would run if every gang were placed."""

    limit: int
    used: list[int] = field(default_factory=lambda: [0] * len(VIRTUAL_CLUSTERS))
    live: list[list[tuple[int, int]]] = field(
        default_factory=lambda: [[] for _ in VIRTUAL_CLUSTERS]
    )
    next_id: int = 0

    def arrive(self, cluster: int, size: int, is_steady: bool) -> Arrival:
        gang = self.next_id
        self.next_id += 1
        self.used[cluster] += size
        self.live[cluster].append((gang, size))
        return Arrival(gang, VIRTUAL_CLUSTERS[cluster], *shape(size), is_steady)

    def depart(self, cluster: int, index: int) -> Departure:
        live = self.live[cluster]
        gang, size = live[index]
        live[index] = live[-1]
        live.pop()
        self.used[cluster] -= size
        return Departure(gang, VIRTUAL_CLUSTERS[cluster], *shape(size))


def stream(nodes: int, arrivals: int, seed: int = SEED) -> Iterator[Event]:
    """The fill, then ``arrivals`` steady arrivals with the departures before each."""
    rng = random.Random(seed)
    quota = nodes // NODES_PER_RACK // len(VIRTUAL_CLUSTERS) * RACK_GPUS
    book = _Book(limit=int(TARGET * quota))
    skips = 0
    while skips < FILLED_AFTER_SKIPS and min(book.used) <= book.limit - RACK_GPUS:
        size, cluster = drawn_size(rng), rng.randrange(len(VIRTUAL_CLUSTERS))
        if book.used[cluster] + size > book.limit:
            skips += 1
            continue
        skips = 0
        yield book.arrive(cluster, size, is_steady=False)
    for _ in range(arrivals):
        size, cluster = drawn_size(rng), rng.randrange(len(VIRTUAL_CLUSTERS))
        while book.used[cluster] + size > book.limit:
            yield book.depart(cluster, rng.randrange(len(book.live[cluster])))
        yield book.arrive(cluster, size, is_steady=True)


def lines(nodes: int, arrivals: int, seed: int = SEED) -> Iterator[str]:
    """The stream as JSON lines, the first of which describes it."""
    racks = nodes // NODES_PER_RACK
    head = {
        "kind": "header",
        "workload": "W1",
        "seed": seed,
        "rng": "python random.Random (MT19937)",
        "nodes": nodes,
        "nodes_per_rack": NODES_PER_RACK,
        "gpus_per_node": GPUS_PER_NODE,
        "hierarchy": ["GPU:1", "SWITCH:2", "SOCKET:4", "NODE:8", "RACK:64"],
        "vcs": list(VIRTUAL_CLUSTERS),
        "racks_per_vc": racks // len(VIRTUAL_CLUSTERS),
        "quota_cell_type": "RACK",
        "sizes": [list(pair) for pair in SIZES],
        "target_utilisation": TARGET,
        "priority_note": "all guaranteed, priority 1, lazyPreemptionEnable",
    }
    yield _line(head)
    for event in stream(nodes, arrivals, seed):
        is_arrival = isinstance(event, Arrival)
        is_fill = isinstance(event, Arrival) and not event.is_steady
        yield _line(
            {
                "op": "arrive" if is_arrival else "depart",
                "id": event.id,
                "vc": event.virtual_cluster,
                "pods": event.pods,
                "gpus_per_pod": event.gpus,
                "priority": 1,
                "phase": "fill" if is_fill else "steady",
            }
        )


def _line(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


if __name__ == "__main__":  # python w1.py NODES ARRIVALS [SEED] > stream.jsonl
    sys.stdout.writelines(lines(*(int(argument) for argument in sys.argv[1:4])))
