"""Sums of simulations that can be worked out by hand."""

import re
from collections.abc import Callable
from typing import Any

import pytest

Simulate = Callable[..., Any]

FLOAT_ERROR = 1e-5


def group(outcome: Any, virtual_cluster: str, kind: str = "guaranteed") -> dict[str, Any]:
    """One group's part of a summary."""
    [found] = [
        each
        for each in outcome.summary["groups"]
        if (each["virtualCluster"], each["class"]) == (virtual_cluster, kind)
    ]
    return dict(found)


def test_waits_are_told_by_virtual_cluster_and_class(simulate: Simulate, say: Any) -> None:
    """Ten gangs of a whole quota, 10 s each, one after the other."""
    outcome = simulate([say.wants(0, f"gang-{n}", pods=2, runSeconds=10) for n in range(10)])
    waits = group(outcome, "a")["waitSeconds"]
    assert waits == {"mean": 45, "p50": 40, "p95": 90, "max": 90}
    assert (outcome.summary["from"], outcome.summary["to"]) == (0, 100)


def test_a_wait_counts_all_waiting_of_a_gang_once(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.scavenges(0, "guest", runSeconds=500), say.wants(50, "owner", pods=2, runSeconds=20)]
    )
    assert group(outcome, "a", "opportunistic")["waitSeconds"]["max"] == 20
    assert group(outcome, "a", "opportunistic")["started"] == 1
    assert group(outcome, "a")["waitSeconds"]["max"] == 30


def test_use_is_weighted_by_time(simulate: Simulate, say: Any) -> None:
    """Of 16 GPUs 8 are used for 30 s and 4 for 70 s."""
    outcome = simulate(
        [
            say.wants(0, "one", runSeconds=30),
            say.wants(0, "two", runSeconds=100),
        ]
    )
    used = (8 * 30 + 4 * 70) / (16 * 100)
    assert outcome.summary["gpus"]["used"] == pytest.approx(used, abs=FLOAT_ERROR)
    assert outcome.summary["gpus"]["free"] == pytest.approx(1 - used, abs=FLOAT_ERROR)
    assert outcome.summary["gpus"]["mean"] == 16


def test_free_gpus_in_pieces_are_told(simulate: Simulate, say: Any) -> None:
    """One GPU of one node is used: 12 of 15 free ones are in whole nodes, 8 in a whole rack."""
    outcome = simulate([say.wants(0, "gang", gpus=1, runSeconds=10)])
    gpus = outcome.summary["gpus"]
    assert gpus["freeInWholeNodes"] == pytest.approx(12 / 15, abs=FLOAT_ERROR)
    assert gpus["freeInWholeRacks"] == pytest.approx(8 / 15, abs=FLOAT_ERROR)


def test_gpus_that_nobody_can_get_are_not_free(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.node(0, "node-bad", "n0"),
            say.node(0, "node-cordoned", "n1"),
            say.node(0, "gpu-bad", "n2", gpu=1),
            say.node(10, "node-healthy", "n0"),
            say.node(10, "gpu-healthy", "n2", gpu=1),
            say.node(10, "node-uncordoned", "n1"),
            say.node(20, "node-healthy", "n0"),
        ]
    )
    assert outcome.summary["gpus"]["free"] == pytest.approx((7 + 16) / 32, abs=FLOAT_ERROR)
    assert outcome.summary["gpus"]["freeInWholeNodes"] == pytest.approx(20 / 23, abs=FLOAT_ERROR)
    assert outcome.summary["gpus"]["freeInWholeRacks"] == pytest.approx(16 / 23, abs=FLOAT_ERROR)


def test_what_preemptions_cost_is_told(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.scavenges(0, "guest", virtualCluster="b", checkpointSeconds=50),
            say.wants(30, "owner", pods=2, runSeconds=10),
        ]
    )
    assert outcome.summary["preemptions"] == 1
    assert outcome.summary["lostGpuSeconds"] == 16 * 10
    assert group(outcome, "b", "opportunistic")["lostGpuSeconds"] == 160
    assert group(outcome, "b", "opportunistic")["preempted"] == 1
    assert group(outcome, "a")["preempted"] == 0


@pytest.mark.parametrize("ends", ["gang-released", "pod-released"])
def test_work_is_lost_where_events_end_a_preempted_gang(
    simulate: Simulate, say: Any, ends: str
) -> None:
    """As in a recording: 10 s of each of its GPUs, as its last checkpoint was at 50 s."""
    pods = [{"pod": f"w-{n}"} for n in range(4)] if ends == "pod-released" else [{}]
    outcome = simulate(
        [
            say.scavenges(0, "guest", virtualCluster="b", checkpointSeconds=50),
            say.wants(30, "owner", pods=2),
            *(say.told(60, ends, "guest", **pod) for pod in pods),
        ],
        policy={"enforceGrace": False},
    )
    assert outcome.summary["preemptions"] == 1
    assert outcome.summary["lostGpuSeconds"] == 16 * 10


