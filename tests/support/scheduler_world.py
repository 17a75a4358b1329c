"""The truth beside the Scheduler's state in random histories: what agents run and report, and what
the database has.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.contracts.gangs import GangRequest
from muster.contracts.nodes import Gpu, NodeReport, PodOnNode
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.model import RestoredPreemption, RestoredUsage, UserKey
from scheduler.domain.core_rows import KnownReservation
from scheduler.domain.known import KnownGang
from scheduler.domain.placements import Hold
from scheduler.domain.rules import Rules
from scheduler.domain.run_times import Bounds, History, Key
from scheduler.domain.state import State

Kit = Any

NODES = {"a": (4, 8), "b": (4, 6), "c": (2, 16), "d": (0, 12)}
"""Name → GPUs, CPUs."""

PORTS = (20000, 20005)

RULES = Rules(
    settle_s=0.0, port_rest_s=0.0, overdue_s=1e9, run_times=Bounds(2, keys=3, kept_s=200.0)
)
"""Which ports rest, and since when an ended pod is waited for, begins anew with a restart."""

FILE = ClusterConfig(
    cell_types={
        "pair": CellType("t", 2),
        "node": CellType("pair", 2, is_node=True),
        "rack": CellType("node", 2),
        "box": CellType("t", 2, is_node=True),
    },
    physical_cells=(PhysicalCell("rack", "r", ("a", "b")), PhysicalCell("box", "c")),
    nodes={"d": NodeLimits()},
    virtual_clusters={
        "default": VirtualCluster((QuotaCells("rack/node", 1), QuotaCells("rack/node/pair", 1))),
        "lab": VirtualCluster((QuotaCells("rack/node/pair", 1), QuotaCells("box", 1))),
    },
)
"""A rack of two nodes and a node of another kind, shared by two virtual clusters."""


def judged(*order_by: str, **policy: Any) -> ClusterConfig:
    """The same by another policy."""
    return replace(FILE, policy=Policy(order_by=order_by, **policy))


KEEPING = judged(
    "priority", "fair-share", "age", is_backfilling=True, half_life_s=30.0, max_pass_s=100.0
)
"""The policy reserves cells for a blocked gang, and users take turns."""

STRICT = judged("fair-share", "priority", "age", is_strict=True, half_life_s=30.0)
"""No gang overtakes another."""


class World:
    """The truth beside the core: what the agents run and what they would report."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.running: dict[str, dict[str, Any]] = {node: {} for node in NODES}
        self.revision = dict.fromkeys(NODES, 0)
        self.lease = dict.fromkeys(NODES, 0)
        self.journal = {node: f"journal-of-{node}" for node in NODES}
        self.bad: dict[str, set[int]] = {node: set() for node in NODES}
        self.reports: dict[str, list[NodeReport]] = {node: [] for node in NODES}
        self.leftover: set[str] = set()

    def lose_journal(self, node: str) -> None:
        """An agent begins with a new journal: it has ended all pods, and knows no lease."""
        self.journal[node] += "'"
        self.lease[node] = 0
        self.running[node].clear()

    def report(self, node: str) -> NodeReport:
        self.revision[node] += 1
        gpus, cpu = NODES[node]
        owner = {g: pod for pod, p in self.running[node].items() for g in p.gpus}
        report: NodeReport = self.kit.report(
            node,
            revision=self.revision[node],
            journal=self.journal[node],
            cpu=cpu,
            memory_mb=100,
            port_range=PORTS,
            lease=self.lease[node],
            pods=tuple(
                PodOnNode(pod=pod, gpus=p.gpus, ports=p.port_numbers, cpu=p.kind.cpu)
                for pod, p in self.running[node].items()
            ),
        ).model_copy(
            update={
                "gpus": tuple(
                    Gpu(
                        index=i,
                        uuid=f"{node}{i}",
                        model="T",
                        memory_mb=1,
                        is_healthy=i not in self.bad[node],
                        pod=owner.get(i),
                    )
                    for i in range(gpus)
                )
            }
        )
        self.reports[node].append(report)
        return report


class Store:
    """What the database has, written as the service writes it."""

    def __init__(self) -> None:
        self.gangs: dict[str, KnownGang] = {}
        self.holds: dict[str, Hold] = {}
        self.histories: dict[Key, History] = {}
        self.reservations: dict[str, KnownReservation] = {}
        self.usage: dict[UserKey, RestoredUsage] = {}
        self.preemptions: list[RestoredPreemption] = []

    def record(self, message: GangRequest) -> None:
        """A message is recorded before any cycle sees it."""
        known = self.gangs.get(message.gang)
        if known is None:
            self.gangs[message.gang] = KnownGang(message)
            return
        is_refused = known.is_refused and known.request.pods == message.pods
        self.gangs[message.gang] = replace(known, request=message, is_refused=is_refused)

    def write(self, state: State, decisions: list[Any]) -> None:
        """A cycle's transaction."""
        changes = state.take_changes()
        rows = changes.rows
        for pod in rows.gone:
            self.holds.pop(pod, None)
        for pod in rows.changed:
            hold = state.ledger.hold_of(pod)
            if hold is not None:
                self.holds[pod] = hold
        for pod, placement in rows.placed.items():
            self.holds[pod] = Hold(placement)
        for gang in changes.ended:
            self.gangs.pop(gang, None)
        for gang in {*changes.kept, *(d.gang for d in decisions)}:
            self.gangs[gang] = state.known(gang)
        _put(self.histories, changes.histories)
        _put(self.reservations, changes.core.reservations)
        _put(self.usage, changes.core.usage)
        self.preemptions += changes.core.preemptions


def _put(table: dict[Any, Any], changes: Mapping[Any, Any]) -> None:
    for key, row in changes.items():
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row
