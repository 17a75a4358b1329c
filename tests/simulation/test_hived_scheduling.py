"""What HiveD's scheduling does: each line of its list, once and small; where Muster does better the
test says how.
"""

from dataclasses import replace

from scenes import RACKS, Scene, code_of, config, gang, nodes_of, owning, reserved_place
from scheduler.domain.core.config import PhysicalCell
from scheduler.domain.core.model import (
    Deferred,
    Downgraded,
    GangClass,
    Grown,
    Kind,
    Placed,
    Preempted,
    PreemptionCancelled,
    Role,
    Upgraded,
)


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
    assert nodes_of(scene.places(gang("other", "x", 1))) == {"n0"}
    assert nodes_of(scene.places(gang("a", "x", 4, pods=2, job="j", group="g"))) == {"n2", "n3"}
    scene.core.release_pod("a", "p1")
    assert nodes_of(scene.places(gang("alone", "x", 2, job="j"))) == {"n0"}
    assert nodes_of(scene.places(gang("elsewhere", "x", 1, job="i", group="g"))) == {"n0"}
    assert nodes_of(scene.places(gang("b", "x", 1, job="j", group="g"))) == {"n3"}
    scene.leave("elsewhere")
    scene.core.grow("b", (Role(Kind(1), ("more",)),))
    (grown,) = scene.cycle()
    assert isinstance(grown, Grown)
    assert nodes_of(grown.pods) == {"n3"}


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
    assert decided[0] == Downgraded("low", "high")
    assert scene.core.exported("low").gang_class is GangClass.DOWNGRADED
    scene.leave("high")
    assert scene.cycle() == [Upgraded("low")]
    assert scene.core.exported("low").gang_class is GangClass.GUARANTEED


def test_s6_nobody_is_downgraded_where_that_would_not_help() -> None:
    """HiveD downgrades first and takes it back."""
    scene = Scene(config(x=owning(("rack/node", 1))))
    scene.places(gang("low", "x", 4, is_lazy=True))
    scene.core.set_node_health("n1", False)
    stays = gang("high", "x", 4, priority=5, allowed_nodes=frozenset({"n1"}))
    assert code_of(scene.asks(stays), "high") in ("health", "shape")
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
    scene.core.release("late")
    assert scene.cycle() == []  # nothing is published of a gang that is gone
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
