"""The nodes of the cluster as their agents report them, followed from the bus into memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.contracts.model import Model
from muster.contracts.nodes import NodeLost, NodeReport, NodeReturned
from muster.records import Received
from pydantic import BaseModel, ConfigDict, Field

from rest.domain.times import iso
from rest.store.node_orders import StandingOrder

TOPICS = ("node-reported", "node-lost", "node-returned")

READY = "ready"
UNUSABLE = "unusable"
"""The agent reports no problem, but the Scheduler places nothing there."""
ABSENT = "absent"
"""The Scheduler's state of a node of the cluster file that has not reported."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node's newest report. ``lost_since`` is set while the Scheduler has no sign of life."""

    report: NodeReport
    lost_since: datetime | None = None


class SchedulerNode(BaseModel):
    """A node in the Scheduler's answer. ``trouble``: why it places nothing there. ``gpus``: how
    many; ``cpu`` and ``memory_mb``: the amounts that it places on; None: no limit.
    """

    model_config = ConfigDict(frozen=True)

    node: str
    state: str
    trouble: str | None
    gpus: int
    cpu: int | None
    memory_mb: int | None = Field(alias="memoryMB")


class SchedulerNodes(BaseModel):
    """The Scheduler's answer about nodes."""

    nodes: list[SchedulerNode]


class Cluster:
    """All nodes, by name. Every replica follows for itself."""

    def __init__(self) -> None:
        self._reports: dict[str, NodeReport] = {}
        self._lost: dict[str, tuple[int, datetime]] = {}
        self._returned: dict[str, int] = {}

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a record of one of TOPICS."""
        match model:
            case None:
                self._reports.pop(record.key or "", None)
                self._lost.pop(record.key or "", None)
            case NodeReport():
                self._take_report(model)
            case NodeLost():
                if model.lease > self._returned.get(model.node, -1):
                    self._lost[model.node] = (model.lease, model.since)
            case NodeReturned():
                self._returned[model.node] = max(self._returned.get(model.node, -1), model.lease)
                if self._lost.get(model.node, (model.lease,))[0] <= model.lease:
                    self._lost.pop(model.node, None)

    def _take_report(self, report: NodeReport) -> None:
        before = self._reports.get(report.node)
        same_journal = before is not None and before.journal == report.journal
        if before is None or not same_journal or report.revision >= before.revision:
            self._reports[report.node] = report

    def nodes(self) -> list[KnownNode]:
        """All nodes, by name."""
        return [
            KnownNode(report, self._lost[name][1] if name in self._lost else None)
            for name, report in sorted(self._reports.items())
        ]

    def node(self, name: str) -> KnownNode | None:
        """One node."""
        report = self._reports.get(name)
        if report is None:
            return None
        return KnownNode(report, self._lost[name][1] if name in self._lost else None)

    def log_url(self, node: str | None) -> str | None:
        """Where a node's agent serves logs now; it may have moved since a job's last message."""
        report = self._reports.get(node or "")
        return report.log_url if report else None


def node_json(
    node: KnownNode, order: StandingOrder | None, scheduled: SchedulerNode | None
) -> dict[str, Any]:
    """A node as answers show it; ``order`` is the one that stands for it. ``scheduled`` None: the
    Scheduler does not answer about it, and its report alone is shown.
    """
    report = node.report
    state, problem = _state(node, scheduled)
    cpu, memory_mb = report.cpu, report.memory_mb
    if scheduled is not None:
        cpu = cpu if scheduled.cpu is None else scheduled.cpu
        memory_mb = memory_mb if scheduled.memory_mb is None else scheduled.memory_mb
    return {
        "name": report.node,
        "address": report.address,
        "state": state,
        **_order_json(order),
        "problem": problem,
        "lostSince": iso(node.lost_since),
        "reportedAt": iso(report.at),
        "version": report.version,
        "simulated": report.simulated,
        "missingLimits": list(report.missing_limits),
        "singleUser": report.single_user,
        "cpu": cpu,
        "cpuUsed": sum(pod.cpu for pod in report.pods),
        "memoryMB": memory_mb,
        "memoryMBUsed": sum(pod.memory_mb for pod in report.pods),
        "gpuTotal": len(report.gpus),
        "gpuUsed": sum(gpu.pod is not None for gpu in report.gpus),
        "gpuAvailable": sum(gpu.pod is None and gpu.is_healthy for gpu in report.gpus),
        "gpus": [gpu.model_dump(mode="json", by_alias=True) for gpu in report.gpus],
        "pods": [pod.model_dump(mode="json", by_alias=True) for pod in report.pods_of_jobs],
        "cpuForeign": report.foreign.cpu,
        "memoryMBForeign": report.foreign.memory_mb,
    }


def _order_json(order: StandingOrder | None) -> dict[str, Any]:
    """What is ordered of a node, by whom, since when and why."""
    return {
        "order": order.order.value if order else None,
        "orderedBy": order.by if order else None,
        "orderedAt": iso(order.at) if order else None,
        "orderReason": order.reason if order else None,
    }


def _state(node: KnownNode, scheduled: SchedulerNode | None) -> tuple[str, str | None]:
    """The node's state, and the problem if there is one."""
    report = node.report
    if node.lost_since is not None:
        return "lost", report.problem
    if report.is_stopping:
        return "stopping", report.problem
    if not report.is_healthy:
        return "unhealthy", report.problem
    if scheduled is not None and scheduled.trouble is not None:
        return UNUSABLE, f"The Scheduler places nothing there: {scheduled.trouble}."
    return READY, report.problem


