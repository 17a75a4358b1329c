"""What a change of the cluster does, in histories that can be worked out by hand."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError

WhatIf = Callable[..., Any]
Simulate = Callable[..., Any]

SAME = "Nothing changes."


def quota(**nodes: int) -> dict[str, Any]:
    """Virtual clusters that own so many nodes."""
    return {
        name: {"cells": [{"type": "rack/node", "count": count}]} for name, count in nodes.items()
    }


def starts(lines: list[str]) -> dict[str, float]:
    """When gangs started first."""
    found: dict[str, float] = {}
    for each in map(json.loads, lines):
        if each["decision"] == "placed":
            found.setdefault(each["gang"], each["at"])
    return found


def queue(say: Any, *, virtual_cluster: str = "a", gangs: int = 5) -> list[dict[str, Any]]:
    """Gangs of one node and 100 s each, handed in at once by several users."""
    return [
        say.wants(0, f"g{n}", virtualCluster=virtual_cluster, user=f"user-{n}", runSeconds=100)
        for n in range(gangs)
    ]


def test_a_smaller_quota_delays_exactly_those_that_it_says(
    what_if: WhatIf, simulate: Simulate, say: Any
) -> None:
    """Of five gangs two run at a time, or one."""
    events = queue(say)
    found = what_if(events, {"virtualClusters": quota(a=1, b=2)})
    before = starts(simulate(events).lines)
    after = starts(simulate(events, virtualClusters=quota(a=1, b=2)).lines)
    delays = sorted(after[gang] - before[gang] for gang in before if after[gang] > before[gang])
    assert delays == [100, 100, 200, 200]
    a = found.of("a")
    assert a["later"] == {"gangs": 4, "meanSeconds": 150, "medianSeconds": 100}
    assert a["earlier"]["gangs"] == a["notStarted"] == a["newlyStarted"] == 0
    assert a["meanWaitSeconds"] == {"before": 80, "after": 200}
    assert starts(found.lines) == after
    assert found.text.startswith("This delays 4 gangs of a by 2m30s on average (median 1m40s).\n\n")
    assert [each["user"] for each in found.data["users"]] == [
        "user-3",
        "user-4",
        "user-1",
        "user-2",
    ]
    assert found.data["otherUsers"]["users"] == found.data["otherUsers"]["gangs"] == 1


def test_a_bigger_quota_delays_nobody(what_if: WhatIf, say: Any) -> None:
    found = what_if(queue(say), {"virtualClusters": quota(a=4)})
    assert found.data["all"]["later"]["gangs"] == found.data["all"]["notStarted"] == 0
    assert found.of("a")["earlier"]["gangs"] == 3
    assert found.text.startswith("This starts 3 gangs of a earlier by 1m40s on average.\n")


def test_policy_is_replaced_key_by_key(what_if: WhatIf, cluster: dict[str, Any], say: Any) -> None:
    """The guest, who is not handed in again, leaves later."""
    events = [
        say.scavenges(0, "guest", runSeconds=500),
        say.wants(50, "owner", pods=2, runSeconds=20),
    ]
    base = cluster | {"policy": {"requeue": False, "graceSeconds": 30}}
    found = what_if(events, {"policy": {"graceSeconds": 90, "requeue": None}}, base)
    assert [line for line in found.lines if '"placed"' in line and '"guest"' in line] == [
        found.lines[0]
    ]
    assert starts(found.lines) == {"guest": 0, "owner": 140}
    assert found.data["to"] == {"before": 100, "after": 160}
    assert found.data["all"]["lostGpuSeconds"] == {"before": 80 * 16, "after": 140 * 16}
    assert found.data["users"][0]["lostGpuSeconds"] == {"before": 80 * 16, "after": 140 * 16}


def test_who_is_refused_with_the_change_starts_no_more(what_if: WhatIf, say: Any) -> None:
    """Of b nothing is left; what is said of a refused gang then is of no effect."""
    events = [
        say.wants(0, "gone", virtualCluster="b", runSeconds=100),
        say.wants(0, "stays", runSeconds=100),
        say.told(20, "gang-checkpointed", "gone"),
        say.told(30, "gang-grown", "gone", pods=[{"name": "v", "count": 1, "gpus": 1}]),
        say.told(50, "pod-released", "gone", pod="w-0"),
        say.told(60, "gang-released", "gone"),
    ]
    found = what_if(events, {"virtualClusters": quota(a=2)})
    assert found.of("b")["refused"] == {"before": 0, "after": 1}
    assert found.of("b")["notStarted"] == 1
    assert found.text.startswith(
        "This no longer starts 1 gang of b and refuses 1 gang instead of 0.\n"
        "Nothing changes for a.\n"
    )
    assert [finding.message for finding in found.warnings] == [
        "with the change: 'gone' is not there: ignored"
    ]


def test_who_was_refused_starts_with_the_change(what_if: WhatIf, say: Any) -> None:
    found = what_if([say.wants(0, "big", pods=3)], {"virtualClusters": quota(a=4)})
    assert found.of("a")["newlyStarted"] == 1
    assert found.text.startswith(
        "This starts 1 gang of a that did not start and refuses 0 gangs instead of 1.\n"
    )


def test_less_than_a_second_is_no_difference(what_if: WhatIf, say: Any) -> None:
    events = [say.scavenges(0, "guest"), say.wants(50, "owner", pods=2)]
    assert what_if(events, {"policy": {"graceSeconds": 30.9}}).data["all"]["later"]["gangs"] == 0
    found = what_if(events, {"policy": {"graceSeconds": 31}})
    assert found.data["all"]["later"] == {"gangs": 1, "meanSeconds": 1, "medianSeconds": 1}


def test_who_only_waits_longer_after_a_preemption_is_told(what_if: WhatIf, say: Any) -> None:
    """The guest leaves 30 s later and starts again 30 s later."""
    events = [
        say.scavenges(0, "guest", virtualCluster="b", runSeconds=500, checkpointSeconds=40),
        say.wants(50, "owner", pods=2, runSeconds=20),
        say.told(81, "gang-released", "owner"),
    ]
    found = what_if(events, {"policy": {"graceSeconds": 0}})
    assert found.of("b")["later"]["gangs"] == found.of("b")["earlier"]["gangs"] == 0
    assert found.of("b")["otherWaits"] == 1
    assert found.of("b")["meanWaitSeconds"] == {"before": 1, "after": 20}
    assert "This lets 1 gang of b wait otherwise after a preemption.\n" in found.text


def test_a_gang_that_an_event_ends_runs_for_less_time(what_if: WhatIf, say: Any) -> None:
    """It is released when it was, 20 s after it starts in one node and 120 s after in two."""
    pods = ("pod-released", "gang-released")
    for last in pods:
        more = {"pod": "w-0"} if last == "pod-released" else {}
        events = [
            say.wants(0, "first", runSeconds=100),
            say.wants(0, "second"),
            say.told(120, last, "second", **more),
        ]
        found = what_if(events, {"virtualClusters": quota(a=1)})
        assert found.data["all"]["shorterRuns"] == {"gangs": 1, "meanSeconds": 100}
        assert "Shorter runs   1, by 1m40s: events end them" in found.text


def test_an_id_that_is_used_again_too_early_ends_the_first_one(what_if: WhatIf, say: Any) -> None:
    """With one node the first `g1` would run from 100 s to 200 s."""
    events = [
        say.wants(0, "g0", runSeconds=100),
        say.wants(0, "g1", runSeconds=100),
        say.wants(150, "g1", runSeconds=100),
    ]
    found = what_if(events, {"virtualClusters": quota(a=1)})
    assert [str(json.loads(line)["at"]) for line in found.lines if '"placed"' in line] == [
        "0",
        "100",
        "150",
    ]
    assert found.data["all"]["gangs"] == 3
    assert found.data["all"]["later"] == {"gangs": 1, "meanSeconds": 100, "medianSeconds": 100}
    assert found.data["ignoredEvents"] == 1
    [warning] = found.warnings
    assert (warning.path, warning.line) == ("gang.id", 3)
    assert "Left out       1 events" in found.text


def test_what_is_restored_on_gpus_in_use_is_left_out(what_if: WhatIf, say: Any) -> None:
    """`late` is elsewhere, or there, when a pod of somebody else is found."""
    stray = {
        "at": 50,
        "event": "gang-restored",
        "gang": say.wants(0, "stray", virtualCluster="b", priority=-1)["gang"],
        "placement": [{"pod": "w-0", "node": "n0", "gpus": [0, 1, 2, 3]}],
    }
    events = [
        say.wants(0, "one", runSeconds=20),
        say.wants(0, "two", runSeconds=20),
        say.wants(0, "late", runSeconds=40),
        stray,
        say.told(70, "gang-released", "stray"),
    ]
    used = {place for line in what_if(events[:3], {"policy": {}}).lines for place in _nodes(line)}
    assert used == {"n0", "n1"}
    found = what_if(events, {"virtualClusters": quota(a=1)})
    assert found.data["ignoredEvents"] == 1
    assert found.data["all"]["gangs"] == 3
    assert "with the change: has a GPU that another gang uses" in found.warnings[0].message


def _nodes(line: str) -> list[str]:
    return [place["node"] for place in json.loads(line).get("pods") or ()]


def test_a_restart_goes_on_with_the_gangs_that_there_were(what_if: WhatIf, say: Any) -> None:
    """With one node `second` waits until the restart, of which it is said that it runs."""
    first = say.wants(0, "first", runSeconds=1000)
    second = say.wants(0, "second", runSeconds=1000)
    third = say.wants(0, "third", runSeconds=10)

    def restored(event: dict[str, Any], node: str) -> dict[str, Any]:
        placement = [{"pod": "w-0", "node": node, "gpus": [0, 1, 2, 3]}]
        changed = {"at": 60, "event": "gang-restored", "placement": placement, "startedAt": 0}
        return event | changed

    events = [
        first,
        second,
        third,
        {"at": 60, "event": "scheduler-restarted"},
        restored(first, "n0"),
        restored(second, "n1"),
        third | {"at": 60},
    ]
    found = what_if(events, {"virtualClusters": quota(a=1)})
    assert found.data["all"]["gangs"] == 3
    assert found.data["all"]["later"] == {"gangs": 1, "meanSeconds": 60, "medianSeconds": 60}
    assert found.data["all"]["meanWaitSeconds"] == {"before": 333.333333, "after": 353.333333}
    same = what_if(events, {"policy": {}})
    assert same.text.startswith(SAME)
    assert same.data["all"]["gangs"] == 3
    assert same.data["all"]["meanWaitSeconds"] == {"before": 333.333333, "after": 333.333333}


def test_a_change_in_the_events_has_the_change_too(
    what_if: WhatIf, simulate: Simulate, cluster: dict[str, Any], say: Any
) -> None:
    """What replaces parts of the cluster replaces them in each later one."""
    change = {"virtualClusters": quota(a=1), "policy": {"graceSeconds": 5}}
    other = cluster | {"policy": {"graceSeconds": 50, "lazyPreemption": True}}
    policy = {"graceSeconds": 5, "lazyPreemption": True}
    events = [*queue(say), {"at": 150, "event": "cluster-changed", "cluster": other}]
    wanted = [
        *events[:-1],
        events[-1] | {"cluster": cluster | change | {"policy": policy}},
    ]
    found = what_if(events, change)
    assert found.lines == simulate(wanted, **change).lines
    assert found.data["ignoredEvents"] == 0


def test_a_whole_cluster_stays_as_it_is(
    what_if: WhatIf, simulate: Simulate, cluster: dict[str, Any], say: Any
) -> None:
    change = cluster | {"virtualClusters": quota(a=1)}
    events = [*queue(say), {"at": 150, "event": "cluster-changed", "cluster": cluster}]
    found = what_if(events, change)
    assert found.lines == simulate(events[:-1], **change).lines
    assert found.data["ignoredEvents"] == 1
    assert [(each.path, each.line) for each in found.warnings] == [("cluster", 6)]


def test_a_change_that_a_later_cluster_cannot_have_is_refused(
    what_if: WhatIf, cluster: dict[str, Any]
) -> None:
    smaller = cluster | {"physicalCells": cluster["physicalCells"][:1], "virtualClusters": {}}
    events = [{"at": 1, "event": "cluster-changed", "cluster": smaller}]
    with pytest.raises(FormatError) as refused:
        what_if(events, {"virtualClusters": quota(a=3)})
    [finding] = refused.value.findings
    assert (finding.path, finding.line) == ("cluster.virtualClusters.a.cells[0].count", 1)
    assert finding.message.startswith("with the change: ")


def test_what_both_would_say_is_said_once(
    what_if: WhatIf, cluster: dict[str, Any], say: Any
) -> None:
    smaller = cluster | {"physicalCells": cluster["physicalCells"][:1], "virtualClusters": {}}
    events = [say.node(0, "node-bad", "nowhere"), say.node(1, "node-bad", "n3")]
    assert [(each.line, each.message) for each in what_if(events, smaller).warnings] == [
        (1, "'nowhere' is not there: ignored"),
        (2, "with the change: 'n3' is not there: ignored"),
    ]


def test_nothing_at_all_is_no_difference(what_if: WhatIf) -> None:
    found = what_if([], {"policy": {}})
    assert found.text.startswith(SAME)
    assert found.data["virtualClusters"] == found.data["users"] == []


def forever(say: Any) -> list[dict[str, Any]]:
    """Half a node runs on, a whole one waits for it, and half a node would run for too long to
    pass that one's reservation.
    """
    mine = {"virtualCluster": "default"}
    return [
        say.wants(0, "a", **mine),
        say.wants(10, "b", 8, **mine),
        say.wants(20, "c", expectedSeconds=100_000, **mine),
    ]


ONE_NODE = {
    "cellTypes": {"n8": {"child": "g", "count": 8, "node": True}},
    "physicalCells": [{"type": "n8", "name": "vm"}],
    "virtualClusters": {"default": {"cells": [{"type": "n8/g", "count": 8}]}},
    "policy": {"graceSeconds": 3, "enforceGrace": False},
}


def test_the_use_of_both_is_of_the_same_time(what_if: WhatIf, say: Any) -> None:
    """From the first event to the last, in which a alone runs; one side goes on for longer."""
    found = what_if(forever(say), {"policy": {"backfill": False}}, ONE_NODE)
    assert found.data["to"]["before"] != found.data["to"]["after"]
    assert found.data["gpusUsed"] == {"before": 0.5, "after": 0.5}


def test_a_recording_lasts_until_its_last_event(what_if: WhatIf, say: Any) -> None:
    """Also if that is none of the workload: c does not run, or from 20 to 40."""
    events = [*forever(say), {"at": 40, "event": "cycle"}]
    found = what_if(events, {"policy": {"backfill": False}}, ONE_NODE)
    assert found.data["gpusUsed"] == {"before": 0.5, "after": 0.75}


def test_the_use_of_gangs_that_come_all_at_once_is_until_both_are_over(
    what_if: WhatIf, say: Any
) -> None:
    """Of five gangs of 100 s two run at a time, or one: 5 * 4 of 16 * 5."""
    found = what_if(queue(say), {"virtualClusters": quota(a=1, b=2)})
    assert found.data["gpusUsed"] == {"before": 0.25, "after": 0.25}
