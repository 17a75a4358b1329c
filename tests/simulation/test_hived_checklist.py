"""Everything that HiveD does, each once and small; where Muster does better the test says how.

The letters are those of its feature list: configuration, request, scheduling, faults, API. What
only a running service can show (its ports, its HTTP answers) is tested with the service.
"""

from dataclasses import replace

import pytest
from core_door import CoreDoor
from scenes import RACKS, Scene, code_of, config, gang, nodes_of, owning, reserved_place
from scheduler.domain.core.config import NodeLimits, PhysicalCell
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import (
    Deferred,
    Downgraded,
    Gang,
    GangClass,
    Grown,
    Kind,
    Placed,
    Preempted,
    PreemptionCancelled,
    Refused,
    Role,
    Upgraded,
)


def test_c1_chains_share_a_leaf_type_and_a_machine_is_in_several_chains() -> None:
    k80s = PhysicalCell(
        "k80-node",
        name="n0",
        children=(PhysicalCell("k80", index=8), PhysicalCell("k80", index=9)),
    )
    cells = (*RACKS, PhysicalCell("old-node", name="m0"), k80s)
    scene = Scene(config(cells, x=owning(("old-node", 1), ("rack/node", 1), ("k80-node", 1))))
    (pod,) = scene.places(gang("k", "x", 2, gpu_types=("k80",)))
    assert (pod.node, pod.gpus) == ("n0", (8, 9))
    both = scene.places(gang("v", "x", 2, pods=3, gpu_types=("v100",)))
    assert "m0" in nodes_of(both)
    assert len(nodes_of(both)) == 2


def test_c2_physical_cells_have_names_and_indices_of_their_own() -> None:
    switches = (
        PhysicalCell(
            "switch", children=(PhysicalCell("v100", index=3), PhysicalCell("v100", index=5))
        ),
        PhysicalCell(
            "switch", children=(PhysicalCell("v100", index=7), PhysicalCell("v100", index=1))
        ),
    )
    scene = Scene(
        config((PhysicalCell("node", name="m0", children=switches),), x=owning(("node", 1)))
    )
    (pod,) = scene.places(gang("a", "x", 4))
    assert (pod.node, sorted(pod.gpus)) == ("m0", [1, 3, 5, 7])
    assert [use.quota for use in scene.core.exported("a").cells] == ["node"]


@pytest.mark.parametrize(
    ("path", "count", "gpus"),
    [
        ("rack", 1, 8),
        ("rack/node", 1, 4),
        ("rack/node/switch", 1, 2),
        ("rack/node/switch/v100", 1, 1),
    ],
)
def test_c3_quota_is_cells_of_any_level(path: str, count: int, gpus: int) -> None:
    scene = Scene(config(x=owning((path, count))))
    (refused,) = scene.asks(gang("more", "x", 1, pods=gpus + 1))
    assert isinstance(refused, Refused)
    assert len(scene.places(gang("all", "x", 1, pods=gpus))) == gpus
    (waits,) = scene.asks(gang("late", "x", 1))
    assert code_of([waits], "late") == "quota"


def test_c3_a_gpu_quota_serves_a_pod_of_two_gpus_on_one_node() -> None:
    """HiveD never uses two one-GPU cells for one pod."""
    scene = Scene(config(x=owning(("rack/node/switch/v100", 2))))
    (pod,) = scene.places(gang("pair", "x", 2))
    assert len(pod.gpus) == 2


def test_c3_a_pinned_cell_is_for_those_who_name_it() -> None:
    pinned = PhysicalCell(
        "rack",
        name="r0",
        children=(PhysicalCell("node", name="n0", pin="lab"), PhysicalCell("node", name="n1")),
    )
    scene = Scene(config((pinned, RACKS[1]), x=owning(("rack/node", 1), pins=("lab",))))
    assert nodes_of(scene.places(gang("a", "x", 4))) != {"n0"}
    assert nodes_of(scene.places(gang("b", "x", 4, pin="lab"))) == {"n0"}
    (waits,) = scene.asks(gang("c", "x", 4, pin="lab"))
    assert isinstance(waits, Deferred)


