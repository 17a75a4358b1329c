"""Why a gang waits or can never run, with numbers and what would have to happen.

Codes of a wait: `health` (it would fit if every known node and GPU were well, or no node is known
yet) and `resource` (too little is free, or not together). Of a refusal: `too-large`.
"""

from collections.abc import Sequence

from muster.contracts.model import Reason

from scheduler.domain.cluster import Cluster
from scheduler.domain.model import Demand, PodSpec, Shape
from scheduler.domain.nodes import room
from scheduler.domain.packing import place

HEALTH, RESOURCE, TOO_LARGE = "health", "resource", "too-large"
NODES_NAMED = 5

Numbers = dict[str, int | float | str | None]


def waits(cluster: Cluster, gang: str, pods: Sequence[PodSpec], shape: Shape, now: float) -> Reason:
    """Why pods that could not be placed wait."""
    if cluster.grown_at is None:
        text = "No node has reported yet: the gang starts when enough nodes have."
        return Reason(code=HEALTH, text=text, numbers=_wanted(shape))
    with cluster.as_if_healthy() as bad_nodes:
        trial = place(cluster, gang, pods, (), now) if bad_nodes else None
        for placement in trial or ():
            cluster.undo(placement)
    if trial is not None:
        return _unhealthy(cluster, shape)
    return _short(cluster, shape)


def never_fits(cluster: Cluster, shape: Shape) -> Reason | None:
    """Why no healthy and empty cluster of the known nodes could hold the pods; None if one could.

    Only what is certain is said: a gang of several kinds of pods may wait where this is None.
    """
    sizes = cluster.sizes()
    nodes = sizes.total()
    for demand, count in shape:
        fitting = sum(room(size, demand, count) * number for size, number in sizes.items())
        if fitting >= count:
            continue
        numbers = _wanted(shape) | {
            "podsOfAKind": count,
            "podsThatFitEmpty": fitting,
            "largestNodeGpus": max((size.gpus for size in sizes), default=0),
            "largestNodeCpu": max((size.cpu for size in sizes), default=0),
            "largestNodeMemoryMB": max((size.memory_mb for size in sizes), default=0),
            "nodes": nodes,
        }
        text = (
            f"{_pods(count)} of {_each(demand)} wanted at once, but all {nodes} nodes, healthy"
            f" and empty, hold {fitting}. Ask for less, or add nodes and submit again."
        )
        return Reason(code=TOO_LARGE, text=text, numbers=numbers)
    wanted = _sum(shape)
    total = sum((size.times(number) for size, number in sizes.items()), Demand())
    for name, want, have in _pairs(wanted, total):
        if want > have:
            text = f"{want} {name} wanted at once, but all nodes together have {have}."
            return Reason(code=TOO_LARGE, text=text, numbers=_wanted(shape) | {"capacity": have})
    return None


def _unhealthy(cluster: Cluster, shape: Shape) -> Reason:
    bad = sorted((n.name, n.trouble) for n in cluster.nodes.values() if n.trouble is not None)
    gpus = sum(
        not gpu.is_healthy
        for node in cluster.nodes.values()
        if node.is_eligible and node.report is not None
        for gpu in node.report.gpus
    )
    named = "; ".join(f"{name}: {trouble}" for name, trouble in bad[:NODES_NAMED])
    what = [f"{len(bad)} nodes are not in use ({named})"] if bad else []
    what += [f"{gpus} GPUs are unhealthy"] if gpus else []
    text = f"It would fit if all nodes and GPUs were well: {' and '.join(what)}."
    return Reason(
        code=HEALTH,
        text=text,
        numbers=_wanted(shape) | _free(cluster) | {"badNodes": len(bad), "badGpus": gpus},
    )


def _short(cluster: Cluster, shape: Shape) -> Reason:
    wanted, free = _sum(shape), cluster.free
    numbers = _wanted(shape) | _free(cluster)
    short = [
        f"{want} {name} wanted, {have} free"
        for name, want, have in _pairs(wanted, free)
        if want > have
    ]
    if short:
        gpus = max(wanted.gpus - free.gpus, 0)
        after = f" It starts when {gpus} more GPUs are free." if gpus else ""
        return Reason(code=RESOURCE, text=f"{'; '.join(short)}.{after}", numbers=numbers)
    for demand, count in shape:
        fitting = _fitting(cluster, demand, count)
        if fitting < count:
            text = (
                f"{_pods(count)} of {_each(demand)} wanted at once; enough is free, but not"
                f" together: {fitting} of them fit. It starts when there is room for"
                f" {count - fitting} more on single nodes."
            )
            numbers |= {"podsOfAKind": count, "podsThatFit": fitting}
            return Reason(code=RESOURCE, text=text, numbers=numbers)
    text = (
        "Each kind of its pods fits alone, but no way was found to place all kinds together with"
        " what is free now."
    )
    return Reason(code=RESOURCE, text=text, numbers=numbers)


def _fitting(cluster: Cluster, demand: Demand, count: int) -> int:
    fitting = 0
    for tier in cluster.tiers.values():
        for _, name in tier:
            fitting += cluster.nodes[name].fits(demand, count - fitting)
            if fitting == count:
                return fitting
    return fitting


def _sum(shape: Shape) -> Demand:
    return sum((demand.times(count) for demand, count in shape), Demand())


def _pairs(wanted: Demand, had: Demand) -> tuple[tuple[str, int, int], ...]:
    return (
        ("GPUs", wanted.gpus, had.gpus),
        ("CPUs", wanted.cpu, had.cpu),
        ("MB of memory", wanted.memory_mb, had.memory_mb),
        ("ports", wanted.ports, had.ports),
    )


def _wanted(shape: Shape) -> Numbers:
    wanted = _sum(shape)
    return {
        "wantedPods": sum(count for _, count in shape),
        "wantedGpus": wanted.gpus,
        "wantedCpu": wanted.cpu,
        "wantedMemoryMB": wanted.memory_mb,
        "wantedPorts": wanted.ports,
    }


def _free(cluster: Cluster) -> Numbers:
    return {
        "freeGpus": cluster.free.gpus,
        "freeCpu": cluster.free.cpu,
        "freeMemoryMB": cluster.free.memory_mb,
        "freePorts": cluster.free.ports,
        "mostFreeGpusOnANode": max((tier for tier in cluster.tiers if tier > 0), default=0),
        "nodesInUse": sum(len(tier) for tier in cluster.tiers.values()),
    }


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _each(demand: Demand) -> str:
    parts = [f"{demand.gpus} GPUs"] if demand.gpus else []
    parts += [f"{demand.cpu} CPUs"] if demand.cpu else []
    parts += [f"{demand.memory_mb} MB"] if demand.memory_mb else []
    parts += [f"{demand.ports} ports"] if demand.ports else []
    return ", ".join(parts) or "no resources"
