"""The node report: everything about a node, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from muster.contracts.nodes import Gpu, NodeReport, PodOnNode, ProblemKind

from runtime_agent.domain.pods import Pod


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of the node apart from its pods, and does not change while the agent runs."""

    node: str
    journal: str
    boot: str
    address: str
    log_url: str
    version: str
    port_range: tuple[int, int]
    single_user: str | None = None
    secrets_key: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What the node offers to pods.

    `simulated`: they are only pretended. `missing_limits`, `single_user`: as in the report.
    `others`: what is given to those that are not Muster's, by a name for it. `labels`: what else
    is known of the node. `resources`: what else it counts; None: nothing. `problem`: why nothing
    may start on it.
    """

    cpu: int
    memory_mb: int
    simulated: bool = False
    missing_limits: Sequence[str] = ()
    single_user: str | None = None
    others: Sequence[PodOnNode] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class NodeNow:
    """What changes: the runner's offer, the driver's answers, ports of foreign processes, records
    from the bus.
    """

    offer: Offer
    gpus: Sequence[Gpu] = ()
    foreign_ports: Sequence[int] = ()
    lease: int = 0
    is_stopping: bool = False
    problem: str | None = None
    problem_kind: ProblemKind | None = None


def report(
    facts: NodeFacts,
    now: NodeNow,
    live: Iterable[Pod],
    *,
    revision: int,
    at: datetime,
) -> NodeReport:
    """One report; each live pod counts with what it was given."""
    offer = now.offer
    pods = [*(_on_node(pod) for pod in live), *offer.others]
    problem = now.problem or offer.problem
    holders = {gpu: pod.pod for pod in pods for gpu in pod.gpus}
    return NodeReport(
        node=facts.node,
        revision=revision,
        journal=facts.journal,
        boot=facts.boot,
        at=at,
        address=facts.address,
        log_url=facts.log_url,
        version=facts.version,
        lease=now.lease,
        cpu=offer.cpu,
        memory_mb=offer.memory_mb,
        port_range=facts.port_range,
        gpus=tuple(gpu.model_copy(update={"pod": holders.get(gpu.index)}) for gpu in now.gpus),
        pods=tuple(pods),
        foreign_ports=tuple(sorted(now.foreign_ports)),
        is_healthy=problem is None,
        problem=problem,
        problem_kind=now.problem_kind if now.problem else None,
        is_stopping=now.is_stopping,
        simulated=offer.simulated,
        missing_limits=tuple(offer.missing_limits),
        single_user=offer.single_user or facts.single_user,
        labels=dict(offer.labels),
        resources=None if offer.resources is None else dict(offer.resources),
        secrets_key=facts.secrets_key,
    )


def _on_node(pod: Pod) -> PodOnNode:
    if pod.run is None:
        return PodOnNode(pod=pod.pod)
    ports = sorted(port for numbers in pod.run.ports.values() for port in numbers)
    return PodOnNode(
        pod=pod.pod,
        gpus=pod.run.gpus,
        ports=tuple(ports),
        cpu=pod.run.cpu,
        memory_mb=pod.run.memory_mb,
    )
