"""Tables of what the service adds to the core: the cluster that nodes make, who is told what when,
refusals, retried pods, bounds.
"""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from muster.contracts.gangs import PodRelease
from muster.contracts.model import Reason
from muster.contracts.node_orders import Order
from muster.contracts.nodes import Gpu
from scheduler.domain.core.config import (
    CellType,
    ClusterConfig,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.model import Deferred, Grown, Placed, Preempted, Refused, Reserved
from scheduler.domain.messages import message_of
from scheduler.domain.notices import Notices
from scheduler.domain.plans import made
from scheduler.domain.rules import Rules

Kit = Any


def _placed(decisions: list[Any]) -> list[str]:
    return [d.gang for d in decisions if isinstance(d, Placed)]


def _ask(kit: Kit, state: Any, name: str, count: int = 1, now: float = 0.0, **more: Any) -> None:
    order = {key: more.pop(key) for key in ("priority", "age") if key in more}
    state.request(kit.gang(name, *kit.pods(name, count, **more), **order), now, now)


def test_order_is_priority_then_age_then_id(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=8))
    for name, priority, age in (("d", 1, 0), ("c", 5, 9), ("b", 5, 3), ("a", 5, 9)):
        _ask(kit, state, name, gpus=1, priority=priority, age=age)
    assert _placed(kit.decide(state, 0.0)) == ["b", "a", "c", "d"]


def test_a_gang_that_fits_passes_one_that_does_not(kit: Kit) -> None:
    free = Policy(is_backfilling=False)
    state = kit.state(kit.report("n0", gpus=4), kit.report("n1", gpus=4), policy=free)
    _ask(kit, state, "first", gpus=1)
    kit.decide(state, 0.0)
    _ask(kit, state, "large", 2, gpus=4, age=1)
    _ask(kit, state, "small", 3, gpus=1, age=2)
    decisions = kit.decide(state, 0.0)
    assert _placed(decisions) == ["small"]
    (waits,) = [d for d in decisions if isinstance(d, Deferred)]
    assert (waits.gang, waits.reason.code) == ("large", "quota")
    assert waits.reason.numbers["cellsWanted"] == 8


def test_packing_takes_the_tightest_node_then_the_fewest_nodes(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=8), kit.report("n1", gpus=4), kit.report("n2", gpus=8))
    _ask(kit, state, "a", gpus=3)
    _ask(kit, state, "b", 4, gpus=3, age=1)
    decisions = kit.decide(state, 0.0)
    places = {p.pod: p.node for d in decisions if isinstance(d, Placed) for p in d.pods}
    assert places["a-w-0"] == "n1"
    assert sorted(places[f"b-w-{i}"] for i in range(4)) == ["n0", "n0", "n2", "n2"]


def test_what_is_heard_while_a_cluster_is_made_counts_when_it_is_taken(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2))
    assert kit.free(state) == 2
    plan = state.plan(None)
    cluster = made(state.core, plan, 0.0)
    state.report(kit.report("n0", revision=2, gpus=2, bad=(0,)), 0.0)
    state.report(kit.report("n1", gpus=4), 0.0)
    state.ledger.receive("n1", "journal-of-n1", 0.0)
    state.adopt(plan, cluster)
    assert state.is_outdated
    assert kit.free(state) == 1 + 4


def test_pods_without_gpus_run_where_there_are_only_nodes_without(kit: Kit) -> None:
    state = kit.state(kit.report("z-cpu", cpu=64))
    _ask(kit, state, "c", 2, cpu=2)
    (decision,) = kit.decide(state, 0.0)
    assert isinstance(decision, Placed)
    assert {p.node for p in decision.pods} == {"z-cpu"}


def test_unhealthy_gpus_are_not_used(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2, bad=(0,)))
    _ask(kit, state, "one", gpus=1)
    _ask(kit, state, "two", gpus=1, age=1)
    placed, reserved = kit.decide(state, 0.0)
    assert isinstance(placed, Placed)
    assert placed.pods[0].gpus == (1,)
    assert isinstance(reserved, Reserved)
    assert reserved.cells == (("n0", (1,)),)
    waits = state.reason_of("two")
    assert waits is not None
    assert waits.code == "health"


