"""A cluster of two racks with two nodes of four GPUs each, and what happens to it."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from scheduler.domain.core.config import Finding
from scheduler.domain.formats.cluster_change import read_change
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import read_events
from scheduler.domain.simulation.comparison import compare
from scheduler.domain.simulation.comparison_text import comparison_data, comparison_text
from scheduler.domain.simulation.recording import Replay
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.side_by_side import SideBySide, WarnOnce
from scheduler.domain.simulation.summary import summary, summary_text
from scheduler.domain.simulation.workload import Workload, enforcing

CLUSTER: dict[str, Any] = {
    "cellTypes": {
        "pair": {"child": "gpu", "count": 2},
        "node": {"child": "pair", "count": 2, "node": True},
        "rack": {"child": "node", "count": 2},
    },
    "physicalCells": [
        {"type": "rack", "name": "r0", "nodes": ["n0", "n1"]},
        {"type": "rack", "name": "r1", "nodes": ["n2", "n3"]},
    ],
    "virtualClusters": {
        "a": {"cells": [{"type": "rack", "count": 1}]},
        "b": {"cells": [{"type": "rack/node", "count": 2}]},
    },
    "policy": {"graceSeconds": 30},
}

Event = dict[str, Any]
Simulate = Callable[..., "Outcome"]


@dataclass
class Outcome:
    """What came out. ``lines``: as written."""

    lines: list[str]
    warnings: list[Finding]
    summary: dict[str, Any]
    text: str

    @property
    def decisions(self) -> list[tuple[float, str, str]]:
        """When, what, and which gang; deferrals with their code."""
        said = []
        for line in self.lines:
            each = json.loads(line)
            code = f" {each['reason']['code']}" if each["decision"] == "deferred" else ""
            said.append((each["at"], each["decision"] + code, each["gang"]))
        return said

    def when(self, decision: str, gang: str) -> list[float]:
        """When this was said of a gang."""
        return [at for at, said, who in self.decisions if (said, who) == (decision, gang)]


@pytest.fixture(scope="session")
def simulate() -> Simulate:
    """Run events on a cluster; ``changes`` replace parts of it. ``said`` gets what comes out as it
    comes.
    """

    def run(events: Iterable[Event], said: list[str] | None = None, **changes: Any) -> Outcome:
        said = [] if said is None else said
        file = read_cluster(json.dumps(CLUSTER | changes).encode())
        warnings: list[Finding] = []
        simulation = Simulation(file.config, warnings.append)
        lines = (json.dumps(event).encode() for event in events)
        for each in simulation.run(read_events(lines)):
            said.append(decision_line(*each))
        content = summary(simulation.tally, simulation.runs)
        return Outcome(said, warnings, json.loads(json.dumps(content)), summary_text(content))

    return run


@dataclass
class Compared:
    """What a change does. ``lines``: the changed cluster's decisions."""

    lines: list[str]
    warnings: list[Finding]
    data: dict[str, Any]
    text: str

    def of(self, virtual_cluster: str) -> dict[str, Any]:
        """One virtual cluster's part."""
        [found] = [
            each
            for each in self.data["virtualClusters"]
            if each["virtualCluster"] == virtual_cluster
        ]
        return dict(found)


@pytest.fixture(scope="session")
def what_if() -> Callable[..., Compared]:
    """Run events on a cluster and with a change of it; ``base``: the cluster."""

    def run(
        events: Iterable[Event],
        change: dict[str, Any],
        base: dict[str, Any] | None = None,
        is_explaining: bool = True,
    ) -> Compared:
        """A base in which graces do not end by themselves is a recording."""
        config = read_cluster(json.dumps(CLUSTER if base is None else base).encode()).config
        file = read_change(json.dumps(change).encode(), config)
        warnings: list[Finding] = []
        once = WarnOnce(warnings.append)
        before = Simulation(config, once.before)
        after = Simulation(file.changed.config, once.after)
        recording, lines = None, [json.dumps(event).encode() for event in events]
        if not config.policy.is_enforced:
            recording = Replay(before).run(read_events(lines))
            before = enforcing(Simulation(config, once.again), once.again)
            after = enforcing(after, once.after)
        before.core.is_explaining = after.core.is_explaining = is_explaining
        pair = SideBySide(before, after, file.change, once.after, recording)
        wanted = read_events(lines)
        if recording is not None:
            wanted = Workload(recording).events(wanted)
        said = [decision_line(*each) for each in pair.run(wanted)]
        comparison = compare(pair)
        data = json.loads(json.dumps(comparison_data(comparison)))
        return Compared(said, warnings, data, comparison_text(comparison))

    return run


@pytest.fixture(scope="session")
def cluster() -> dict[str, Any]:
    """The cluster, to be changed."""
    return CLUSTER


@dataclass(frozen=True)
class Say:
    """Builders of events that read as sentences."""

    def wants(self, at: float, gang: str, gpus: int = 4, pods: int = 1, **more: Any) -> Event:
        """A gang of equal pods is requested, for virtual cluster ``a`` at priority 1."""
        asked = {
            "id": gang,
            "user": "u",
            "virtualCluster": "a",
            "priority": 1,
            "pods": [{"name": "w", "count": pods, "gpus": gpus}],
        }
        return {"at": at, "event": "gang-requested", "gang": asked | more}

    def scavenges(self, at: float, gang: str, gpus: int = 4, pods: int = 4, **more: Any) -> Event:
        """An opportunistic gang, by default one that fills the cluster."""
        return self.wants(at, gang, gpus, pods, priority=-1, **more)

    def told(self, at: float, event: str, gang: str, **more: Any) -> Event:
        """Something about a gang."""
        return {"at": at, "event": event, "gang": gang, **more}

    def node(self, at: float, event: str, node: str, **more: Any) -> Event:
        """Something about a node."""
        return {"at": at, "event": event, "node": node, **more}


@pytest.fixture(scope="session")
def say() -> Say:
    """Builders."""
    return Say()
