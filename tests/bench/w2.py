"""The stream W2: W1's sizes and clusters, and all that makes a flat scheduler linear again.

Nodes have 12 CPUs and 96,000 MB for each GPU. Pods want less than the share of their GPUs, just
that, or more of one of the two (they are charged more cells then), some of them in numbers that
nobody else wants; some want no GPU at all. A third of the gangs are opportunistic and want more
CPU than the rest, so that CPU runs short where GPUs are idle. One guaranteed gang in twenty has a
higher priority. At any time half a percent of the nodes are bad: now and then one heals and
another goes.

Virtual clusters are kept at 90 % of their cells as charged, opportunistic gangs at 40 % of all
GPUs, both as if every gang were placed: as in W1 the stream does not depend on decisions.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from clusters import NODE_CPU, NODE_MEMORY_MB
from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Kind, Role
from w1 import (
    GPUS_PER_NODE,
    NODES_PER_RACK,
    RACK_GPUS,
    SEED,
    TARGET,
    VIRTUAL_CLUSTERS,
    drawn_size,
    shape,
)

OPPORTUNISTIC_GANGS = 0.35
OPPORTUNISTIC_TARGET = 0.4
WITHOUT_GPUS = 0.04
HIGH_PRIORITY_GANGS = 0.05
LOW, HIGH = 1, 5
ARRIVALS_PER_FLIP = 25
BAD_NODES = 0.005
CPU_SHARE = NODE_CPU // GPUS_PER_NODE
MEMORY_SHARE_MB = NODE_MEMORY_MB // GPUS_PER_NODE
OPPORTUNISTIC_OWNER = len(VIRTUAL_CLUSTERS)
"""Where the book keeps opportunistic gangs: after the virtual clusters."""


@dataclass(frozen=True, slots=True)
class Comes:
    """A gang arrives."""

    gang: Gang
    is_steady: bool


@dataclass(frozen=True, slots=True)
class Goes:
    """A gang departs; a scheduler that could not place it has nothing to do."""

    gang: str


@dataclass(frozen=True, slots=True)
class Flips:
    """A node goes bad, all that runs on it ends; another one heals."""

    bad: str
    healed: str | None


Event: TypeAlias = Comes | Goes | Flips


def leaves(kind: Kind) -> int:
    """Cells of one GPU that a pod is charged."""
    return max(
        kind.gpus,
        -(-kind.cpu * GPUS_PER_NODE // NODE_CPU),
        -(-kind.memory_mb * GPUS_PER_NODE // NODE_MEMORY_MB),
    )


def drawn_kind(rng: random.Random, gpus: int, is_opportunistic: bool) -> Kind:
    """What a pod with so many GPUs wants beside them."""
    if not gpus:
        cpu = rng.choice((2, 4, 8, 16))
        return Kind(0, cpu=cpu, memory_mb=cpu * 8_000)
    cpu, memory = CPU_SHARE, MEMORY_SHARE_MB
    roll = rng.random() + (0.6 if is_opportunistic else 0.0)
    if roll < 0.6:
        cpu, memory = rng.choice((8, 10, 12)), rng.choice((32_000, 64_000, 96_000))
    elif roll < 0.65:
        return Kind(
            gpus,
            cpu=rng.randint(1, CPU_SHARE * gpus),
            memory_mb=rng.randint(8_000, MEMORY_SHARE_MB * gpus),
        )
    elif roll >= 0.85 and gpus < GPUS_PER_NODE:
        if roll < 0.9:
            cpu, memory = rng.choice((4, 8)), rng.choice((128_000, 192_000))
        else:
            cpu, memory = rng.choice((16, 20, 24)), 64_000
    return Kind(gpus, cpu=cpu * gpus, memory_mb=memory * gpus)


def drawn_gang(rng: random.Random, number: int) -> tuple[Gang, int, int]:
    """A gang, its owner in the book, and what it is charged there."""
    is_opportunistic = rng.random() < OPPORTUNISTIC_GANGS
    cluster = rng.randrange(len(VIRTUAL_CLUSTERS))
    pods, gpus = (1, 0) if rng.random() < WITHOUT_GPUS else shape(drawn_size(rng))
    kind = drawn_kind(rng, gpus, is_opportunistic)
    priority = HIGH if rng.random() < HIGH_PRIORITY_GANGS else LOW
    gang = Gang(
        id=f"g{number}",
        virtual_cluster=VIRTUAL_CLUSTERS[cluster],
        user="u",
        priority=OPPORTUNISTIC if is_opportunistic else priority,
        roles=(Role(kind, tuple(f"w-{index}" for index in range(pods))),),
        submitted_at=float(number),
    )
    if is_opportunistic:
        return gang, OPPORTUNISTIC_OWNER, max(1, pods * gpus)
    return gang, cluster, pods * leaves(kind)


@dataclass(slots=True)
class _Book:
    """What would run if every gang were placed, by owner; and which nodes are bad."""

    rng: random.Random
    nodes: int
    limits: list[int]
    used: list[int] = field(default_factory=list)
    live: list[list[tuple[str, int]]] = field(default_factory=list)
    bad: "deque[str]" = field(default_factory=deque)

    def has_room(self, owner: int, cost: int) -> bool:
        return self.used[owner] + cost <= self.limits[owner]

    def add(self, gang: str, owner: int, cost: int) -> None:
        self.used[owner] += cost
        self.live[owner].append((gang, cost))

    def drop_any(self, owner: int) -> Goes:
        live = self.live[owner]
        index = self.rng.randrange(len(live))
        live[index], live[-1] = live[-1], live[index]
        gang, cost = live.pop()
        self.used[owner] -= cost
        return Goes(gang)

    def flip(self) -> Flips | None:
        bad = f"n{self.rng.randrange(self.nodes)}"
        if bad in self.bad:
            return None
        self.bad.append(bad)
        is_full = len(self.bad) > max(1, int(self.nodes * BAD_NODES))
        return Flips(bad, self.bad.popleft() if is_full else None)


def stream(nodes: int, arrivals: int, seed: int = SEED) -> Iterator[Event]:
    """The fill, then ``arrivals`` steady arrivals with departures and nodes that flip between."""
    rng = random.Random(seed)
    quota = nodes // NODES_PER_RACK // len(VIRTUAL_CLUSTERS) * RACK_GPUS
    limits = [int(TARGET * quota)] * len(VIRTUAL_CLUSTERS)
    limits.append(int(OPPORTUNISTIC_TARGET * nodes * GPUS_PER_NODE))
    book = _Book(rng, nodes, limits, [0] * len(limits), [[] for _ in limits])
    number = 0
    while any(used <= limit - RACK_GPUS for used, limit in zip(book.used, limits, strict=True)):
        gang, owner, cost = drawn_gang(rng, number)
        number += 1
        if book.has_room(owner, cost):
            book.add(gang.id, owner, cost)
            yield Comes(gang, is_steady=False)
    for index in range(arrivals):
        gang, owner, cost = drawn_gang(rng, number)
        number += 1
        while not book.has_room(owner, cost):
            yield book.drop_any(owner)
        book.add(gang.id, owner, cost)
        if index % ARRIVALS_PER_FLIP == 0 and (flips := book.flip()):
            yield flips
        yield Comes(gang, is_steady=True)
