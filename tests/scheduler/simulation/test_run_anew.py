"""A gang of which nothing runs any more, while pods by which it has grown wait, begins anew."""

from collections.abc import Callable
from typing import Any

import pytest

Simulate = Callable[..., Any]

MORE = [{"name": "x", "count": 1, "gpus": 4}]


def left_by_its_last_pod(say: Any, *later: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """``g`` runs from 0 to 100 and goes on wanting a node; ``h`` and ``k`` have those of ``a``."""
    return [
        say.wants(0, "g", **more),
        say.wants(0, "h"),
        say.told(10, "gang-grown", "g", pods=MORE),
        say.told(100, "pod-released", "g", pod="w-0"),
        say.wants(100, "k", priority=2),
        *later,
    ]


def test_its_run_is_over_and_the_next_one_is_as_long_as_it_wants(
    simulate: Simulate, say: Any
) -> None:
    outcome = simulate(
        left_by_its_last_pod(
            say,
            say.told(150, "gang-checkpointed", "g"),
            say.told(1500, "gang-released", "h"),
            runSeconds=1000,
        )
    )
    assert outcome.when("placed", "g") == [0, 1500]
    assert outcome.summary["to"] == 2500
    assert outcome.summary["running"] == 1


@pytest.mark.parametrize("ends_at", [200, 700])
def test_its_wait_counts_from_then_on(simulate: Simulate, say: Any, ends_at: int) -> None:
    outcome = simulate(left_by_its_last_pod(say, say.told(ends_at, "gang-released", "h")))
    [group] = outcome.summary["groups"]
    assert outcome.when("placed", "g") == [0, ends_at]
    assert group["waitSeconds"]["max"] == ends_at - 100
    assert group["started"] == 3


def test_it_is_counted_as_waiting_at_the_end(simulate: Simulate, say: Any) -> None:
    outcome = simulate(left_by_its_last_pod(say, say.node(160, "node-healthy", "n0")))
    assert outcome.summary["running"] == 2
    [waiting] = outcome.summary["waiting"]
    assert (waiting["gangs"], waiting["longestSeconds"]) == (1, 60)


def test_so_it_is_where_its_growth_has_a_reservation(simulate: Simulate, say: Any) -> None:
    """It waits for the guest to leave, and not any longer when its own last pod has left a node."""
    outcome = simulate(
        [
            say.scavenges(0, "guest", pods=3),
            say.wants(0, "g", runSeconds=50),
            say.told(40, "gang-grown", "g", pods=MORE),
            say.told(45, "pod-released", "g", pod="w-0"),
        ]
    )
    assert outcome.when("preempted", "guest") == [40]
    assert outcome.when("placed", "g") == [0, 45]


def test_so_it_is_where_its_last_pod_was_told_to_leave(simulate: Simulate, say: Any) -> None:
    """Where no grace is enforced it goes on from its last checkpoint, like other victims."""
    outcome = simulate(
        [
            say.wants(0, "g", runSeconds=100, checkpointSeconds=30),
            say.wants(0, "h"),
            say.told(10, "gang-grown", "g", pods=MORE),
            say.node(40, "node-drained", "n0"),
            say.told(70, "pod-released", "g", pod="w-0"),
            say.told(200, "gang-released", "h"),
        ],
        policy={"enforceGrace": False},
    )
    assert outcome.when("preempted", "g") == [40]
    assert outcome.when("placed", "g") == [0, 200]
    assert outcome.summary["to"] == 240
