"""Virtual time: what is due when, and how victims go on."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.simulation.agenda import Agenda, End

Simulate = Callable[..., Any]


def test_a_run_ends_by_itself_and_makes_room_in_the_same_moment(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate(
        [say.wants(0, "first", pods=2, runSeconds=60), say.wants(1, "second", pods=2)]
    )
    assert outcome.decisions == [
        (0, "placed", "first"),
        (1, "reserved", "second"),
        (1, "deferred quota", "second"),
        (60, "placed", "second"),
    ]


def test_ends_come_before_the_events_of_their_moment(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.wants(0, "first", pods=2, runSeconds=60), say.wants(60, "second", pods=2)]
    )
    assert outcome.when("placed", "second") == [60]
    assert outcome.when("deferred quota", "second") == []


def test_all_events_of_a_moment_come_before_its_cycle(simulate: Simulate, say: Any) -> None:
    outcome = simulate([say.wants(5, "low", pods=2), say.wants(5, "high", pods=2, priority=2)])
    assert outcome.decisions == [
        (5, "placed", "high"),
        (5, "reserved", "low"),
        (5, "deferred quota", "low"),
    ]


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
    assert outcome.when("preempted", "old") == [50]
    assert outcome.when("placed", "owner") == [80]
    assert outcome.when("placed", "old") == [0, 180]
    assert outcome.when("placed", "young") == []
    assert [json.loads(line)["until"] for line in outcome.lines if '"preempted"' in line] == [80]


def test_a_victim_that_is_released_makes_room_at_once(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            say.scavenges(0, "guest"),
            say.wants(50, "owner", pods=2),
            say.told(55, "gang-released", "guest"),
        ]
    )
    assert outcome.when("placed", "owner") == [55]
    assert outcome.when("placed", "guest") == [0]


def test_a_victim_that_ends_within_its_grace_does_not_wait_again(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate([say.scavenges(0, "guest", runSeconds=60), say.wants(50, "owner", pods=2)])
    assert outcome.when("placed", "owner") == [60]
    assert outcome.when("placed", "guest") == [0]
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
    assert outcome.when("placed", "guest") == [0, 300]
    assert outcome.when("placed", "next") == [ends_at]
    assert outcome.summary["lostGpuSeconds"] == 16 * (ends_at - 300 - 1000 + 100)


def recording(cluster: dict[str, Any], at: float, *, is_enforced: bool) -> dict[str, Any]:
    """From then on ends are enforced, or come from the file alone."""
    policy = {"enforceGrace": is_enforced, "graceSeconds": 30}
    return {"at": at, "event": "cluster-changed", "cluster": cluster | {"policy": policy}}


@pytest.mark.parametrize(
    ("more", "changes", "ends_at"),
    [
        ({}, [], 100),
        ({"runSeconds": 70}, [], 70),
        ({}, [(50, False)], 400),
        ({}, [(50, False), (60, True)], 100),
        ({}, [(50, False), (200, True)], 200),
        ({"runSeconds": 300}, [(50, False)], 300),
    ],
)
def test_a_gang_ends_at_its_limit_where_ends_do_not_come_from_the_file(
    simulate: Simulate,
    say: Any,
    cluster: dict[str, Any],
    more: dict[str, Any],
    changes: list[tuple[float, bool]],
    ends_at: float,
) -> None:
    events = [say.wants(0, "limited", pods=2, limitSeconds=100, **more), say.wants(1, "next")]
    events += [recording(cluster, at, is_enforced=is_enforced) for at, is_enforced in changes]
    outcome = simulate([*events, say.told(400, "gang-released", "limited")])
    assert outcome.when("placed", "next") == [ends_at]


def test_the_end_of_a_limit_leaves_the_grace_of_a_pod_as_it_is() -> None:
    agenda = Agenda()
    agenda.add(100, End.RUN, "g")
    agenda.add_pod(30, "g", "w-1")
    agenda.forget("g", [End.RUN])
    assert agenda.next_at() == 30
    agenda.forget("g")
    assert agenda.next_at() is None


def test_a_run_that_is_over_when_its_grace_is_over_is_over(simulate: Simulate, say: Any) -> None:
    outcome = simulate([say.scavenges(0, "guest", runSeconds=80), say.wants(50, "owner", pods=2)])
    assert outcome.when("placed", "owner") == [80]
    assert outcome.when("placed", "guest") == [0]
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
    assert outcome.when("placed", "guest") == [0, 100, 200]
    assert outcome.when("placed", "next") == [200 + 940]


def test_without_requeue_a_victim_is_over(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.scavenges(0, "guest"), say.wants(50, "owner", pods=2, runSeconds=10)],
        policy={"requeue": False},
    )
    assert outcome.when("placed", "guest") == [0]
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
    assert outcome.when("placed", "owner") == [55]
    assert outcome.when("placed", "guest") == [0]


def test_a_grace_of_nothing_is_over_in_the_same_second(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [say.scavenges(0, "guest"), say.wants(50, "owner", pods=2)], policy={"graceSeconds": 0}
    )
    assert outcome.when("preempted", "guest") == [50]
    assert outcome.when("placed", "owner") == [50]
    assert [said for at, said, who in outcome.decisions if who == "guest"][-1].startswith(
        "deferred"
    )


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


def test_nodes_in_no_cell_come_by_name(simulate: Simulate, say: Any) -> None:
    """However the file has them."""
    asked = [
        say.scavenges(0, "guest", gpus=0, pods=1),
        say.wants(1, "own", gpus=0, pods=2),
    ]
    for event in asked:
        event["gang"]["pods"][0]["cpu"] = 3
    outcome = simulate(asked, nodes={name: {"cpu": 4} for name in ("z0", "m0", "b0")})
    placed = [[pod["node"] for pod in json.loads(line)["pods"]] for line in outcome.lines]
    assert placed == [["b0"], ["m0", "z0"]]


def test_of_nodes_that_are_as_good_the_lowest_is_taken(
    simulate: Simulate, say: Any, cluster: dict[str, Any]
) -> None:
    outcome = simulate(
        [say.wants(0, "first"), say.wants(1, "second", gpus=1)],
        physicalCells=[{"type": "node", "name": f"n{number}"} for number in range(3)],
        cellTypes={name: cluster["cellTypes"][name] for name in ("pair", "node")},
        virtualClusters={"a": {"cells": [{"type": "node", "count": 3}]}},
    )
    placed = [[pod["node"] for pod in json.loads(line)["pods"]] for line in outcome.lines]
    assert placed == [["n0"], ["n1"]]
