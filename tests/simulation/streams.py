"""Seeded random streams of gangs through the simulator, with a look at every cycle.

Unlike in `histories` gangs end by themselves, for minutes to hours: what they expect of themselves
is right or wrong, limits are enforced, elastic and opportunistic ones are beside. `wide_streams`
has several chains, loans and faults beside.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from random import Random
from typing import Any

from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Decision
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.model import CycleRun
from scheduler.domain.simulation.run import Simulation

Json = dict[str, Any]

TYPES = {
    "pair": {"child": "gpu", "count": 2},
    "node": {"child": "pair", "count": 2, "node": True},
    "rack": {"child": "node", "count": 2},
}

NODE_GPUS = 4


POLICIES = ({"backfill": True}, {"backfill": True}, {"order": "strict"}, {"backfill": False})


def a_policy(random: Random) -> dict[str, object]:
    """As a file has it."""
    policy: dict[str, object] = {
        "assumedSeconds": random.choice((50, 200)),
        "maxPassSeconds": random.choice((0, 100, 1000)),
        "graceSeconds": random.choice((0, 5, 30)),
        "fairShare": False,
    } | random.choice(POLICIES)
    if random.random() < 0.3:
        policy["minRunSeconds"] = 50
    if random.random() < 0.3:
        policy["fairShare"] = {"halfLifeSeconds": 500}
    if random.random() < 0.3:
        policy["lazyPreemption"] = True
    return policy


Quota = int | Mapping[str, int]
"""Nodes, or cells by type."""


def a_cluster(racks: int, quota: Mapping[str, Quota], **policy: object) -> ClusterConfig:
    """Racks of two nodes of four GPUs, of which virtual clusters own so many cells."""
    owned = {
        name: {"rack/node": cells} if isinstance(cells, int) else cells
        for name, cells in quota.items()
    }
    return from_file(
        {
            "cellTypes": TYPES,
            "physicalCells": [
                {
                    "type": "rack",
                    "name": f"r{number}",
                    "nodes": [f"n{2 * number}", f"n{2 * number + 1}"],
                }
                for number in range(racks)
            ],
            "virtualClusters": {
                name: {"cells": [{"type": each, "count": count} for each, count in cells.items()]}
                for name, cells in owned.items()
            },
            "policy": policy,
        }
    )


def from_file(file: Json) -> ClusterConfig:
    """A configuration as its file has it."""
    return read_cluster(json.dumps(file).encode()).config


@dataclass(frozen=True)
class Mix:
    """What gangs there are. ``priorities``: of guaranteed ones; ``guests``, ``elastic``,
    ``limited``, ``telling``: how many are opportunistic, elastic, have a limit, tell how long they
    expect to run. ``errors``: by what that is too long; ``load``: GPUs wanted, as a share of all.
    """

    priorities: Sequence[int] = (0,)
    guests: float = 0.2
    elastic: float = 0.2
    limited: float = 0.3
    notices: float = 0.6
    errors: Sequence[float] = (0.1, 0.5, 1.0, 1.0, 2.0, 10.0)
    load: float = 1.3
    most_nodes: int = 4
    runs_s: Sequence[float] = (10.0, 30.0, 100.0, 300.0)


def a_stream(random: Random, config: ClusterConfig, mix: Mix, until_s: float) -> Iterator[Json]:
    """Requests of gangs, until then."""
    owned = {
        name: NODE_GPUS * sum(each.count for each in vc.cells)
        for name, vc in config.virtual_clusters.items()
    }
    at, number = 0.0, 0
    while at < until_s:
        vc = random.choice(sorted(owned))
        gang = a_gang(random, f"g{number:04}", vc, mix, owned[vc])
        yield {"at": at, "event": "gang-requested", "gang": gang}
        work_s = gang["runSeconds"] * sum(p["count"] * p["gpus"] for p in gang["pods"])
        at = round(at + random.expovariate(1.0) * work_s / (sum(owned.values()) * mix.load), 3)
        number += 1


def a_gang(random: Random, name: str, vc: str, mix: Mix, most_gpus: int) -> Json:
    """One that its virtual cluster could hold."""
    run_s = random.choice(mix.runs_s) * random.choice((0.7, 1.0, 1.3))
    gpus = random.choice((1, 1, 2, 4, 4))
    most = min(mix.most_nodes * NODE_GPUS, most_gpus) // gpus
    count = min(most, random.choice((1, 1, 1, 2, 2, 3, 4, most)))
    pods: Json = {"name": "w", "count": count, "gpus": gpus}
    gang: Json = {
        "id": name,
        "user": random.choice("uvw"),
        "virtualCluster": vc,
        "priority": random.choice(mix.priorities),
        "pods": [pods],
        "runSeconds": run_s,
    }
    if random.random() < mix.guests:
        gang["priority"] = -1
    if random.random() < mix.elastic and count > 1:
        pods["min"] = random.randint(1, count - 1)
    if random.random() < mix.limited:
        gang["limitSeconds"] = run_s * random.choice((0.7, 1.0, 1.5))
    if random.random() < mix.notices:
        gang["expectedSeconds"] = run_s * random.choice(mix.errors)
    return gang


Look = Callable[["Stream", float, list[Decision]], None]


class Stream(Simulation):
    """A simulation that is looked at after every cycle."""

    after: Look | None = None

    def _decide(self, now: float, cycle: CycleRun) -> Iterator[tuple[float, Decision]]:
        decided = list(super()._decide(now, cycle))
        yield from decided
        if self.after is not None:
            self.after(self, now, [decision for _, decision in decided])


Script = Callable[[Stream], Iterable[Json]]
"""What happens, where that depends on what runs."""


def run(
    config: ClusterConfig,
    events: Iterable[Json] | Script,
    after: Look | None = None,
    until: float = inf,
    is_over: Callable[[], bool] = lambda: False,
) -> list[tuple[float, Decision]]:
    """All that is decided up to then, or until it is over. ``after``: what looks at every cycle."""
    stream = Stream(config, lambda _: None)
    stream.after = after
    some = events(stream) if callable(events) else events
    lines = (json.dumps(each).encode() for each in some)
    decided = stream.run(read_events(lines))
    return list(takewhile(lambda each: each[0] < until and not is_over(), decided))
