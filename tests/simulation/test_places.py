"""Which place a gang takes where several cost nobody: docs/scheduling.md, "Which place"."""

from dataclasses import replace

import pytest
from scenes import RACKS, Scene, config, gang, nodes_of, owning, racks
from scheduler.domain.core.config import NodeLimits, PhysicalCell, VirtualCluster
from scheduler.domain.core.model import Gang, Placed, Role

SWITCH = "rack/node/switch"
"""Cells of two GPUs, as quota."""


def guest(name: str, gpus: int, pods: int = 1, **more: object) -> Gang:
    """An opportunistic gang."""
    return gang(name, "y", gpus, pods, priority=-1, **more)


def scene_with(x: VirtualCluster, cells: tuple[PhysicalCell, ...] = RACKS, mine: int = 1) -> Scene:
    """A guaranteed gang with so many GPUs runs on n0."""
    scene = Scene(config(cells, x=x, y=owning()))
    assert nodes_of(scene.places(gang("mine", "x", mine))) == {"n0"}
    return scene


def test_a_guest_takes_no_gpu_of_a_bound_cell_where_another_is_as_near() -> None:
    scene = scene_with(owning((SWITCH, 1)))
    (one,) = scene.places(guest("one", 1))
    assert (one.node, one.gpus) == ("n0", (2,)), "not the one that is left in the switch of mine"


def test_a_guest_takes_the_nearest_gpus_also_in_bound_cells() -> None:
    scene = scene_with(owning(("rack", 1)))
    for name, node in (("a", "n2"), ("b", "n3")):
        scene.places(guest(name, 3, allowed_nodes=frozenset({node})))
    assert nodes_of(scene.places(guest("one", 1))) == {"n2"}
    assert nodes_of(scene.places(guest("pair", 2))) == {"n1"}


def test_a_guest_that_may_not_be_everywhere_still_goes_outside_of_bound_cells_first() -> None:
    scene = scene_with(owning(("rack", 1)), tuple(racks(3)))
    for name, node in (("a", "n2"), ("b", "n4")):
        scene.places(guest(name, 4, allowed_nodes=frozenset({node})))
    assert nodes_of(scene.places(guest("one", 1, allowed_nodes=frozenset({"n1", "n5"})))) == {"n5"}


def test_pods_of_a_guest_go_to_a_rack_that_holds_them_all_outside_of_bound_cells() -> None:
    scene = scene_with(owning(("rack", 1)))
    scene.places(guest("one", 1))
    assert nodes_of(scene.places(guest("ones", 1, pods=2))) == {"n2"}
    assert nodes_of(scene.places(guest("pairs", 2, pods=2))) == {"n3"}
    assert nodes_of(scene.places(guest("more", 2, pods=2))) == {"n1"}


def test_whole_nodes_of_a_guest_go_outside_of_bound_cells() -> None:
    """A pinned cell is bound for ever."""
    pinned, other = RACKS
    scene = Scene(config((replace(pinned, pin="lab"), other), x=owning(pins=("lab",)), y=owning()))
    assert nodes_of(scene.places(guest("two", 4, pods=2))) == {"n2", "n3"}


def test_a_guest_keeps_off_nodes_on_which_something_is_charged() -> None:
    scene = scene_with(owning(("rack", 1)), RACKS[:1])
    assert nodes_of(scene.places(guest("ones", 1, pods=2))) == {"n1"}
    assert nodes_of(scene.places(guest("one", 1))) == {"n1"}
    assert nodes_of(scene.places(guest("more", 1, pods=2))) == {"n0"}


def test_a_guest_in_several_racks_takes_no_bound_ones_if_others_are_as_few() -> None:
    scene = scene_with(owning(("rack", 1)), tuple(racks(4)))
    assert nodes_of(scene.places(guest("three", 4, pods=3))).isdisjoint({"n0", "n1"})


def test_several_kinds_of_a_guest_go_outside_of_bound_cells_together() -> None:
    scene = scene_with(owning(("rack", 1)))
    scene.places(guest("other", 1))
    first, second = guest("a", 2).roles[0], guest("b", 1).roles[0]
    roles = (first, Role(second.kind, ("p1",)))
    both = guest("both", 2)
    assert nodes_of(scene.places(Gang(both.id, "y", "user", -1, roles))) <= {"n2", "n3"}


def test_a_small_gang_breaks_no_whole_node_of_a_new_cell_where_a_broken_one_has_room() -> None:
    scene = Scene(config(x=owning(("rack", 2)), y=owning()))
    scene.places(guest("other", 3, allowed_nodes=frozenset({"n2"})))
    (one,) = scene.places(gang("one", "x", 1))
    assert (one.node, one.gpus) == ("n2", (3,))


