"""Virtual time: what is due when, how victims go on, and what events do."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError

Simulate = Callable[..., Any]


def when(outcome: Any, decision: str, gang: str) -> list[float]:
    """When this was said of a gang."""
    return [at for at, said, who in outcome.decisions if (said, who) == (decision, gang)]


def test_a_run_ends_by_itself_and_makes_room_in_the_same_moment(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate(
        [say.wants(0, "first", pods=2, runSeconds=60), say.wants(1, "second", pods=2)]
    )
    assert outcome.decisions == [
        (0, "placed", "first"),
        (1, "deferred quota", "second"),
        (60, "placed", "second"),
    ]


def test_ends_come_before_the_events_of_their_moment(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.wants(0, "first", pods=2, runSeconds=60), say.wants(60, "second", pods=2)]
    )
    assert when(outcome, "placed", "second") == [60]
    assert when(outcome, "deferred quota", "second") == []


def test_all_events_of_a_moment_come_before_its_cycle(simulate: Simulate, say: Any) -> None:
    outcome = simulate([say.wants(5, "low", pods=2), say.wants(5, "high", pods=2, priority=2)])
    assert outcome.decisions == [(5, "placed", "high"), (5, "deferred quota", "low")]


def test_a_victim_leaves_after_its_grace_and_waits_at_its_old_age(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate(
        [
            say.scavenges(0, "old", gpus=4, pods=4),
            say.scavenges(20, "young", gpus=4, pods=4),
            say.wants(50, "owner", pods=2, runSeconds=100),
        ]
    )
    assert when(outcome, "preempted", "old") == [50]
    assert when(outcome, "placed", "owner") == [80]
    assert when(outcome, "placed", "old") == [0, 180]
    assert when(outcome, "placed", "young") == []
    assert [json.loads(line)["until"] for line in outcome.lines if '"preempted"' in line] == [80]


def test_a_victim_that_is_released_makes_room_at_once(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.scavenges(0, "guest"),
            say.wants(50, "owner", pods=2),
            say.told(55, "gang-released", "guest"),
        ]
    )
    assert when(outcome, "placed", "owner") == [55]
    assert when(outcome, "placed", "guest") == [0]


def test_a_victim_that_ends_within_its_grace_does_not_wait_again(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate([say.scavenges(0, "guest", runSeconds=60), say.wants(50, "owner", pods=2)])
    assert when(outcome, "placed", "owner") == [60]
    assert when(outcome, "placed", "guest") == [0]
    assert outcome.summary["lostGpuSeconds"] == 0


@pytest.mark.parametrize(
    ("more", "checkpoint_at", "ends_at"),
    [
        ({}, None, 100 + 200 + 1000),  # from its beginning
        ({"checkpointSeconds": 60}, None, 100 + 200 + 1000 - 60),
        ({"checkpointSeconds": 45}, None, 100 + 200 + 1000 - 90),
        ({}, 75, 100 + 200 + 1000 - 75),
        ({"checkpointSeconds": 60}, 95, 100 + 200 + 1000 - 95),
    ],
)
def test_a_victim_goes_on_from_its_last_checkpoint(
    simulate: Simulate, say: Any, more: dict[str, Any], checkpoint_at: float | None, ends_at: float
) -> None:
    """It runs from 0, has left at 100, and is back at 300."""
    events = [say.scavenges(0, "guest", runSeconds=1000, **more)]
    if checkpoint_at is not None:
        events += [say.wants(70, "owner", pods=2, runSeconds=200)]
        events += [say.told(checkpoint_at, "gang-checkpointed", "guest")]
    else:
        events += [say.wants(70, "owner", pods=2, runSeconds=200)]
    events += [say.scavenges(301, "next", runSeconds=1)]
    outcome = simulate(events)
    assert when(outcome, "placed", "guest") == [0, 300]
    assert when(outcome, "placed", "next") == [ends_at]
    assert outcome.summary["lostGpuSeconds"] == 16 * (ends_at - 300 - 1000 + 100)


def test_a_run_that_is_over_when_its_grace_is_over_is_over(simulate: Simulate, say: Any) -> None:
    outcome = simulate([say.scavenges(0, "guest", runSeconds=80), say.wants(50, "owner", pods=2)])
    assert when(outcome, "placed", "owner") == [80]
    assert when(outcome, "placed", "guest") == [0]
    assert outcome.summary["lostGpuSeconds"] == 0


def test_a_checkpoint_counts_for_the_run_in_which_it_was_made(simulate: Simulate, say: Any) -> None:
    """It runs from 0 to 80 and saves 60 of 1000 s, then from 100 to 180 and saves nothing."""
    outcome = simulate(
        [
            say.scavenges(0, "guest", runSeconds=1000),
            say.wants(50, "owner", pods=2, runSeconds=20),
            say.told(60, "gang-checkpointed", "guest"),
            say.wants(150, "again", pods=2, runSeconds=20),
            say.scavenges(300, "next", runSeconds=1),
        ]
    )
    assert when(outcome, "placed", "guest") == [0, 100, 200]
    assert when(outcome, "placed", "next") == [200 + 940]


def test_without_requeue_a_victim_is_over(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.scavenges(0, "guest"), say.wants(50, "owner", pods=2, runSeconds=10)],
        policy={"requeue": False},
    )
    assert when(outcome, "placed", "guest") == [0]
    assert outcome.summary["running"] == 0
    assert outcome.summary["waiting"] == []


def test_the_policy_may_change(simulate: Simulate, say: Any, cluster: dict[str, Any]) -> None:
    changed = cluster | {"policy": {"graceSeconds": 5, "requeue": False}}
    outcome = simulate(
        [
            say.scavenges(0, "guest"),
            {"at": 40, "event": "cluster-changed", "cluster": changed},
            say.wants(50, "owner", pods=2, runSeconds=10),
        ]
    )
    assert when(outcome, "placed", "owner") == [55]
    assert when(outcome, "placed", "guest") == [0]


def test_a_grace_of_nothing_is_over_in_the_same_second(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.scavenges(0, "guest"), say.wants(50, "owner", pods=2)], policy={"graceSeconds": 0}
    )
    assert when(outcome, "preempted", "guest") == [50]
    assert when(outcome, "placed", "owner") == [50]
    assert [said for at, said, who in outcome.decisions if who == "guest"][-1].startswith(
        "deferred"
    )


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
    assert when(outcome, "preempted", "gang") == [10]
    assert when(outcome, "placed", "gang") == [0, 40]
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
    assert when(outcome, "placed", "gang") == [7]


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


def test_pods_of_one_name_want_the_same(simulate: Simulate, say: Any) -> None:
    other = [{"name": "v", "count": 1, "gpus": 0}, {"name": "w", "count": 1, "gpus": 2}]
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang"), say.told(5, "gang-grown", "gang", pods=other)])
    [finding] = refused.value.findings
    assert (finding.line, finding.path) == (2, "pods[1].name")


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
    assert when(outcome, "placed", "gang") == [0, 4]


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
    assert when(outcome, "preemption-cancelled", "owner") == [60]
    assert when(outcome, "placed", "owner") == []


def test_an_id_is_refused_while_its_gang_is_there(simulate: Simulate, say: Any) -> None:
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang", runSeconds=5), say.wants(4, "gang")])
    [finding] = refused.value.findings
    assert (finding.line, finding.path) == (2, "gang.id")
    again = simulate([say.wants(0, "gang", runSeconds=5), say.wants(5, "gang")])
    assert when(again, "placed", "gang") == [0, 5]


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
    assert when(outcome, "placed", "first") == [0]
    assert when(outcome, "placed", "second") == [10]


def test_a_configuration_that_cannot_be_honoured_is_refused_by_line(
    simulate: Simulate, say: Any
) -> None:
    cluster = {"virtualClusters": {"a": {"cells": [{"type": "rack", "count": 1}]}}}
    with pytest.raises(FormatError) as refused:
        simulate([say.wants(0, "gang"), {"at": 10, "event": "cluster-changed", "cluster": cluster}])
    assert {finding.line for finding in refused.value.findings} == {2}
    assert refused.value.findings[0].path.startswith("cluster.virtualClusters.a")


def restored(at: float, gang: str, node: str, **more: Any) -> dict[str, Any]:
    """A gang of one pod that runs on a whole node."""
    return {
        "at": at,
        "event": "gang-restored",
        "gang": {
            "id": gang,
            "user": "u",
            "virtualCluster": "a",
            "priority": more.pop("priority", 1),
            "pods": [{"name": "w", "count": 1, "gpus": 4}],
            **more.pop("of", {}),
        },
        "placement": [{"pod": "w-0", "node": node, "gpus": [0, 1, 2, 3]}],
        **more,
    }


def test_a_restored_gang_runs_since_it_started(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            restored(100, "gang", "n1", startedAt=40, of={"runSeconds": 90}),
            say.wants(101, "next", pods=2),
        ]
    )
    assert when(outcome, "placed", "gang") == []
    assert when(outcome, "placed", "next") == [130]


def test_a_restored_preemption_goes_on(simulate: Simulate, say: Any) -> None:
    """The state of a running system in the middle of a preemption."""
    outcome = simulate(
        [
            restored(100, "guest", "n0", priority=-1, preemptedUntil=120, preemptedFor="owner"),
            restored(100, "owner", "n0", startedAt=None),
            restored(100, "other", "n1", **{"class": "guaranteed"}),
        ]
    )
    assert when(outcome, "placed", "owner") == [120]
    assert when(outcome, "placed", "guest") == [120]  # elsewhere


def test_what_was_due_before_the_file_begins_is_due_at_once(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            restored(100, "long-over", "n0", startedAt=10, of={"runSeconds": 50}),
            restored(100, "late", "n1", priority=-1, startedAt=10, preemptedUntil=90),
            say.wants(100, "next", pods=2),
        ]
    )
    assert when(outcome, "placed", "next") == [100]
    assert [at for at, _, _ in outcome.decisions] == [100] * len(outcome.decisions)


def test_a_restored_gang_takes_nobodys_gpus(simulate: Simulate) -> None:
    with pytest.raises(FormatError) as refused:
        simulate([restored(0, "one", "n0"), restored(0, "two", "n0")])
    [finding] = refused.value.findings
    assert (finding.line, finding.path) == (2, "placement[0].gpus")


def test_a_restored_gang_on_an_unknown_node_is_warned_of(simulate: Simulate) -> None:
    outcome = simulate([restored(0, "gang", "n9", of={"runSeconds": 5})])
    [warning] = outcome.warnings
    assert (warning.line, warning.path) == (1, "placement[0]")


def test_the_file_is_read_no_further_than_time_has_come(simulate: Simulate, say: Any) -> None:
    said: list[str] = []
    said_before: list[int] = []

    def events() -> Iterator[dict[str, Any]]:
        for number in range(5):
            said_before.append(len(said))
            yield say.wants(number, f"gang-{number}", gpus=1, runSeconds=100)

    simulate(events(), said)
    assert said_before == [0, 0, 1, 2, 3]  # one event ahead, to know when it is


def test_what_was_decided_before_a_wrong_line_is_told(simulate: Simulate, say: Any) -> None:
    said: list[str] = []
    with pytest.raises(FormatError):
        simulate([say.wants(0, "gang"), say.wants(9, "later"), {"at": 10, "event": "x"}], said)
    assert [json.loads(line)["gang"] for line in said] == ["gang"]


def test_the_same_input_gives_the_same_output(simulate: Simulate, say: Any) -> None:
    events = [
        *(say.scavenges(n, f"guest-{n}", gpus=1, pods=3, runSeconds=50 + n) for n in range(9)),
        *(say.wants(20 + n, f"gang-{n}", gpus=2, pods=2, runSeconds=33) for n in range(9)),
    ]
    assert simulate(events).lines == simulate(events).lines
