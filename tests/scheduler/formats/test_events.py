"""EVENTS: what is read, and what is refused by line, field and mend."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scheduler.domain.core.config import ClusterConfig, Policy
from scheduler.domain.core.model import (
    CellUse,
    Gang,
    GangClass,
    Kind,
    PodPlace,
    Restored,
    Role,
)
from scheduler.domain.formats.events import MAX_LINE_BYTES, read_events
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError
from scheduler.domain.formats.model import (
    ClusterChanged,
    Event,
    GangCheckpointed,
    GangFile,
    GangGrown,
    GangReleased,
    GangRequested,
    GangRestored,
    GangWithdrawn,
    GpuHealthChanged,
    NodeCordoned,
    NodeDrained,
    NodeHealthChanged,
    NodeUncordoned,
    PodReleased,
    Pods,
)

GANG: dict[str, Any] = {
    "id": "a",
    "user": "u",
    "virtualCluster": "vision",
    "priority": 5,
    "pods": [{"name": "w", "count": 2, "gpus": 8}],
}
WHOLE: dict[str, Any] = {
    "id": "a",
    "job": "j1",
    "name": "bert",
    "user": "u1",
    "virtualCluster": "vision",
    "priority": 5,
    "group": "g",
    "submittedAt": -3,
    "pods": [
        {
            "name": "w",
            "count": 2,
            "min": 1,
            "gpus": 8,
            "gpuType": None,
            "gpuTypes": ["v100", "p100"],
            "pin": "lab",
            "cpu": 4,
            "memoryMB": 1024,
            "ports": 2,
            "resources": {"rdma": 1, "ib": 2, "none": 0},
        }
    ],
    "expectedSeconds": 3600,
    "limitSeconds": 7200,
    "runSeconds": 1800.5,
    "minRunSeconds": 0,
    "checkpointSeconds": 600,
    "lazyPreemption": True,
    "borrow": True,
    "allowedNodes": ["n1", "n0"],
}
PLACEMENT = [
    {"pod": "w-0", "node": "n0", "gpus": [0, 1, 2, 3, 4, 5, 6, 7]},
    {"pod": "w-1", "node": "n1", "gpus": [7, 6, 5, 4, 3, 2, 1, 0]},
]


def lines(*events: dict[str, Any] | str) -> Iterator[bytes]:
    """A file."""
    for event in events:
        yield (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n"


def requested(at: float = 0, **gang: Any) -> dict[str, Any]:
    """A line."""
    return {"at": at, "event": "gang-requested", "gang": GANG | gang}


def restored(**more: Any) -> dict[str, Any]:
    """A line."""
    return {"at": 9, "event": "gang-restored", "gang": GANG, "placement": PLACEMENT} | more


def pods(**more: Any) -> dict[str, Any]:
    """A line whose pods have these fields too."""
    return requested(pods=[GANG["pods"][0] | more])


def one(event: dict[str, Any]) -> Event:
    """The only event of a file."""
    [found] = read_events(lines(event))
    return found


def told(*events: dict[str, Any] | str) -> list[tuple[int, str, str]]:
    """What is wrong with a file."""
    with pytest.raises(FormatError) as refused:
        list(read_events(lines(*events)))
    return [(each.line, each.path, each.message) for each in refused.value.findings]


def test_a_gang_needs_little() -> None:
    w = Kind(gpus=8)
    assert one(requested(at=7)) == GangRequested(
        7.0,
        GangFile(
            Gang("a", "vision", "u", 5, (Role(w, ("w-0", "w-1")),), job="a", submitted_at=7.0),
            (Pods("w", 2, w),),
        ),
        line=1,
    )


def test_a_gang_may_say_all_there_is() -> None:
    event = one({"at": 0, "event": "gang-requested", "gang": WHOLE})
    assert isinstance(event, GangRequested)
    w = Kind(8, ("v100", "p100"), "lab", 4, 1024, 2, (("ib", 2), ("rdma", 1)))
    assert event.file == GangFile(
        Gang(
            "a",
            "vision",
            "u1",
            5,
            (Role(w, ("w-0", "w-1")),),
            job="j1",
            submitted_at=-3.0,
            group="g",
            is_lazy=True,
            allowed_nodes=frozenset(("n0", "n1")),
            expected_s=3600.0,
            limit_s=7200.0,
            min_run_s=0.0,
            checkpoint_s=600.0,
            is_borrowing=True,
        ),
        (Pods("w", 2, w, 1),),
        "bert",
        1800.5,
    )


def test_null_is_as_if_left_out() -> None:
    nulls: dict[str, Any] = {name: None for name in WHOLE if name not in GANG}
    no_pods = {name: None for name in WHOLE["pods"][0] if name not in GANG["pods"][0]}
    given = requested(**nulls, pods=[GANG["pods"][0] | no_pods])
    assert one(given) == one(requested())


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"event": "gang-released", "gang": "a"}, GangReleased(3.5, "a", line=1)),
        ({"event": "gang-withdrawn", "gang": "a"}, GangWithdrawn(3.5, "a", line=1)),
        ({"event": "gang-checkpointed", "gang": "a"}, GangCheckpointed(3.5, "a", line=1)),
        (
            {"event": "pod-released", "gang": "a", "pod": "w-1"},
            PodReleased(3.5, "a", "w-1", line=1),
        ),
        ({"event": "node-bad", "node": "n"}, NodeHealthChanged(3.5, "n", False, line=1)),
        ({"event": "node-healthy", "node": "n"}, NodeHealthChanged(3.5, "n", True, line=1)),
        ({"event": "gpu-bad", "node": "n", "gpu": 2}, GpuHealthChanged(3.5, "n", 2, False, line=1)),
        (
            {"event": "gpu-healthy", "node": "n", "gpu": 0},
            GpuHealthChanged(3.5, "n", 0, True, line=1),
        ),
        ({"event": "node-cordoned", "node": "n"}, NodeCordoned(3.5, "n", line=1)),
        ({"event": "node-drained", "node": "n"}, NodeDrained(3.5, "n", line=1)),
        ({"event": "node-uncordoned", "node": "n"}, NodeUncordoned(3.5, "n", line=1)),
        (
            {"event": "gang-grown", "gang": "a", "pods": [{"name": "v", "count": 1, "gpus": 0}]},
            GangGrown(3.5, "a", (Pods("v", 1, Kind()),), line=1),
        ),
        (
            {"event": "cluster-changed", "cluster": {"policy": {"graceSeconds": 1}}},
            ClusterChanged(3.5, ClusterConfig(policy=Policy(grace_s=1.0)), line=1),
        ),
    ],
    ids=lambda value: value["event"] if isinstance(value, dict) else "",
)
def test_every_event_is_read(fields: dict[str, Any], event: Event) -> None:
    assert one({"at": 3.5} | fields) == event


def test_a_restored_gang_may_say_all_that_the_core_keeps() -> None:
    told_all = restored(
        **{
            "class": "guaranteed",
            "cells": [{"cell": "rack0", "quota": "v100-rack"}],
            "startedAt": 2,
            "preemptedUntil": 30,
            "preemptedFor": "b",
        }
    )
    event = one(told_all)
    assert isinstance(event, GangRestored)
    assert event.restored == Restored(
        event.file.gang,
        (PodPlace("w-0", "n0", tuple(range(8))), PodPlace("w-1", "n1", tuple(range(7, -1, -1)))),
        GangClass.GUARANTEED,
        (CellUse("rack0", "v100-rack"),),
        2.0,
        30.0,
        "b",
    )


def test_a_restored_gang_runs_since_the_event_or_waits_where_it_says_so() -> None:
    by_default, waiting = one(restored()), one(restored(startedAt=None))
    assert isinstance(by_default, GangRestored)
    assert isinstance(waiting, GangRestored)
    assert (by_default.restored.started_at, by_default.restored.gang_class) == (9.0, None)
    assert waiting.restored.started_at is None


def test_a_pod_without_a_place_is_over() -> None:
    event = one(restored(placement=PLACEMENT[1:]))
    assert isinstance(event, GangRestored)
    assert [role.pods for role in event.restored.gang.roles] == [("w-1",)]
    assert event.file.pods[0].count == 2  # growth counts on from here


def test_lines_without_anything_are_passed_over() -> None:
    bad = {"at": 1, "event": "node-bad", "node": "n"}
    assert [each.line for each in read_events(lines("", bad, "  ", bad, ""))] == [2, 4]


@pytest.mark.parametrize(
    ("event", "path", "part"),
    [
        ({"at": 0}, "event", "is missing; there are cluster-changed, cycle, gang-"),
        ({"at": 0, "event": "gang-lost"}, "event", "is unknown"),
        ({"at": 0, "event": 3}, "event", "is unknown"),
        ({"event": "node-bad", "node": "n"}, "at", "is missing"),
        ({"at": -1, "event": "node-bad", "node": "n"}, "at", "at least 0, not -1"),
        ({"at": True, "event": "node-bad", "node": "n"}, "at", "number of seconds, not true"),
        ({"at": "1", "event": "node-bad", "node": "n"}, "at", "not '1'"),
        ({"at": 0, "event": "node-bad"}, "node", "is missing"),
        ({"at": 0, "event": "node-bad", "node": "n", "gpu": 1}, "gpu", "is unknown"),
        ({"at": 0, "event": "gpu-bad", "node": "n"}, "gpu", "is missing"),
        ({"at": 0, "event": "gpu-bad", "node": "n", "gpu": -1}, "gpu", "must be from 0"),
        ({"at": 0, "event": "gang-released", "gang": {}}, "gang", "must be text, not a mapping"),
        ({"at": 0, "event": "gang-grown", "gang": "a", "pods": []}, "pods", "must not be empty"),
        ({"at": 0, "event": "gang-requested"}, "gang", "is missing"),
        ({"at": 0, "event": "gang-requested", "gang": "a"}, "gang", "must be a mapping, not 'a'"),
        ({"at": 0, "event": "cluster-changed"}, "cluster", "is missing"),
        ({"at": 0, "event": "cluster-changed", "cluster": []}, "cluster", "must be a mapping"),
        ({"at": 0, "event": "cluster-changed", "cluster": False}, "cluster", "must be a mapping"),
        (
            {"at": 0, "event": "cluster-changed", "cluster": {"nodes": {"n": {"cpus": 1}}}},
            "cluster.nodes.n.cpus",
            "is it `cpu`?",
        ),
        (requested(prioritty=1), "gang.prioritty", "is it `priority`?"),
        (requested(priority=-2), "gang.priority", "must be from -1 to 1000, not -2"),
        (requested(priority=1001), "gang.priority", "not 1001"),
        (requested(priority=5.0), "gang.priority", "must be a whole number, not 5.0"),
        (requested(priority=None), "gang.priority", "is missing"),
        (requested(id=""), "gang.id", "must not be empty"),
        (requested(id="a\nb"), "gang.id", "can't be printed"),
        (requested(id="\ud800"), "gang.id", "can't be printed"),
        (requested(id="a" * 300), "gang.id", "256 are the most"),
        (requested(user=7), "gang.user", "must be text, not 7"),
        (requested(runSeconds=0), "gang.runSeconds", "must be above 0"),
        (requested(checkpointSeconds=0), "gang.checkpointSeconds", "must be above 0"),
        (requested(minRunSeconds=-1), "gang.minRunSeconds", "at least 0"),
        (requested(limitSeconds=1e999), "", "has Infinity"),
        (requested(borrow="yes"), "gang.borrow", "must be true or false, not 'yes'"),
        (requested(allowedNodes=[]), "gang.allowedNodes", "null allows all"),
        (requested(allowedNodes=["n", "n"]), "gang.allowedNodes[1]", "is 'n' once more"),
        (requested(pods=[]), "gang.pods", "must not be empty"),
        (requested(pods={}), "gang.pods", "must be a list"),
        (requested(pods=[GANG["pods"][0]] * 2), "gang.pods[1].name", "is 'w' once more"),
        (
            requested(
                pods=[GANG["pods"][0], {"name": "v", "count": 1, "gpus": 1, "names": ["w-1"]}]
            ),
            "gang.pods[1].names",
            "'w-1' once more",
        ),
        (pods(count=0), "gang.pods[0].count", "must be from 1"),
        (pods(count=100_001), "gang.pods", "more than 100000"),
        (pods(gpus=-1), "gang.pods[0].gpus", "must be from 0"),
        (pods(gpus=None), "gang.pods[0].gpus", "is missing"),
        (pods(min=3), "gang.pods[0].min", "must be from 1 to 2"),
        (pods(min=0), "gang.pods[0].min", "must be from 1 to 2"),
        (pods(gpuType="a", gpuTypes=["b"]), "gang.pods[0].gpuType", "keep one of them"),
        (pods(gpuTypes=[]), "gang.pods[0].gpuTypes", "null takes any type"),
        (pods(resources={"rdma": -1}), "gang.pods[0].resources.rdma", "must be from 0"),
        (pods(resources=[]), "gang.pods[0].resources", "must be a mapping"),
        (restored(placement=None), "placement", "is missing"),
        (restored(placement=[]), "placement", "must not be empty"),
        (restored(placement=[PLACEMENT[0]] * 2), "placement[1].pod", "once more"),
        (restored(placement=[PLACEMENT[0] | {"pod": "x-0"}]), "placement[0].pod", "is no pod"),
        (restored(placement=[PLACEMENT[0] | {"gpus": [0]}]), "placement[0].gpus", "must be 8"),
        (restored(placement=[PLACEMENT[0] | {"ports": [1]}]), "placement[0].ports", "must be 0"),
        (
            restored(placement=[PLACEMENT[0] | {"gpus": [0, *range(8)]}]),
            "placement[0].gpus[1]",
            "is 0 once",
        ),
        (
            restored(placement=[PLACEMENT[0], PLACEMENT[0] | {"pod": "w-1"}]),
            "placement[1].gpus",
            "which another pod of the gang has on",
        ),
        (
            restored(placement=[PLACEMENT[0] | {"ports": [70_000]}]),
            "placement[0].ports[0]",
            "must be from 1 to 65535",
        ),
        (restored(**{"class": "best"}), "class", "must be one of guaranteed, downgraded, opp"),
        (
            restored(gang=GANG | {"priority": -1}, **{"class": "guaranteed"}),
            "class",
            "must be opportunistic",
        ),
        (restored(cells=[{"cell": "a", "quota": "b"}]), "cells", "guaranteed gangs alone"),
        (
            restored(placement=[PLACEMENT[0] | {"charged": [7, 8]}]),
            "placement[0].charged",
            "has one of gpus",
        ),
        (restored(reserved=["w-2"]), "reserved", "has 'w-2' in place 0, which has no placement"),
        (restored(reserved=["w-1"], startedAt=None), "reserved", "startedAt is null"),
        (restored(startedAt=10), "startedAt", "must not be after at"),
        (restored(preemptedFor="b"), "preemptedUntil", "is missing beside"),
        (restored(startedAt=None, preemptedUntil=20), "preemptedUntil", "startedAt is null"),
        ("[]", "", "must be a JSON object"),
        ("{", "", "is not JSON at character 2"),
        ('{"at": 0, "at": 1}', "", "has the key 'at' twice"),
        ('{"at": NaN, "event": "node-bad"}', "", "has NaN, which is no number"),
        ('{"at": 1e400, "event": "node-bad", "node": "n"}', "at", "number of seconds up to"),
        ("9" * 5000, "", "has a number of too many digits"),
        ("[" * 100_000, "", "is nested too deeply"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(
    event: dict[str, Any] | str, path: str, part: str
) -> None:
    found = told({"at": 0, "event": "node-bad", "node": "n"}, event)
    assert [(2, path)] * len(found) == [(line, where) for line, where, _ in found]
    assert any(part in message for _, _, message in found), found


def test_a_line_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(FormatError) as refused:
        list(read_events([b'{"at": 0, "event": "\xff"}']))
    assert refused.value.findings[0].message.startswith("is not UTF-8 from byte 21 on")


def test_a_line_has_a_bound() -> None:
    with pytest.raises(FormatError) as refused:
        list(read_events([b" " * MAX_LINE_BYTES + b"{}"]))
    assert "is longer than" in refused.value.findings[0].message


def test_time_does_not_go_back() -> None:
    later, sooner = requested(at=12.5), requested(at=12, id="b")
    assert told(later, later, sooner) == [(3, "at", "must not be before 12.5, the line before")]


def test_all_that_is_wrong_is_told_and_nothing_comes_after_it() -> None:
    bad = {"at": 0, "event": "node-bad", "node": 3, "nod": "n"}
    events = read_events(lines(requested(), bad, requested(id="b"), "x"))
    assert isinstance(next(events), GangRequested)
    with pytest.raises(FormatError) as refused:
        next(events)
    assert [(each.line, each.path) for each in refused.value.findings] == [
        (2, "nod"),
        (2, "node"),
        (4, ""),
    ]


def test_what_is_told_has_a_bound() -> None:
    with pytest.raises(FormatError) as refused:
        list(read_events(lines(*["x"] * (MAX_FINDINGS + 5))))
    assert (len(refused.value.findings), refused.value.more) == (MAX_FINDINGS, 5)


def test_a_file_is_read_no_further_than_needed() -> None:
    read: list[int] = []

    def source() -> Iterator[bytes]:
        for number, line in enumerate(lines(*[requested(id=str(i)) for i in range(5)])):
            read.append(number)
            yield line

    next(read_events(source()))
    assert read == [0]