def test_an_ended_pod_that_is_not_free_yet_loses_no_work(simulate: Simulate, say: Any) -> None:
    restored = say.wants(100, "released w-0", virtualCluster="-") | {
        "event": "gang-restored",
        "startedAt": 0,
        "class": "opportunistic",
        "preemptedUntil": 100,
        "placement": [{"pod": "w-0", "node": "n0", "gpus": [0, 1, 2, 3]}],
    }
    outcome = simulate(
        [restored, say.told(110, "gang-released", "released w-0")],
        policy={"enforceGrace": False},
    )
    assert outcome.summary["lostGpuSeconds"] == 0


def test_what_still_waits_is_told_with_its_code(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.wants(0, "runs", pods=2),
            say.wants(5, "waits", pods=2),
            say.wants(9, "too", gpus=1),
            say.node(20, "node-healthy", "n0"),
        ]
    )
    assert outcome.summary["running"] == 1
    assert outcome.summary["waiting"] == [
        {"virtualCluster": "a", "code": "quota", "gangs": 2, "gpus": 9, "longestSeconds": 15}
    ]
    assert "quota" in outcome.text


def test_downgrades_are_told(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.wants(0, "lazy", pods=2, priority=0, lazyPreemption=True, runSeconds=100),
            say.wants(10, "high", pods=2, priority=9, runSeconds=20),
        ]
    )
    assert outcome.summary["downgrades"] == group(outcome, "a")["downgraded"] == 1
    assert outcome.summary["preemptions"] == 0


def test_a_change_of_the_cluster_changes_what_there_is(simulate: Simulate, say: Any) -> None:
    half = {
        "cellTypes": {"node": {"child": "gpu", "count": 4, "node": True}},
        "physicalCells": [{"type": "node", "name": "n0"}, {"type": "node", "name": "n1"}],
        "virtualClusters": {"a": {"cells": []}},
    }
    outcome = simulate(
        [
            say.scavenges(0, "gang"),
            {"at": 10, "event": "cluster-changed", "cluster": half},
            say.told(20, "gang-released", "gang"),
            say.node(40, "node-healthy", "n0"),
        ]
    )
    assert outcome.summary["gpus"]["mean"] == (16 * 10 + 8 * 30) / 40
    assert outcome.summary["gpus"]["free"] == pytest.approx(8 * 20 / (40 * 10), abs=FLOAT_ERROR)
    assert outcome.summary["gpus"]["used"] == pytest.approx(16 * 20 / (40 * 10), abs=FLOAT_ERROR)


def test_nothing_at_all_is_no_error(simulate: Simulate) -> None:
    outcome = simulate([])
    assert outcome.summary["gpus"]["used"] is None
    assert outcome.summary["groups"] == outcome.summary["waiting"] == []
    assert outcome.text.startswith("Simulated      0s")


def test_figures_have_one_decimal_at_most(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.scavenges(0.1234, "guest", gpus=4, pods=3, runSeconds=500.789),
            say.node(3.3333, "node-bad", "n3"),
            say.wants(7.7777, "owner", pods=2, runSeconds=90.456),
            say.node(50.01, "node-healthy", "n3"),
        ]
    )
    assert outcome.summary["preemptions"] > 0
    assert "." in outcome.text
    assert re.search(r"\.\d\d|\de", outcome.text) is None, outcome.text


def test_no_line_is_wider_than_a_terminal(simulate: Simulate, say: Any) -> None:
    name = "a-virtual-cluster-with-a-long-name"
    ages = 3_000_000_000
    outcome = simulate(
        [
            say.wants(0, "one", pods=2, virtualCluster=name, runSeconds=ages - 0.123456),
            say.wants(0.5, "two", pods=2, virtualCluster=name),
            say.wants(7, "three", pods=2, virtualCluster=name),
            say.scavenges(8, "guest", gpus=1, pods=1, virtualCluster=name, runSeconds=ages + 0.25),
            say.told(2 * ages, "gang-released", "two"),
        ],
        virtualClusters={name: {"cells": [{"type": "rack", "count": 1}]}},
    )
    assert name[:14] in outcome.text
    assert max(map(len, outcome.text.splitlines())) <= 80


def test_nodes_that_come_back_with_the_configuration_are_well_and_open(
    simulate: Simulate, say: Any, cluster: dict[str, Any]
) -> None:
    """For the decisions as for the sums: 16 free GPUs for 10 s after 10 s without any."""
    outcome = simulate(
        [
            say.node(0, "node-bad", "n0"),
            say.node(0, "gpu-bad", "n1", gpu=0),
            *(say.node(0, "node-drained", node) for node in ("n2", "n3")),
            {"at": 0, "event": "cluster-changed", "cluster": {}},
            {"at": 10, "event": "cluster-changed", "cluster": cluster},
            say.scavenges(20, "guest"),
        ]
    )
    assert outcome.when("placed", "guest") == [20]
    assert outcome.summary["gpus"]["free"] == 1
