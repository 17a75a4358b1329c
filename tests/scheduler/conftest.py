"""Builders of the core's inputs that read as sentences."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from muster.contracts.gangs import GangRequest, PodAsk, PodRelease
from muster.contracts.nodes import Gpu, NodeReport, PodOnNode
from scheduler.domain.cluster import Cluster
from scheduler.domain.model import Policy

START = datetime(2026, 1, 1, tzinfo=UTC)


class Kit:
    """What the tests of the core share."""

    start = START

    def report(
        self,
        node: str,
        *,
        revision: int = 1,
        gpus: int = 0,
        cpu: int = 64,
        memory_mb: int = 512_000,
        holding: Mapping[str, tuple[int, ...]] | None = None,
        bad: tuple[int, ...] = (),
        **more: Any,
    ) -> NodeReport:
        """A node's report; ``holding``: the live pods and their GPUs."""
        holding = holding or {}
        owner = {index: pod for pod, held in holding.items() for index in held}
        values: dict[str, Any] = {
            "journal": f"journal-of-{node}",
            "boot": "boot",
            "at": START + timedelta(seconds=revision),
            "address": f"address-of-{node}",
            "version": "1",
            "pods": tuple(PodOnNode(pod=pod, gpus=held) for pod, held in holding.items()),
            "gpus": tuple(
                Gpu(
                    index=i,
                    uuid=f"{node}-{i}",
                    model="T",
                    memory_mb=1,
                    is_healthy=i not in bad,
                    pod=owner.get(i),
                )
                for i in range(gpus)
            ),
        }
        return NodeReport(
            node=node, revision=revision, cpu=cpu, memory_mb=memory_mb, **(values | more)
        )

    def gang(
        self,
        name: str,
        *pods: PodAsk,
        priority: int = 10,
        age: float = 0.0,
        released: tuple[PodRelease, ...] = (),
    ) -> GangRequest:
        """A gang's word; ``age`` seconds after the first ones it was submitted."""
        return GangRequest(
            gang=name,
            job=name,
            name=name,
            user="user",
            virtual_cluster="default",
            priority=priority,
            submitted_at=START + timedelta(seconds=age),
            pods=pods,
            released=released,
        )

    def pods(self, gang: str, count: int, **wants: Any) -> tuple[PodAsk, ...]:
        """Equal pods of a gang."""
        return tuple(PodAsk(pod=f"{gang}-w-{i}", role="w", **wants) for i in range(count))

    def cluster(self, *reports: NodeReport, policy: Policy | None = None) -> Cluster:
        """A cluster whose nodes are alive and have reported."""
        cluster = Cluster(policy or Policy(settle_s=0.0))
        for report in reports:
            cluster.report(report, 0.0)
            cluster.hear(report.node, report.journal, 0.0)
        return cluster


@pytest.fixture(scope="session")
def kit() -> Kit:
    """Builders."""
    return Kit()