def test_gpus_of_several_models_and_with_gaps_in_their_numbers_are_used(kit: Kit) -> None:
    report = kit.report("n0", gpus=4)
    gpus = [gpu.model_copy(update={"index": 2 * gpu.index}) for gpu in report.gpus]
    gpus[3] = gpus[3].model_copy(update={"model": "NVIDIA H200"})
    state = kit.state(report.model_copy(update={"gpus": tuple(gpus)}))
    _ask(kit, state, "h", gpus=1, gpu_types=("nvidia-h200",))
    _ask(kit, state, "t", gpus=3, gpu_types=("t",), age=1)
    kit.decide(state, 0.0)
    assert state.ledger.hold_of("h-w-0").placement.gpus == (6,)
    assert state.ledger.hold_of("t-w-0").placement.gpus == (0, 2, 4)


@given(
    nodes=st.lists(
        st.lists(st.sampled_from(["T", "t 2", "t-2", "t-1-node", "??", ""]), max_size=5)
        | st.integers(60, 140).map(lambda count: ["T"] * count),
        max_size=4,
    )
)
def test_whatever_nodes_report_makes_a_cluster_with_all_of_it(
    kit: Kit, nodes: list[list[str]]
) -> None:
    """Else one odd node would stop the Scheduler."""
    reports = [
        kit.report(
            f"n{number}",
            gpus=tuple(
                Gpu(index=2 * index, uuid="u", model=model, memory_mb=1)
                for index, model in enumerate(models)
            ),
        )
        for number, models in enumerate(nodes)
    ]
    assert kit.free(kit.state(*reports)) == sum(map(len, nodes))


def test_nothing_is_refused_before_the_cluster_is_known_and_settled(kit: Kit) -> None:
    state = kit.state(rules=Rules(settle_s=30.0))
    _ask(kit, state, "big", gpus=16)
    (waits,) = kit.decide(state, 1000.0)
    assert isinstance(waits, Deferred)
    assert (waits.reason.code, "No node" in waits.reason.text) == ("health", True)
    state.report(kit.report("n0", gpus=8), 1000.0)
    state.ledger.receive("n0", "", 1000.0)
    assert kit.decide(state, 1000.0) == []
    state.report(kit.report("n1", gpus=8), 1020.0)
    assert kit.decide(state, 1049.0) == []
    (refused,) = kit.decide(state, 1050.0)
    assert isinstance(refused, Refused)
    assert refused.reason.code == "too-large"
    state.report(kit.report("n2", gpus=16), 1060.0)
    state.ledger.receive("n2", "", 1060.0)
    assert kit.decide(state, 1060.0) == []  # it was final
    _ask(kit, state, "other", gpus=16)
    assert _placed(kit.decide(state, 1060.0)) == ["other"]


@pytest.mark.parametrize(
    ("wants", "fits"),
    [
        ({"cpu": 65}, False),
        ({"cpu": 64}, True),
        ({"memory_mb": 512_001}, False),
        ({"ports": {"p": 10_001}}, False),
        ({"ports": {"p": 10_000}}, True),
        ({"resources": {"rdma": 1}}, False),
    ],
)
def test_what_no_empty_node_holds_is_refused(kit: Kit, wants: dict[str, Any], fits: bool) -> None:
    state = kit.state(kit.report("n0", gpus=8))
    _ask(kit, state, "g", **wants)
    (decision,) = kit.decide(state, 1.0)
    assert isinstance(decision, Placed if fits else Refused)


NAMED = ClusterConfig(
    {"box": CellType("t", 8, is_node=True)},
    (PhysicalCell("box", "n0"), PhysicalCell("box", "n1")),
    virtual_clusters={"default": VirtualCluster((QuotaCells("box", 2),))},
)


