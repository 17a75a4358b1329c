"""A gang that loses nodes keeps its place: other cells are kept in place of those that it lost."""

from collections.abc import Callable

import pytest
from scenes import Scene, config, gang, nodes_of, owning, racks
from scheduler.domain.core.config import REQUEUE_S, Policy
from scheduler.domain.core.model import Decision, Gang, NodeGpus, Placed

GRACE_S = Policy().grace_s
Lose = Callable[[Scene, str, str], None]


def a_scene(quota: int = 4, machines: int = 6) -> Scene:
    """Machines of four GPUs in racks of two, of which a virtual cluster owns some."""
    return Scene(config(racks(machines // 2), x=owning(("rack/node", quota))))


def a_gang(name: str, machines: int, **more: object) -> Gang:
    """One that takes whole machines."""
    return gang(name, "x", 4, pods=machines, **more)


def placed(decisions: list[Decision]) -> list[str]:
    """Who starts."""
    return [each.gang for each in decisions if isinstance(each, Placed)]


def kept(scene: Scene) -> dict[str, tuple[NodeGpus, ...]]:
    """Kept cells by gang."""
    rows = scene.core.rows.reservations()
    return {each.gang: each.cells for each in rows if each.kept_of is not None}


def fails(scene: Scene, name: str, node: str) -> None:
    """The gang's node is bad, and its attempt over."""
    scene.core.set_node_health(node, False)
    scene.core.requeue(name, scene.now + REQUEUE_S)


def loses_pod(scene: Scene, name: str, node: str) -> None:
    """The gang's pod there is lost. A cycle later the attempt is over."""
    (pod,) = (place.pod for place in scene.core.exported(name).places if place.node == node)
    scene.core.release_pod(name, pod, is_lost=True)
    scene.core.set_node_health(node, False)
    assert placed(scene.cycle()) == []
    scene.core.requeue(name, scene.now + REQUEUE_S)


def is_drained(scene: Scene, name: str, node: str) -> None:
    """The gang leaves for a drain, when its grace is over."""
    scene.core.drain(node)
    assert placed(scene.cycle()) == []
    assert placed(scene.cycle(GRACE_S)) == []
    scene.core.requeue(name, scene.now + REQUEUE_S)


@pytest.mark.parametrize("lose", [fails, loses_pod, is_drained])
@pytest.mark.parametrize("machines", [1, 2])
def test_a_smaller_gang_does_not_get_the_quota_of_a_lost_node(lose: Lose, machines: int) -> None:
    scene = a_scene()
    node, *healthy = sorted(nodes_of(scene.places(a_gang("job", machines))))
    scene.asks(a_gang("run", 4 - machines))
    assert placed(scene.asks(a_gang("small", 1))) == []
    lose(scene, "job", node)
    assert placed(scene.cycle()) == []
    again = nodes_of(scene.places(a_gang("again", machines, follows="job")))
    assert again >= set(healthy)
    assert node not in again
    assert kept(scene) == {}


def with_a_loss(lose: Lose) -> Scene:
    """``job`` was on one of four machines, and ``small`` waits for its quota."""
    scene = a_scene()
    scene.places(a_gang("job", 1))
    scene.asks(a_gang("run", 3))
    scene.asks(a_gang("small", 1))
    lose(scene, "job", "n0")
    return scene


@pytest.mark.parametrize("lose", [fails, loses_pod, is_drained])
def test_a_smaller_gang_starts_when_nobody_has_come_back_in_time(lose: Lose) -> None:
    scene = with_a_loss(lose)
    assert placed(scene.cycle()) == []
    assert placed(scene.cycle(REQUEUE_S)) == ["small"]


@pytest.mark.parametrize("lose", [fails, is_drained])
def test_a_gang_that_ends_by_itself_keeps_nothing(lose: Lose) -> None:
    scene = with_a_loss(lose)
    scene.leave("job")
    assert placed(scene.cycle()) == ["small"]


def test_other_cells_are_kept_where_opportunistic_gangs_are() -> None:
    scene = a_scene()
    scene.places(a_gang("job", 1))
    scene.asks(a_gang("run", 3))
    scene.asks(a_gang("guest", 2, priority=-1))
    scene.asks(a_gang("small", 1))
    fails(scene, "job", "n0")
    assert placed(scene.cycle()) == []
    assert kept(scene).keys() == {"job"}
    scene.asks(a_gang("again", 1, follows="job"))
    scene.leave("guest")
    assert placed(scene.cycle()) == ["again"]


def in_racks(count: int) -> Scene:
    """``x`` owns so many of three racks, and gangs without cells are where these are idle."""
    owned = {"y": owning(("rack/node", 6 - 2 * count))} if count < 3 else {}
    return Scene(config(racks(3), x=owning(("rack", count)), **owned))


@pytest.mark.parametrize("lose", [fails, loses_pod, is_drained])
def test_no_other_gang_gets_the_cells_that_an_opportunistic_gang_has_to_leave(lose: Lose) -> None:
    scene = in_racks(2)
    scene.places(a_gang("job", 2))
    scene.places(a_gang("run", 1))
    scene.places(gang("other", "y", 4))
    guest = scene.places(a_gang("guest", 2, priority=-1))
    (free,) = {"n2", "n3"} & nodes_of(guest)
    lose(scene, "job", "n0")
    scene.cycle()
    assert {node for node, _ in kept(scene)["job"]} == {"n1", free}
    assert placed(scene.asks(a_gang("small", 1))) == []
    scene.asks(a_gang("again", 2, follows="job"))
    scene.leave("guest")
    assert placed(scene.cycle()) == ["again"]


def test_gangs_that_are_drained_together_get_different_nodes_beside_their_healthy_ones() -> None:
    scene = in_racks(3)
    for job in ("a", "b"):
        scene.places(a_gang(job, 2))
    scene.places(a_gang("guest", 2, priority=-1))
    for node in ("n0", "n2"):
        scene.core.drain(node)
    scene.cycle()
    first, second = ({node for node, _ in cells} for cells in kept(scene).values())
    assert (first & second, first | second) == (set(), {"n1", "n3", "n4", "n5"})
    assert {"n1"} < first


def test_where_no_other_node_is_left_the_healthy_part_alone_is_kept() -> None:
    scene = a_scene(quota=2, machines=2)
    scene.places(a_gang("job", 2))
    fails(scene, "job", "n0")
    scene.cycle()
    assert [node for node, _ in kept(scene)["job"]] == ["n1"]


def test_gangs_that_lose_their_nodes_together_get_different_ones() -> None:
    scene = a_scene()
    for number in range(4):
        assert nodes_of(scene.places(a_gang(f"job{number}", 1))) == {f"n{number}"}
    for number in range(4):
        fails(scene, f"job{number}", f"n{number}")
    scene.cycle()
    cells = kept(scene)
    assert cells.keys() == {"job0", "job1"}  # two nodes are left
    assert {node for each in cells.values() for node, _ in each} == {"n4", "n5"}


def test_the_next_attempt_goes_before_what_is_reserved_for_a_gang_behind_it() -> None:
    scene = Scene(
        config(racks(2), policy=Policy(order_by=("priority", "age")), x=owning(("rack/node", 4)))
    )
    scene.places(a_gang("job", 2))
    scene.places(a_gang("run", 1))
    assert placed(scene.asks(a_gang("large", 3))) == []  # the fourth node is reserved for it
    fails(scene, "job", "n0")
    assert placed(scene.cycle()) == []
    assert placed(scene.asks(a_gang("again", 2, follows="job"))) == ["again"]


@pytest.mark.parametrize("lose", [fails, loses_pod, is_drained])
def test_another_configuration_keeps_the_chosen_cells(lose: Lose) -> None:
    scene = a_scene()
    scene.places(a_gang("job", 2))
    lose(scene, "job", "n0")
    scene.cycle()
    before = kept(scene)
    scene.core.change(config(racks(3), x=owning(("rack/node", 5))), scene.now)
    scene.cycle()
    assert kept(scene) == before
