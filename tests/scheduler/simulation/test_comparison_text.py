"""What a change does, as people read it."""

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from scheduler.domain.simulation.comparison import Comparison, Row, Twice
from scheduler.domain.simulation.comparison_text import comparison_text, sentence

WIDTH = 80
WhatIf = Callable[..., Any]


def row(later: tuple[float, ...] = (), earlier: tuple[float, ...] = (), **more: Any) -> Row:
    return Row(later_s=array("d", later), earlier_s=array("d", earlier), **more)


def test_sentences_are_like_this() -> None:
    said = [
        (row((60.0,)), "delays 1 gang of speech by 1m00s"),
        (
            row((60.0, 120.0, 240.0)),
            "delays 3 gangs of speech by 2m20s on average (median 2m00s)",
        ),
        (row((), (3600.0,)), "starts 1 gang of speech earlier by 1h00m"),
        (row(stopped=2), "no longer starts 2 gangs of speech"),
        (row(preempted=Twice(1, 3)), "preempts 3 gangs of speech instead of 1"),
        (row(refused=Twice(1, 0)), "refuses 0 gangs of speech instead of 1"),
        (row(lost_gpu_s=Twice(10, 2.5)), "loses 2.5 GPU-seconds of speech instead of 10"),
        (row(other_waits=2), "lets 2 gangs of speech wait otherwise after a preemption"),
        (
            row((60.0,), (2.0, 4.0), stopped=1, started=1),
            "delays 1 gang of speech by 1m00s, starts 2 gangs earlier by 3s on average,"
            " no longer starts 1 gang and starts 1 gang that did not start",
        ),
    ]
    for what, text in said:
        assert sentence("speech", what) == f"This {text}."
    assert sentence("speech", row()) == "Nothing changes for speech."


def test_of_many_users_the_most_affected_are_told_and_the_rest_is_summed(
    what_if: WhatIf, say: Any
) -> None:
    """Twenty gangs, one after the other on two nodes or on one."""
    events = [say.wants(n, f"g{n:02}", user=f"u{n:02}", runSeconds=100) for n in range(20)]
    found = what_if(
        events, {"virtualClusters": {"a": {"cells": [{"type": "rack/node", "count": 1}]}}}
    )
    told = [each["user"] for each in found.data["users"]]
    assert told == [f"u{n:02}" for n in range(19, 9, -1)]
    others, everybody = found.data["otherUsers"], found.data["all"]
    assert others["users"] == 10
    assert others["gangs"] == 10
    assert others["later"]["gangs"] + 10 == everybody["later"]["gangs"] == 19
    assert "\n10 more" in found.text


def test_other_virtual_clusters_are_counted(what_if: WhatIf, say: Any) -> None:
    events = [
        say.scavenges(0, "guest"),
        *(say.wants(0, f"{name}-gang", virtualCluster=name) for name in ("x", "y")),
        say.wants(50, "owner", pods=2),
    ]
    lines = what_if(events, {"policy": {"graceSeconds": 60}}).text.splitlines()
    assert lines[:3] == [
        "This delays 1 gang of a by 30s.",
        "Nothing changes for 2 other virtual clusters.",
        "",
    ]


def test_no_line_is_wider_than_a_terminal(what_if: WhatIf, say: Any) -> None:
    """Whatever the numbers are, and the names."""
    million = 9_999_999
    recording = SimpleNamespace(histories=range(3 * million), unended=million, never_ran=million)
    found = SimpleNamespace(recording=recording, started=million, near=million)
    pair: Any = SimpleNamespace(ignored=million, as_recorded=found, gpus_used=(1 / 3, 1.0))
    times = array("d", [8_000_000.25] * 9_999)
    many = Row(
        gangs=9_999_999,
        waited=9_999_999,
        other_waits=9_999_999,
        waits_s=Twice(8e13, 8.1e13),
        later_s=times,
        earlier_s=times,
        stopped=9_999_999,
        started=9_999_999,
        refused=Twice(9_999_999, 9_999_998),
        preempted=Twice(999_999_999, 999_999_998),
        lost_gpu_s=Twice(1234567890123.25, 123456789012.75),
        shorter_s=times,
    )
    name = "a_virtual_cluster_with_a_long_name_" * 7
    groups = {(name + end, kind): many for end in "ab" for kind in ("guaranteed", "opportunistic")}
    text = comparison_text(Comparison(pair, groups, {name + str(n): many for n in range(12)}))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("a_virtual_") > 40