@pytest.mark.parametrize(
    ("owned", "is_honoured"),
    [
        ([("rack", 2)], True),
        ([("rack", 3)], False),
        ([("rack", 1), ("rack/node", 2)], True),
        ([("rack", 1), ("rack/node", 3)], False),
        ([("rack/node", 3), ("rack/node/switch", 2)], True),
        ([("rack/node", 3), ("rack/node/switch", 2), ("rack/node/switch/v100", 1)], False),
    ],
)
def test_c4_what_can_not_be_honoured_is_refused_with_every_reason(
    owned: list[tuple[str, int]], is_honoured: bool
) -> None:
    if is_honoured:
        CoreDoor(config(x=owning(*owned)))
        return
    with pytest.raises(ConfigError) as refusal:
        CoreDoor(config(x=owning(*owned)))
    assert refusal.value.findings


def test_c5_a_new_configuration_needs_no_restart() -> None:
    """HiveD ends its process and recovers."""
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("a", "x", 4))
    (waits,) = scene.asks(gang("b", "x", 4))
    assert isinstance(waits, Deferred)
    scene.core.change(config(x=owning(("rack/node", 2))), scene.now)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert placed.gang == "b"


def test_r1_a_gang_has_roles_of_different_sizes() -> None:
    """HiveD knows GPUs alone; here a pod has CPU, memory, ports and counted resources too."""
    limits = {f"n{n}": NodeLimits(16, 4000, (20000, 20003), {"rdma": 1}) for n in range(4)}
    roles = (
        Role(Kind(4), ("worker-0",)),
        Role(Kind(1, cpu=4, memory_mb=1000, ports=1, resources=(("rdma", 1),)), ("ps-0",)),
    )
    scene = Scene(config(nodes=limits, x=owning(("rack", 1))))
    pods = scene.places(replace(gang("a", "x", 1), roles=roles))
    by_name = {pod.pod: pod for pod in pods}
    assert len(by_name["worker-0"].gpus) == 4
    assert len(by_name["ps-0"].ports) == 1


@pytest.mark.parametrize(
    "asked",
    [
        gang("a", "nobody", 1),
        gang("a", "x", 1, pin="unknown"),
        gang("a", "x", 1, gpu_types=("h100",)),
        gang("a", "x", 5),
        gang("a", "x", 4, pods=5, priority=-1),
    ],
)
def test_r2_what_can_never_be_placed_is_refused_with_a_reason(asked: Gang) -> None:
    (refused,) = Scene(config(x=owning(("rack", 1)))).asks(asked)
    assert isinstance(refused, Refused)
    assert refused.reason.text


def test_s1_a_gang_is_placed_whole_or_not_at_all_and_holds_nobody_up() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("first", "x", 4))
    decided = scene.asks(
        gang("big", "x", 4, pods=2, submitted_at=1.0), gang("small", "x", 2, submitted_at=2.0)
    )
    assert code_of(decided, "big") == "quota"
    assert [d.gang for d in decided if isinstance(d, Placed)] == ["small"]


def test_s1_more_pods_of_a_job_come_near_the_first() -> None:
    """HiveD has no affinity between the groups of a job, nor groups that grow."""
    scene = Scene(config(x=owning(("rack", 2))))
    scene.places(gang("other", "x", 1))
    first = scene.places(gang("a", "x", 4, pods=2, job="j", group="g"))
    scene.leave("other")
    scene.core.release_pod("a", "p1")
    second = scene.places(gang("b", "x", 2, job="j", group="g"))
    racks = {"n0": 0, "n1": 0, "n2": 1, "n3": 1}
    assert {racks[pod.node] for pod in second} == {racks[pod.node] for pod in first}
    scene.core.grow("b", (Role(Kind(2), ("more",)),))
    (grown,) = scene.cycle()
    assert isinstance(grown, Grown)
    assert racks[grown.pods[0].node] == racks[second[0].node]


