"""EVENTS: what is read."""

from collections.abc import Iterator
from typing import Any

import pytest
from event_lines import GANG, PLACEMENT, lines, requested, restored
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
from scheduler.domain.formats.events import read_events
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


def one(event: dict[str, Any]) -> Event:
    """The only event of a file."""
    [found] = read_events(lines(event))
    return found


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
        1800.5,
    )


def test_a_gang_may_test_nodes() -> None:
    event = one(requested(priority=-1, allowedNodes=["n1"], preflight=True))
    assert isinstance(event, GangRequested)
    assert event.file.gang.is_preflight


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
            {"event": "gang-checkpointed", "gang": "a", "savedAt": 3},
            GangCheckpointed(3.5, "a", 3.0, line=1),
        ),
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


def test_a_file_is_read_no_further_than_needed() -> None:
    read: list[int] = []

    def source() -> Iterator[bytes]:
        for number, line in enumerate(lines(*[requested(id=str(i)) for i in range(5)])):
            read.append(number)
            yield line

    next(read_events(source()))
    assert read == [0]
