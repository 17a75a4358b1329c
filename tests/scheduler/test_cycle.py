"""Tables of the cycle: order, packing, waits and refusals."""

from typing import Any

import pytest
from muster.contracts.gangs import PodRelease
from scheduler.domain.cycle import run_cycle
from scheduler.domain.model import Deferred, Placed, Policy, Refused
from scheduler.domain.nodes import Node

Kit = Any


def _placed(decisions: list[Any]) -> list[str]:
    return [d.gang for d in decisions if isinstance(d, Placed)]


def test_order_is_priority_then_age_then_id(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=8))
    for name, priority, age in (("d", 1, 0), ("c", 5, 9), ("b", 5, 3), ("a", 5, 9)):
        cluster.request(kit.gang(name, *kit.pods(name, 1, gpus=1), priority=priority, age=age), 0.0)
    assert _placed(run_cycle(cluster, 0.0)) == ["b", "a", "c", "d"]


def test_a_gang_that_fits_passes_one_that_does_not(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=4), kit.report("n1", gpus=4))
    cluster.request(kit.gang("first", *kit.pods("first", 1, gpus=1)), 0.0)
    run_cycle(cluster, 0.0)
    cluster.request(kit.gang("large", *kit.pods("large", 2, gpus=4), age=1), 0.0)
    cluster.request(kit.gang("small", *kit.pods("small", 3, gpus=1), age=2), 0.0)
    decisions = run_cycle(cluster, 0.0)
    assert _placed(decisions) == ["small"]
    (waits,) = [d for d in decisions if isinstance(d, Deferred)]
    assert waits.gang == "large"
    assert waits.reason.code == "resource"
    assert waits.reason.numbers["wantedGpus"] == 8


def test_packing_takes_the_tightest_node_then_the_fewest_nodes(kit: Kit) -> None:
    cluster = kit.cluster(
        kit.report("n0", gpus=8), kit.report("n1", gpus=4), kit.report("n2", gpus=8)
    )
    cluster.request(kit.gang("a", *kit.pods("a", 1, gpus=3)), 0.0)
    cluster.request(kit.gang("b", *kit.pods("b", 4, gpus=3), age=1), 0.0)
    decisions = run_cycle(cluster, 0.0)
    places = {p.pod: p.node for d in decisions if isinstance(d, Placed) for p in d.placements}
    assert places["a-w-0"] == "n1"
    assert sorted(places[f"b-w-{i}"] for i in range(4)) == ["n0", "n0", "n2", "n2"]


def test_pods_without_gpus_go_where_no_gpus_are(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("a-gpu", gpus=8, cpu=4), kit.report("z-cpu", cpu=64))
    cluster.request(kit.gang("c", *kit.pods("c", 2, cpu=2)), 0.0)
    (decision,) = run_cycle(cluster, 0.0)
    assert isinstance(decision, Placed)
    assert {p.node for p in decision.placements} == {"z-cpu"}


def test_unhealthy_gpus_are_not_used_and_explain_the_wait(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=2, bad=(0,)))
    cluster.request(kit.gang("one", *kit.pods("one", 1, gpus=1)), 0.0)
    cluster.request(kit.gang("two", *kit.pods("two", 1, gpus=1), age=1), 0.0)
    placed, waits = run_cycle(cluster, 0.0)
    assert isinstance(placed, Placed)
    assert placed.placements[0].gpus == (1,)
    assert isinstance(waits, Deferred)
    assert (waits.reason.code, waits.reason.numbers["badGpus"]) == ("health", 1)


def test_nothing_is_refused_before_the_cluster_is_known_and_settled(kit: Kit) -> None:
    cluster = kit.cluster(policy=Policy(settle_s=30.0))
    cluster.request(kit.gang("big", *kit.pods("big", 1, gpus=16)), 0.0)
    (waits,) = run_cycle(cluster, 1000.0)
    assert isinstance(waits, Deferred)
    assert waits.reason.code == "health"
    cluster.report(kit.report("n0", gpus=8), 1000.0)
    cluster.hear("n0", "", 1000.0)
    assert run_cycle(cluster, 1029.0) == []
    (refused,) = run_cycle(cluster, 1030.0)
    assert isinstance(refused, Refused)
    assert refused.reason.numbers["largestNodeGpus"] == 8
    assert run_cycle(cluster, 2000.0) == []


@pytest.mark.parametrize(
    ("wants", "fits"),
    [
        ({"cpu": 65}, False),
        ({"cpu": 64}, True),
        ({"memory_mb": 512_001}, False),
        ({"ports": {"p": 10_001}}, False),
        ({"ports": {"p": 10_000}}, True),
    ],
)
def test_what_no_empty_node_holds_is_refused(kit: Kit, wants: dict[str, Any], fits: bool) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=8))
    cluster.request(kit.gang("g", *kit.pods("g", 1, **wants)), 0.0)
    (decision,) = run_cycle(cluster, 1.0)
    assert isinstance(decision, Placed if fits else Refused)


