"""What a change would have made of a recording: gangs run for as long as they did."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.simulation.recording import Recording, Replay
from scheduler.domain.simulation.run import Simulation

WhatIf = Callable[..., Any]
Event = dict[str, Any]


@pytest.fixture
def recorded(cluster: dict[str, Any]) -> dict[str, Any]:
    """The cluster, as a recording has it."""
    return cluster | {"policy": {"graceSeconds": 30, "enforceGrace": False}}


def quota(**nodes: int) -> dict[str, Any]:
    """Virtual clusters that own so many nodes."""
    return {
        "virtualClusters": {
            name: {"cells": [{"type": "rack/node", "count": count}]}
            for name, count in nodes.items()
        }
    }


def replay(cluster: dict[str, Any], events: list[Event]) -> Recording:
    """What is learnt of a recording."""
    simulation = Simulation(read_cluster(json.dumps(cluster).encode()).config, lambda _: None)
    return Replay(simulation).run(read_events(json.dumps(each).encode() for each in events))


def starts(lines: list[str], gang: str) -> list[float]:
    """When a gang starts with the change."""
    found = map(json.loads, lines)
    return [each["at"] for each in found if (each["decision"], each["gang"]) == ("placed", gang)]


def three(say: Any) -> list[Event]:
    """Two run, and the third when the first is over: for 100, 300 and 50 s."""
    return [
        say.wants(0, "first"),
        say.wants(0, "second"),
        say.wants(0, "third"),
        say.told(100, "gang-released", "first"),
        say.told(150, "gang-released", "third"),
        say.told(300, "pod-released", "second", pod="w-0"),
    ]


def test_gangs_run_for_as_long_as_they_did_when_they_start_later(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    found = what_if(three(say), quota(a=1, b=2), recorded)
    assert [starts(found.lines, gang) for gang in ("first", "second", "third")] == [
        [0],
        [100],
        [400],
    ]
    assert found.data["all"]["later"] == {"gangs": 2, "meanSeconds": 200, "medianSeconds": 100}
    assert found.data["all"]["shorterRuns"]["gangs"] == 0
    assert found.text.startswith("This delays 2 gangs of a by 3m20s on average (median 1m40s).\n")
    assert "Run times      3 as recorded; 0 had not ended, 0 never ran\n" in found.text
    assert "As recorded    100.0 % of 3 starts (to 1m00s) without the change\n" in found.text
    assert found.data["to"] == {"before": 300, "after": 450}


def test_and_when_they_start_earlier(what_if: WhatIf, recorded: dict[str, Any], say: Any) -> None:
    """The fourth gets the place of the third 100 s earlier too."""
    events = [*three(say), say.told(301, "gang-released", "fourth")]
    events.insert(3, say.wants(1, "fourth", pods=2))
    found = what_if(events[:-1], quota(a=3), recorded)
    assert starts(found.lines, "third") == [0]
    assert starts(found.lines, "fourth") == [100]
    assert found.data["all"]["earlier"]["gangs"] == 2


def test_a_change_of_nothing_changes_nothing(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    found = what_if(three(say), {"policy": {}}, recorded)
    assert found.text.startswith("Nothing changes.\n")


def preempted(say: Any, **more: Any) -> list[Event]:
    """A guest leaves after 75 s, comes back at 76 s under other names, and runs for 500 s."""
    again = say.scavenges(76, "guest", **more)
    again["gang"]["pods"] = [{"name": "v", "count": 4, "gpus": 4}]
    return [
        say.scavenges(0, "guest", **more),
        say.wants(50, "owner", pods=2),
        *(say.told(75, "pod-released", "guest", pod=f"w-{n}") for n in range(4)),
        again,
        say.told(95, "gang-released", "owner"),
        say.told(595, "gang-released", "guest"),
    ]


def test_what_a_preemption_cost_is_not_work(recorded: dict[str, Any], say: Any) -> None:
    histories = replay(recorded, preempted(say)).histories
    assert (histories["guest"].work_s, histories["owner"].work_s) == (500, 20)
    histories = replay(recorded, preempted(say, checkpointSeconds=40)).histories
    assert histories["guest"].work_s == 540


def test_who_came_back_after_a_preemption_is_one_gang(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    """It is preempted by the simulation where somebody preempts it there. It leaves at 80 s then,
    with 80 s saved, starts at 100 s, and has 460 s left.
    """
    events = preempted(say, checkpointSeconds=40)
    found = what_if(events, {"policy": {}}, recorded)
    assert found.data["all"]["gangs"] == 2
    used = (80 * 16 + 20 * 8 + 460 * 16) / (595 * 16)
    assert found.data["gpusUsed"]["before"] == pytest.approx(used, abs=1e-6)
    assert starts(found.lines, "guest") == [0, 100]
    found = what_if(events, quota(a=1, b=3), recorded)
    assert starts(found.lines, "guest") == [0]
    used = (540 * 16) / (595 * 16)
    assert found.data["gpusUsed"]["after"] == pytest.approx(used, abs=1e-6)


def test_who_was_preempted_and_did_not_come_back_runs_for_as_long_as_it_did(
    recorded: dict[str, Any], say: Any
) -> None:
    events = preempted(say, checkpointSeconds=40)[:6]
    life = replay(recorded, events).histories["guest"]
    assert life.is_over
    assert (life.work_s, life.cut_s) == (40, 35)


def test_who_was_tried_again_is_one_gang_that_runs_for_all_its_tries(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    """100 s, then another pod of it 50 s, both in the place of one; `late` comes after them."""
    recorded["policy"]["backfill"] = False
    events = [
        say.wants(0, "tried", pods=2),
        say.wants(1, "late", pods=2),
        *(say.told(100, "pod-released", "tried", pod=f"w-{n}") for n in range(2)),
        say.wants(100, "tried", pods=2, submittedAt=0),
        say.told(150, "gang-released", "tried"),
        say.told(170, "gang-released", "late"),
    ]
    assert replay(recorded, events).histories["tried"].work_s == 150
    found = what_if(events, quota(a=4), recorded)
    assert found.data["all"]["gangs"] == 2
    assert starts(found.lines, "tried") == [0]


def test_who_still_runs_at_the_end_runs_on(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    found = what_if(three(say)[:-1], quota(a=1), recorded)
    assert found.data["recorded"] == {
        "asRecorded": 2,
        "unended": 1,
        "neverRan": 0,
        "started": 3,
        "startedAsRecorded": 3,
    }
    assert starts(found.lines, "third") == []
    assert found.of("a")["notStarted"] == 1


def test_who_never_ran_runs_as_it_expected(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    """`big` is refused without the change, and `impatient` withdrawn."""
    events = [
        say.wants(0, "big", pods=3, expectedSeconds=70),
        say.wants(0, "one", pods=2),
        say.wants(1, "impatient", limitSeconds=40),
        say.told(60, "gang-withdrawn", "impatient"),
        say.told(90, "gang-released", "one"),
    ]
    found = what_if(events, quota(a=4), recorded)
    assert found.data["recorded"]["neverRan"] == 2
    assert [starts(found.lines, gang) for gang in ("big", "impatient", "one")] == [[0], [1], [70]]
    assert found.of("a")["newlyStarted"] == 2


def restarted(say: Any, node: str = "n1") -> list[Event]:
    """In its midst `third` began to run, `second` was told again, and a node is well again."""
    events = three(say)
    second, third = (
        event
        | {
            "at": 120,
            "event": "gang-restored",
            "placement": [{"pod": "w-0", "node": where, "gpus": [0, 1, 2, 3]}],
            "startedAt": started_at,
        }
        for event, where, started_at in ((events[1], node, 0), (events[2], "n0", 100))
    )
    return [
        *events[:3],
        say.node(10, "node-bad", "n2"),
        say.node(20, "node-drained", "n3"),
        events[3],
        {"at": 120, "event": "scheduler-restarted"},
        say.node(120, "node-bad", "n3"),
        second,
        third,
        *events[4:],
    ]


def test_gangs_go_on_over_a_restart(
    what_if: WhatIf, simulate: Any, recorded: dict[str, Any], say: Any
) -> None:
    at = {json.loads(x)["gang"]: json.loads(x) for x in simulate(three(say)[:3]).lines}
    where = at["second"]["pods"][0]["node"]
    events = restarted(say, where)
    for event in events:
        if event["event"] == "gang-restored" and event["gang"]["id"] == "third":
            event["placement"][0]["node"] = at["first"]["pods"][0]["node"]
    histories = replay(recorded, events).histories
    assert {gang: life.work_s for gang, life in histories.items()} == {
        "first": 100,
        "second": 300,
        "third": 50,
    }
    found = what_if(events, quota(a=1), recorded)
    assert found.data["all"]["gangs"] == 3
    assert starts(found.lines, "third") == [400]
    assert found.data["ignoredEvents"] == 0


def test_who_was_not_told_again_after_a_restart_ended_then(
    recorded: dict[str, Any], say: Any
) -> None:
    events = [
        say.wants(0, "gone"),
        {"at": 70, "event": "scheduler-restarted"},
        say.wants(70, "other"),
        say.wants(80, "more"),
    ]
    life = replay(recorded, events).histories["gone"]
    assert (life.is_over, life.work_s) == (True, 70)


def test_who_waits_goes_on_waiting_over_a_restart_if_it_was_told_again(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    """`patient` waits from 0 on; `gone` was withdrawn while nobody listened, and never starts."""
    events = [
        say.wants(0, "long", pods=2),
        say.wants(1, "patient", pods=2),
        say.wants(2, "gone", pods=2),
        {"at": 50, "event": "scheduler-restarted"},
        say.wants(50, "long", pods=2, submittedAt=0),
        say.wants(50, "patient", pods=2, submittedAt=1),
        say.told(90, "gang-released", "long"),
        say.told(120, "gang-released", "patient"),
    ]
    found = what_if(events, {"policy": {"graceSeconds": 5}}, recorded)
    assert found.data["all"]["gangs"] == 3
    assert (starts(found.lines, "patient"), starts(found.lines, "gone")) == ([90], [])
    assert found.data["all"]["meanWaitSeconds"] == {"before": 44.5, "after": 44.5}


def test_a_node_is_as_it_was_recorded_after_a_restart(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    """n2 was bad before a restart and was not told to be after it: `b` gets both its nodes."""
    events = [
        say.node(0, "node-bad", "n2"),
        say.wants(1, "wide", virtualCluster="b", pods=4),
        {"at": 50, "event": "scheduler-restarted"},
        say.wants(50, "wide", virtualCluster="b", pods=4),
        say.told(90, "gang-released", "wide"),
    ]
    found = what_if(events, quota(b=4), recorded)
    assert starts(found.lines, "wide") == [50]


def test_what_an_ended_pod_holds_is_no_gang(
    what_if: WhatIf, recorded: dict[str, Any], say: Any
) -> None:
    held = say.wants(0, "released w-0", virtualCluster="-", priority=0)["gang"]
    events = [
        say.wants(0, "first"),
        say.told(100, "gang-released", "first"),
        {
            "at": 100,
            "event": "gang-restored",
            "gang": held,
            "placement": [{"pod": "w-0", "node": "n0", "gpus": [0, 1, 2, 3]}],
            "preemptedUntil": 160,
        },
        say.wants(101, "next", pods=2),
        say.told(105, "gang-released", "released w-0"),
        say.told(205, "gang-released", "next"),
    ]
    found = what_if(events, {"policy": {}}, recorded)
    assert found.data["all"]["gangs"] == 2
    assert starts(found.lines, "next") == [101]