def gpus_in_sight(nodes: Sequence[KnownNode]) -> int:
    """The GPUs of all nodes that are not lost, bad ones included."""
    return sum(len(node.report.gpus) for node in nodes if node.lost_since is None)


def nodes_summary(
    nodes: Sequence[KnownNode],
    orders: Mapping[str, StandingOrder],
    scheduled: Mapping[str, SchedulerNode],
    most: int,
) -> dict[str, Any]:
    """How many nodes there are, and the first ``most`` of those that something is wrong with, or
    that an order stands for. ``scheduled``: those with a trouble are enough. Those that it knows
    and that have not reported are in trouble too, and not counted otherwise.
    """
    troubled, ready, gpus_ready = list[dict[str, Any]](), 0, 0
    for node in nodes:
        gpus, order = node.report.gpus, orders.get(node.report.node)
        well = sum(gpu.is_healthy for gpu in gpus)
        state, problem = _state(node, scheduled.get(node.report.node))
        if state == READY and order is None:
            ready += 1
            gpus_ready += well
        if state != READY or order is not None or well < len(gpus):
            troubled.append(_trouble(node, order, state, problem))
    known = {node.report.node for node in nodes}
    absent = [it for it in scheduled.values() if it.state == ABSENT and it.node not in known]
    troubled += [_absent(node, orders.get(node.node)) for node in absent]
    return {
        "total": len(nodes),
        "ready": ready,
        "gpusReady": gpus_ready,
        "troubled": len(troubled),
        "inTrouble": troubled[:most],
    }


def _absent(node: SchedulerNode, order: StandingOrder | None) -> dict[str, Any]:
    return {
        "name": node.node,
        "state": ABSENT,
        **_order_json(order),
        "problem": f"The cluster file has it, but {node.trouble}.",
        "badGpus": [],
        "gpus": node.gpus,
        "pods": 0,
    }


def _trouble(
    node: KnownNode, order: StandingOrder | None, state: str, problem: str | None
) -> dict[str, Any]:
    bad = [gpu for gpu in node.report.gpus if not gpu.is_healthy]
    return {
        "name": node.report.node,
        "state": state,
        **_order_json(order),
        "problem": problem or next((gpu.problem for gpu in bad if gpu.problem), None),
        "badGpus": [gpu.index for gpu in bad],
        "gpus": len(node.report.gpus),
        "pods": len(node.report.pods_of_jobs),
    }
