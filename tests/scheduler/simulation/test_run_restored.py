"""The state of a running system, gone on with."""

from collections.abc import Callable
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError

Simulate = Callable[..., Any]


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
    assert outcome.when("placed", "gang") == []
    assert outcome.when("placed", "next") == [130]


def test_a_restored_preemption_goes_on(simulate: Simulate, say: Any) -> None:
    """The state of a running system in the middle of a preemption."""
    outcome = simulate(
        [
            restored(100, "guest", "n0", priority=-1, preemptedUntil=120, preemptedFor="owner"),
            restored(100, "owner", "n0", startedAt=None),
            restored(100, "other", "n1", **{"class": "guaranteed"}),
        ]
    )
    assert outcome.when("placed", "owner") == [120]
    assert outcome.when("placed", "guest") == [120]  # elsewhere


def test_what_was_due_before_the_file_begins_is_due_at_once(simulate: Simulate, say: Any) -> None:
    outcome = simulate(
        [
            restored(100, "long-over", "n0", startedAt=10, of={"runSeconds": 50}),
            restored(100, "late", "n1", priority=-1, startedAt=10, preemptedUntil=90),
            say.wants(100, "next", pods=2),
        ]
    )
    assert outcome.when("placed", "next") == [100]
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


def test_a_restored_gang_of_which_nothing_runs_is_over_when_it_is_refused(
    simulate: Simulate, say: Any
) -> None:
    """What it grows by was reserved for it, and the configuration has no room for that any more."""
    outcome = simulate(
        [
            restored(0, "gang", "n9", reserved=["w-0"], of={"virtualCluster": "gone"}),
            say.told(10, "pod-released", "gang", pod="w-0"),
            say.wants(20, "gang"),
        ]
    )
    assert outcome.decisions == [
        (0, "preemption-cancelled", "gang"),
        (0, "refused", "gang"),
        (20, "placed", "gang"),
    ]


def on_cpu(gang: str, node: str, gpus: int = 0, **more: Any) -> dict[str, Any]:
    """A gang of one pod that wants CPU, and by default no GPU."""
    pods = [{"name": "w", "count": 1, "gpus": gpus, "cpu": 4}]
    placement = [{"pod": "w-0", "node": node, "gpus": list(range(gpus))}]
    return restored(0, gang, node, **more) | {
        "gang": restored(0, gang, node)["gang"] | {"pods": pods},
        "placement": placement,
    }


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({}, []),
        ({"class": "guaranteed"}, []),
        ({"gpus": 1}, ["downgraded"]),
    ],
)
def test_a_restored_gang_without_gpus_is_a_guest_where_it_can_not_be_charged(
    simulate: Simulate, say: Any, of: dict[str, Any], said: list[str]
) -> None:
    """As the core would place it now. A guest does not get cells later, nor says that it has
    lost any.
    """
    outcome = simulate(
        [
            restored(0, "r0", "n0"),
            restored(0, "r1", "n1"),
            on_cpu("cpu", "n2", **of),
            say.told(1, "gang-released", "r0"),
            say.told(1, "gang-released", "r1"),
        ],
        nodes={f"n{number}": {"cpu": 16} for number in range(4)},
    )
    raised = ["upgraded"] if said else []
    assert [what for _, what, who in outcome.decisions if who == "cpu"] == said + raised


def test_a_nominated_gang_outlives_its_virtual_cluster(simulate: Simulate, say: Any) -> None:
    """It was to borrow of another one; then its node is bad."""
    gone = {"virtualCluster": "gone", "borrow": True}
    outcome = simulate(
        [
            restored(100, "gang", "n0", startedAt=None, lender="a", of=gone),
            {"at": 101, "event": "node-bad", "node": "n0"},
        ]
    )
    assert outcome.when("preemption-cancelled", "gang") == [101]
    assert outcome.when("placed", "gang") == []