@pytest.mark.parametrize("file", [None, NAMED])
def test_a_pod_goes_to_a_node_that_reports_the_counted_resource(
    kit: Kit, file: ClusterConfig | None
) -> None:
    with_rdma = kit.report("n1", gpus=8, resources={"rdma": 2})
    state = kit.state(kit.report("n0", gpus=8, resources={}), with_rdma, file=file)
    _ask(kit, state, "g", 2, resources={"rdma": 1})
    _ask(kit, state, "late", 1, resources={"rdma": 1}, age=1)
    decisions = kit.decide(state, 1.0)
    (placed,) = [each for each in decisions if isinstance(each, Placed)]
    assert {pod.node for pod in placed.pods} == {"n1"}
    _ask(kit, state, "large", 1, resources={"rdma": 3})
    assert any(isinstance(each, Refused) for each in kit.decide(state, 2.0))


def test_the_limits_of_the_file_count_more_than_the_report(kit: Kit) -> None:
    file = replace(NAMED, nodes={"n0": NodeLimits(resources={}), "n1": NodeLimits(resources={})})
    state = kit.state(kit.report("n1", gpus=8, resources={"rdma": 2}), file=file)
    _ask(kit, state, "g", resources={"rdma": 1})
    assert _placed(kit.decide(state, 1.0)) == []


def test_a_wait_is_said_again_when_its_code_changes_else_once_a_minute(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4), kit.report("n1", gpus=4))
    _ask(kit, state, "busy", 2, gpus=3)
    _ask(kit, state, "wide", 2, gpus=4, age=1)
    assert [type(each) for each in kit.decide(state, 0.0)] == [Placed, Reserved]
    # Other numbers, the same code.
    held = {"busy-w-0": (0, 1, 2)}
    state.request(kit.gang("busy", kit.pods("busy", 2, gpus=3)[0]), 1.0, 1.0)
    state.report(kit.report("n0", gpus=4, holding=held, revision=2), 1.0)
    state.report(kit.report("n1", gpus=4, revision=2), 1.0)
    assert kit.decide(state, 1.0) == []
    assert kit.decide(state, 59.0) == []
    (again,) = kit.decide(state, 60.0)
    assert isinstance(again, Deferred)
    assert kit.decide(state, 200.0) == []
    # Another code.
    state.request(kit.gang("busy"), 201.0, 201.0)
    for node in ("n0", "n1"):
        state.report(kit.report(node, gpus=4, bad=(0,), revision=3), 201.0)
    assert [type(each) for each in kit.decide(state, 201.0)] == [Reserved]  # nothing is kept now
    changed = state.gangs["wide"].published_reason
    assert changed is not None
    assert changed.code == "health"


