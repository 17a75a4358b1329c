"""EVENTS: what is refused, by line, field and mend."""

from typing import Any

import pytest
from event_lines import GANG, PLACEMENT, lines, requested, restored
from scheduler.domain.formats.events import MAX_LINE_BYTES, read_events
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError
from scheduler.domain.formats.model import GangRequested


def pods(**more: Any) -> dict[str, Any]:
    """A line whose pods have these fields too."""
    return requested(pods=[GANG["pods"][0] | more])


def told(*events: dict[str, Any] | str) -> list[tuple[int, str, str]]:
    """What is wrong with a file."""
    with pytest.raises(FormatError) as refused:
        list(read_events(lines(*events)))
    return [(each.line, each.path, each.message) for each in refused.value.findings]


@pytest.mark.parametrize(
    ("event", "path", "part"),
    [
        ({"at": 0}, "event", "is missing; known are cluster-changed, cycle, gang-"),
        ({"at": 0, "event": "node-bda"}, "event", "is unknown; is it `node-bad`?"),
        ({"at": 0, "event": "lost"}, "event", "is unknown; known are cluster-changed, "),
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
        (requested(runSeconds=0), "gang.runSeconds", "must be at least 0.001"),
        (requested(checkpointSeconds=0), "gang.checkpointSeconds", "must be at least 0.001"),
        (requested(expectedSeconds=1e-322), "gang.expectedSeconds", "must be at least 0.001"),
        (requested(limitSeconds=0.0009), "gang.limitSeconds", "must be at least 0.001"),
        (requested(minRunSeconds=-1), "gang.minRunSeconds", "at least 0"),
        (
            {"at": 1, "event": "gang-checkpointed", "gang": "a", "savedAt": 2},
            "savedAt",
            "not be after",
        ),
        (requested(limitSeconds=1e999), "", "has Infinity"),
        (requested(borrow="yes"), "gang.borrow", "must be true or false, not 'yes'"),
        (requested(allowedNodes=["n"], preflight=True), "gang.preflight", "needs allowedNodes"),
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
        (pods(min=3), "gang.pods[0].min", "must be from 0 to 2"),
        (pods(min=-1), "gang.pods[0].min", "must be from 0 to 2"),
        (pods(min=0), "gang.pods", "need at least one pod to start"),
        (pods(gpuType="a", gpuTypes=["b"]), "gang.pods[0].gpuType", "keep one of them"),
        (pods(gpuTypes=[]), "gang.pods[0].gpuTypes", "null takes any type"),
        (pods(resources={"rdma": -1}), "gang.pods[0].resources.rdma", "must be from 0"),
        (pods(resources=[]), "gang.pods[0].resources", "must be a mapping"),
        (restored(placement=None), "placement", "is missing"),
        (restored(placement=[]), "placement", "must not be empty"),
        (restored(placement=[PLACEMENT[0]] * 2), "placement[1].pod", "once more"),
        (restored(placement=[PLACEMENT[0] | {"pod": "x-0"}]), "placement[0].pod", "is no pod"),
        (restored(placement=[PLACEMENT[0] | {"gpus": [0]}]), "placement[0].gpus", "must be 8"),
        (restored(placement=[PLACEMENT[0] | {"ports": [1]}]), "placement[0].ports", "must be 0 at"),
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
        (restored(**{"class": "best"}), "class", "must be guaranteed or downgraded or opp"),
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
        (
            {
                "at": 0,
                "event": "usage-restored",
                "virtualCluster": "v",
                "user": "u",
                "class": "downgraded",
                "used": {"v100": 1},
                "usedAt": 0,
            },
            "class",
            "must be guaranteed or opportunistic, not 'downgraded'",
        ),
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
