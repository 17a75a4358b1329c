"""What HiveD does about faults and restarts, and what it tells: each line of its list, once and
small; where Muster does better the test says how. F: faults, A: API. What only a running service
can show (its ports, its HTTP answers) is tested with the service: A1 in tests/scheduler/test_cells.
"""

from dataclasses import replace

from scenes import Scene, code_of, config, gang, nodes_of, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell
from scheduler.domain.core.model import (
    CellUse,
    Downgraded,
    GangClass,
    Placed,
    Upgraded,
)


def test_f1_nodes_are_bad_until_reported_and_a_bad_node_is_left_out() -> None:
    scene = Scene(config(x=owning(("rack", 2))), healthy=False)
    assert code_of(scene.asks(gang("a", "x", 4)), "a") == "health"
    scene.core.set_node_health("n2", True)
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)
    assert nodes_of(placed.pods) == {"n2"}


def test_f1_a_node_that_is_to_take_nothing_is_left_out_until_it_may() -> None:
    scene = Scene(config((PhysicalCell("node", name="n0"),), x=owning(("node", 1))))
    scene.places(gang("a", "x", 1))
    scene.core.cordon("n0")
    assert code_of(scene.asks(gang("b", "x", 1)), "b") == "health"
    assert scene.core.exported("a").preempted_until is None
    scene.core.uncordon("n0")
    (placed,) = scene.cycle()
    assert isinstance(placed, Placed)


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


def test_f4_the_cells_that_a_gang_had_are_its_cells_again_where_others_would_do() -> None:
    owner = config(x=owning(("rack/node", 1), ("rack/node/switch", 1)))
    scene = Scene(owner)
    scene.places(gang("a", "x", 1))
    kept = scene.core.exported("a")
    assert kept.cells == (CellUse("r0/n0/0", "rack/node/switch"),)
    again = Scene(owner)
    again.core.restore(replace(kept, cells=(CellUse("r0/n0", "rack/node"),)), scene.now)
    assert again.core.exported("a").cells == (CellUse("r0/n0", "rack/node"),)


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


def test_a2_each_pod_is_told_its_gpu_indices_and_ports() -> None:
    """HiveD writes the indices into an annotation; ports it leaves to chance."""
    limits = {"n0": NodeLimits(ports=(20000, 20001))}
    scene = Scene(config((PhysicalCell("node", name="n0"),), limits, x=owning(("node", 1))))
    pods = scene.places(gang("a", "x", 2, pods=2, ports=1))
    assert sorted(pod.gpus for pod in pods) == [(0, 1), (2, 3)]
    assert sorted(pod.ports for pod in pods) == [(20000,), (20001,)]