def test_s2_guaranteed_gangs_are_safe_from_other_virtual_clusters_and_end_at_their_quota() -> None:
    scene = Scene(config(x=owning(("rack", 1)), y=owning(("rack/node", 1))))
    scene.places(gang("own", "x", 4, pods=2))
    scene.places(gang("theirs", "y", 4, priority=0))
    decided = scene.asks(gang("strong", "y", 4, priority=1000, is_lazy=False))
    assert {d.gang for d in decided if isinstance(d, Preempted)} == {"theirs"}
    decided = scene.asks(gang("weak", "y", 4))
    assert code_of(decided, "weak") == "quota"


def test_s2_a_gang_spans_chains_and_mixes_pinned_and_other_cells() -> None:
    """HiveD can do neither."""
    cells = (
        *RACKS,
        PhysicalCell("old-node", name="m0", pin="lab"),
        PhysicalCell("old-node", name="m1"),
    )
    scene = Scene(config(cells, x=owning(("rack/node", 1), ("old-node", 1), pins=("lab",))))
    roles = (Role(Kind(2), ("a-0", "a-1", "a-2")), Role(Kind(2, pin="lab"), ("b-0",)))
    pods = scene.places(replace(gang("wide", "x", 1), roles=roles))
    assert {"m0", "m1"} < nodes_of(pods)


def test_s3_a_virtual_cluster_gets_its_cells_whatever_others_do() -> None:
    scene = Scene(config(x=owning(("rack", 1)), y=owning(("rack/node/switch/v100", 4))))
    for number in range(4):
        scene.places(gang(f"y{number}", "y", 1))
    for number in range(12):
        scene.places(gang(f"guest{number}", "y", 1, priority=-1, submitted_at=float(number)))
    decided = scene.asks(gang("mine", "x", 4, pods=2))
    victims = {d.gang for d in decided if isinstance(d, Preempted)}
    assert len(victims) == 8
    assert all(name.startswith("guest") for name in victims)
    scene.leave(*victims)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert len(nodes_of(placed.pods)) == 2


def test_s4_opportunistic_gangs_use_what_is_idle_beyond_any_quota_and_leave_first() -> None:
    scene = Scene(config(x=owning(("rack/node", 1)), y=owning(("rack/node/switch/v100", 1))))
    guest = gang("guest", "y", 4, pods=4, priority=-1)
    assert len(nodes_of(scene.places(guest))) == 4
    decided = scene.asks(gang("own", "x", 1))
    assert [d.gang for d in decided if isinstance(d, Preempted)] == ["guest"]


def test_s5_priority_preempts_inside_a_virtual_cluster_only_where_it_must_and_whole_gangs() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    scene.places(gang("low", "x", 1, pods=3))
    assert not [d for d in scene.asks(gang("high", "x", 4, priority=5)) if isinstance(d, Preempted)]
    decided = scene.asks(gang("higher", "x", 4, priority=6))
    assert [d.gang for d in decided if isinstance(d, Preempted)] == ["low"]
    assert code_of(decided, "higher") == "preempting"


def test_s6_a_lazy_gang_is_downgraded_and_raised_again() -> None:
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("low", "x", 4, is_lazy=True))
    decided = scene.asks(gang("high", "x", 4, priority=5))
    assert [type(d) for d in decided] == [Downgraded, Placed]
    assert scene.core.exported("low").gang_class is GangClass.DOWNGRADED
    scene.leave("high")
    assert scene.cycle() == [Upgraded("low")]
    assert scene.core.exported("low").gang_class is GangClass.GUARANTEED