def test_a_wait_is_said_again_when_its_code_changes_else_once_a_minute(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=4), kit.report("n1", gpus=4))
    cluster.request(kit.gang("busy", *kit.pods("busy", 2, gpus=3)), 0.0)
    cluster.request(kit.gang("wide", *kit.pods("wide", 2, gpus=4), age=1), 0.0)
    assert len(run_cycle(cluster, 0.0)) == 2
    # Other numbers, the same code.
    held = {"busy-w-0": (0, 1, 2)}
    cluster.request(kit.gang("busy", kit.pods("busy", 2, gpus=3)[0]), 1.0)
    cluster.report(kit.report("n0", gpus=4, holding=held, revision=2), 1.0)
    cluster.report(kit.report("n1", gpus=4, revision=2), 1.0)
    assert run_cycle(cluster, 1.0) == []
    assert run_cycle(cluster, 59.0) == []
    (again,) = run_cycle(cluster, 60.0)
    assert isinstance(again, Deferred)
    assert run_cycle(cluster, 200.0) == []
    # Another code.
    cluster.request(kit.gang("busy"), 201.0)
    cluster.report(kit.report("n0", gpus=4, bad=(0,), revision=3), 201.0)
    (changed,) = run_cycle(cluster, 201.0)
    assert isinstance(changed, Deferred)
    assert changed.reason.code == "health"


def test_a_retried_pod_joins_the_gang_that_holds_the_others(kit: Kit) -> None:
    cluster = kit.cluster(kit.report("n0", gpus=4))
    first, second = kit.pods("g", 2, gpus=2)
    cluster.request(kit.gang("g", first, second), 0.0)
    run_cycle(cluster, 0.0)
    again = second.model_copy(update={"pod": "g-w-1-again"})
    end = PodRelease(pod=second.pod, journal="journal-of-n0", report_revision=2)
    cluster.request(kit.gang("g", first, again, released=(end,)), 1.0)
    assert _placed(run_cycle(cluster, 1.0)) == []
    cluster.report(kit.report("n0", gpus=4, holding={first.pod: (0, 1)}, revision=2), 2.0)
    (placed,) = run_cycle(cluster, 2.0)
    assert isinstance(placed, Placed)
    assert [p.pod for p in placed.placements] == ["g-w-1-again"]
    assert placed.placements[0].gpus == (2, 3)


def test_a_cycle_looks_at_each_node_as_often_for_many_shapes_as_for_one(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a take-over with many waiting gangs would keep the leader from renewing its lead."""

    def looks(shapes: int) -> int:
        cluster = kit.cluster(*(kit.report(f"n{n}", gpus=1) for n in range(20)))
        cluster.request(kit.gang("full", *kit.pods("full", 20, gpus=1), priority=99), 0.0)
        for n in range(shapes):
            name = f"g{n}"
            cluster.request(kit.gang(name, *kit.pods(name, 1, gpus=1, cpu=n)), 0.0)
        counted = 0
        size, fits = Node.capacity, Node.fits
        well: Any = Node.__dict__["whole"]

        def counting(found: Any) -> Any:
            nonlocal counted
            counted += 1
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Node, "capacity", lambda node: counting(size(node)))
            patch.setattr(Node, "fits", lambda node, d, n: counting(fits(node, d, n)))
            patch.setattr(Node, "whole", property(lambda node: counting(well.fget(node))))
            assert len(run_cycle(cluster, 1.0)) == shapes + 1
        return counted

    assert looks(30) == looks(1)


def test_a_cycle_decides_about_a_bounded_number_of_gangs_and_says_that_there_are_more(
    kit: Kit,
) -> None:
    policy = Policy(settle_s=0.0, cycle_gangs=10)
    cluster = kit.cluster(kit.report("n0", gpus=35), policy=policy)
    for kind, wants in (("fits", 1), ("waits", 35), ("large", 36)):
        for n in range(35):
            name = f"{kind}{n:02d}"
            cluster.request(kit.gang(name, *kit.pods(name, 1, gpus=wants), age=wants), 0.0)
    counts: dict[str, int] = {}
    for cycle in range(20):
        decisions = run_cycle(cluster, float(cycle))
        for decision in decisions:
            counts[type(decision).__name__] = counts.get(type(decision).__name__, 0) + 1
        assert len(decisions) <= 3 * policy.cycle_gangs
        if not cluster.has_more:
            break
    waiting = {name for name, gang in cluster.gangs.items() if gang.said is not None}
    assert counts["Placed"] == counts["Refused"] == 35
    assert {name for name in cluster.gangs if name.startswith("waits")} <= waiting
    # A node dies: every waiting gang has another reason now, and is told so.
    cluster.report(kit.report("n1", gpus=35), 30.0)
    cluster.hear("n1", "", 30.0)
    cluster.lose("n1", 30.0)
    told: list[str] = []
    for cycle in range(30, 40):
        told += [d.gang for d in run_cycle(cluster, float(cycle)) if isinstance(d, Deferred)]
    assert sorted(told) == [f"waits{n:02d}" for n in range(35)]
    assert not cluster.has_more


@pytest.mark.parametrize(("steps", "found"), [(5000, True), (0, False)])
def test_kinds_of_pods_that_fit_only_in_one_way_are_placed_within_the_bound(
    kit: Kit, steps: int, found: bool
) -> None:
    """Three pods of 3 CPUs and three of 2 fill nodes of 7 and 8: two and one with one and two."""
    policy = Policy(settle_s=0.0, search_steps=steps)
    cluster = kit.cluster(kit.report("n0", cpu=7), kit.report("n1", cpu=8), policy=policy)
    pods = (*kit.pods("g", 3, cpu=3), *kit.pods("g-o", 3, cpu=2))
    cluster.request(kit.gang("g", *pods), 0.0)
    (decision,) = run_cycle(cluster, 0.0)
    assert isinstance(decision, Placed if found else Deferred)
    assert cluster.free.cpu == (0 if found else 15)
