"""What the HTTP answers show, made from the cluster as it is now."""

from bisect import bisect_left
from heapq import nsmallest
from typing import Any

from muster.contracts.model import Model

from scheduler.domain.cluster import Cluster
from scheduler.domain.gangs import Gang
from scheduler.domain.nodes import Node
from scheduler.domain.queue import Order
from scheduler.domain.words import word_of

AHEAD_NAMED = 5

Answer = dict[str, Any]


def queue(cluster: Cluster, limit: int) -> Answer:
    """The waiting gangs, first come first, at most ``limit``."""
    orders = (order for line in cluster.queue.lines.values() for order in line.waiting)
    first = nsmallest(limit, orders)
    gangs = [
        {"position": place} | _gang(cluster, cluster.gangs[name])
        for place, (_, _, name) in enumerate(first, 1)
    ]
    return {"asOf": cluster.cycle, "waiting": cluster.queue.size, "gangs": gangs}


def gang(cluster: Cluster, name: str, epoch: int) -> Answer | None:
    """One gang: its pods, and where it waits why, at which position and behind whom."""
    found = cluster.gangs.get(name)
    if found is None:
        return None
    return {"asOf": cluster.cycle} | _why(cluster, found, epoch)


def job(cluster: Cluster, job_id: str, epoch: int) -> Answer | None:
    """The same for every gang of a job."""
    gangs = [gang for gang in cluster.gangs.values() if gang.request.job == job_id]
    if not gangs:
        return None
    gangs.sort(key=lambda gang: gang.name)
    return {
        "asOf": cluster.cycle,
        "job": job_id,
        "gangs": [_why(cluster, gang, epoch) for gang in gangs],
    }


def nodes(cluster: Cluster) -> Answer:
    """The nodes and what is free on them."""
    return {
        "asOf": cluster.cycle,
        "nodes": [_node(cluster.nodes[name]) for name in sorted(cluster.nodes)],
    }


def _gang(cluster: Cluster, gang: Gang) -> Answer:
    request = gang.request
    reason = gang.said
    if cluster.is_waiting(gang.name):
        reason = cluster.queue.lines[cluster.shape(gang)].reason or reason
    return {
        "gang": gang.name,
        "job": request.job,
        "name": request.name,
        "user": request.user,
        "virtualCluster": request.virtual_cluster,
        "priority": request.priority,
        "submittedAt": request.submitted_at.isoformat(),
        "reason": None if reason is None else reason.model_dump(mode="json"),
    }


def _why(cluster: Cluster, gang: Gang, epoch: int) -> Answer:
    answer = _gang(cluster, gang)
    answer["pods"] = [_dump(pod) for pod in word_of(cluster, gang, epoch).pods]
    if not cluster.is_waiting(gang.name):
        return answer | {"state": "refused" if gang.is_refused else "placed"}
    ahead = _ahead(cluster, gang.order)
    return answer | {
        "state": "waiting",
        "position": ahead + 1,
        "waiting": cluster.queue.size,
        "ahead": [name for _, _, name in _first(cluster, gang.order)],
    }


def _ahead(cluster: Cluster, order: Order) -> int:
    return sum(bisect_left(line.waiting, order) for line in cluster.queue.lines.values())


def _first(cluster: Cluster, before: Order) -> list[Order]:
    heads = (order for line in cluster.queue.lines.values() for order in line.waiting[:AHEAD_NAMED])
    return nsmallest(AHEAD_NAMED, (order for order in heads if order < before))


def _node(node: Node) -> Answer:
    size = node.capacity()
    return {
        "node": node.name,
        "state": state_of(node),
        "trouble": node.trouble,
        "lease": node.lease,
        "journal": None if node.report is None else node.report.journal,
        "reportRevision": None if node.report is None else node.report.revision,
        "simulated": node.report is not None and node.report.simulated,
        "gpus": size.gpus,
        "gpusHealthy": node.healthy.bit_count(),
        "gpusFree": node.gpus_free,
        "cpu": size.cpu,
        "cpuFree": node.cpu_free,
        "memoryMB": size.memory_mb,
        "memoryMBFree": node.memory_free,
        "pods": sorted(node.holds),
        "unknownPods": sorted(node.strangers),
    }


def state_of(node: Node) -> str:
    """One word for a node's state, for people and metrics."""
    if node.is_lost:
        return "lost"
    if node.is_eligible:
        return "alive"
    if node.report is not None and node.report.is_stopping:
        return "stopping"
    return "unhealthy" if node.is_alive and node.report is not None else "unknown"


def _dump(model: Model) -> Answer:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