def a_broken_node_among_cells_of_others() -> Scene:
    """``z`` has n0 of a rack; n1 beside it, and n5 of a rack that is free, are used in part."""
    owners = {"x": owning(("rack", 1)), "z": owning(("rack/node", 2)), "y": owning()}
    scene = Scene(config(tuple(racks(3)), **owners))
    scene.places(gang("theirs", "z", 4))
    for name, node in (("a", "n1"), ("b", "n5")):
        scene.places(guest(name, 3, allowed_nodes=frozenset({node})))
    return scene


def test_a_small_gang_finds_the_broken_node_among_cells_that_others_have() -> None:
    scene = a_broken_node_among_cells_of_others()
    (one,) = scene.places(gang("one", "x", 1))
    assert (one.node, one.gpus) == ("n5", (3,))


def test_a_type_of_gpu_that_there_is_not_is_passed_over() -> None:
    scene = Scene(config(x=owning(("rack", 1))))
    wish = gang("guest", "x", 4, pods=2, priority=-1, gpu_types=("h100", "v100"))
    assert nodes_of(scene.places(wish)) == {"n0", "n1"}


@pytest.mark.parametrize("priority", [0, -1])
def test_pods_without_gpus_leave_a_wholly_free_rack_whole(priority: int) -> None:
    """The other node of the rack in use is as free as those of the free one."""
    limits = {name: NodeLimits(cpu=8) for name in ("n0", "n1", "n2", "n3")}
    scene = Scene(config(nodes=limits, x=owning(("rack", 1)), y=owning(("rack", 1))))
    scene.places(gang("trains", "y", 4, cpu=8, allowed_nodes=frozenset({"n2"})))
    assert nodes_of(scene.places(gang("etl", "y", 0, cpu=1, priority=priority))) == {"n3"}


FILLED = {name: NodeLimits(cpu=64) for name in ("c0", "n0", "n1", "n2", "n3")}
"""One node without GPUs, and four with four."""


@pytest.mark.parametrize("priority", [0, -1])
def test_pods_without_gpus_fill_nodes_without_gpus_before_others(priority: int) -> None:
    scene = Scene(config(nodes=FILLED, x=owning(("rack", 1))))
    found = scene.places(gang("etl", "x", 0, pods=5, cpu=16, priority=priority))
    assert [pod.node for pod in found] == ["c0"] * 4 + ["n0"]
    assert sum(len(pod.charged) for pod in found) == (1 if priority == 0 else 0)


def test_more_of_several_kinds_go_there_before_others() -> None:
    scene = Scene(config(nodes=FILLED, x=owning(("rack", 1))))
    wish = gang("etl", "x", 0, pods=2, cpu=24)
    small = Role(replace(wish.roles[0].kind, cpu=8), ("s0", "s1", "s2"), "s")
    found = scene.places(replace(wish, roles=(*wish.roles, small)))
    assert {pod.pod: pod.node for pod in found} == {
        "p0": "c0",
        "p1": "c0",
        "s0": "c0",
        "s1": "c0",
        "s2": "n0",
    }


def test_a_gang_that_fits_nowhere_else_leaves_no_pod_there() -> None:
    scene = Scene(config(nodes=FILLED, x=owning(("rack", 2))))
    scene.places(gang("trains", "x", 4, pods=4, cpu=64))
    assert not any(isinstance(each, Placed) for each in scene.asks(gang("a", "x", 0, 5, cpu=16)))
    assert nodes_of(scene.places(gang("b", "x", 0, pods=4, cpu=16))) == {"c0"}


def test_pods_without_gpus_beside_others_of_their_gang_stay_together() -> None:
    scene = Scene(config(nodes=FILLED, x=owning(("rack", 1))))
    wish = gang("trains", "x", 1)
    loads = Role(replace(wish.roles[0].kind, gpus=0, cpu=16), tuple("abcde"), "loads")
    found = scene.places(replace(wish, roles=(*wish.roles, loads)))
    assert nodes_of([pod for pod in found if pod.pod != "p0"]) == {"n0", "n1"}


@pytest.mark.parametrize("bad", ["n1", "n3"])
def test_a_rack_with_a_bad_node_is_bound_last(bad: str) -> None:
    """Else its owner could use a part of its quota only."""
    scene = Scene(config(racks(2), x=owning(("rack", 1))))
    scene.core.set_node_health(bad, False)
    small = nodes_of(scene.places(gang("small", "x", 1)))
    large = nodes_of(scene.places(gang("large", "x", 4)))
    assert small | large == ({"n0", "n1"} if bad == "n3" else {"n2", "n3"})


def test_cells_of_nodes_are_bound_in_a_rack_with_a_bad_node_first() -> None:
    """So the other rack stays whole."""
    scene = Scene(config(racks(2), x=owning(("rack/node", 2))))
    scene.core.set_node_health("n3", False)
    assert nodes_of(scene.places(gang("small", "x", 1))) == {"n2"}
