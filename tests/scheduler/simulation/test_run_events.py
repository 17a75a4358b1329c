"""What the events of a file do to gangs, nodes and the configuration."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError

Simulate = Callable[..., Any]


def test_a_drained_node_is_left_and_what_ran_there_runs_elsewhere(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate(
        [
            say.wants(0, "gang"),
            say.node(10, "node-drained", "n0"),
            say.node(11, "node-drained", "n1"),
        ]
    )
    assert outcome.when("preempted", "gang") == [10]
    assert outcome.when("placed", "gang") == [0, 40]
    placed = [json.loads(line) for line in outcome.lines if '"placed"' in line]
    assert [each["pods"][0]["node"] for each in placed] == ["n0", "n2"]


def test_bad_nodes_take_nothing_until_they_are_well(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            *(say.node(0, "node-bad", f"n{number}") for number in range(4)),
            say.wants(1, "gang"),
            say.node(9, "node-healthy", "n3"),
        ]
    )
    assert outcome.decisions == [(1, "deferred health", "gang"), (9, "placed", "gang")]


def test_a_bad_gpu_is_not_given(simulate: Simulate, say: Any) -> None:
    bad = [say.node(0, "gpu-bad", f"n{number}", gpu=2) for number in range(4)]
    outcome = simulate([*bad, say.wants(1, "gang"), say.node(5, "gpu-healthy", "n1", gpu=2)])
    assert outcome.decisions == [(1, "deferred health", "gang"), (5, "placed", "gang")]


def test_cordon_holds_back_and_uncordon_ends_it(simulate: Simulate, say: Any) -> None:
    shut = [say.node(0, "node-cordoned", f"n{number}") for number in range(4)]
    outcome = simulate([*shut, say.wants(1, "gang"), say.node(7, "node-uncordoned", "n2")])
    assert outcome.when("placed", "gang") == [7]


def test_grown_pods_count_on_and_come_back_with_the_gang(simulate: Simulate, say: Any) -> None:
    more = [{"name": "w", "count": 1, "gpus": 1}]
    outcome = simulate(
        [
            say.scavenges(0, "gang", gpus=1, pods=2),
            say.told(5, "gang-grown", "gang", pods=more),
            say.told(6, "pod-released", "gang", pod="w-0"),
            say.told(7, "gang-grown", "gang", pods=more),
            say.node(10, "node-drained", "n0"),
            *(say.node(10, "node-drained", f"n{number}") for number in (1, 2, 3)),
            *(say.node(50, "node-uncordoned", f"n{number}") for number in range(4)),
        ]
    )
    pods = [
        (each["at"], each["decision"], [pod["pod"] for pod in each["pods"]])
        for each in map(json.loads, outcome.lines)
        if each.get("pods")
    ]
    assert pods == [
        (0, "placed", ["w-0", "w-1"]),
        (5, "grown", ["w-2"]),
        (7, "grown", ["w-3"]),
        (50, "placed", ["w-1", "w-2", "w-3"]),
    ]


def test_what_a_gang_can_do_without_is_not_waited_for(simulate: Simulate, say: Any) -> None:
    elastic = say.wants(0, "gang")
    elastic["gang"]["pods"] = [{"name": "w", "count": 3, "gpus": 4, "min": 1}]
    outcome = simulate(
        [
            *(say.node(0, "node-drained", f"n{number}") for number in (1, 2, 3)),
            elastic,
            say.told(5, "pod-released", "gang", pod="w-0"),
            say.told(5, "pod-released", "gang", pod="w-1"),
            say.wants(8, "gang"),
        ]
    )
    assert outcome.decisions == [
        (0, "placed", "gang"),
        (8, "placed", "gang"),
    ]


def test_pods_of_one_name_want_the_same(simulate: Simulate, say: Any) -> None:
    other = [{"name": "v", "count": 1, "gpus": 0}, {"name": "w", "count": 1, "gpus": 2}]
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang"), say.told(5, "gang-grown", "gang", pods=other)])
    [finding] = refused.value.findings
    assert (finding.line, finding.path) == (2, "pods[1].name")


def test_no_pod_is_there_twice(simulate: Simulate, say: Any) -> None:
    other = [{"name": "v", "count": 1, "gpus": 1, "names": ["w-0"]}]
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang"), say.told(5, "gang-grown", "gang", pods=other)])
    [finding] = refused.value.findings
    assert (finding.line, finding.path) == (2, "pods[0].names")


def test_a_growth_that_can_never_be_is_refused_and_the_gang_runs_on(
    simulate: Simulate, say: Any
) -> None:
    huge = [{"name": "v", "count": 1, "gpus": 1, "gpuTypes": ["none-such"]}]
    outcome = simulate(
        [
            say.wants(0, "gang"),
            say.told(5, "gang-grown", "gang", pods=huge),
            say.node(10, "node-drained", "n0"),
            say.node(10, "node-drained", "n1"),
        ]
    )
    assert outcome.decisions == [
        (0, "placed", "gang"),
        (5, "refused", "gang"),
        (10, "preempted", "gang"),
        (40, "placed", "gang"),
    ]


def test_the_last_pod_ends_its_gang(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.wants(0, "gang", pods=2),
            say.told(1, "pod-released", "gang", pod="w-1"),
            say.told(2, "pod-released", "gang", pod="w-1"),
            say.told(3, "pod-released", "gang", pod="w-0"),
            say.wants(4, "gang"),
        ]
    )
    assert outcome.when("placed", "gang") == [0, 4]


def test_an_elastic_gang_whose_needed_pod_is_over_starts_again_with_another(
    simulate: Simulate, say: Any
) -> None:
    wanted = say.wants(0, "gang", pods=2)
    wanted["gang"]["pods"][0]["min"] = 1
    outcome = simulate(
        [
            wanted,
            say.wants(0, "other", pods=2),
            say.told(1, "pod-released", "gang", pod="w-0"),
            say.node(2, "node-drained", "n0"),
            say.node(3, "node-drained", "n1"),
            say.told(90, "gang-released", "other"),
        ]
    )
    assert outcome.when("preempted", "gang") == [3]
    assert outcome.when("placed", "gang") == [0, 33]


TWO_NODES = {"a": {"cells": [{"type": "rack/node", "count": 2}]}}


def test_a_lost_pod_keeps_another_node_for_the_next_attempt(simulate: Simulate, say: Any) -> None:
    again = say.wants(61, "again", pods=2)
    again["gang"]["follows"] = "gang"
    outcome = simulate(
        [
            say.wants(0, "gang", pods=2),
            say.wants(1, "small"),
            say.node(2, "node-bad", "n0"),
            say.told(2, "pod-released", "gang", pod="w-0", lost=True),
            say.told(3, "gang-released", "gang", keptUntil=63),
            again,
            say.told(70, "gang-released", "again"),
        ],
        virtualClusters=TWO_NODES,
    )
    assert outcome.when("placed", "again") == [61]
    assert outcome.when("placed", "small") == [70]


@pytest.mark.parametrize("pods", [1, 2])
def test_a_drained_gang_starts_elsewhere_before_a_gang_behind_it(
    simulate: Simulate, say: Any, pods: int
) -> None:
    outcome = simulate(
        [
            say.wants(0, "gang", pods=pods),
            say.wants(1, "large", pods=2),
            say.wants(1, "small", pods=1),
            say.wants(1, "smaller", pods=1),
            say.node(2, "node-drained", "n0"),
            say.told(90, "gang-released", "gang"),
        ],
        virtualClusters=TWO_NODES,
    )
    assert outcome.when("preempted", "gang") == [2]
    assert outcome.when("placed", "gang") == [0, 32]


def test_releasing_twice_or_somebody_unknown_is_ignored(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.wants(0, "gang"),
            say.told(1, "gang-released", "gang"),
            say.told(2, "gang-released", "gang"),
            say.told(2, "pod-released", "gang", pod="w-0"),
            say.told(2, "gang-withdrawn", "nobody"),
            say.told(2, "gang-checkpointed", "nobody"),
        ]
    )
    assert outcome.decisions == [(0, "placed", "gang")]
    assert outcome.warnings == []


@pytest.mark.parametrize("event", ["gang-released", "gang-withdrawn"])
def test_a_waiting_gang_is_withdrawn(simulate: Simulate, say: Any, event: str) -> None:
    outcome = simulate(
        [
            say.scavenges(0, "guest"),
            say.wants(50, "owner", pods=2),
            say.told(60, event, "owner"),
            say.wants(100, "later", pods=2),
        ]
    )
    assert outcome.when("placed", "owner") == []
    assert outcome.when("placed", "later") == [130]


def test_an_id_is_refused_while_its_gang_is_there(simulate: Simulate, say: Any) -> None:
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang", runSeconds=5), say.wants(4, "gang")])
    [finding] = refused.value.findings
    assert (finding.line, finding.path) == (2, "gang.id")
    again = simulate([say.wants(0, "gang", runSeconds=5), say.wants(5, "gang")])
    assert again.when("placed", "gang") == [0, 5]


@pytest.mark.parametrize(
    ("event", "path"),
    [
        ({"event": "node-bad", "node": "n9"}, "node"),
        ({"event": "node-drained", "node": "n9"}, "node"),
        ({"event": "gpu-bad", "node": "n9", "gpu": 0}, "node"),
        ({"event": "gpu-bad", "node": "n0", "gpu": 4}, "gpu"),
        (
            {"event": "gang-grown", "gang": "x", "pods": [{"name": "w", "count": 1, "gpus": 1}]},
            "gang",
        ),
    ],
)
def test_what_is_not_there_is_ignored_with_a_warning(
    simulate: Simulate, say: Any, event: dict[str, Any], path: str
) -> None:
    outcome = simulate([say.wants(0, "gang"), {"at": 1} | event])
    [warning] = outcome.warnings
    assert (warning.line, warning.path) == (2, path)
    assert outcome.decisions == [(0, "placed", "gang")]


def test_another_configuration_keeps_who_runs_and_counts_from_then_on(
    simulate: Simulate, say: Any
) -> None:
    cluster = {
        "cellTypes": {
            "pair": {"child": "gpu", "count": 2},
            "node": {"child": "pair", "count": 2, "node": True},
        },
        "physicalCells": [{"type": "node", "name": f"n{number}"} for number in range(5)],
        "virtualClusters": {"a": {"cells": [{"type": "node", "count": 3}]}},
        "policy": {"graceSeconds": 5},
    }
    outcome = simulate(
        [
            say.wants(0, "first", pods=2),
            say.wants(1, "second"),
            say.scavenges(2, "guest", pods=1),
            {"at": 10, "event": "cluster-changed", "cluster": cluster},
        ]
    )
    assert outcome.when("placed", "first") == [0]
    assert outcome.when("placed", "second") == [10]


def test_a_configuration_that_cannot_be_honoured_is_refused_by_line(
    simulate: Simulate, say: Any
) -> None:
    cluster = {"virtualClusters": {"a": {"cells": [{"type": "rack", "count": 1}]}}}
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang"), {"at": 10, "event": "cluster-changed", "cluster": cluster}])
    assert {finding.line for finding in refused.value.findings} == {2}
    assert refused.value.findings[0].path.startswith("cluster.virtualClusters.a")


@pytest.mark.parametrize(
    ("changed_at", "is_enforced", "left"),
    [(5, True, [31]), (60, True, [60]), (5, False, []), (31, False, [31])],
)
def test_graces_under_way_are_as_the_policy_of_now_says(
    simulate: Simulate,
    say: Any,
    cluster: dict[str, Any],
    changed_at: int,
    is_enforced: bool,
    left: list[int],
) -> None:
    """``left``: when the guest does; a grace that was over long ago ends at once."""
    before, after = (
        {"graceSeconds": 30, "enforceGrace": each} for each in (not is_enforced, is_enforced)
    )
    outcome = simulate(
        [
            say.scavenges(0, "guest"),
            say.wants(1, "owner", pods=2),
            {"at": changed_at, "event": "cluster-changed", "cluster": cluster | {"policy": after}},
            say.node(100, "node-healthy", "n0"),
        ],
        policy=before,
    )
    assert outcome.when("preempted", "guest") == [1]
    assert outcome.when("placed", "owner") == left
