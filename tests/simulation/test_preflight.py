"""A preflight gang tests a node that takes no other gang."""

from scenes import Scene, code_of, config, gang, nodes_of, owning
from scheduler.domain.core.model import Gang, Placed, Preempted

ON_N0 = frozenset({"n0"})


def preflight(name: str, gpus: int = 4) -> Gang:
    return gang(name, "x", gpus, priority=-1, allowed_nodes=ON_N0, is_preflight=True)


def a_scene() -> Scene:
    return Scene(config(x=owning(("rack", 2))))


def test_only_a_preflight_gang_starts_on_a_drained_node_and_it_stays() -> None:
    scene = a_scene()
    scene.core.drain("n0")
    plain = gang("plain", "x", 1, priority=-1, allowed_nodes=ON_N0)
    assert code_of(scene.asks(plain), "plain") == "health"
    assert nodes_of(scene.places(preflight("test"))) == ON_N0
    assert scene.cycle() == []
    scene.core.uncordon("n0")
    assert code_of(scene.cycle(), "plain") == "shape"  # the test holds all GPUs
    scene.leave("test")
    assert [it.gang for it in scene.cycle() if isinstance(it, Placed)] == ["plain"]


def test_it_waits_until_the_node_is_empty_and_preempts_nobody() -> None:
    scene = a_scene()
    scene.places(gang("busy", "x", 1, priority=-1, allowed_nodes=ON_N0))
    scene.core.cordon("n0")
    assert code_of(scene.asks(preflight("test")), "test") == "shape"
    assert scene.cycle() == []
    scene.leave("busy")
    assert [it.gang for it in scene.cycle()] == ["test"]


def test_it_waits_for_a_bad_gpu_to_be_good_while_the_node_is_cordoned() -> None:
    scene = a_scene()
    scene.core.set_gpu_health("n0", 1, False)
    scene.core.cordon("n0")
    assert code_of(scene.asks(preflight("test")), "test") == "health"
    scene.core.set_gpu_health("n0", 1, True)
    assert [it.gang for it in scene.cycle() if isinstance(it, Placed)] == ["test"]


def test_a_guaranteed_gang_does_not_come_to_the_tested_node() -> None:
    scene = a_scene()
    scene.core.cordon("n0")
    scene.places(preflight("test"))
    placed = scene.places(gang("three", "x", 4, pods=3))
    assert nodes_of(placed) == {"n1", "n2", "n3"}
    decided = scene.asks(gang("fourth", "x", 4))
    assert not [it for it in decided if isinstance(it, Preempted)]
