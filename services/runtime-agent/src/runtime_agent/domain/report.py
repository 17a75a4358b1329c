"""The node report: everything about a node, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from muster.contracts.nodes import Gpu, NodeReport, PodOnNode

from runtime_agent.domain.pods import Pod


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of the node apart from its pods; `simulated`: its pods are only pretended."""

    node: str
    journal: str
    boot: str
    address: str
    log_url: str
    version: str
    cpu: int
    memory_mb: int
    port_range: tuple[int, int]
    simulated: bool
    missing_limits: Sequence[str] = ()
    single_user: str | None = None
    secrets_key: str | None = None


@dataclass(frozen=True, slots=True)
class NodeNow:
    """What changes: the driver's answers, ports of foreign processes, records from the bus."""

    gpus: Sequence[Gpu] = ()
    foreign_ports: Sequence[int] = ()
    lease: int = 0
    is_stopping: bool = False
    problem: str | None = None


def report(
    facts: NodeFacts, now: NodeNow, live: Iterable[Pod], *, revision: int, at: datetime
) -> NodeReport:
    """One report; each live pod counts with what it was given."""
    pods = [_on_node(pod) for pod in live]
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
        cpu=facts.cpu,
        memory_mb=facts.memory_mb,
        port_range=facts.port_range,
        gpus=tuple(gpu.model_copy(update={"pod": holders.get(gpu.index)}) for gpu in now.gpus),
        pods=tuple(pods),
        foreign_ports=tuple(sorted(now.foreign_ports)),
        is_healthy=now.problem is None,
        problem=now.problem,
        is_stopping=now.is_stopping,
        simulated=facts.simulated,
        missing_limits=tuple(facts.missing_limits),
        single_user=facts.single_user,
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