def test_s7_a_preemption_is_reserved_and_outlives_a_restart() -> None:
    """HiveD forgets it at a restart, and needs its callers to come round for every victim."""
    scene = reserved_place()
    kept = [scene.core.exported(name) for name in ("late", "guest")]
    again = Scene(config(x=owning(("rack", 1))))
    for one in kept:
        again.core.restore(one, scene.now)
    again.now = scene.now
    for one in (scene, again):
        one.leave("guest")
    assert repr(scene.cycle()) == repr(again.cycle()) != "[]"


def test_s7_a_reservation_ends_when_its_place_turns_bad_or_it_is_withdrawn() -> None:
    scene = reserved_place()
    (place,) = scene.core.exported("late").places
    scene.core.set_node_health(place.node, False)
    assert PreemptionCancelled("late") in scene.cycle()
    scene = reserved_place()
    scene.core.withdraw("late")
    assert scene.cycle() == [PreemptionCancelled("late")]
    scene.leave("guest")
    assert len(scene.places(gang("next", "x", 4, pods=4, priority=-1))) == 4


def test_s7_a_reservation_is_taken_by_a_higher_priority() -> None:
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("guest", "x", 4, pods=4, priority=-1))
    scene.asks(gang("late", "x", 4, priority=1))
    decided = scene.asks(gang("later", "x", 4, priority=2))
    assert PreemptionCancelled("late") in decided
    assert code_of(decided, "later") == "preempting"
    assert scene.core.exported("guest").preempted_for == "late"


def test_s8_a_gang_stays_on_the_nodes_that_it_allows() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    assert nodes_of(scene.places(gang("a", "x", 4, allowed_nodes=frozenset({"n3"})))) == {"n3"}
    (waits,) = scene.asks(gang("b", "x", 4, allowed_nodes=frozenset({"n3"})))
    assert isinstance(waits, Deferred)


def test_s9_without_a_type_any_will_do_and_always_in_the_same_order() -> None:
    """HiveD takes them in random order."""
    cells = (*RACKS, PhysicalCell("k80-node", name="m0"))
    scene = Scene(config(cells, x=owning(("rack/node", 1), ("k80-node", 1))))
    assert nodes_of(scene.places(gang("a", "x", 2))) == {"m0"}
    assert nodes_of(scene.places(gang("b", "x", 2))) != {"m0"}
    scene.leave("a", "b")
    assert nodes_of(scene.places(gang("c", "x", 2, gpu_types=("v100", "k80")))) != {"m0"}


def test_s10_gpus_of_a_pod_are_under_the_lowest_common_cell() -> None:
    scene = Scene(config(x=owning(("rack/node", 1))))
    (single,) = scene.places(gang("one", "x", 1))
    (pair,) = scene.places(gang("two", "x", 2))
    assert single.node == pair.node
    assert set(pair.gpus) in ({0, 1}, {2, 3})


def test_f1_nodes_are_bad_until_reported_and_a_bad_node_is_left_out() -> None:
    scene = Scene(config(x=owning(("rack", 2))), healthy=False)
    assert code_of(scene.asks(gang("a", "x", 4)), "a") == "health"
    scene.core.set_node_health("n2", True)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert nodes_of(placed.pods) == {"n2"}


def test_f1_a_bad_gpu_takes_no_other_with_it() -> None:
    """HiveD knows bad nodes only."""
    scene = Scene(config((PhysicalCell("node", name="n0"),), x=owning(("node", 1))))
    scene.core.set_gpu_health("n0", 1, False)
    (pod,) = scene.places(gang("a", "x", 3))
    assert pod.gpus == (0, 2, 3)


def test_f2_quota_on_bad_hardware_is_told_to_whom_it_hits() -> None:
    scene = Scene(config(x=owning(("rack", 1)), y=owning(("rack", 1))))
    for node in ("n0", "n1"):
        scene.core.set_node_health(node, False)
    scene.places(gang("y", "y", 4, pods=2))
    assert code_of(scene.asks(gang("x", "x", 4)), "x") == "health"
    scene.core.set_node_health("n1", True)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)


