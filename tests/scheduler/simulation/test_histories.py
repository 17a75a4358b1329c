"""Random histories of everything that can happen: they come to an end, the same twice, gangs are
whole, and no GPU has two gangs.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scheduler.domain.core.model import Placed, Preempted
from scheduler.domain.formats.cluster_file import cluster_data, read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.snapshot import timed
from scheduler.domain.simulation.run import Simulation
from seeds import blocks
from snapshots import take

FEW = pytest.mark.parametrize("block", blocks(10, deep=100, size=10))
SOME = pytest.mark.parametrize("block", blocks(30, deep=200, size=30))

Event = dict[str, Any]

TYPES = {
    "pair": {"child": "gpu", "count": 2},
    "node": {"child": "pair", "count": 2, "node": True},
    "rack": {"child": "node", "count": 2},
    "box": {"child": "other-gpu", "count": 3, "node": True},
}
SMALL: Event = {
    "cellTypes": TYPES,
    "physicalCells": [
        {"type": "rack", "name": "r0", "nodes": ["n0", "n1"]},
        {"type": "rack", "name": "r1", "nodes": ["n2", "n3"]},
    ],
    "virtualClusters": {
        "a": {"cells": [{"type": "rack", "count": 1}]},
        "b": {"cells": [{"type": "rack/node", "count": 2}]},
    },
}
LENDING: Event = SMALL | {
    "virtualClusters": {
        "a": {"cells": [{"type": "rack", "count": 1}], "lendingLimit": 3},
        "b": {"cells": [{"type": "rack/node", "count": 1}], "borrowingLimit": {"gpu": 6}},
    }
}
LARGE: Event = SMALL | {
    "physicalCells": [*SMALL["physicalCells"], {"type": "box", "name": "n4"}],
    "nodes": {"n0": {"cpu": 16}, "c0": {"cpu": 8, "memoryMB": 100, "ports": [1, 5]}},
    "virtualClusters": SMALL["virtualClusters"]
    | {"b": {"cells": [{"type": "rack/node", "count": 2}, {"type": "box", "count": 1}]}},
}


def history(chance: random.Random) -> Iterator[Event]:
    """Some dozens of events."""
    at, gangs = 0, ["g"]
    for number in range(chance.randint(5, 60)):
        at += chance.choice([0, 0, 1, 5, 20, 40, 100])
        what = chance.choices([_asked, _of_gang, _of_node, _changed], [10, 4, 5, 1])[0]
        event = what(chance, gangs, number)
        yield {"at": at} | event


def with_hours(events: list[Event], chance: random.Random) -> list[Event]:
    """The same with some hours, or about one, in which nothing happens."""
    later, found = 0, []
    for event in events:
        if chance.random() < 0.1:
            later += chance.choice([3599, 3600, 4000, 10_000])
        found.append(event | {"at": event["at"] + later})
    return found


def _asked(chance: random.Random, gangs: list[str], number: int) -> Event:
    gangs.append(f"g{number}")
    gang: Event = {
        "id": gangs[-1],
        "user": chance.choice("uvw"),
        "virtualCluster": chance.choice("ab"),
        "priority": chance.choice([-1, -1, 0, 1, 5]),
        "pods": [_pods(chance, name) for name in chance.sample("wv", chance.choice([1, 1, 2]))],
    }
    for share, field, values in (
        (0.6, "runSeconds", [10, 50, 100, 300]),
        (0.3, "checkpointSeconds", [7, 30]),
        (0.2, "minRunSeconds", [0, 30, 200]),
        (0.3, "lazyPreemption", [True, False]),
        (0.3, "expectedSeconds", [5, 40, 40, 200]),
        (0.3, "limitSeconds", [20, 100, 400]),
        (0.2, "group", ["x"]),
        (0.3, "job", ["j", "k", "l"]),
        (0.4, "borrow", [True]),
        (0.1, "allowedNodes", [["n0", "n1"], ["n1", "n4"]]),
    ):
        if chance.random() < share:
            gang[field] = chance.choice(values)
    return {"event": "gang-requested", "gang": gang}


def _pods(chance: random.Random, name: str) -> Event:
    pods: Event = {
        "name": name,
        "count": chance.randint(1, 3),
        "gpus": chance.choice([0, 1, 1, 2, 3, 4]),
    }
    if chance.random() < 0.3:
        pods["min"] = chance.randint(1, pods["count"])
    if chance.random() < 0.3:
        pods["cpu"] = chance.choice([1, 8])
    if chance.random() < 0.3:
        pods["gpuType"] = chance.choice(["gpu", "other-gpu"])
    return pods


def _of_gang(chance: random.Random, gangs: list[str], _: int) -> Event:
    names = ["gang-released", "gang-withdrawn", "gang-checkpointed", "pod-released", "gang-grown"]
    event: Event = {"event": chance.choice(names), "gang": chance.choice(gangs)}
    if event["event"] == "pod-released":
        event["pod"] = chance.choice(["w-0", "w-1", "v-0", "w-3"])
    if event["event"] == "gang-grown":
        event["elastic"] = chance.random() < 0.3
        event["pods"] = [{"name": "more", "count": chance.randint(1, 2), "gpus": 1}]
    return event


def _of_node(chance: random.Random, _: list[str], __: int) -> Event:
    well = ["node-healthy", "gpu-healthy", "node-uncordoned"]
    names = ["node-bad", "gpu-bad", "node-cordoned", "node-drained", *well, *well]
    event: Event = {"event": chance.choice(names), "node": f"n{chance.randint(0, 4)}"}
    if event["event"].startswith("gpu"):
        event["gpu"] = chance.randint(0, 2)
    return event


def _changed(chance: random.Random, _: list[str], __: int) -> Event:
    policy = {
        "graceSeconds": chance.choice([0, 5, 30]),
        "lazyPreemption": chance.random() < 0.5,
        "requeue": chance.random() < 0.8,
        "backfill": chance.random() < 0.7,
        "order": chance.choice([None, None, "strict"]),
        "fairShare": chance.choice([False, True, {"halfLifeSeconds": 50, "weights": {"u": 2.5}}]),
        "assumedSeconds": chance.choice([50, 300]),
        "maxPassSeconds": chance.choice([0, 100, 1000]),
        "minRunSeconds": chance.choice([0, 0, 60]),
        "preemptionsPerHour": chance.choice([None, None, 0, 1, 3]),
    }
    return {
        "event": "cluster-changed",
        "cluster": chance.choice([SMALL, LARGE, LENDING]) | {"policy": policy},
    }


def simulated(
    events: list[Event], check: Callable[[Simulation, Any], None], cluster: Event = LARGE
) -> list[str]:
    """What comes out."""
    simulation = Simulation(read_cluster(json.dumps(cluster).encode()).config, lambda _: None)
    lines = []
    for at, decision in simulation.run(read_events(json.dumps(it).encode() for it in events)):
        lines.append(decision_line(at, decision))
        check(simulation, decision)
    return lines


def holds(simulation: Simulation, decision: Any) -> None:
    """What is so after every decision."""
    users = Counter(
        (place.node, gpu)
        for run in simulation.runs.values()
        for place in run.places.values()
        for gpu in place.gpus
    )
    assert max(users.values(), default=0) <= 1, decision
    assert simulation.tally.space.room.used == sum(users.values())
    match decision:
        case Placed(gang, pods):
            run = simulation.runs[gang]
            needed = {pod for role in run.gang.roles for pod in role.pods[: role.least]}
            wanted = {pod: role.kind.gpus for role in run.gang.roles for pod in role.pods}
            assert needed <= {place.pod for place in pods}
            assert all(wanted[place.pod] == len(place.gpus) for place in pods)
        case Preempted(gang):
            assert simulation.runs[gang].started_at is not None


def later(lines: list[str], at: float) -> list[str]:
    """What was decided after ``at``, deferrals apart: whose reason is known is said anew."""
    decisions = map(json.loads, lines)
    return [
        line
        for line, each in zip(lines, decisions, strict=True)
        if each["at"] > at and each["decision"] != "deferred"
    ]


@SOME
def test_a_snapshot_goes_on_like_the_original(block: range) -> None:
    """Preemptions in flight, growth and bad GPUs included."""
    for seed in block:
        events = list(history(random.Random(seed)))
        if seed % 4 == 3:
            events = with_hours(events, random.Random(seed))
        for each in events:
            if each["event"] == "gang-requested":
                each["gang"].pop("runSeconds", None)
        taken: list[Any] = []
        point = random.Random(seed).randint(1, 30)

        def look(simulation: Simulation, _: Any, point: int = point, taken: Any = taken) -> None:
            taken.append(None)
            if len(taken) == point:
                at = simulation.tally.now
                config = cluster_data(simulation.core.forest.config)
                taken[0] = at, config, list(timed(take(simulation.core), at))

        policy = {"backfill": seed % 2 == 0, "fairShare": seed % 3 == 0, "enforceGrace": False}
        policy |= {"minRunSeconds": 60 * (seed % 2), "preemptionsPerHour": [None, 2, 0][seed % 3]}
        original = simulated(events, look, LARGE | {"policy": policy})
        if taken and taken[0] is not None:
            at, config, snapshot = taken[0]
            rest = [each for each in events if each["at"] > at]
            replayed = simulated([*snapshot, *rest], lambda *_: None, config)
            assert later(replayed, at) == later(original, at), (seed, point)


def test_a_snapshot_has_nominated_ports_and_pinned_cells() -> None:
    """A nominated gang has no ports yet; a pinned cell is of no quota."""
    nodes = [{"type": "box", "name": "n0"}, {"type": "box", "name": "n1", "pin": "lab"}]
    own = {"cells": [{"type": "box", "count": 1}], "pins": ["lab"]}
    cluster = {"cellTypes": TYPES, "physicalCells": nodes, "virtualClusters": {"a": own}}
    pods = {"name": "w", "count": 1, "gpus": 3, "ports": 2}
    gang = {"user": "u", "virtualCluster": "a"}
    events: list[Event] = [
        {"at": 0, "event": "gang-requested", "gang": gang | each}
        for each in (
            {"id": "pinned", "priority": 0, "pods": [pods | {"pin": "lab"}]},
            {"id": "victim", "priority": 0, "pods": [pods]},
        )
    ]
    nominated = gang | {"id": "nominated", "priority": 1, "pods": [pods]}
    events.append({"at": 1, "event": "gang-requested", "gang": nominated})
    snapshots: list[list[Event]] = []

    def look(simulation: Simulation, _: Any) -> None:
        snapshots.append(list(timed(take(simulation.core), simulation.tally.now)))

    original = simulated(events, look, cluster)
    snapshot = next(each for each in snapshots if "preempting" in json.dumps(each))
    assert later(simulated(snapshot, lambda *_: None, cluster), 1) == later(original, 1)


def test_a_strict_order_goes_on_after_a_snapshot() -> None:
    """The gang that none may pass leaves nothing free when it is withdrawn."""
    cluster = SMALL | {"policy": {"order": "strict"}}
    gang = {"user": "u", "virtualCluster": "b", "priority": 0}
    wants = {"g0-runs": 1, "g1-first": 2, "g2-behind": 1}
    events: list[Event] = [
        {
            "at": 0,
            "event": "gang-requested",
            "gang": gang | {"id": name, "pods": [{"name": "w", "count": count, "gpus": 4}]},
        }
        for name, count in wants.items()
    ]
    taken: list[Event] = []

    def look(simulation: Simulation, _: Any) -> None:
        taken[:] = timed(take(simulation.core), 0)

    simulated(events, look, cluster)
    rest = [{"at": 1, "event": "gang-withdrawn", "gang": "g1-first"}]
    [placed] = later(simulated([*events, *rest], lambda *_: None, cluster), 0)
    assert json.loads(placed)["gang"] == "g2-behind"
    assert later(simulated([*taken, *rest], lambda *_: None, cluster), 0) == [placed]


@SOME
def test_whatever_happens(block: range) -> None:
    for seed in block:
        events = list(history(random.Random(seed)))
        order = "strict" if seed % 5 == 0 else None
        policy = {"backfill": seed % 2 == 0, "order": order, "fairShare": seed % 3 == 0}
        policy |= {"minRunSeconds": 50 * (seed % 4)}
        cluster = LARGE | {"policy": policy}
        try:
            once = simulated(events, holds, cluster)
            again = simulated(events, lambda *_: None, cluster)
        except Exception as error:
            error.add_note(f"in the history of seed {seed}")
            raise
        assert once == again, seed


CHANGES: list[Event] = [
    {"policy": {"graceSeconds": 60}},
    {"policy": {"lazyPreemption": True, "requeue": False}},
    {"virtualClusters": {"b": {"cells": [{"type": "rack/node", "count": 4}]}}},
    {
        "virtualClusters": {
            "a": {"cells": [{"type": "rack/node", "count": 3}]},
            "b": {"cells": [{"type": "rack/node", "count": 1}]},
        },
        "policy": {"graceSeconds": 0},
    },
]


def is_change(event: Event) -> bool:
    """Whether it is another configuration."""
    return bool(event["event"] == "cluster-changed")


def with_change(cluster: Event, change: Event) -> Event:
    """A cluster as the change makes it."""
    return cluster | change | {"policy": cluster.get("policy", {}) | change.get("policy", {})}


def first_starts(lines: list[str]) -> dict[str, float]:
    """When gangs started first."""
    found: dict[str, float] = {}
    for each in map(json.loads, lines):
        if each["decision"] == "placed":
            found.setdefault(each["gang"], each["at"])
    return found


@FEW
def test_the_same_cluster_changes_nothing(block: range, what_if: Callable[..., Any]) -> None:
    for seed in block:
        events = list(history(random.Random(seed)))
        unchanged = [each for each in events if not is_change(each)]
        for change, these in ((LARGE, unchanged), ({"policy": {}}, events)):
            found = what_if(these, change, LARGE)
            assert found.text.startswith("Nothing changes."), (seed, found.text)
            assert found.lines == simulated(these, lambda *_: None), seed
            for row in (found.data["all"], *found.data["groups"]):
                for number in row.values():
                    if isinstance(number, dict) and "before" in number:
                        assert number["before"] == number["after"], (seed, row)


@FEW
def test_what_would_change_is_the_same_where_nobody_asks_why(
    block: range, what_if: Callable[..., Any]
) -> None:
    """But that a cycle that is left after so many decisions goes further."""
    for seed in block:
        events = [each for each in history(random.Random(seed)) if "most" not in each]
        change = CHANGES[seed % len(CHANGES)]
        answers = [
            what_if(events, change, LARGE, is_explaining=is_explaining)
            for is_explaining in (True, False)
        ]
        assert answers[0].text == answers[1].text, seed


@FEW
def test_a_change_does_what_two_simulations_say(block: range, what_if: Callable[..., Any]) -> None:
    for seed in block:
        events = list(history(random.Random(seed)))
        change = CHANGES[seed % len(CHANGES)]
        changed = [
            each | {"cluster": with_change(each["cluster"], change)} if is_change(each) else each
            for each in events
        ]
        before = simulated(events, lambda *_: None)
        after = simulated(changed, lambda *_: None, with_change(LARGE, change))
        found = what_if(events, change, LARGE)
        assert found.lines == after, seed
        starts, then = first_starts(before), first_starts(after)
        moved = [then[gang] - at for gang, at in starts.items() if gang in then]
        said = found.data["all"]
        assert said["later"]["gangs"] == sum(by_s >= 1 for by_s in moved), seed
        assert said["earlier"]["gangs"] == sum(by_s <= -1 for by_s in moved), seed
        assert said["notStarted"] == len(starts.keys() - then.keys()), seed
        assert said["newlyStarted"] == len(then.keys() - starts.keys()), seed
        assert said["preempted"] == {
            "before": sum('"preempted"' in line for line in before),
            "after": sum('"preempted"' in line for line in after),
        }, seed