def test_a_retried_pod_joins_the_gang_that_holds_the_others(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    first, second = kit.pods("g", 2, gpus=2)
    state.request(kit.gang("g", first, second), 0.0, 0.0)
    kit.decide(state, 0.0)
    again = second.model_copy(update={"pod": "g-w-1-again"})
    end = PodRelease(pod=second.pod, journal="journal-of-n0", report_revision=2)
    state.request(kit.gang("g", first, again, released=(end,)), 1.0, 1.0)
    (waits,) = kit.decide(state, 1.0)
    assert isinstance(waits, Deferred)  # for what the ended pod holds
    state.report(kit.report("n0", gpus=4, holding={first.pod: (0, 1)}, revision=2), 2.0)
    (grown,) = kit.decide(state, 2.0)
    assert isinstance(grown, Grown)
    assert [(p.pod, p.gpus) for p in grown.pods] == [("g-w-1-again", (2, 3))]


def test_a_pod_that_is_dropped_while_the_gang_waits_is_not_waited_for(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    pods = kit.pods("g", 2, gpus=2)
    state.request(kit.gang("g", *pods), 0.0, 0.0)
    _ask(kit, state, "busy", gpus=1, priority=99)
    assert _placed(kit.decide(state, 0.0)) == ["busy"]
    state.request(kit.gang("g", pods[1]), 1.0, 1.0)
    placed = [each for each in kit.decide(state, 1.0) if isinstance(each, Placed)]
    assert [[p.pod for p in each.pods] for each in placed] == [["g-w-1"]]


def test_what_a_gang_that_leaves_still_wants_is_placed_when_it_has_left(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=1), kit.report("n1", gpus=1))
    first, second = kit.pods("g", 2, gpus=1)
    state.request(kit.gang("g", first), 0.0, 0.0)
    assert _placed(kit.decide(state, 0.0)) == ["g"]
    state.order("n0", Order.DRAIN)
    (leaves,) = kit.decide(state, 1.0)
    assert isinstance(leaves, Preempted)
    state.request(kit.gang("g", first, second), 2.0, 2.0)
    assert kit.decide(state, 2.0) == []
    state.lose("n0", 3.0)
    (placed,) = kit.decide(state, 3.0)
    assert isinstance(placed, Placed)
    assert [(p.pod, p.node) for p in placed.pods] == [(second.pod, "n1")]
    assert message_of(state, state.gangs["g"], 1).preemption is None


def test_what_a_gang_still_wants_is_refused_where_nothing_of_it_runs_and_it_is_too_large(
    kit: Kit,
) -> None:
    state = kit.state(kit.report("n0", gpus=1), kit.report("n1", gpus=1))
    (first,) = kit.pods("g", 1, gpus=1)
    state.request(kit.gang("g", first), 0.0, 0.0)
    (placed,) = kit.decide(state, 0.0)
    (large,) = kit.pods("large", 1, gpus=8)
    state.request(kit.gang("g", first, large), 1.0, 1.0)
    (waits,) = kit.decide(state, 1.0)
    assert isinstance(waits, Deferred)
    state.lose(placed.pods[0].node, 2.0)
    (refused,) = kit.decide(state, 2.0)
    assert isinstance(refused, Refused)


def test_a_cycle_decides_about_a_bounded_number_of_gangs_and_says_that_there_are_more(
    kit: Kit,
) -> None:
    rules = Rules(settle_s=0.0, cycle_gangs=10)
    state = kit.state(kit.report("n0", gpus=35), rules=rules)
    for kind, wants in (("fits", 1), ("waits", 35)):
        for n in range(35):
            _ask(kit, state, f"{kind}{n:02d}", gpus=wants, age=wants)
    counts: dict[str, int] = {}
    for cycle in range(20):
        decisions = kit.decide(state, float(cycle))
        for decision in decisions:
            counts[type(decision).__name__] = counts.get(type(decision).__name__, 0) + 1
        assert len(decisions) <= 2 * rules.cycle_gangs
        if not state.has_more:
            break
    assert counts == {"Placed": 35, "Reserved": 1, "Deferred": 34}
    # GPUs turn bad, as a node with more of them comes: all wait for another reason, and are told.
    state.report(kit.report("n1", gpus=35, bad=(0,)), 30.0)
    state.ledger.receive("n1", "", 30.0)
    told: list[str] = []
    for cycle in range(30, 40):
        told += [d.gang for d in kit.decide(state, float(cycle)) if isinstance(d, Deferred)]
    assert sorted(told) == [f"waits{n:02d}" for n in range(35)]
    assert not state.has_more


def test_no_more_reasons_are_sought_than_a_cycle_publishes(kit: Kit) -> None:
    rules = Rules(settle_s=0.0, cycle_gangs=10)
    state, notices, sought = kit.state(), Notices(rules), list[str]()
    for n in range(35):
        _ask(kit, state, f"g{n:02d}", gpus=1)
    notices.unpublished = dict.fromkeys(state.gangs)

    def reason_of(gang: str) -> Reason:
        sought.append(gang)
        return Reason(code="shape", text="")

    due = notices.due(state.gangs, reason_of, 0.0, is_settled=True, is_under_way=False)
    assert [gang for gang, _ in due] == sought == [f"g{n:02d}" for n in range(10)]
    assert [*notices.unpublished] == [f"g{n:02d}" for n in range(10, 35)]