def test_f3_a_higher_cell_is_split_where_the_free_ones_are_bad_and_quotas_allow_it() -> None:
    scene = Scene(config(x=owning(("rack/node", 2)), y=owning(("rack/node", 1))))
    scene.places(gang("y", "y", 4, allowed_nodes=frozenset({"n0"})))
    scene.core.set_node_health("n1", False)
    assert nodes_of(scene.places(gang("x", "x", 4))) <= {"n2", "n3"}
    scene = Scene(config(x=owning(("rack", 1)), y=owning(("rack/node", 2))))
    scene.places(gang("y", "y", 4, allowed_nodes=frozenset({"n0"})))
    scene.core.set_node_health("n1", False)
    assert code_of(scene.asks(gang("y2", "y", 4)), "y2") == "health"


def test_f4_what_ran_is_known_again_after_a_restart() -> None:
    scene = Scene(config(x=owning(("rack/node", 1), ("rack/node/switch", 1))))
    scene.places(gang("a", "x", 4))
    scene.places(gang("b", "x", 1))
    again = Scene(config(x=owning(("rack/node", 1), ("rack/node/switch", 1))))
    for name in ("b", "a"):
        again.core.restore(scene.core.exported(name), scene.now)
    assert [again.core.exported(n) for n in "ab"] == [scene.core.exported(n) for n in "ab"]
    assert repr(scene.asks(gang("c", "x", 1))) == repr(again.asks(gang("c", "x", 1)))


def test_f5_a_change_of_the_configuration_ends_nothing() -> None:
    scene = Scene(config(x=owning(("rack", 1)), y=owning(("rack/node", 1))))
    scene.places(gang("keeps", "y", 4))
    before = scene.places(gang("loses", "x", 4, pods=2))
    scene.core.change(config(x=owning(("rack/node", 1)), y=owning(("rack/node", 1))), scene.now)
    assert scene.cycle() == [Downgraded("loses", None)]
    assert scene.core.exported("loses").places == before
    assert scene.core.exported("keeps").gang_class is GangClass.GUARANTEED
    scene.core.change(config(x=owning(("rack", 1)), y=owning(("rack/node", 1))), scene.now)
    assert scene.cycle() == [Upgraded("loses")]


def test_f6_a_decision_is_final_whatever_becomes_of_its_machine() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    before = scene.places(gang("a", "x", 4))
    scene.core.set_node_health(before[0].node, False)
    assert scene.cycle() == []
    again = Scene(config(x=owning(("rack", 1))), healthy=False)
    again.core.restore(scene.core.exported("a"), scene.now)
    assert again.cycle() == []
    assert again.core.exported("a").places == before


def test_a1_everything_about_a_gang_can_be_asked() -> None:
    """The same by HTTP, for clusters, queues and reasons too, is tested with the service."""
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("a", "x", 4, priority=3))
    scene.asks(gang("b", "x", 4, priority=4))
    kept = scene.core.exported("a")
    assert (kept.gang.virtual_cluster, kept.gang.priority, kept.started_at) == ("x", 3, 1.0)
    assert (kept.preempted_for, kept.preempted_until) == ("b", 32.0)
    assert scene.core.exported("b").started_at is None


def test_a2_each_pod_is_told_its_gpu_indices_and_ports() -> None:
    """HiveD writes the indices into an annotation; ports it leaves to chance."""
    limits = {"n0": NodeLimits(ports=(20000, 20001))}
    scene = Scene(config((PhysicalCell("node", name="n0"),), limits, x=owning(("node", 1))))
    pods = scene.places(gang("a", "x", 2, pods=2, ports=1))
    assert sorted(pod.gpus for pod in pods) == [(0, 1), (2, 3)]
    assert sorted(pod.ports for pod in pods) == [(20000,), (20001,)]
