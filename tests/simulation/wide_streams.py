"""Random streams through clusters with two chains, whose virtual clusters lend one another what is
idle within limits, and whose nodes and GPUs turn bad and well again; gangs are lost by that, and
asked for once more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from scheduler.domain.core.config import ClusterConfig
from streams import TYPES, Json, Mix, Script, Stream, from_file

GPU, OLD = "gpu", "old"

WIDE_TYPES = TYPES | {
    "old-node": {"child": OLD, "count": 2, "node": True},
    "old-rack": {"child": "old-node", "count": 3},
}

GPUS_OF_NODE = {GPU: 4, OLD: 2}
"""By GPU type."""

NODES = {GPU: [f"n{number}" for number in range(6)], OLD: [f"m{number}" for number in range(6)]}

CELLS = {GPU: "rack/node", OLD: "old-rack/old-node"}

OWNED = (
    {"x": {GPU: 3, OLD: 2}, "y": {GPU: 2, OLD: 2}, "z": {GPU: 1, OLD: 1}},
    {"x": {GPU: 4}, "y": {GPU: 2, OLD: 4}, "z": {OLD: 2}},
)
"""Nodes of each GPU type by virtual cluster: with some idle, and all."""

LIMITS: tuple[object, ...] = (None, None, 0, 4, {GPU: 4}, {GPU: 8, OLD: 2})

FAULTS = (("node-bad", "node-healthy"),) * 3 + (
    ("gpu-bad", "gpu-healthy"),
    ("node-cordoned", "node-uncordoned"),
    ("node-drained", "node-uncordoned"),
)
"""How they begin and end."""


def a_wide_cluster(random: Random, **policy: object) -> ClusterConfig:
    """Three racks of two nodes of four GPUs, and two of three older ones of two."""
    racks = (("rack", GPU, 2), ("old-rack", OLD, 3))
    return from_file(
        {
            "cellTypes": WIDE_TYPES,
            "physicalCells": [
                {"type": kind, "name": f"{leaf}{n}", "nodes": NODES[leaf][n : n + size]}
                for kind, leaf, size in racks
                for n in range(0, len(NODES[leaf]), size)
            ],
            "virtualClusters": {
                name: {
                    "cells": [{"type": CELLS[leaf], "count": n} for leaf, n in nodes.items()],
                    "lendingLimit": random.choice(LIMITS),
                    "borrowingLimit": random.choice(LIMITS),
                }
                for name, nodes in random.choice(OWNED).items()
            },
            "policy": policy,
        }
    )


def owned_nodes(config: ClusterConfig, name: str) -> dict[str, int]:
    """How many nodes of each GPU type a virtual cluster owns."""
    leaves = {path: leaf for leaf, path in CELLS.items()}
    return {leaves[each.path]: each.count for each in config.virtual_clusters[name].cells}


@dataclass(frozen=True)
class WideMix(Mix):
    """``borrowing``: how many may borrow; ``mixed``: how many have pods of several GPU types;
    ``lost``: how many on a node that turns bad are lost, ``again``: of these are asked for again.
    """

    borrowing: float = 0.4
    mixed: float = 0.15
    lost: float = 0.6
    again: float = 0.7


def a_wide_stream(
    random: Random, config: ClusterConfig, mix: WideMix, until_s: float
) -> Iterator[Json]:
    """Requests of gangs, until then."""
    there = sum(
        count * GPUS_OF_NODE[leaf]
        for name in config.virtual_clusters
        for leaf, count in owned_nodes(config, name).items()
    )
    at, number = 0.0, 0
    while at < until_s:
        vc = random.choice(sorted(config.virtual_clusters))
        gang = a_wide_gang(random, f"g{number:04}", vc, mix, owned_nodes(config, vc))
        yield {"at": at, "event": "gang-requested", "gang": gang}
        work_s = gang["runSeconds"] * sum(each["count"] * each["gpus"] for each in gang["pods"])
        at = round(at + random.expovariate(1.0) * work_s / (there * mix.load), 3)
        number += 1


def a_wide_gang(random: Random, name: str, vc: str, mix: WideMix, owned: dict[str, int]) -> Json:
    """One that its virtual cluster could hold, or another one from which it may borrow."""
    run_s = random.choice(mix.runs_s) * random.choice((0.7, 1.0, 1.3))
    is_borrowing = random.random() < mix.borrowing
    if is_borrowing and random.random() < 0.5:
        owned = {GPU: 2, OLD: 2}
    leaves = sorted(owned)
    some = leaves if random.random() < mix.mixed else [random.choice(leaves)]
    gang: Json = {
        "id": name,
        "job": f"j{random.randrange(6)}" if random.random() < 0.5 else name,
        "user": random.choice("uvw"),
        "virtualCluster": vc,
        "priority": random.choice(mix.priorities),
        "pods": [some_pods(random, mix, leaf, owned[leaf], leaves) for leaf in some],
        "runSeconds": run_s,
    }
    if random.random() < mix.guests:
        gang["priority"] = -1
    elif is_borrowing:
        gang["borrow"] = True
    if random.random() < mix.limited:
        gang["limitSeconds"] = run_s * random.choice((0.7, 1.0, 1.5))
    if random.random() < mix.notices:
        gang["expectedSeconds"] = run_s * random.choice(mix.errors)
    if random.random() < 0.2:
        gang["checkpointSeconds"] = 10
    return gang


def some_pods(random: Random, mix: WideMix, leaf: str, nodes: int, leaves: list[str]) -> Json:
    """Of one role, on GPUs of this type, some of any."""
    size = GPUS_OF_NODE[leaf]
    gpus = random.choice((1, 1, 2, size))
    most = min(mix.most_nodes, nodes) * size // gpus
    count = min(most, random.choice((1, 1, 1, 2, 2, 3, 4, most)))
    pods: Json = {"name": f"w-{leaf}", "count": count, "gpus": gpus, "gpuTypes": [leaf]}
    if len(leaves) > 1 and random.random() < 0.3:
        pods["gpuTypes"] = random.sample(leaves, len(leaves))
    if random.random() < mix.elastic and count > 1:
        pods["min"] = random.randint(1, count - 1)
    return pods


def with_faults(
    random: Random, requests: Iterable[Json], mix: WideMix, until_s: float, every_s: float
) -> Script:
    """These requests, and faults of nodes and GPUs beside them, one in so many seconds until then,
    each for a while.
    """
    some = list(requests)
    asked = {each["gang"]["id"]: each["gang"] for each in some}
    events = sorted((*some, *_faults(random, until_s, every_s)), key=lambda each: each["at"])

    def script(stream: Stream) -> Iterator[Json]:
        for event in events:
            yield event
            if event["event"] in ("node-bad", "gpu-bad"):
                for gang in _hit(stream, event):
                    if random.random() < mix.lost:
                        yield {"at": event["at"], "event": "gang-released", "gang": gang}
                        if random.random() < mix.again:
                            again = asked[gang] | {"id": f"{gang}+"}
                            asked[f"{gang}+"] = again
                            yield {"at": event["at"], "event": "gang-requested", "gang": again}

    return script


def _faults(random: Random, until_s: float, every_s: float) -> Iterator[Json]:
    at, over_at = 0.0, dict[tuple[str, str], float]()
    while (at := round(at + random.expovariate(1.0 / every_s), 3)) < until_s:
        leaf = random.choice(sorted(NODES))
        begins, ends = random.choice(FAULTS)
        fault: Json = {"node": random.choice(NODES[leaf])}
        if begins == "gpu-bad":
            fault["gpu"] = random.randrange(GPUS_OF_NODE[leaf])
        if over_at.get((ends, fault["node"]), 0.0) > at:
            continue  # the end of one would be that of the other
        over_at[ends, fault["node"]] = min(until_s, round(at + random.choice((1, 20, 100)), 3))
        yield {"at": at, "event": begins} | fault
        yield {"at": over_at[ends, fault["node"]], "event": ends} | fault


def _hit(stream: Stream, fault: Json) -> list[str]:
    """Gangs that run there."""
    return [
        name
        for name, one in sorted(stream.runs.items())
        if any(
            place.node == fault["node"] and fault.get("gpu", place.gpus[0]) in place.gpus
            for place in one.places.values()
        )
    ]
